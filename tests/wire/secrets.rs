//! Where a token goes, and where redirects lead: never to another origin, however it is spelled.

use super::*;

// class: credentials
#[test]
fn a_repository_behind_a_token_arrives_and_no_secret_leaves_its_origin_or_is_written_down() {
    let scene = Scene::of(RepoSpec::kimi(5, 128 * KIB, 21));
    scene.hub.require_token(TOKEN);
    scene.hub.page_size(4);
    scene.hub.on(Match::cdn("model-00002")).then(Behaviour::ResetAfter(10_000)).then(Behaviour::status(503));
    scene.hub.on(Match::cdn("model-00003")).then(Behaviour::xml_403("AccessDenied", "Request has expired"));
    let loud = scene.world.args(["pull", &scene.repo.id, "--connections", "2", "--log", "trace"]);
    let mut child = loud.env("HF_TOKEN", TOKEN).spawn();
    let id = child.id();
    let title = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    assert!(!holds(&title, TOKEN));
    assert!(child.is_running());
    let out = child.wait(Duration::from_secs(60)).expect_code(0);
    scene.assert_complete();
    assert!(scene.hub.count(Match::tree()) > 4, "several pages");
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
    assert!(scene.hub.matching(Match::hub("")).iter().all(|seen| seen.header("authorization").is_some()));
    for file in scene.repo.files() {
        let most = if file.path.contains("model-00003") { 2 } else { 1 };
        assert!(scene.hub.resolves_of(&file.path) <= most, "{} was resolved too often", file.path);
    }
    assert_eq!(scene.hub.count(Match::hub("/resolve/").with_range()), 0, "no range is asked of the resolver");
    let queries: Vec<_> = scene.hub.matching(Match::cdn("").get()).into_iter().map(|seen| seen.query).collect();
    let signatures: BTreeSet<_> = queries
        .iter()
        .filter_map(|query| query.split('&').find_map(|pair| pair.strip_prefix("Signature=")).map(str::to_owned))
        .collect();
    assert!(signatures.len() >= 5, "{queries:?}");
    for secret in signatures.iter().map(String::as_str).chain([TOKEN]) {
        assert!(!out.all().contains(secret), "a secret was printed: {out}");
        for file in files_under(scene.world.home()) {
            assert!(!holds(&std::fs::read(&file).unwrap(), secret), "a secret is in {}", file.display());
        }
    }
}

// class: credentials
#[test]
fn a_redirect_of_the_resolver_to_another_port_never_carries_the_token() {
    let scene = Scene::of(repo(&[("a.bin", 50_000)]).file(FileSpec::plain("config.json", "{}\n")));
    scene.hub.require_token(TOKEN);
    for file in ["a.bin", "config.json"] {
        scene.hub.on(Match::resolve(file).head()).then(Behaviour::RedirectToOtherPort);
    }
    scene.pull().env("HF_TOKEN", TOKEN).run().expect_code(0);
    scene.assert_complete();
    assert!(scene.hub.count(Match::cdn("/resolve/")) >= 2, "it was followed");
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
}

// class: proxies
#[test]
fn a_redirect_of_the_storage_to_another_port_is_followed_with_the_range() {
    let scene = Scene::of(repo(&[("a.bin", 300_000)])).hasty();
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(100_000));
    let child = scene.pull().spawn();
    wait_until("the first request", SOON, || scene.hub.count(Match::cdn("a.bin").get()) == 1);
    let first = scene.hub.matching(Match::cdn("a.bin").get()).remove(0);
    let port = scene.hub.address(Origin::Cdn).port();
    let location = format!("http://localhost:{port}{}?{}", first.path, first.query);
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::Redirect { status: 307, location });
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    let reads = scene.hub.matching(Match::cdn("a.bin").get());
    assert_eq!(reads.iter().map(|seen| seen.status).collect::<Vec<_>>(), [206, 307, 206]);
    assert_eq!(reads[2].range.map(|range| range.0), reads[1].range.map(|range| range.0));
    assert_eq!(reads[2].header("host"), Some(format!("localhost:{port}").as_str()));
    assert!(reads[2].range.unwrap().0 >= 90_000, "it goes on where it was: {:?}", reads[2]);
}

/// The token is asked for, and a plain file leads somewhere else on the same server.
fn led_to(location: impl Fn(&str, &Hub) -> String) -> (Scene, Output) {
    let scene = Scene::of(repo(&[("a.bin", 50_000)]).file(FileSpec::plain("config.json", "{}\n")));
    // Who comes without a token sees it, too: what is looked at is whether one comes along.
    scene.hub.know_token(TOKEN);
    let commit = scene.hub.commit("org/model", "main");
    let (path, etag) = ("api/resolve-cache/models/org/model", scene.repo.get("config.json").etag().to_owned());
    let target = format!("/{path}/{commit}/config.json?x=&etag=%22{etag}%22");
    let location = location(&target, &scene.hub);
    scene.hub.always(Match::resolve("config.json").head(), Behaviour::Redirect { status: 307, location });
    let out = scene.pull().env("HF_TOKEN", TOKEN).env("MUSTER_RETRY_FOR", "2s").run();
    (scene, out)
}

fn bearers_at_the_end(scene: &Scene) -> Vec<bool> {
    let seen = scene.hub.matching(Match::plain("config.json"));
    seen.iter().map(|one| one.header("authorization").is_some()).collect()
}

// class: credentials
#[test]
fn other_spellings_of_the_same_server_are_the_same_and_keep_the_token() {
    let spellings: [fn(&str, u16) -> String; 6] = [
        |target, _| target.to_owned(),
        |target, port| format!("//127.0.0.1:{port}{target}"),
        |target, port| format!("HTTP://127.0.0.1:{port}{target}"),
        |target, port| format!("http://0x7f000001:{port}{target}"),
        |target, port| format!("http://2130706433:{port}{target}#fragment"),
        |target, port| format!("http://somebody:secret@127.0.0.1:{port}{target}"),
    ];
    for spelling in spellings {
        let (scene, out) = led_to(|target, hub| spelling(target, hub.address(Origin::Hub).port()));
        out.expect_code(0);
        scene.assert_complete();
        let shown = spelling("/…", 1);
        assert_eq!(bearers_at_the_end(&scene), [true, true], "{shown}");
        let bearer = format!("Bearer {TOKEN}");
        let seen = scene.hub.matching(Match::plain("config.json"));
        assert!(seen.iter().all(|one| one.header("authorization") == Some(&bearer)), "{shown}: ours, not the URL's");
        assert!(seen.iter().all(|one| one.header("cookie").is_none()), "{shown}");
    }
}

// class: credentials
#[test]
fn names_that_only_lead_to_the_same_server_are_others_and_get_no_token() {
    let spellings: [fn(&str, u16) -> String; 4] = [
        |target, port| format!("http://localhost:{port}{target}"),
        |target, port| format!("http://LOCALHOST.:{port}{target}"),
        |target, port| format!("http://127.0.0.2:{port}{target}"),
        |target, port| format!("http://127.0.0.1@localhost:{port}{target}"),
    ];
    for spelling in spellings {
        let (scene, out) = led_to(|target, hub| spelling(target, hub.address(Origin::Hub).port()));
        let shown = spelling("/…", 1);
        // Where a name leads to this machine its bytes are as good as any; some names lead nowhere here.
        let bearers = bearers_at_the_end(&scene);
        assert!(bearers.iter().all(|bearer| !bearer), "{shown}: {bearers:?}");
        assert!(out.code == Some(0) || !scene.directory().join("config.json").exists(), "{shown}: {out}");
        assert!(!out.all().contains(TOKEN), "{shown}: {out}");
        if shown.starts_with("http://localhost:") {
            assert_eq!((out.code, !bearers.is_empty()), (Some(0), true), "{shown}: {out}");
        }
    }
}

// class: proxies, credentials
#[test]
fn redirects_that_lead_in_a_circle_or_nowhere_are_refused_at_each_question() {
    let nowhere = |location: &str| Behaviour::Redirect { status: 302, location: location.to_owned() };
    let traps = [
        ("more than", Behaviour::RedirectLoop),
        ("no web address", nowhere("ftp://x/y")),
        ("no web address", nowhere("file:///etc/passwd")),
        ("no web address", nowhere("http://")),
        ("to nowhere", Behaviour::Answer(Reply::status(302))),
    ];
    for (words, trap) in traps {
        for question in [Match::info(), Match::tree(), Match::resolve("a.bin"), Match::cdn("a.bin").get()] {
            let scene = Scene::of(repo(&[("a.bin", 1000)]));
            scene.hub.require_token(TOKEN);
            scene.hub.always(question.clone(), trap.clone());
            let out = scene.pull().env("HF_TOKEN", TOKEN).run().expect_code(17);
            assert!(out.stderr.contains(words) || out.stderr.contains("redirect"), "{question:?} {words}: {out}");
            assert!(scene.hub.requests().len() <= 30, "{question:?}: {}", scene.hub.requests().len());
            assert!(out.took < SOON);
            assert!(!scene.directory().join("a.bin").exists());
        }
    }
}

// class: credentials
#[test]
fn no_request_for_bytes_carries_the_token_whatever_happens_to_it() {
    let scene = Scene::of(repo(&[("a.bin", 400_000), ("b.bin", 40 * MIB)]));
    scene.hub.require_token(TOKEN);
    scene
        .hub
        .on(Match::cdn("a.bin").get())
        .then(Behaviour::ShortBody(100_000))
        .then(Behaviour::xml_403("AccessDenied", "Request has expired"))
        .then(Behaviour::status(503))
        .then(Behaviour::IgnoreRange)
        .then(Behaviour::FlipByte(5))
        .then(Behaviour::RedirectToOtherPort);
    let out =
        scene.world.args(["pull", "org/model", "--connections", "8", "--log", "trace"]).env("HF_TOKEN", TOKEN).run();
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
    assert!(!out.all().contains(TOKEN) && !out.all().contains("Signature="), "{out}");
    assert!(scene.hub.count(Match::cdn("a.bin").get()) >= 5);
}

// class: credentials
#[test]
fn a_server_that_sends_the_token_back_gets_it_printed_nowhere() {
    let scene = Scene::of(repo(&[("a.bin", 1000)]));
    let words = format!("you sent {TOKEN}, see https://h.example/x?token={TOKEN}");
    let reply = Reply::status(403).header("X-Error-Message", &words).header("X-HF-Warning", &format!("t; {words}"));
    scene.hub.always(Match::info(), Behaviour::Answer(reply));
    let loud = scene.world.args(["pull", "org/model", "--log", "trace"]);
    let out = loud.env("HF_TOKEN", TOKEN).run().expect_code(17);
    assert!(out.stderr.contains("you sent …"), "{out}");
    assert!(!out.all().contains(TOKEN), "{out}");
    for file in files_under(scene.world.home()) {
        assert!(!holds(&std::fs::read(&file).unwrap(), TOKEN), "a secret is in {}", file.display());
    }
}
