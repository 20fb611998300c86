//! Right answers, odd names, renamed repositories: everything arrives, once.

use super::*;

// class: names
#[test]
fn empty_files_nested_folders_blanks_and_foreign_letters_in_names_are_no_trouble() {
    let repo =
        repo(&[("weights/one file.bin", 70_000), ("überblick 概要/ü ß+&#%41?.bin", 5_000), ("a/b/c/d/e.bin", 1)])
            .file(FileSpec::plain("leer.txt", ""))
            .file(FileSpec::lfs("empty.bin", Content::generated(1, 0)))
            .file(FileSpec::plain("docs/ein %20 name.md", "text\n"));
    let scene = Scene::of(repo);
    scene.arrives_without_a_wrong_byte();
    assert_eq!(
        scene.hub.matching(Match::any()).iter().filter(|seen| seen.file.as_deref() == Some("leer.txt")).count(),
        0
    );
}

// class: credentials
#[test]
fn a_renamed_repository_is_followed() {
    let repo = repo(&[("a.bin", 50_000)]).file(FileSpec::plain("config.json", "{}\n")).renamed_from("old/name");
    let scene = Scene::of(repo);
    scene.hub.require_token(TOKEN);
    scene.world.args(["pull", "old/name"]).env("HF_TOKEN", TOKEN).run().expect_code(0);
    let bytes = std::fs::read(scene.world.model("old/name").join("a.bin")).unwrap();
    assert_eq!(sha256_hex(bytes), scene.repo.get("a.bin").sha256());
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
}

// class: ranges
#[test]
fn one_large_file_is_fetched_by_all_connections_and_split_at_the_tail() {
    // Large enough that what is left of a part can be split whenever the next connection asks, and so slow from
    // the beginning that a split is worth its while.
    let scene = Scene::of(repo(&[("big.bin", 136 * MIB + 17)]));
    // Nobody gets far before all are there.
    scene.hub.hold_after(MIB);
    scene.hub.pace(4 * MIB);
    let child = scene.world.args(["pull", "org/model", "--connections", "8"]).spawn();
    wait_until("eight connections", SOON, || scene.hub.open_connections(Origin::Cdn) >= 8);
    scene.hub.release();
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    let reads = scene.reads_of("big.bin");
    assert!(reads.iter().all(|seen| seen.status == 206 && seen.range.is_some()));
    let carried = |seen: &&Recorded| seen.body_bytes_sent > MIB;
    let connections: BTreeSet<_> = reads.iter().filter(carried).map(|seen| seen.connection).collect();
    assert!(connections.len() >= 8, "{reads:#?}");
    assert!(scene.hub.peak_connections(Origin::Cdn) >= 8);
    assert!(scene.hub.bytes_sent_for("big.bin") < 144 * MIB, "{}", scene.hub.bytes_sent_for("big.bin"));
    assert_eq!(scene.hub.resolves_of("big.bin"), 1);
}

#[test]
fn where_the_next_file_lies_is_asked_while_the_one_before_comes_and_once() {
    let scene = Scene::of(repo(&[("a.bin", 9 * MIB), ("b.bin", 8 * MIB), ("c.bin", 7 * MIB)]));
    scene.hub.hold_after(6 * MIB);
    let child = scene.world.args(["pull", "org/model", "--connections", "1"]).spawn();
    wait_until("the second question", SOON, || scene.hub.resolves_of("b.bin") == 1);
    assert_eq!((scene.reads_of("a.bin").len(), scene.reads_of("b.bin").len()), (1, 0), "a.bin is on its way");
    scene.hub.release();
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    for file in ["a.bin", "b.bin", "c.bin"] {
        assert_eq!(scene.hub.resolves_of(file), 1, "{file}");
    }
}

// class: words
#[test]
fn notices_of_the_hub_are_told_once_a_topic_and_cannot_steer_a_terminal() {
    let scene = Scene::of(repo(&[("a.bin", 5000), ("b.bin", 5000), ("c.bin", 5000)]));
    let notice = |text: &str| Behaviour::set_header("X-HF-Warning", text);
    let said = "deprecated; this endpoint goes away, see https://hub.example/why?token=hidden";
    scene.hub.always(Match::hub("/resolve/"), notice(said));
    scene.hub.on(Match::tree()).then(notice("steer; \u{9b}31m red"));
    scene.hub.always(Match::cdn(""), notice("storage; not yours to say"));
    let out = scene.pull().run().expect_code(0);
    scene.assert_complete();
    assert_eq!(out.stderr.matches("this endpoint goes away").count(), 1, "{out}");
    assert!(out.stderr.contains("topic=deprecated") && out.stderr.contains("https://hub.example/why?…"), "{out}");
    assert!(!out.stderr.contains('\u{9b}') && !out.all().contains("hidden"), "{out}");
    assert!(!out.all().contains("not yours to say"), "the storage is not the Hub: {out}");
    assert_eq!(out.stdout.trim(), scene.directory().display().to_string(), "stdout is the result alone");
}

// class: names
#[test]
fn files_of_no_byte_and_of_one_are_files_and_no_empty_range_is_asked_for() {
    let scene = Scene::of(
        repo(&[("empty.bin", 0), ("one.bin", 1)])
            .file(FileSpec::plain("__init__.py", ""))
            .file(FileSpec::plain("one.txt", "x")),
    );
    scene.arrives_without_a_wrong_byte();
    let seen = scene.hub.requests();
    let about = |path: &str| seen.iter().filter(|one| one.file.as_deref() == Some(path)).count();
    assert_eq!((about("empty.bin"), about("__init__.py")), (0, 0));
    let ranges: Vec<_> = seen.iter().filter_map(|one| one.range).collect();
    assert_eq!(ranges, [(0, Some(0)), (0, Some(0))]);
    scene.world.args(["gate", "org/model", "--full", "--no-remember"]).run().expect_code(0);
}

// class: gate, revision
#[test]
fn an_index_that_names_shards_nobody_has_makes_nobody_ask_for_them() {
    let index =
        r#"{ "weight_map": { "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors" } }"#;
    let scene = Scene::of(
        repo(&[("weights.safetensors", 90_000)]).file(FileSpec::plain("model.safetensors.index.json", index)),
    );
    scene.arrives_without_a_wrong_byte();
    assert!(!scene.hub.requests().iter().any(|seen| seen.path.contains("of-00002")), "the manifest decides");
    let out = scene.world.args(["gate", "org/model"]).run().expect_code(12);
    assert!(out.stdout.contains("the index names model-00001-of-00002.safetensors and 1 more"), "{out}");
}
