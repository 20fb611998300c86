//! Proxies: all traffic through them, credentials for them, and hosts that need none.

use super::*;

/// What was asked of a proxy, each once.
fn authorities(proxy: &Proxy) -> Vec<String> {
    let mut all: Vec<_> = proxy.asked().into_iter().map(|asked| asked.authority).collect();
    all.sort();
    all.dedup();
    all
}

// class: network, credentials
#[test]
fn questions_bytes_and_retries_all_go_through_the_proxy() {
    let company = Authority::new("company");
    let (secure, proxy) = Secure::behind(&company, &company, Oddity::None).trusting(&company).by_name();
    secure.hub.require_token(TOKEN);
    let rule = secure.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ResetAfter(100_000));
    rule.then(Behaviour::status(503)).then(Behaviour::xml_403("AccessDenied", "Request has expired"));
    secure.hub.on(Match::info()).then(Behaviour::ResetWithoutAnswer);
    // Nobody but the proxy knows where these names lead.
    let out = secure.pull().env("HTTPS_PROXY", proxy.url()).env("HF_TOKEN", TOKEN).run().expect_code(0);
    secure.assert_complete();
    assert_eq!(authorities(&proxy), ["cdn.test:443", "hub.test:443"]);
    let asked = proxy.asked();
    assert!(asked.iter().all(|one| one.method == "CONNECT" && one.credentials.is_none()), "{asked:#?}");
    let through = asked.len();
    let arrived: usize = secure.fronts.iter().map(Front::accepted).sum();
    assert_eq!(arrived, through, "nothing came past the proxy");
    assert!(!format!("{asked:?}").contains(TOKEN) && !out.all().contains(TOKEN));
    assert_eq!(secure.hub.authorization_seen_by_cdn(), Vec::<String>::new());
}

// class: credentials
#[test]
fn other_spellings_of_a_name_and_its_port_are_the_same_server() {
    let company = Authority::new("company");
    for (spelling, same) in [
        ("https://hub.test:443", true),
        ("https://HUB.Test", true),
        ("HTTPS://somebody@hub.test", true),
        ("https://hub.test.", false),
        ("https://cdn.test", false),
        ("https://hub.test@cdn.test", false),
    ] {
        let (secure, _) = Secure::behind(&company, &company, Oddity::None).trusting(&company).by_name();
        let [hub, _] = secure.fronts.each_ref().map(Front::address);
        // Every name leads to the hub here: what counts is to whom the token is told.
        let proxy = Proxy::knowing(&[("hub.test:443", hub), ("hub.test.:443", hub), ("cdn.test:443", hub)]);
        secure.hub.know_token(TOKEN);
        let commit = secure.hub.commit("org/model", "main");
        let etag = secure.hub.repo("org/model").get("config.json").etag().to_owned();
        let target = format!("/api/resolve-cache/models/org/model/{commit}/config.json?x=&etag=%22{etag}%22");
        let redirect = Behaviour::Redirect { status: 307, location: format!("{spelling}{target}") };
        secure.hub.always(Match::resolve("config.json").head(), redirect);
        let out = secure.pull().arg("config.json").env("HTTPS_PROXY", proxy.url()).env("HF_TOKEN", TOKEN).run();
        let seen = secure.hub.matching(Match::plain("config.json"));
        let with_token = seen.iter().filter(|one| one.header("authorization").is_some()).count();
        if same {
            assert_eq!((out.code, with_token), (Some(0), seen.len()), "{spelling}: {out}");
            assert!(!seen.is_empty(), "{spelling}");
        } else {
            assert_eq!(with_token, 0, "{spelling}: {out}");
        }
    }
}

// class: network
#[test]
fn hosts_that_need_no_proxy_are_asked_without_it() {
    let company = Authority::new("company");
    let secure = Secure::behind(&company, &company, Oddity::None).trusting(&company);
    let proxy = Proxy::knowing(&[]);
    let pull = secure.pull().env("HTTPS_PROXY", proxy.url()).env("NO_PROXY", "other.test,127.0.0.1");
    pull.run().expect_code(0);
    secure.assert_complete();
    assert_eq!(proxy.asked(), []);
    // The storage alone is reached without one.
    let secure = Secure::behind(&company, &company, Oddity::None).trusting(&company);
    let proxy = Proxy::knowing(&[("hub.test:443", secure.fronts[0].address())]);
    secure.hub.stands_behind(Origin::Hub, "https://hub.test");
    let pull = secure.pull().env("HF_ENDPOINT", "https://hub.test");
    pull.env("HTTPS_PROXY", proxy.url()).env("NO_PROXY", "127.0.0.1").run().expect_code(0);
    secure.assert_complete();
    assert_eq!(authorities(&proxy), ["hub.test:443"]);
}

// class: network, credentials
#[test]
fn plain_http_goes_through_its_own_proxy_and_carries_no_token_to_another_machine() {
    let hub = Hub::start(repo());
    let names = [("hub.test", hub.address(Origin::Hub)), ("cdn.test", hub.address(Origin::Cdn))];
    hub.stands_behind(Origin::Hub, "http://hub.test");
    hub.stands_behind(Origin::Cdn, "http://cdn.test");
    let proxy = Proxy::knowing(&names);
    let world = patient(Muster::on(&hub)).env("HTTPS_PROXY", "http://127.0.0.1:1").env("HTTP_PROXY", proxy.url());
    hub.on(Match::cdn("a.bin").get()).then(Behaviour::ResetAfter(100_000));
    let out = world.args(["pull", "org/model"]).env("HF_TOKEN", TOKEN).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo());
    assert!(out.stderr.contains("the token is not sent"), "{out}");
    let asked = proxy.asked();
    assert_eq!(authorities(&proxy), ["cdn.test", "hub.test"]);
    assert_eq!(asked.len(), hub.requests().len(), "each request came by the proxy");
    assert!(!format!("{asked:?}").contains(TOKEN), "the proxy saw no token");
}

// class: network, credentials
#[test]
fn a_proxy_that_wants_credentials_is_one_clear_error_and_with_them_it_works() {
    let company = Authority::new("company");
    let (secure, _) = Secure::behind(&company, &company, Oddity::None).trusting(&company).by_name();
    let [hub, cdn] = secure.fronts.each_ref().map(Front::address);
    // base64 of `user:pass-word`
    let proxy = Proxy::asking_for("Basic dXNlcjpwYXNzLXdvcmQ=", &[("hub.test:443", hub), ("cdn.test:443", cdn)]);
    for credentials in ["", "user:wrong-word@"] {
        let url = format!("http://{credentials}{}", proxy.address());
        let out = secure.pull().env("HTTPS_PROXY", &url).run().expect_code(18);
        for word in ["proxy", "407", "https://hub.test", "hint:"] {
            assert!(out.stderr.contains(word), "{word} is missing: {out}");
        }
        assert!(out.took < AT_ONCE, "{:?}", out.took);
        assert!(!out.all().contains("wrong-word"), "{out}");
    }
    assert_eq!(proxy.asked().len(), 2, "each asked once");
    let url = format!("http://user:pass-word@{}", proxy.address());
    let loud = secure.world.args(["pull", "org/model", "--log", "trace"]);
    let out = loud.env("HTTPS_PROXY", url).run().expect_code(0);
    secure.assert_complete();
    assert!(!out.all().contains("pass-word") && !out.all().contains("dXNlcjpwYXNzLXdvcmQ"), "{out}");
    assert_eq!(secure.hub.requests().iter().filter(|seen| seen.header("proxy-authorization").is_some()).count(), 0);
}

// class: network
#[test]
fn a_proxy_for_plain_http_that_wants_credentials_is_no_answer_of_the_hub() {
    let hub = Hub::start(repo());
    hub.stands_behind(Origin::Hub, "http://hub.test");
    let proxy = Proxy::asking_for("Basic x", &[("hub.test", hub.address(Origin::Hub))]);
    let world = patient(Muster::on(&hub)).env("HTTP_PROXY", proxy.url());
    let out = world.args(["pull", "org/model"]).run().expect_code(18);
    assert!(out.stderr.contains("proxy") && out.stderr.contains("407"), "{out}");
    assert_eq!((proxy.asked().len(), hub.requests().len()), (1, 0));
}

// class: network
#[test]
fn a_proxy_that_is_not_there_or_leads_nowhere_is_named() {
    let company = Authority::new("company");
    let (secure, _) = Secure::behind(&company, &company, Oddity::None).trusting(&company).by_name();
    let nobody = Proxy::knowing(&[]);
    for url in ["http://127.0.0.1:1".to_owned(), nobody.url()] {
        let out = secure.pull().env("HTTPS_PROXY", url).run().expect_code(18);
        assert!(out.stderr.contains("https://hub.test") && out.stderr.contains("HTTPS_PROXY"), "{out}");
        assert!(out.took < SOON, "{:?}", out.took);
    }
    assert_eq!(secure.hub.requests().len(), 0);
}

// class: network
#[test]
fn a_storage_that_the_proxy_refuses_to_reach_does_not_cost_an_hour() {
    let company = Authority::new("company");
    let (secure, _) = Secure::behind(&company, &company, Oddity::None).trusting(&company).by_name();
    let proxy = Proxy::knowing(&[("hub.test:443", secure.fronts[0].address())]);
    let pull = secure.pull().env("HTTPS_PROXY", proxy.url()).env("MUSTER_RETRY_FOR", "3s");
    let out = pull.run();
    assert!(matches!(out.code, Some(17 | 18)), "{out}");
    assert!(out.stderr.contains("https://cdn.test") && out.stderr.contains("HTTPS_PROXY"), "{out}");
    assert!(out.took < SOON, "{:?}", out.took);
}
