//! The listing: digests, sizes, names and pages that cannot be believed, and revisions that move meanwhile.

use super::*;

const SHA1: &str = "0123456789abcdef0123456789abcdef01234567";
const SHA256: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A scene whose tree is this JSON.
fn listed(json: &str) -> Scene {
    let scene = Scene::of(repo(&[("a.bin", 1000)]));
    scene.hub.always(Match::tree(), Behaviour::Answer(Reply::status(200).body("application/json", json)));
    scene
}

fn lfs(inner: &str) -> String {
    format!(r#"{{"type":"file","path":"a.bin","size":1000,"oid":"{SHA1}","lfs":{{{inner}}}}}"#)
}

// class: credentials, wrong-bytes
#[test]
fn an_entry_without_a_size_or_digest_that_can_be_believed_is_refused_and_named() {
    let masked = "*".repeat(64);
    let file = |rest: &str| format!(r#"{{"type":"file","path":"a.bin"{rest}}}"#);
    for (entry, words) in [
        (file(&format!(r#","size":5,"oid":"{}""#, "*".repeat(40))), "restricted"),
        (lfs(&format!(r#""oid":"{masked}","size":1000"#)), "restricted"),
        (lfs(r#""size":1000"#), "it has no digest"),
        (file(r#","size":5"#), "it has no digest"),
        (file(r#","size":5,"oid":null"#), "it has no digest"),
        (lfs(r#""oid":"12ab","size":1000"#), "malformed"),
        (lfs(&format!(r#""oid":"{}","size":1000"#, SHA256.replace('0', "g"))), "malformed"),
        (file(&format!(r#","size":5,"oid":"{SHA256}""#)), "malformed"),
        (lfs(&format!(r#""oid":"{SHA256}","size":999"#)), "two sizes"),
        (lfs(&format!(r#""oid":"{SHA256}","sha256":"{}""#, "1".repeat(64))), "two digests"),
        (file(&format!(r#","oid":"{SHA1}""#)), "it has no size"),
        (file(&format!(r#","size":-1,"oid":"{SHA1}""#)), "it has no size"),
        (file(&format!(r#","size":1e30,"oid":"{SHA1}""#)), "it has no size"),
        (format!(r#"{{"type":"file","size":5,"oid":"{SHA1}"}}"#), "it has no path"),
    ] {
        let scene = listed(&format!("[{entry}]"));
        let out = scene.pull().run().expect_code(17);
        assert!(out.stderr.contains(words), "{entry}: {words}\n{out}");
        assert!(!scene.directory().exists() && scene.hub.total_body_bytes() == 0, "{entry}");
    }
}

// class: revision
#[test]
fn a_listing_that_is_no_listing_is_refused() {
    for json in ["", "{}", "null", "[", "[1]", r#"[{"type":"file"}"#, r#"[{"type":7}]"#, "\u{0}", "[[]]"] {
        let scene = listed(json);
        let out = scene.pull().run().expect_code(17);
        assert!(out.stderr.contains("unreadable") && out.stderr.contains(&scene.hub.url()), "{json:?}: {out}");
        assert!(!scene.directory().exists());
    }
    let scene = listed("[]");
    let out = scene.pull().run().expect_code(17);
    assert!(out.stderr.contains("holds no file") && !scene.directory().exists(), "an empty one: {out}");
}

// class: revision, gate
#[test]
fn a_listing_that_is_suddenly_empty_takes_nothing_away() {
    let scene = Scene::of(repo(&[("a.bin", 90_000)]));
    scene.arrives_without_a_wrong_byte();
    scene.hub.push("org/model", "main", |repo| repo.file(FileSpec::lfs("b.bin", Content::generated(1, 1000))));
    scene.hub.always(Match::tree(), Behaviour::Answer(Reply::status(200).body("application/json", "[]")));
    scene.pull().run().expect_code(17);
    scene.assert_in_place("a.bin");
    scene.world.args(["gate", "org/model"]).run().expect_code(0);
}

// class: proxies
#[test]
fn the_digest_is_read_under_the_name_that_mirrors_use() {
    let content = repo(&[("a.bin", 1000)]).get("a.bin").content.clone();
    for inner in [
        format!(r#""sha256":"{}","size":1000"#, content.sha256()),
        format!(r#""oid":"sha256:{}""#, content.sha256().to_uppercase()),
    ] {
        listed(&format!("[{}]", lfs(&inner))).arrives_without_a_wrong_byte();
    }
}

// class: revision
#[test]
fn folders_submodules_and_what_nobody_knows_are_no_files() {
    let scene = Scene::of(repo(&[("a.bin", 1000)]));
    let size = 1000;
    let sha = scene.repo.get("a.bin").sha256().to_owned();
    let odd = |kind: &str| format!(r#"{{"type":"{kind}","path":"x/{kind}","oid":"{SHA1}","size":0}}"#);
    let kinds = ["directory", "submodule", "commit", "unknown", "symlink"].map(odd).join(",");
    let json = format!("[{kinds},{}]", lfs(&format!(r#""oid":"{sha}","size":{size}"#)));
    scene.hub.always(Match::tree(), Behaviour::Answer(Reply::status(200).body("application/json", json)));
    scene.arrives_without_a_wrong_byte();
    assert!(!scene.directory().join("x").exists());
}

/// Sets a trap, with a page that links to an address, and an address of the tree.
type Trap = fn(&Scene, &dyn Fn(&str) -> Behaviour, &dyn Fn(&Scene, &str) -> String);

// class: revision, bounds
#[test]
fn pages_that_repeat_overlap_or_lead_away_are_refused_before_anything_is_written() {
    let spec = RepoSpec::kimi(4, 4096, 8).named("org/model");
    let link = |to: &str| Behaviour::set_header("Link", &format!("<{to}>; rel=\"next\""));
    let tree = |scene: &Scene, query: &str| {
        format!("{}/api/models/org/model/tree/{}?{query}", scene.hub.url(), scene.hub.commit("org/model", "main"))
    };
    let traps: [(&str, Trap); 5] = [
        ("comes again", |scene, link, tree| {
            scene.hub.always(Match::tree(), link(&tree(scene, "recursive=true&expand=false")));
        }),
        ("twice", |scene, link, tree| {
            // The first page under another name.
            scene.hub.on(Match::tree()).then(link(&tree(scene, "recursive=true&other")));
        }),
        ("is empty", |scene, link, tree| {
            let empty = Behaviour::Answer(Reply::status(200).body("application/json", "[]"));
            let next = link(&tree(scene, "recursive=true&more"));
            scene
                .hub
                .on(Match::tree())
                .then(link(&tree(scene, "recursive=true&x")))
                .then(Behaviour::All(vec![empty, next]))
                .always();
        }),
        ("is on", |scene, link, _| scene.hub.always(Match::tree(), link("https://elsewhere.example/next"))),
        ("unreadable", |scene, link, _| scene.hub.always(Match::tree(), link("http://[oh"))),
    ];
    for (words, trap) in traps {
        let scene = Scene::of(spec.clone());
        trap(&scene, &link, &tree);
        let out = scene.pull().run().expect_code(17);
        assert!(out.stderr.contains(words), "{words}: {out}");
        assert!(!scene.directory().exists() && scene.hub.total_body_bytes() == 0, "{words}");
    }
}

// class: bounds, revision
#[test]
fn pages_without_end_write_nothing_and_hold_up_no_stop() {
    let scene = Scene::of(repo(&[("a.bin", 1000)]));
    scene.hub.always(Match::tree(), Behaviour::EndlessPages(500));
    let mut child = scene.pull().spawn();
    wait_until("many pages", SOON, || scene.hub.count(Match::tree()) >= 40);
    child.interrupt();
    child.wait(Duration::from_secs(10)).expect_code(130);
    assert!(!scene.directory().exists() && scene.hub.total_body_bytes() == 0);
}

// class: revision
#[test]
fn pages_that_shrink_and_grow_are_all_read() {
    let spec = RepoSpec::kimi(9, 4096, 21).named("org/model");
    let scene = Scene::of(spec);
    scene.hub.page_size(7);
    scene.hub.on(Match::tree().query("cursor=00000007")).then(Behaviour::DelayHeaders(Duration::from_millis(700)));
    let child = scene.pull().spawn();
    wait_until("the second page", SOON, || scene.hub.count(Match::tree()) == 2);
    scene.hub.page_size(1);
    wait_until("small pages", SOON, || scene.hub.count(Match::tree()) >= 6);
    scene.hub.page_size(1000);
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
}

// class: revision
#[test]
fn a_page_that_fails_for_a_while_is_asked_again_and_no_other() {
    let scene = Scene::of(RepoSpec::kimi(4, 4096, 8).named("org/model"));
    scene.hub.page_size(4);
    scene.hub.on(Match::tree().query("cursor=00000004")).then(Behaviour::status(502)).then(Behaviour::EndEarly(20));
    // A page that was cut in good form is no JSON.
    let out = scene.pull().run();
    if out.code == Some(0) {
        scene.assert_complete();
    } else {
        assert!(out.stderr.contains("unreadable"), "{out}");
        scene.arrives_without_a_wrong_byte();
    }
}

// class: revision
#[test]
fn a_revision_that_moves_meanwhile_changes_nothing_of_a_pull() {
    let scene = Scene::of(repo(&[("a.bin", 200_000), ("b.bin", 300_000)]).file(FileSpec::plain("config.json", "{}\n")));
    let first = scene.hub.commit("org/model", "main");
    scene.hub.on(Match::tree()).then(Behaviour::DelayHeaders(Duration::from_millis(500)));
    scene.hub.hold_after(100_000);
    let child = scene.pull().spawn();
    wait_until("the listing", SOON, || scene.hub.count(Match::tree()) == 1);
    let push = |seed: u64| {
        scene.hub.push("org/model", "main", |repo| {
            repo.file(FileSpec::lfs("a.bin", Content::generated(seed, 200_000)))
                .file(FileSpec::lfs("new.bin", Content::generated(seed, 1000)))
        })
    };
    push(77);
    scene.hub.wait_for_bytes(60_000, SOON);
    push(78);
    scene.hub.release();
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    let of_commit = scene.hub.matching(Match::hub(""));
    let all = of_commit.iter().filter(|seen| !seen.path.contains("/revision/"));
    assert!(all.clone().count() > 3 && all.clone().all(|seen| seen.path.contains(&first)), "{of_commit:#?}");
    assert!(!scene.directory().join("new.bin").exists());
    assert_eq!(scene.hub.count(Match::info()), 1);
    let gate = scene.world.args(["gate", "org/model", "--json"]).run().expect_code(0);
    assert!(gate.stdout.contains(&first), "{gate}");
}

// class: revision
#[test]
fn a_pull_that_was_killed_before_its_branch_moved_brings_one_commit_and_no_mixture() {
    let spec = repo(&[("a.bin", MIB), ("b.bin", MIB)]);
    let scene = Scene::of(spec);
    scene.hub.hold_after(MIB);
    let mut child = scene.pull().spawn();
    scene.hub.wait_for_bytes(MIB / 2, SOON);
    child.kill();
    child.wait(SOON);
    let moved =
        scene.hub.push("org/model", "main", |repo| repo.file(FileSpec::lfs("a.bin", Content::generated(99, MIB))));
    scene.hub.release();
    scene.pull().run().expect_code(0);
    assert_complete(&scene.directory(), &scene.hub.repo("org/model"));
    let gate = scene.world.args(["gate", "org/model", "--full", "--no-remember", "--json"]).run().expect_code(0);
    assert!(gate.stdout.contains(&moved), "{gate}");
}

// class: revision, gate
#[test]
fn a_selection_that_tears_a_set_of_shards_is_flagged_and_the_gate_names_it() {
    let scene = Scene::of(RepoSpec::kimi(4, 4096, 8).named("org/model"));
    let out = scene.pull().arg("--include").arg("*00001-of-*").run().expect_code(0);
    assert!(out.stderr.contains("1 of 4 shards"), "{out}");
    let gate = scene.world.args(["gate", "org/model"]).run().expect_code(0);
    assert!(gate.all().contains("selection"), "{gate}");
    // Whoever takes no shard, or all, hears nothing.
    for include in ["*.json", "*.safetensors"] {
        let scene = Scene::of(RepoSpec::kimi(4, 4096, 8).named("org/model"));
        let out = scene.pull().arg("--include").arg(include).run().expect_code(0);
        assert!(!out.stderr.contains("shards of"), "{include}: {out}");
    }
}
