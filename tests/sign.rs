//! Signatures through the real binary: made and checked by muster, and by the `model-signing` package.
//!
//! The package is installed by `tests/run`; without it the tests with that witness fail: a test that
//! did not run did not pass.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "sign/mutations.rs"]
mod mutations;
#[path = "sign/site.rs"]
mod site;
mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use site::{Site, bundle_of, repo, statement_of, witness};
use support::*;

const GATE_SCHEMA: &str = include_str!("../src/api/schema/gate.v1.json");
const SIGN_SCHEMA: &str = include_str!("../src/api/schema/sign.v1.json");
const KEYGEN_SCHEMA: &str = include_str!("../src/api/schema/keygen.v1.json");
const SHARD: &str = "model-00002-of-000003.safetensors";
const CONFIG: &str = "config.json";

#[test]
fn a_pair_of_keys_is_made_for_each_curve_and_never_replaces_a_file() {
    let world = Muster::new("/no/such/volume");
    for curve in ["p256", "p384", "p521"] {
        let made = world.args(["keygen", curve, "--curve", curve, "--json"]).run().expect_code(0).json();
        assert_valid(KEYGEN_SCHEMA, &made);
        let private = Path::new(made["private_key"].as_str().unwrap());
        assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o7777, 0o600);
        let public = fs::read(made["public_key"].as_str().unwrap()).unwrap();
        assert_eq!(
            made["key"].as_str().unwrap(),
            sha256_hex(&public),
            "the name of a key is the hash of its public half"
        );
        assert!(fs::read_to_string(private).unwrap().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        let before = fs::read(private).unwrap();
        let again = world.args(["keygen", curve]).run().expect_code(2);
        assert!(again.stderr.contains("is there already"), "{again}");
        assert_eq!(fs::read(private).unwrap(), before);
        // The other half alone stands in the way as well, and then nothing is made.
        fs::remove_file(private).unwrap();
        world.args(["keygen", curve]).run().expect_code(2);
        assert!(!private.exists());
    }
    let told = world.args(["keygen"]).run().expect_code(0);
    assert!(told.stdout.contains("muster.key.pub") && told.stderr.contains("hint: muster sign"), "{told}");
    world.args(["keygen", "nowhere/key"]).run().expect_code(18);
    world.args(["keygen", "k", "--curve", "p224"]).run().expect_code(2);
}

#[test]
fn what_is_no_private_key_is_refused_before_anything_is_read_or_fetched() {
    let site = Site::pulled();
    let at = |name: &str, text: &str, mode: u32| {
        let path = site.world.home().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let private = fs::read_to_string(&site.key).unwrap();
    let secret = private.lines().nth(1).unwrap().to_owned();
    let rsa = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    // secp256k1 and Ed25519, whole.
    let koblitz = "-----BEGIN PRIVATE KEY-----\nMIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQgAAAAAAAAAAAAAAAAAAAA\n\
        AAAAAAAAAAAAAAAAAAEjRWehRANCAATUdkRTms7D2l4+z1/ohjxiipyX6LcenqkW\nem9Pg8A8MhM9cl9keFARPe6tbPjfoiBD10uBQzxEXQcJLC7ZdRye\n\
        -----END PRIVATE KEY-----\n";
    let edwards = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n\
        -----END PRIVATE KEY-----\n";
    let cases = [
        (site.world.home().join("none"), "cannot be read"),
        (site.world.home().to_owned(), "no regular file"),
        (at("loose", &private, 0o644), "open to others (mode 0644)"),
        (at("shared", &private, 0o660), "open to others (mode 0660)"),
        (at("public", &fs::read_to_string(&site.public).unwrap(), 0o600), "the private key is needed"),
        (at("text", "a key", 0o600), "no key in PEM form"),
        (at("empty", "", 0o600), "no key in PEM form"),
        (at("rsa", rsa, 0o600), "RSA PRIVATE KEY"),
        (at("locked", locked, 0o600), "encrypted"),
        (at("koblitz", koblitz, 0o600), "its curve is 1.3.132.0.10"),
        (at("edwards", edwards, 0o600), "1.3.101.112"),
        (at("cut", &private.replace(&secret, &secret[4..]), 0o600), "not usable"),
        (at("huge", &"x".repeat(70_000), 0o600), "larger than a key"),
    ];
    site.hub.forget();
    for (path, told) in cases {
        for verb in [&["sign", "org/model", "--key"][..], &["pull", "org/model", "--sign-key"]] {
            let out = site.world.args(verb).arg(&path).run().expect_code(2);
            assert!(out.stderr.contains(told), "{told}: {out}");
            assert!(!out.all().contains(&secret), "{out}");
        }
    }
    assert_eq!(site.hub.requests().len(), 0);
    let out = site.world.args(["sign", "org/model"]).run().expect_code(2);
    assert!(out.stderr.contains("--key FILE is needed"), "{out}");
    assert!(!site.signature().exists());
}

#[test]
fn what_is_no_public_key_keeps_the_gate_from_being_asked() {
    let site = Site::signed();
    let gate = |args: &[&str], told: &str| {
        let out = site.gate_with(args).expect_code(2);
        assert!(out.stderr.contains(told), "{told}: {out}");
    };
    gate(&["--require-signature"], "no key is named");
    gate(&["--key", site.public.to_str().unwrap()], "says nothing without --require-signature");
    gate(&["--require-signature", "--key", site.key.to_str().unwrap()], "the public key is needed");
    gate(&["--require-signature", "--key", "none.pub"], "cannot be read");
    gate(&["--trust-receipt-uid", "0"], "says nothing without --require-signature");
    gate(
        &["--require-signature", "--key", site.public.to_str().unwrap(), "--trust-receipt-uid", "root"],
        "numbers of users",
    );
}

#[test]
fn a_pull_with_a_key_leaves_a_signature_that_opens_the_gate_and_another_pull_leaves_it_alone() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["keygen", "k"]).run().expect_code(0);
    let site = Site::of(hub, world);
    site.world.args(["pull", "org/model", "--sign-key", "k"]).run().expect_code(0);
    let open = site.gate().expect_code(0);
    assert!(open.stderr.contains("signed by key "), "{open}");
    let json = site.gate_json();
    assert_eq!(json["signed_by"].as_str().unwrap(), sha256_hex(fs::read(&site.public).unwrap()));
    assert_eq!(json["files"]["hashed"], json["files"]["total"], "no receipt is believed");
    let bundle = fs::read(site.signature()).unwrap();
    let before = fs::metadata(site.signature()).unwrap();
    site.world.args(["pull", "org/model", "--sign-key", "k"]).run().expect_code(0);
    assert_eq!(fs::metadata(site.signature()).unwrap().ino(), before.ino());
    // A directory that was complete before there was a key is signed as well.
    fs::remove_file(site.signature()).unwrap();
    site.gate().expect_code(12);
    site.hub.forget();
    site.world.args(["pull", "org/model"]).env("MUSTER_SIGN_KEY", "k").run().expect_code(0);
    assert_eq!(fs::read(site.signature()).unwrap(), bundle, "the same key signs the same bytes");
    assert_eq!(site.hub.matching(Match::cdn("safetensors")).len(), 0);
    site.gate().expect_code(0);
}

#[test]
fn the_daemon_signs_with_its_key_and_no_log_or_state_has_anything_of_it() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["keygen", "k", "--curve", "p384"]).run().expect_code(0);
    let site = Site::of(hub, world);
    let mut daemon = site.world.args(["daemon", "--sign-key", "k", "--log", "trace"]).spawn();
    daemon.wait_for_text("owns", site::SOON);
    site.world.args(["pull", "org/model"]).run().expect_code(0);
    site.gate().expect_code(0);
    daemon.terminate();
    let out = daemon.wait(site::SOON);
    assert!(out.stderr.contains("signed"), "{out}");
    let private = fs::read_to_string(&site.key).unwrap();
    for line in private.lines().filter(|line| !line.starts_with("-----")) {
        assert!(!out.all().contains(line));
        assert!(!contains_below(site.world.volume(), line.as_bytes()), "on the volume");
    }
}

#[test]
fn a_pull_with_a_key_signs_what_a_daemon_without_one_has_fetched() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["keygen", "k"]).run().expect_code(0);
    let site = Site::of(hub, world);
    let mut daemon = site.world.args(["daemon"]).spawn();
    daemon.wait_for_text("owns", site::SOON);
    let pulled = site.world.args(["pull", "org/model", "--sign-key", "k"]).run().expect_code(0);
    assert!(pulled.stderr.contains("does the work"), "{pulled}");
    assert!(pulled.stderr.contains("signed: "), "{pulled}");
    site.gate().expect_code(0);
    daemon.terminate();
    daemon.wait(site::SOON);
}

#[test]
fn a_signature_never_stays_beside_another_commit() {
    let site = Site::signed();
    let old = fs::read(site.signature()).unwrap();
    site.hub.push("org/model", "main", |repo| repo.plain(CONFIG, "{\"new\": true}"));
    // By the signer's choice, whoever pulls has no key.
    site.world.args(["pull", "org/model"]).run().expect_code(0);
    assert!(!site.signature().exists());
    assert_eq!(fs::read(site.signature().with_file_name("model.previous.sig")).unwrap(), old);
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains("there is none"), "{closed}");
    site.sign().expect_code(0);
    site.gate().expect_code(0);
    // And by a pull with a key it is replaced in the same breath.
    site.hub.push("org/model", "main", |repo| repo.plain(CONFIG, "{\"newer\": true}"));
    site.world.args(["pull", "org/model", "--sign-key", "k"]).run().expect_code(0);
    site.gate().expect_code(0);
    // The old one, put back by hand, is told apart from the new.
    fs::write(site.signature(), old).unwrap();
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains("config.json: sha256"), "{closed}");
}

#[test]
fn only_a_verified_model_is_signed() {
    let site = Site::pulled();
    flip_byte(&site.path(SHARD), 5000);
    let out = site.sign().expect_code(11);
    assert!(out.stderr.contains("not signed (11)") && out.stderr.contains(SHARD), "{out}");
    fs::remove_file(site.path(SHARD)).unwrap();
    site.sign().expect_code(10);
    fs::remove_file(site.path(".muster/receipt.json")).unwrap();
    site.sign().expect_code(10);
    assert!(!site.signature().exists());
    let out = site.world.args(["sign", "org/none", "--key", "k"]).run().expect_code(13);
    assert!(out.stderr.contains("org/none"), "{out}");
}

#[test]
fn signing_reads_no_large_file_that_did_not_change() {
    let size = 32 << 20;
    let hub = Hub::start(RepoSpec::new("org/model").lfs("large.bin", Content::generated(3, size)));
    let world = Muster::on(&hub);
    world.args(["keygen", "k"]).run().expect_code(0);
    world.args(["pull", "org/model"]).run().expect_code(0);
    // A shell has read what its children have read.
    let counted = r#""$@" || exit; cat /proc/$$/io"#;
    let muster = env!("CARGO_BIN_EXE_muster");
    let line = ["-c", counted, "sh", muster, "sign", "org/model", "--key", "k", "--quiet"];
    let read = || {
        let out = world.program("sh", line).run().expect_code(0);
        let count = out.stdout.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
        count.parse::<u64>().unwrap()
    };
    let signing = read();
    assert!(signing < size / 4, "{signing} bytes were read");
    let path = world.model("org/model").join("large.bin");
    fs::copy(&path, world.home().join("copy")).unwrap();
    fs::rename(world.home().join("copy"), path).unwrap();
    let hashing = read();
    assert!(hashing >= size, "of another file, {hashing} bytes were read");
}

#[test]
fn a_signature_is_of_the_files_digests_and_the_same_when_they_are_hashed_again() {
    let site = Site::pulled();
    let out = site.world.args(["sign", "org/model", "--key", "k", "--json"]).run().expect_code(0);
    assert!(!out.stderr.contains("hashing"), "{out}");
    assert_valid(SIGN_SCHEMA, &out.json());
    let statement = statement_of(&bundle_of(&site));
    for resource in statement["predicate"]["resources"].as_array().unwrap() {
        let name = resource["name"].as_str().unwrap();
        assert_eq!(resource["digest"].as_str().unwrap(), repo().get(name).sha256(), "{name}");
    }
    // With the identities gone it hashes, and then signs the same.
    let before = fs::read(site.signature()).unwrap();
    let copy = fs::read(site.path(SHARD)).unwrap();
    fs::remove_file(site.path(SHARD)).unwrap();
    fs::write(site.path(SHARD), copy).unwrap();
    let out = site.sign().expect_code(0);
    assert!(out.stderr.contains("hashing 1 file") && out.stdout.contains("signed before"), "{out}");
    assert_eq!(fs::read(site.signature()).unwrap(), before);
}

#[test]
fn an_edit_after_the_signature_is_refused_and_signing_again_covers_it() {
    let site = Site::signed();
    fs::write(site.path(CONFIG), "{\"edited\": 1}").unwrap();
    site.world.args(["accept", "org/model", CONFIG, "--reason", "no FP8 here"]).run().expect_code(0);
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains("changed here on purpose after it was signed"), "{closed}");
    assert!(closed.stderr.contains("muster sign org/model --key"), "{closed}");
    // A service does not put its name under what somebody wrote into the record of edits.
    let pulled = site.world.args(["pull", "org/model", "--sign-key", "k"]).run().expect_code(0);
    site.gate().expect_code(12);
    drop(pulled);
    let signed = site.sign().expect_code(0);
    assert!(signed.stdout.contains("1 file changed here on purpose: config.json"), "{signed}");
    site.gate().expect_code(0);
    let undone = site.world.args(["accept", "org/model", "--undo", CONFIG]).run().expect_code(0);
    drop(undone);
    site.gate().expect_code(12);
}

#[test]
fn a_manifest_id_is_a_proof_without_keys() {
    let site = Site::pulled();
    let id = site.world.args(["gate", "org/model", "--json"]).run().expect_code(0).json()["manifest_id"].clone();
    let id = id.as_str().unwrap();
    site.gate_with(&["--full", "--manifest-id", id]).expect_code(0);
    let other = id.chars().rev().collect::<String>();
    let closed = site.gate_with(&["--full", "--manifest-id", &other]).expect_code(12);
    assert!(closed.stdout.contains("was demanded"), "{closed}");
}

#[test]
fn a_forged_receipt_does_not_help_who_has_no_key() {
    let site = Site::signed();
    let us = rustix::process::getuid().as_raw().to_string();
    // Other bytes of the same length, and a receipt that says they were verified.
    for (file, at) in [(SHARD, 5000), (CONFIG, 0)] {
        let right = fs::read(site.path(file)).unwrap();
        flip_byte(&site.path(file), at);
        site.forge_receipt(file, None);
        site.world.args(["gate", "org/model", "--no-remember", "--structure=off"]).run().expect_code(0);
        let closed = site.gate().expect_code(12);
        assert!(closed.stdout.contains(&format!("closed (12): {file}: ")), "{closed}");
        assert!(closed.stdout.contains("signed"), "{closed}");
        // The wrong user's receipt helps no more than none.
        let closed = site.gate_trusting("4242").expect_code(12);
        assert!(closed.stdout.contains(file), "{closed}");
        // Whoever is named is believed: that is what naming means.
        site.gate_trusting_lax(&us).expect_code(0);
        // Also where it says another SHA-256 of a small file than the signature.
        if file == CONFIG {
            site.forge_receipt(file, Some(&"ab".repeat(32)));
            let closed = site.gate_trusting_lax(&us).expect_code(12);
            assert!(closed.stdout.contains("abababababab… is here"), "{closed}");
        }
        fs::write(site.path(file), right).unwrap();
        site.world.args(["verify", "org/model"]).run().expect_code(0);
    }
    site.gate().expect_code(0);
}

#[test]
fn a_forged_manifest_does_not_help_either() {
    let site = Site::signed();
    flip_byte(&site.path(SHARD), 5000);
    let wrong = sha256_hex(fs::read(site.path(SHARD)).unwrap());
    let right = repo().get(SHARD).sha256().to_owned();
    for name in [".muster/manifest.json", ".muster/receipt.json"] {
        let text = fs::read_to_string(site.path(name)).unwrap().replace(&right, &wrong);
        fs::write(site.path(name), text).unwrap();
    }
    site.reseal();
    site.world.args(["verify", "org/model", "--structure=off"]).run().expect_code(0);
    site.gate_with(&["--structure=off"]).expect_code(0);
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains(&format!("{SHARD}: sha256 {}… was signed", &right[..12])), "{closed}");
}

#[test]
fn only_the_receipt_of_a_named_user_that_nobody_else_may_write_saves_the_hashing() {
    let site = Site::signed();
    let receipt = site.path(".muster/receipt.json");
    let us = rustix::process::getuid().as_raw();
    let hashed = |uids: &str| site.gate_json_trusting(uids)["files"]["hashed"].as_u64().unwrap();
    let all = site.gate_json()["files"]["total"].as_u64().unwrap();
    assert_eq!(hashed(&us.to_string()), 0);
    assert_eq!(hashed(&format!("4242,{us}")), 0);
    assert_eq!(hashed("4242"), all);
    fs::set_permissions(&receipt, fs::Permissions::from_mode(0o664)).unwrap();
    assert_eq!(hashed(&us.to_string()), all, "its group could have written it");
    fs::set_permissions(&receipt, fs::Permissions::from_mode(0o644)).unwrap();
    if chown(&receipt, Some(4242), None).is_err() {
        return skip("only root gives files away");
    }
    assert_eq!(hashed(&us.to_string()), all);
    assert_eq!(hashed("4242"), 0);
    // Memory of earlier gates is no receipt.
    let memory = site.world.home().join("memory");
    for _ in 0..2 {
        let out = site.gate_with(&["--require-signature", "--key", "k.pub", "--remember", memory.to_str().unwrap()]);
        assert!(out.expect_code(0).stderr.contains(&format!("hashing {all} files")));
    }
}

#[test]
fn a_file_that_nobody_signed_keeps_the_gate_closed() {
    let site = Site::signed();
    fs::create_dir_all(site.path("extra/deep")).unwrap();
    site.gate().expect_code(0);
    for name in ["modeling_evil.py", "extra/deep/model.safetensors", ".gitmodules", "sub/.gitattributes"] {
        fs::create_dir_all(site.path(name).parent().unwrap()).unwrap();
        fs::write(site.path(name), "x").unwrap();
        let closed = site.gate().expect_code(12);
        assert!(closed.stdout.contains(&format!("{name}: it is in the directory, and nobody signed it")), "{closed}");
        let signed = site.sign().expect_code(0);
        assert!(signed.stderr.contains(name), "who signs is told: {signed}");
        fs::remove_file(site.path(name)).unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", site.path("link")).unwrap();
    site.gate().expect_code(12);
    fs::remove_file(site.path("link")).unwrap();
    // What the specification leaves to version control.
    fs::create_dir_all(site.path(".git")).unwrap();
    fs::write(site.path(".git/config"), "x").unwrap();
    site.gate().expect_code(0);
    // But not what the manifest has of it.
    fs::write(site.path(".gitattributes"), "other").unwrap();
    site.gate().expect_code(11);
}

#[test]
fn the_package_verifies_what_muster_signs_with_no_option_but_the_key() {
    for curve in ["p256", "p384", "p521"] {
        let site = Site::with_curve(curve);
        site.sign().expect_code(0);
        assert!(site.path(".gitattributes").exists() && site.path(".muster/manifest.json").exists());
        let (code, said) = site.package_verifies(&site.public);
        assert_eq!(code, Some(0), "{curve}: {said}");
        // The witness can say no.
        flip_byte(&site.path(SHARD), 5000);
        let (code, said) = site.package_verifies(&site.public);
        assert!(code != Some(0) && said.contains(SHARD), "{said}");
    }
}

#[test]
fn the_package_verifies_a_directory_that_was_adopted_from_the_official_client() {
    let site = Site::pulled();
    fs::create_dir_all(site.path(".cache/huggingface/download")).unwrap();
    fs::write(site.path(".cache/huggingface/download/config.json.metadata"), "x").unwrap();
    site.sign().expect_code(0);
    assert_eq!(site.package_verifies(&site.public).0, Some(0));
    site.gate().expect_code(0);
}

#[test]
fn muster_takes_what_the_package_signs_with_a_key_and_says_what_is_wrong_with_the_rest() {
    for curve in ["p256", "p384", "p521"] {
        let site = Site::with_curve(curve);
        let own = site.path(".muster");
        let (code, said) = site.package_signs(&["--ignore-paths", own.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        let names: Vec<_> = names_of(&bundle_of(&site));
        assert!(!names.is_sorted(), "it sorts by components, and that is seen: {names:?}");
        site.gate().expect_code(0);
        flip_byte(&site.path(SHARD), 5000);
        site.gate().expect_code(12);
    }
    let site = Site::pulled();
    site.package_signs(&[]);
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains("which changes while the model does not: sign again"), "{closed}");
    // With version control signed, too, it still has to be right.
    let own = site.path(".muster");
    let ignore = ["--ignore-paths", own.to_str().unwrap()];
    site.package_signs(&[&ignore[..], &["--no-ignore-git-paths"]].concat());
    assert!(names_of(&bundle_of(&site)).contains(&".gitattributes".to_owned()));
    site.gate().expect_code(0);
}

#[test]
fn a_key_that_openssl_wrote_signs_in_both_of_its_forms() {
    let site = Site::pulled();
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).current_dir(site.world.home()).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !openssl(&["version"]) {
        return skip("there is no openssl");
    }
    assert!(openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-out", "sec1"]));
    assert!(openssl(&["pkcs8", "-topk8", "-nocrypt", "-in", "sec1", "-out", "pkcs8"]));
    assert!(openssl(&["ec", "-in", "sec1", "-pubout", "-out", "both.pub"]));
    assert!(fs::read_to_string(site.world.home().join("sec1")).unwrap().contains("EC PARAMETERS"));
    for form in ["sec1", "pkcs8"] {
        fs::set_permissions(site.world.home().join(form), fs::Permissions::from_mode(0o600)).unwrap();
        site.world.args(["sign", "org/model", "--key", form]).run().expect_code(0);
        site.gate_with(&["--require-signature", "--key", "both.pub"]).expect_code(0);
        fs::remove_file(site.signature()).unwrap();
    }
    assert!(openssl(&["pkcs8", "-topk8", "-in", "sec1", "-out", "locked", "-passout", "pass:x"]));
    assert!(openssl(&["ec", "-in", "sec1", "-aes128", "-out", "old", "-passout", "pass:x"]));
    for form in ["locked", "old"] {
        fs::set_permissions(site.world.home().join(form), fs::Permissions::from_mode(0o600)).unwrap();
        let out = site.world.args(["sign", "org/model", "--key", form]).run().expect_code(2);
        assert!(out.stderr.contains("encrypted") && out.stderr.contains("openssl pkcs8"), "{out}");
    }
}

#[test]
fn a_gate_in_the_configuration_demands_a_signature_of_every_model() {
    let site = Site::pulled();
    let config = site.world.home().join("muster.toml");
    let public = site.public.display();
    fs::write(&config, format!("[gate]\nrequire_signature = true\nkey = \"{public}\"\n")).unwrap();
    let gate = || site.world.args(["gate", "org/model", "--config"]).arg(&config).run();
    let closed = gate().expect_code(12);
    assert!(closed.stdout.contains("a signature is required, and there is none"), "{closed}");
    site.sign().expect_code(0);
    gate().expect_code(0);
    let by_variables = site.world.args(["gate", "org/model"]).env("MUSTER_REQUIRE_SIGNATURE", "1");
    by_variables.env("MUSTER_GATE_KEY", &site.public).run().expect_code(0);
    site.world.args(["gate", "org/model"]).env("MUSTER_REQUIRE_SIGNATURE", "1").run().expect_code(2);
}

#[test]
fn a_wait_for_a_model_that_is_pulled_and_signed_ends_open() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["keygen", "k"]).run().expect_code(0);
    let site = Site::of(hub, world);
    site.hub.hold_after(20_000);
    let mut pull = site.world.args(["pull", "org/model", "--sign-key", "k"]).spawn();
    wait_until("the directory is there", site::SOON, || site.path(".muster/manifest.json").exists());
    let mut gate = site.world.args(["gate", "org/model", "--require-signature", "--key", "k.pub", "--wait=2m"]).spawn();
    gate.wait_for_text("waiting for", site::SOON);
    site.hub.release();
    pull.wait_for_text("complete", site::SOON);
    gate.wait(site::SOON).expect_code(0);
    pull.wait(site::SOON).expect_code(0);
}

fn names_of(bundle: &Value) -> Vec<String> {
    let statement = statement_of(bundle);
    let resources = statement["predicate"]["resources"].as_array().unwrap();
    resources.iter().map(|resource| resource["name"].as_str().unwrap().to_owned()).collect()
}

fn contains_below(folder: &Path, needle: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return contains_below(&path, needle);
        }
        fs::read(&path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    })
}

#[test]
fn the_witness_is_the_pinned_one() {
    let python = witness("MUSTER_TEST_PYTHON");
    let script = "import importlib.metadata as m; print(m.version('model-signing'))";
    let out = Command::new(python).args(["-c", script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "1.1.1");
}
