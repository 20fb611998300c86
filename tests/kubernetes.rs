//! The manifests in `config/kubernetes` and the container they run: valid by the schemas of Kubernetes, with what
//! every pod of theirs needs, and with command lines that this binary takes.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::*;

/// The first with native sidecars, some on the way, and the last that the pinned schemas know.
const VERSIONS: &str = "1.29,1.31,1.34,1.37";
const FILES: [&str; 6] = ["volume.yaml", "policy.yaml", "daemon.yaml", "pull-job.yaml", "vllm.yaml", "node-local.yaml"];
const IMAGE: &str = "muster:0.1.0";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Validates documents, and gives them.
fn validated(files: &[PathBuf]) -> Option<Result<Vec<(String, Value)>, String>> {
    let Some(python) = std::env::var_os("MUSTER_TEST_PYTHON") else {
        skip("MUSTER_TEST_PYTHON names no Python with kubernetes-validate; tests/run installs one");
        return None;
    };
    let mut witness = Command::new(python);
    let out = witness.arg(here("tests/witness/kubernetes.py")).arg(VERSIONS).args(files).output().unwrap();
    if !out.status.success() {
        return Some(Err(String::from_utf8_lossy(&out.stderr).into_owned()));
    }
    let documents: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap();
    let named = |one: &Value| (one["file"].as_str().unwrap().to_owned(), one["document"].clone());
    Some(Ok(documents.iter().map(named).collect()))
}

fn shipped() -> Option<Vec<(String, Value)>> {
    let files = FILES.map(|name| here("config/kubernetes").join(name));
    let there = std::fs::read_dir(here("config/kubernetes")).unwrap().map(|entry| entry.unwrap().path());
    let yaml = there.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    assert_eq!(yaml.count(), FILES.len(), "every manifest is looked at");
    Some(validated(&files)?.unwrap_or_else(|why| panic!("{why}")))
}

/// The pods of the manifests, by file.
fn pods(documents: &[(String, Value)]) -> Vec<(&str, &Value)> {
    let pods = documents.iter().map(|(file, document)| (file.as_str(), &document["spec"]["template"]["spec"]));
    let pods: Vec<_> = pods.filter(|(_, pod)| pod.is_object()).collect();
    assert_eq!(pods.len(), 4);
    pods
}

/// Every container of a pod, the first ones included.
fn containers(pod: &Value) -> Vec<&Value> {
    let of = |key: &str| pod[key].as_array().into_iter().flatten();
    of("initContainers").chain(of("containers")).collect()
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(|word| word.as_str().unwrap()).collect()
}

fn mount<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    container["volumeMounts"].as_array()?.iter().find(|mount| mount["name"] == name)
}

// class: words
#[test]
fn every_manifest_is_valid_by_the_schemas_and_a_wrong_one_is_not() {
    let Some(documents) = shipped() else { return };
    let kinds: Vec<_> = documents.iter().map(|(_, document)| document["kind"].as_str().unwrap()).collect();
    for kind in ["PersistentVolumeClaim", "ConfigMap", "StatefulSet", "Job", "Deployment", "DaemonSet"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(here("config/kubernetes/vllm.yaml")).unwrap();
    for (right, wrong) in [
        ("fsGroupChangePolicy:", "fsGroupChange:"),
        ("replicas: 1", "replicas: one"),
        ("enableServiceLinks: false", "enableServiceLinks: false\n      enableServiceLinks: true"),
    ] {
        assert!(text.contains(right));
        let file = folder.path().join("wrong.yaml");
        std::fs::write(&file, text.replacen(right, wrong, 1)).unwrap();
        assert!(validated(&[file]).unwrap().is_err(), "{wrong} is let through");
    }
}

// class: words
#[test]
fn every_pod_is_as_narrow_as_it_can_be() {
    let Some(documents) = shipped() else { return };
    for (file, pod) in pods(&documents) {
        // A service named muster would become MUSTER_PORT and the like, which no flag may be.
        assert_eq!(pod["enableServiceLinks"], false, "{file}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{file}");
        let security = &pod["securityContext"];
        assert_eq!(security["runAsNonRoot"], true, "{file}");
        assert_eq!(security["fsGroupChangePolicy"], "OnRootMismatch", "{file}");
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{file}");
        for container in containers(pod) {
            let name = format!("{file}: {}", container["name"]);
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(words(&security["capabilities"]["drop"]), ["ALL"], "{name}");
            assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError", "{name}");
            assert!(container["resources"]["limits"].is_object(), "{name}");
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"].map(|key| &container[key]) {
                assert!(probe.is_null() || probe["timeoutSeconds"].as_u64().unwrap() > 1, "{name}: {probe}");
            }
            assert!(mount(container, "token").is_none_or(|mount| mount["readOnly"] == true), "{name}");
            let secret = |one: &&Value| one["name"].as_str().unwrap().contains("TOKEN");
            assert_eq!(
                container["env"].as_array().into_iter().flatten().find(secret),
                None,
                "{name}: a token is a file"
            );
        }
    }
}

// class: words
#[test]
fn one_daemon_owns_the_volume_and_its_probes_wait_for_nothing_but_it() {
    let Some(documents) = shipped() else { return };
    for (file, pod) in
        pods(&documents).into_iter().filter(|(file, _)| ["daemon.yaml", "node-local.yaml"].contains(file))
    {
        let daemon = containers(pod).into_iter().find(|container| container["name"] == "daemon").unwrap();
        let variable = |name: &str| daemon["env"].as_array().unwrap().iter().find(|one| one["name"] == name);
        let socket = variable("MUSTER_SOCKET").unwrap()["value"].as_str().unwrap();
        let run = mount(daemon, "run").unwrap()["mountPath"].as_str().unwrap();
        assert!(socket.starts_with(run), "{file}: a probe looks at no volume that may hang: {socket}");
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert_eq!(words(&daemon[probe]["exec"]["command"]), ["/muster", "daemon", "--check"], "{file}");
        }
        // 20 s to sync and claim, and some to give the volume back.
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 23, "{file}");
        // Long enough for a lease, and for a look at every model.
        let starts = &daemon["startupProbe"];
        assert!(starts["periodSeconds"].as_u64().unwrap() * starts["failureThreshold"].as_u64().unwrap() >= 120);
    }
    let set = documents.iter().find(|(_, document)| document["kind"] == "StatefulSet").unwrap();
    assert_eq!(set.1["spec"]["replicas"], 1);
    let claim = documents.iter().find(|(_, document)| document["kind"] == "PersistentVolumeClaim").unwrap();
    assert_eq!(words(&claim.1["spec"]["accessModes"]), ["ReadWriteMany"]);
    let tries_no_more =
        &documents.iter().find(|(_, document)| document["kind"] == "Job").unwrap().1["spec"]["podFailurePolicy"];
    assert_eq!(tries_no_more["rules"][0]["onExitCodes"]["values"], serde_json::json!([2, 12, 13, 17]));
}

// class: words
#[test]
fn the_launcher_starts_behind_a_gate_and_under_one_that_holds_the_model() {
    let Some(documents) = shipped() else { return };
    let (_, pod) = pods(&documents).into_iter().find(|(file, _)| *file == "vllm.yaml").unwrap();
    let first = pod["initContainers"].as_array().unwrap();
    let [gate, hold] = &first[..] else { panic!("{first:?}") };
    let model = words(&gate["args"])[1];
    assert_eq!(words(&gate["args"]), ["gate", model, "--wait"]);
    assert!(gate["restartPolicy"].is_null(), "it ends before anything else begins");
    assert_eq!(words(&hold["args"]), ["gate", model, "--wait", "--hold"]);
    assert_eq!(hold["restartPolicy"], "Always", "a native sidecar");
    assert_eq!(words(&hold["startupProbe"]["exec"]["command"])[..3], ["/muster", "gate", model]);
    for container in containers(pod) {
        assert_eq!(mount(container, "models").unwrap()["readOnly"], true, "{}", container["name"]);
    }
    let models = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "models").unwrap();
    assert_eq!(models["persistentVolumeClaim"]["readOnly"], true);
    for container in [gate, hold] {
        assert_eq!(mount(container, "policy").unwrap()["readOnly"], true);
        assert_eq!(
            container["env"][1],
            serde_json::json!({ "name": "MUSTER_POLICY", "value": "/etc/muster/policy/policy.toml" })
        );
    }
    let served = format!("/shared/{model}");
    assert_eq!(words(&containers(pod)[2]["args"])[0], served);
    // The rules are the ones that are shipped as a file.
    let map = &documents.iter().find(|(_, document)| document["kind"] == "ConfigMap").unwrap().1;
    let rules = map["data"]["policy.toml"].as_str().unwrap();
    assert_eq!(rules, std::fs::read_to_string(here("config/policy/no-pickle.toml")).unwrap());
}

// class: words
#[test]
fn every_command_of_the_manifests_is_one_that_this_binary_takes() {
    let Some(documents) = shipped() else { return };
    let world = Muster::new("/no/such/volume");
    let mut tried = 0;
    for (file, pod) in pods(&documents) {
        for container in containers(pod).into_iter().filter(|container| container["image"] == IMAGE) {
            let probes = ["startupProbe", "readinessProbe", "livenessProbe"];
            let probes = probes.map(|key| words(&container[key]["exec"]["command"]));
            let mut commands: Vec<_> =
                probes.iter().filter(|probe| !probe.is_empty()).map(|probe| &probe[1..]).collect();
            let args = words(&container["args"]);
            commands.push(&args);
            for command in commands {
                // Whatever it does not know it says before it comes to the help.
                let out = world.args(command.iter().copied().chain(["--help"])).run();
                assert_eq!(out.code, Some(0), "{file}: {command:?}: {out}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 10, "{tried}");
    world.args(["daemon", "--chek", "--help"]).run().expect_code(2);
}

// class: words
#[test]
fn the_container_has_one_binary_on_an_empty_base_and_a_user_without_a_name() {
    let text = std::fs::read_to_string(here("config/container/Containerfile")).unwrap();
    let (_, image) = text.split_once("\nFROM scratch\n").expect("an empty base");
    let lines: Vec<_> = image.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.contains(&"USER 65532:65532") && lines.contains(&r#"ENTRYPOINT ["/muster"]"#), "{image}");
    assert!(!image.contains("RUN") && lines.iter().filter(|line| line.starts_with("COPY")).count() == 1, "{image}");
    assert!(text.contains("--locked --config config/container/static.toml"), "{text}");
    // What is copied into the build is there.
    for line in text.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--")) {
        let names: Vec<_> = line.split(' ').collect();
        assert!(names[..names.len() - 1].iter().all(|name| here(name).exists()), "{line}");
    }
}
