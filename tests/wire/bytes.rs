//! Wrong bytes in right answers: the hash decides, and a file is fetched three times at most.

use super::*;

// class: wrong-bytes
#[test]
fn a_byte_flipped_once_is_set_aside_and_the_file_fetched_again() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 100_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::FlipByte(123_456));
    scene.arrives();
    assert_eq!(scene.reads_of("a.bin").len(), 2);
    let kept = scene.quarantined();
    assert!(kept.iter().any(|path| std::fs::metadata(path).unwrap().len() == 300_000), "{kept:?}");
}

// class: wrong-bytes
#[test]
fn bytes_that_are_always_wrong_end_after_three_fetches_with_both_hashes() {
    let scene = Scene::of(repo(&[("bad.bin", 300_000), ("good.bin", 100_000)]));
    scene.hub.always(Match::cdn("bad.bin").get(), Behaviour::FlipByte(123_456));
    let out = scene.pull().run().expect_code(11);
    let mut wrong = scene.repo.get("bad.bin").content.to_vec();
    wrong[123_456] ^= 0xff;
    for word in ["bad.bin", scene.repo.get("bad.bin").sha256(), &sha256_hex(&wrong)] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert_eq!(scene.reads_of("bad.bin").len(), 3);
    assert!(!scene.directory().join("bad.bin").exists());
    assert!(!scene.directory().join(".muster/receipt.json").exists());
    scene.assert_in_place("good.bin");
}

// class: wrong-bytes
#[test]
fn two_files_of_one_size_that_were_swapped_are_both_found_out() {
    let (one, other) = (Content::generated(1, 300_000), Content::generated(2, 300_000));
    let swapped = |path: &str, bytes: &Content, listed: &Content| {
        FileSpec::lfs(path, bytes.clone()).listed_with_sha256(listed.sha256())
    };
    let files = repo(&[("good.bin", 100_000)]);
    let scene = Scene::of(files.file(swapped("a.bin", &other, &one)).file(swapped("b.bin", &one, &other)));
    let out = scene.pull().run().expect_code(11);
    for (path, hash) in [("a.bin", one.sha256()), ("b.bin", other.sha256())] {
        assert!(out.stderr.contains(path) && out.stderr.contains(hash), "{out}");
        assert!(!scene.directory().join(path).exists());
        assert_eq!(scene.reads_of(path).len(), 3);
    }
    scene.assert_in_place("good.bin");
    assert!(!scene.directory().join(".muster/receipt.json").exists());
}

// class: wrong-bytes
#[test]
fn small_files_that_git_holds_are_hashed_like_the_large_ones() {
    let files = ["config.json", "tokenizer.json", "model.safetensors.index.json"];
    let spec = files.iter().fold(repo(&[("model.safetensors", 50_000)]), |spec, path| {
        spec.file(FileSpec::plain(path, "{ \"weight_map\": {} }\n"))
    });
    let scene = Scene::of(spec);
    for file in files {
        scene.hub.on(Match::plain(file).get()).then(Behaviour::FlipByte(5));
    }
    scene.arrives();
    assert_eq!(scene.quarantined().iter().filter(|path| path.metadata().unwrap().len() == 21).count(), 3);
    scene.world.args(["remove", "org/model"]).run().expect_code(0);
    scene.hub.forget();
    scene.hub.always(Match::plain("config.json").get(), Behaviour::FlipByte(5));
    let out = scene.pull().run().expect_code(11);
    assert!(out.stderr.contains("config.json"), "{out}");
    assert!(!scene.directory().join("config.json").exists());
}

// class: wrong-bytes
#[test]
fn a_digest_that_no_bytes_have_is_told_with_both_hashes() {
    let never = "ab".repeat(32);
    let bad = FileSpec::lfs("bad.bin", Content::generated(1, 90_000)).listed_with_sha256(&never);
    let scene = Scene::of(repo(&[("good.bin", 100_000)]).file(bad.clone()));
    let out = scene.pull().run().expect_code(11);
    for word in ["bad.bin", &never, bad.content.sha256(), "hint:"] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert_eq!(scene.reads_of("bad.bin").len(), 3);
    scene.assert_in_place("good.bin");
}

// class: wrong-bytes, proxies
#[test]
fn an_origin_that_is_wrong_for_ever_is_left_for_a_mirror_that_is_right() {
    let spec = repo(&[("a.bin", 300_000), ("b.bin", 200_000)]).file(FileSpec::plain("config.json", "{}\n"));
    let scene = Scene::of(spec.clone());
    scene.hub.always(Match::cdn("a.bin").get(), Behaviour::FlipByte(200_000));
    let out = scene.pull().run().expect_code(11);
    assert!(out.stderr.contains("another endpoint"), "{out}");
    let mirror = Hub::start(spec);
    scene.hub.forget();
    let out = scene.pull().arg("--endpoint").arg(mirror.url()).run().expect_code(0);
    scene.assert_complete();
    assert_eq!(scene.hub.requests().len(), 0, "the wrong one is asked for nothing: {out}");
    let again: Vec<_> =
        mirror.requests().into_iter().filter_map(|seen| seen.file.filter(|_| seen.method == "GET")).collect();
    assert_eq!(again, ["a.bin"], "what was right stays");
    scene.world.args(["gate", "org/model", "--full", "--no-remember"]).run().expect_code(0);
}

// class: wrong-bytes, revision
#[test]
fn a_pointer_in_place_of_a_file_is_named_as_one() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 300_000), ("c.bin", 300_000)]));
    let in_chunks = Behaviour::All(vec![Behaviour::PointerBody, Behaviour::Chunked]);
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::PointerBody);
    scene.hub.on(Match::cdn("b.bin").get()).then(in_chunks);
    // As a server that takes the pointer for the file answers a range.
    let pointer = scene.repo.get("c.bin").pointer();
    let reply = Reply::status(206).header("Content-Range", &format!("bytes 0-{}/{}", pointer.len() - 1, pointer.len()));
    scene.hub.on(Match::cdn("c.bin").get()).then(Behaviour::Answer(reply.body("text/plain", pointer)));
    let out = scene.arrives_without_a_wrong_byte();
    for file in ["a.bin", "b.bin", "c.bin"] {
        let named = |line: &str| line.contains(file) && line.contains("Git LFS pointer came in place of the file");
        assert!(out.stderr.lines().any(named), "{file}: {out}");
    }
}
