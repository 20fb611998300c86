//! Bundles that a signer never made, or should not have made: each is refused (12), with a sentence of its
//! own, and the launcher does not run. They are made from a real one; where the content is another, it is
//! signed again by the right key, so that nothing but the content is wrong.

use std::fs;
use std::path::Path;

use muster::core::oms::key::PrivateKey;
use serde_json::{Value, json};
use sigstore_types::{PayloadBytes, SignatureBytes, pae};

use crate::site::{Site, bundle_of, statement_of};
use crate::support::*;
use crate::{CONFIG, SHARD};

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// What is put in place of the signature, and what has to be said about it.
enum Instead {
    /// The envelope or what is around it is changed.
    Around(fn(&mut Value)),
    /// What was signed is changed and signed again; the digest over all is made to fit.
    Within(fn(&mut Value)),
    /// The same, and the digest over all stays as it is changed.
    Raw(fn(&mut Value)),
    /// Another file altogether.
    File(fn(&Site) -> Vec<u8>),
}
use Instead::{Around, File, Raw, Within};

fn envelope(bundle: &mut Value) -> &mut Value {
    &mut bundle["dsseEnvelope"]
}

fn resources(statement: &mut Value) -> &mut Vec<Value> {
    statement["predicate"]["resources"].as_array_mut().unwrap()
}

fn named<'a>(statement: &'a mut Value, name: &str) -> &'a mut Value {
    resources(statement).iter_mut().find(|resource| resource["name"] == name).unwrap()
}

fn rename(statement: &mut Value, from: &str, to: &str) {
    named(statement, from)["name"] = json!(to);
    resources(statement).sort_by_key(|resource| resource["name"].as_str().unwrap().to_owned());
}

fn drop_resource(statement: &mut Value, name: &str) {
    resources(statement).retain(|resource| resource["name"] != name);
}

fn flip(bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let mut bytes = bytes;
    bytes[at] ^= 1;
    bytes
}

fn sig_of(bundle: &Value) -> Vec<u8> {
    SignatureBytes::from_base64(bundle["dsseEnvelope"]["signatures"][0]["sig"].as_str().unwrap()).unwrap().into_bytes()
}

fn set_sig(bundle: &mut Value, sig: Vec<u8>) {
    envelope(bundle)["signatures"][0]["sig"] = json!(SignatureBytes::new(sig).to_base64());
}

const AROUND: &[(&str, Instead, &str)] = &[
    ("nothing", File(|_| Vec::new()), "the signature is empty"),
    ("blanks", File(|_| b" \n\n".to_vec()), "the signature is empty"),
    ("text", File(|_| b"signed, honestly".to_vec()), "no JSON"),
    ("a list", File(|_| b"[]".to_vec()), "an object is expected"),
    ("half", File(|site| halved(&fs::read(site.signature()).unwrap())), "no JSON"),
    ("too deep", File(|_| [vec![b'['; 100_000], vec![b']'; 100_000]].concat()), "no JSON"),
    ("other media type", Around(|b| b["mediaType"] = json!("application/json")), "of media type `application/json`"),
    (
        "media type of old",
        Around(|b| b["mediaType"] = json!("application/vnd.dev.sigstore.bundle+json;version=0.1")),
        "version=0.1`",
    ),
    ("no media type", Around(|b| drop(b.as_object_mut().unwrap().remove("mediaType"))), "of media type ``"),
    ("no material", Around(|b| drop(b.as_object_mut().unwrap().remove("verificationMaterial"))), "by which key"),
    ("empty material", Around(|b| b["verificationMaterial"] = json!({})), "by which key"),
    ("hint is a number", Around(|b| b["verificationMaterial"]["publicKey"]["hint"] = json!(7)), "by which key"),
    (
        "a certificate",
        Around(|b| b["verificationMaterial"] = json!({"x509CertificateChain": {"certificates": []}})),
        "signed with a certificate",
    ),
    (
        "sigstore",
        Around(|b| b["verificationMaterial"] = json!({"certificate": {"rawBytes": "AA=="}, "tlogEntries": []})),
        "signed with a certificate",
    ),
    (
        "hint of another key",
        Around(|b| b["verificationMaterial"]["publicKey"]["hint"] = json!("ab".repeat(32))),
        "signed by the key abababababab…",
    ),
    ("hint of no key", Around(|b| b["verificationMaterial"]["publicKey"]["hint"] = json!("boss")), "the key `boss`"),
    ("no envelope", Around(|b| drop(b.as_object_mut().unwrap().remove("dsseEnvelope"))), "no envelope"),
    ("envelope is a text", Around(|b| b["dsseEnvelope"] = json!("x")), "no envelope"),
    (
        "message signature",
        Around(|b| {
            b.as_object_mut().unwrap().remove("dsseEnvelope");
            b["messageSignature"] = json!({"signature": "AA=="});
        }),
        "no envelope",
    ),
    ("no signature", Around(|b| envelope(b)["signatures"] = json!([])), "has 0 signatures"),
    (
        "signatures absent",
        Around(|b| drop(envelope(b).as_object_mut().unwrap().remove("signatures"))),
        "has 0 signatures",
    ),
    (
        "two signatures",
        Around(|b| {
            let one = envelope(b)["signatures"][0].clone();
            envelope(b)["signatures"].as_array_mut().unwrap().push(one);
        }),
        "has 2 signatures",
    ),
    ("keyid of another", Around(|b| envelope(b)["signatures"][0]["keyid"] = json!("other")), "names the key `other`"),
    ("payload type", Around(|b| envelope(b)["payloadType"] = json!("application/json")), "of type `application/json`"),
    ("payload is a number", Around(|b| envelope(b)["payload"] = json!(7)), "the signature is no bundle"),
    ("payload is no base64", Around(|b| envelope(b)["payload"] = json!("!!")), "the signature is no bundle"),
    ("payload is empty", Around(|b| envelope(b)["payload"] = json!("")), "not this key's signature"),
    (
        "one bit of the payload",
        Around(|b| {
            let payload = PayloadBytes::from_base64(envelope(b)["payload"].as_str().unwrap()).unwrap().into_bytes();
            envelope(b)["payload"] = json!(PayloadBytes::new(flip(payload, 300)).to_base64());
        }),
        "not this key's signature",
    ),
    (
        "one bit of the signature",
        Around(|b| {
            let sig = sig_of(b);
            let last = sig.len() - 1;
            set_sig(b, flip(sig, last));
        }),
        "not this key's signature",
    ),
    ("signature in another form", Around(|b| set_sig(b, vec![7; 64])), "no ECDSA signature"),
    (
        "signature cut short",
        Around(|b| {
            let mut sig = sig_of(b);
            sig.pop();
            set_sig(b, sig);
        }),
        "no ECDSA signature",
    ),
    ("signature is empty", Around(|b| set_sig(b, Vec::new())), "no ECDSA signature"),
    ("signature of zeros", Around(|b| set_sig(b, vec![0x30, 6, 2, 1, 0, 2, 1, 0])), "no ECDSA signature"),
];

const WITHIN: &[(&str, Instead, &str)] = &[
    (
        "other statement",
        Within(|s| s["_type"] = json!("https://in-toto.io/Statement/v0.1")),
        "of kind `https://in-toto.io/Statement/v0.1`",
    ),
    (
        "other predicate",
        Within(|s| s["predicateType"] = json!("https://slsa.dev/provenance/v1")),
        "says `https://slsa.dev/provenance/v1`",
    ),
    (
        "predicate of old",
        Within(|s| s["predicateType"] = json!("https://model_signing/Digests/v0.1")),
        "says `https://model_signing/Digests/v0.1`",
    ),
    ("no predicate", Within(|s| s["predicate"] = Value::Null), "no statement about a model"),
    ("a list", Raw(|s| *s = json!([])), "no statement about a model"),
    ("no subject", Raw(|s| s["subject"] = json!([])), "has 0 subjects"),
    (
        "two subjects",
        Raw(|s| {
            let one = s["subject"][0].clone();
            s["subject"].as_array_mut().unwrap().push(one);
        }),
        "has 2 subjects",
    ),
    ("no digest over all", Raw(|s| s["subject"][0]["digest"] = json!({})), "no SHA-256 over all"),
    (
        "other digest over all",
        Raw(|s| s["subject"][0]["digest"]["sha256"] = json!("ab".repeat(32))),
        "contradicts itself: sha256 abababababab…",
    ),
    (
        "a digest without the one over all",
        Raw(|s| named(s, SHARD)["digest"] = json!("cd".repeat(32))),
        "contradicts itself",
    ),
    ("shards", Within(|s| s["predicate"]["serialization"]["method"] = json!("shards")), "only whole files"),
    ("other method", Within(|s| s["predicate"]["serialization"]["method"] = json!("tar")), "by a method `tar`"),
    ("other hash", Within(|s| s["predicate"]["serialization"]["hash_type"] = json!("blake3")), "digests by `blake3`"),
    ("other hash of one file", Within(|s| named(s, SHARD)["algorithm"] = json!("md5")), "has a digest by `md5`"),
    (
        "no serialization",
        Within(|s| drop(s["predicate"].as_object_mut().unwrap().remove("serialization"))),
        "no statement about a model",
    ),
    ("no file", Within(|s| resources(s).clear()), "lists no file"),
    (
        "digest of another length",
        Raw(|s| named(s, SHARD)["digest"] = json!("ab")),
        "the digest of model-00002-of-000003.safetensors is no SHA-256",
    ),
    (
        "other bytes",
        Within(|s| named(s, SHARD)["digest"] = json!("cd".repeat(32))),
        "model-00002-of-000003.safetensors: sha256 cdcdcdcdcdcd… was signed",
    ),
    (
        "other bytes of a small file",
        Within(|s| named(s, CONFIG)["digest"] = json!("cd".repeat(32))),
        "config.json: sha256 cdcdcdcdcdcd… was signed",
    ),
    (
        "a file less",
        Within(|s| drop_resource(s, SHARD)),
        "model-00002-of-000003.safetensors: it is not in the signature",
    ),
    (
        "a file more",
        Within(|s| {
            let mut one = named(s, SHARD).clone();
            one["name"] = json!("ö.bin");
            resources(s).push(one);
        }),
        "ö.bin: it is in the signature, and no file of the model",
    ),
    (
        "a file twice",
        Within(|s| {
            let one = resources(s)[0].clone();
            resources(s).insert(0, one);
        }),
        "twice",
    ),
    (
        "a file twice with other bytes",
        Within(|s| {
            let mut one = resources(s)[0].clone();
            one["digest"] = json!("cd".repeat(32));
            resources(s).insert(1, one);
        }),
        "twice",
    ),
    (
        "two files swapped",
        Within(|s| {
            let (a, b) = (named(s, SHARD)["digest"].clone(), named(s, CONFIG)["digest"].clone());
            named(s, SHARD)["digest"] = b;
            named(s, CONFIG)["digest"] = a;
        }),
        "was signed",
    ),
    (
        "a file renamed",
        Within(|s| rename(s, SHARD, "model-00002-of-000003.Safetensors")),
        "model-00002-of-000003.Safetensors: it is in the signature, and no file",
    ),
    ("a path upwards", Within(|s| rename(s, SHARD, "../model.bin")), "a name that no file may have"),
    ("a path upwards inside", Within(|s| rename(s, SHARD, "a/../model.bin")), "a name that no file may have"),
    ("an absolute path", Within(|s| rename(s, SHARD, "/etc/passwd")), "a name that no file may have"),
    (
        "a path with a dot",
        Within(|s| rename(s, SHARD, "./model-00002-of-000003.safetensors")),
        "a name that no file may have",
    ),
    (
        "a path with an end",
        Within(|s| rename(s, SHARD, "model-00002-of-000003.safetensors/")),
        "a name that no file may have",
    ),
    (
        "a file of ours",
        Within(|s| rename(s, SHARD, ".muster/receipt.json")),
        "lists .muster/receipt.json, which changes",
    ),
    ("out of order", Within(|s| resources(s).reverse()), "out of order"),
    (
        "a shard is ignored",
        Within(|s| {
            drop_resource(s, SHARD);
            s["predicate"]["serialization"]["ignore_paths"].as_array_mut().unwrap().push(json!(SHARD));
        }),
        "ignores `model-00002-of-000003.safetensors` on purpose",
    ),
    (
        "a folder is ignored",
        Within(|s| {
            drop_resource(s, "onnx/config.json");
            s["predicate"]["serialization"]["ignore_paths"].as_array_mut().unwrap().push(json!("onnx"));
        }),
        "onnx/config.json: it is not in the signature, which ignores `onnx` on purpose",
    ),
    (
        "everything is ignored",
        Within(|s| s["predicate"]["serialization"]["ignore_paths"] = json!(["."])),
        "ignores `.`",
    ),
    (
        "a pattern is ignored",
        Within(|s| s["predicate"]["serialization"]["ignore_paths"] = json!(["*.py"])),
        "ignores `*.py`",
    ),
    (
        "a path upwards is ignored",
        Within(|s| s["predicate"]["serialization"]["ignore_paths"] = json!(["../x"])),
        "ignores `../x`",
    ),
    (
        "an absolute path is ignored",
        Within(|s| s["predicate"]["serialization"]["ignore_paths"] = json!(["/etc"])),
        "ignores `/etc`",
    ),
    (
        "nothing is ignored as a text",
        Within(|s| s["predicate"]["serialization"]["ignore_paths"] = json!("x")),
        "no statement about a model",
    ),
];

fn halved(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len() / 2].to_vec()
}

/// Makes the digest over all fit the files that are listed.
fn fit(statement: &mut Value) {
    let Some(resources) = statement["predicate"]["resources"].as_array() else { return };
    let digest = |resource: &Value| resource["digest"].as_str().map(str::to_owned).unwrap_or_default();
    let hex: String = resources.iter().map(digest).collect();
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let raw: Vec<u8> = (0..hex.len()).step_by(2).map(pair).collect();
    statement["subject"][0]["digest"]["sha256"] = json!(sha256_hex(raw));
}

/// The bundle with another content, signed by `key`.
fn signed(bundle: &Value, statement: &Value, key: &PrivateKey) -> Value {
    let payload = statement.to_string().into_bytes();
    let mut bundle = bundle.clone();
    set_sig(&mut bundle, key.sign(&pae(PAYLOAD_TYPE, &payload)));
    envelope(&mut bundle)["payload"] = json!(PayloadBytes::new(payload).to_base64());
    bundle
}

fn apply(site: &Site, real: &Value, key: &PrivateKey, instead: &Instead) -> Vec<u8> {
    let mut bundle = real.clone();
    let mut statement = statement_of(real);
    match instead {
        File(make) => return make(site),
        Around(change) => change(&mut bundle),
        Within(change) => {
            change(&mut statement);
            fit(&mut statement);
            bundle = signed(real, &statement, key);
        }
        Raw(change) => {
            change(&mut statement);
            bundle = signed(real, &statement, key);
        }
    }
    assert_ne!(&bundle, real);
    bundle.to_string().into_bytes()
}

fn refuse_all(cases: &[(&str, Instead, &str)], by_package: bool) {
    let site = Site::pulled();
    if by_package {
        let own = site.path(".muster");
        assert_eq!(site.package_signs(&["--ignore-paths", own.to_str().unwrap()]).0, Some(0));
    } else {
        site.sign().expect_code(0);
    }
    let real = bundle_of(&site);
    let key = PrivateKey::parse(&fs::read_to_string(&site.key).unwrap()).unwrap();
    // What is changed is the reason, not how it is made here.
    fs::write(site.signature(), signed(&real, &statement_of(&real), &key).to_string()).unwrap();
    site.gate().expect_code(0);
    for (what, instead, told) in cases {
        fs::write(site.signature(), real.to_string()).unwrap();
        let spoilt = apply(&site, &real, &key, instead);
        fs::write(site.signature(), spoilt).unwrap();
        // That the launcher did not run is seen to by the gate's own mark.
        let closed = site.gate();
        assert_eq!(closed.code, Some(12), "{what}: {closed}");
        assert!(closed.stdout.contains(told), "{what}: `{told}` is not said: {closed}");
    }
    fs::write(site.signature(), real.to_string()).unwrap();
    site.gate().expect_code(0);
}

#[test]
fn an_envelope_that_was_changed_is_refused_with_its_own_sentence() {
    refuse_all(AROUND, false);
}

#[test]
fn an_envelope_of_the_package_that_was_changed_is_refused_with_its_own_sentence() {
    refuse_all(AROUND, true);
}

#[test]
fn content_that_is_not_this_model_is_refused_even_if_the_right_key_signed_it() {
    refuse_all(WITHIN, false);
}

#[test]
fn every_mutation_is_told_in_words_of_its_own_kind() {
    let mut names: Vec<_> = AROUND.iter().chain(WITHIN).map(|(name, ..)| name).collect();
    assert!(names.len() >= 70, "{}", names.len());
    names.sort();
    names.dedup();
    // "a list" is one around and one within.
    assert_eq!(names.len(), AROUND.len() + WITHIN.len() - 1);
}

#[test]
fn another_key_and_another_curve_are_refused() {
    let site = Site::signed();
    let real = bundle_of(&site);
    for curve in ["p256", "p384", "p521"] {
        let name = format!("other-{curve}");
        site.world.args(["keygen", &name, "--curve", curve]).run().expect_code(0);
        let public = format!("{name}.pub");
        let closed = site.gate_with(&["--require-signature", "--key", &public]).expect_code(12);
        assert!(closed.stdout.contains("it was signed by the key "), "{closed}");
        // Without its name, the signature alone has to tell; and with the name of the right key, too.
        let key = PrivateKey::parse(&fs::read_to_string(site.world.home().join(&name)).unwrap()).unwrap();
        for is_named in [false, true] {
            let mut bundle = signed(&real, &statement_of(&real), &key);
            if !is_named {
                bundle["verificationMaterial"] = json!({"publicKey": {"rawBytes": "AA=="}});
            }
            fs::write(site.signature(), bundle.to_string()).unwrap();
            let closed = site.gate().expect_code(12);
            assert!(closed.stdout.contains("signature"), "{closed}");
        }
        fs::write(site.signature(), real.to_string()).unwrap();
        site.gate().expect_code(0);
    }
}

#[test]
fn what_the_specification_wants_accepted_is_accepted() {
    let site = Site::signed();
    let real = bundle_of(&site);
    let key = PrivateKey::parse(&fs::read_to_string(&site.key).unwrap()).unwrap();
    let around: [fn(&mut Value); 6] = [
        |b| envelope(b)["signatures"][0]["keyid"] = Value::Null,
        |b| envelope(b)["signatures"][0]["keyid"] = json!(""),
        |b| drop(envelope(b)["signatures"][0].as_object_mut().unwrap().remove("keyid")),
        |b| {
            b["verificationMaterial"] =
                json!({"publicKey": {"rawBytes": "AA==", "keyDetails": "PKIX_ECDSA_P256_SHA_256"}});
        },
        |b| b["verificationMaterial"]["tlogEntries"] = json!([]),
        |b| b["verificationMaterial"]["publicKey"]["unknown"] = json!(1),
    ];
    for change in around {
        let mut bundle = real.clone();
        change(&mut bundle);
        fs::write(site.signature(), bundle.to_string()).unwrap();
        site.gate().expect_code(0);
    }
    let within: [fn(&mut Value); 5] = [
        |s| s["subject"][0]["name"] = json!("model"),
        |s| drop(s["predicate"]["serialization"].as_object_mut().unwrap().remove("ignore_paths")),
        |s| named(s, SHARD)["digest"] = json!(named(s, SHARD)["digest"].as_str().unwrap().to_uppercase()),
        |s| named(s, SHARD)["uri"] = json!("https://example.invalid/"),
        |s| s["predicate"]["serialization"]["allow_symlinks"] = json!(true),
    ];
    for change in within {
        let mut statement = statement_of(&real);
        change(&mut statement);
        fs::write(site.signature(), signed(&real, &statement, &key).to_string()).unwrap();
        site.gate().expect_code(0);
    }
}

#[test]
fn a_file_that_is_too_large_to_be_a_signature_is_not_read() {
    let site = Site::signed();
    let file = fs::File::options().write(true).open(site.signature()).unwrap();
    file.set_len(1 << 40).unwrap();
    let closed = site.gate().expect_code(12);
    assert!(closed.stdout.contains("is larger than"), "{closed}");
    // Signing again gets it out of the way.
    site.sign().expect_code(0);
    site.gate().expect_code(0);
    let others: [fn(&Path); 2] = [|at| fs::create_dir(at).unwrap(), |at| std::os::unix::fs::symlink("k", at).unwrap()];
    for make in others {
        fs::remove_file(site.signature()).unwrap();
        make(&site.signature());
        let closed = site.gate().expect_code(12);
        assert!(closed.stdout.contains("could not be read"), "{closed}");
        let _one = fs::remove_dir(site.signature());
        let _other = fs::remove_file(site.signature());
        fs::write(site.signature(), "x").unwrap();
    }
}
