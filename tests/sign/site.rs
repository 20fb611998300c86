//! A world with a model, a pair of keys, and both programs that sign and verify.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use muster::core::manifest::Manifest;
use serde_json::{Value, json};
use sigstore_types::PayloadBytes;

use crate::GATE_SCHEMA;
use crate::support::*;

pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Of the Hub's shape; `onnx.json` and `onnx/` sort differently by text and by components.
pub(crate) fn repo() -> RepoSpec {
    let repo = RepoSpec::kimi(3, 65536, 8).named("org/model");
    repo.plain("onnx.json", "{}").plain("onnx/config.json", "{\"a\": 1}").plain("é/ü.txt", "text")
}

pub(crate) struct Site {
    pub(crate) hub: Hub,
    pub(crate) world: Muster,
    pub(crate) key: PathBuf,
    pub(crate) public: PathBuf,
}

impl Site {
    /// Over a world that has the keys `k` and `k.pub`.
    pub(crate) fn of(hub: Hub, world: Muster) -> Self {
        let (key, public) = (world.home().join("k"), world.home().join("k.pub"));
        Self { hub, world, key, public }
    }

    pub(crate) fn with_curve(curve: &str) -> Self {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub);
        world.args(["keygen", "k", "--curve", curve]).run().expect_code(0);
        world.args(["pull", "org/model"]).run().expect_code(0);
        Self::of(hub, world)
    }

    /// Complete, not signed.
    pub(crate) fn pulled() -> Self {
        Self::with_curve("p256")
    }

    pub(crate) fn signed() -> Self {
        let site = Self::pulled();
        site.sign().expect_code(0);
        site
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.world.model("org/model").join(file)
    }

    pub(crate) fn signature(&self) -> PathBuf {
        self.path(".muster/model.sig")
    }

    pub(crate) fn sign(&self) -> Output {
        self.world.args(["sign", "org/model", "--key", "k"]).run()
    }

    /// The verdict under these flags, with a launcher that leaves a mark: it ran exactly when the gate was
    /// open.
    #[track_caller]
    pub(crate) fn gate_with(&self, flags: &[&str]) -> Output {
        let mark = self.world.home().join("mark");
        let no_memory: &[&str] = if flags.contains(&"--remember") { &[] } else { &["--no-remember"] };
        let args = ["gate", "org/model"].iter().chain(no_memory).chain(flags).chain(&["--", "touch"]);
        let out = self.world.args(args).arg(&mark).run();
        assert_eq!(mark.exists(), out.code == Some(0), "{out}");
        let _absent = fs::remove_file(&mark);
        out
    }

    #[track_caller]
    pub(crate) fn gate(&self) -> Output {
        self.gate_with(&["--require-signature", "--key", "k.pub"])
    }

    #[track_caller]
    pub(crate) fn gate_trusting(&self, uids: &str) -> Output {
        self.gate_with(&["--require-signature", "--key", "k.pub", "--trust-receipt-uid", uids])
    }

    /// The same, where spoilt weights are not looked into.
    #[track_caller]
    pub(crate) fn gate_trusting_lax(&self, uids: &str) -> Output {
        let demand = ["--require-signature", "--key", "k.pub", "--trust-receipt-uid", uids];
        self.gate_with(&[&demand[..], &["--structure=off"]].concat())
    }

    pub(crate) fn gate_json(&self) -> Value {
        self.gate_json_trusting("")
    }

    pub(crate) fn gate_json_trusting(&self, uids: &str) -> Value {
        let args = ["gate", "org/model", "--no-remember", "--json", "--require-signature", "--key", "k.pub"];
        let json = self.world.args(args).arg("--trust-receipt-uid").arg(uids).run().json();
        assert_valid(GATE_SCHEMA, &json);
        json
    }

    /// Has the receipt vouch for a file as it is now; with another SHA-256 beside the manifest's digest, if
    /// one is given.
    pub(crate) fn forge_receipt(&self, file: &str, sha256: Option<&str>) {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(self.path(file)).unwrap();
        let place = self.path(".muster/receipt.json");
        let mut receipt: Value = serde_json::from_slice(&fs::read(&place).unwrap()).unwrap();
        let records = receipt["files"].as_array_mut().unwrap();
        let record = records.iter_mut().find(|record| record["path"] == file).unwrap();
        let ns = |seconds: i64, nanos: i64| seconds * 1_000_000_000 + nanos;
        let identity = &mut record["identity"];
        identity["inode"] = json!(metadata.ino());
        identity["mtime_ns"] = json!(ns(metadata.mtime(), metadata.mtime_nsec()));
        identity["ctime_ns"] = json!(ns(metadata.ctime(), metadata.ctime_nsec()));
        if let Some(sha256) = sha256 {
            record["sha256"] = json!(sha256);
        }
        fs::write(&place, receipt.to_string()).unwrap();
    }

    /// Gives a manifest that was tampered with its right id, as any forger can.
    pub(crate) fn reseal(&self) {
        let place = self.path(".muster/manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&place).unwrap()).unwrap();
        if let Some(map) = manifest.as_object_mut() {
            map.remove("id");
        }
        let manifest = Manifest::from_json(manifest.to_string().as_bytes()).unwrap();
        fs::write(&place, manifest.to_json()).unwrap();
        fs::remove_file(self.path(".muster/receipt.json")).unwrap();
    }

    pub(crate) fn package_verifies(&self, public: &Path) -> (Option<i32>, String) {
        let (signature, directory) = (self.signature(), self.world.model("org/model"));
        let mut command = self.package("verify");
        command.arg("--signature").arg(signature).arg("--public_key").arg(public).arg(directory);
        said(&mut command)
    }

    pub(crate) fn package_signs(&self, options: &[&str]) -> (Option<i32>, String) {
        let (signature, directory) = (self.signature(), self.world.model("org/model"));
        let mut command = self.package("sign");
        command.arg("--signature").arg(signature).arg("--private_key").arg(&self.key).args(options).arg(directory);
        said(&mut command)
    }

    fn package(&self, verb: &str) -> Command {
        let mut command = Command::new(witness("MUSTER_TEST_PYTHON"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8").env("HOME", self.world.home());
        command.args(["-m", "model_signing", verb, "key"]);
        command
    }
}

#[track_caller]
pub(crate) fn witness(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run tests/run"));
    assert!(Path::new(&path).exists(), "{variable} names nothing: run tests/run");
    path.into()
}

/// The stored bundle.
pub(crate) fn bundle_of(site: &Site) -> Value {
    serde_json::from_slice(&fs::read(site.signature()).unwrap()).unwrap()
}

/// What a bundle says.
pub(crate) fn statement_of(bundle: &Value) -> Value {
    let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    serde_json::from_slice(PayloadBytes::from_base64(payload).unwrap().as_bytes()).unwrap()
}

fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}
