//! Certificates: those of a private authority, and those that nobody should trust.

use super::*;

// class: network
#[test]
fn a_private_authority_is_trusted_for_the_hub_and_its_storage() {
    for oddity in [Oddity::None, Oddity::OldTls] {
        let company = Authority::new("company");
        let secure = Secure::behind(&company, &company, oddity).trusting(&company);
        secure.hub.require_token(TOKEN);
        secure.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ResetAfter(100_000)).then(Behaviour::status(503));
        let out = secure.pull().env("HF_TOKEN", TOKEN).run().expect_code(0);
        secure.assert_complete();
        assert_eq!(secure.hub.authorization_seen_by_cdn(), Vec::<String>::new());
        assert!(!out.all().contains(TOKEN));
        assert!(secure.fronts.iter().all(|front| front.accepted() > 0));
    }
}

// class: network
#[test]
fn an_authority_that_nobody_trusts_is_one_clear_error_at_once() {
    let (company, other) = (Authority::new("company"), Authority::new("another"));
    let untrusted = Secure::behind(&company, &company, Oddity::None);
    let wrong = Secure::behind(&company, &company, Oddity::None).trusting(&other);
    for secure in [untrusted, wrong] {
        let out = secure.pull().run().expect_code(18);
        let host = secure.hub.url();
        for word in [host.as_str(), "SSL_CERT_FILE", "hint:"] {
            assert!(out.stderr.contains(word), "{word} is missing: {out}");
        }
        assert!(out.took < AT_ONCE, "{:?}", out.took);
        assert!(secure.fronts[0].accepted() <= 1, "asked again and again");
        assert_eq!(secure.hub.requests().len(), 0);
        assert!(!secure.world.model("org/model").exists());
    }
}

// class: network
#[test]
fn certificates_that_prove_nothing_are_refused_and_told() {
    let company = Authority::new("company");
    for (oddity, word) in [(Oddity::Expired, "xpired"), (Oddity::NotYet, "NotValidYet")] {
        let secure = Secure::behind(&company, &company, oddity).trusting(&company);
        let out = secure.pull().run().expect_code(18);
        let told = out.stderr.contains(word) || out.stderr.contains("not valid yet");
        assert!(told && out.stderr.contains(&secure.hub.url()), "{word}: {out}");
        assert_eq!(secure.hub.requests().len(), 0);
    }
    // The certificate of somebody else.
    let hub = Hub::start(repo());
    let front = Front::tls(company.vouches_for(&["other.test"], Oddity::None), hub.address(Origin::Hub));
    let world = patient(Muster::on(&hub)).env("HF_ENDPOINT", format!("https://{}", front.address()));
    let certificate = company.certificate_in(world.home());
    let world = world.env("SSL_CERT_FILE", certificate);
    let out = world.args(["pull", "org/model"]).env("HF_TOKEN", TOKEN).run().expect_code(18);
    assert!(out.stderr.contains(&front.address().to_string()), "{out}");
    assert_eq!(hub.requests().len(), 0, "no request, and no token, to somebody else");
}

// class: network
#[test]
fn a_storage_that_is_not_trusted_is_named_soon_and_small_files_arrive() {
    let (company, other) = (Authority::new("company"), Authority::new("another"));
    let secure = Secure::behind(&company, &other, Oddity::None).trusting(&company);
    let out = secure.pull().run();
    assert!(matches!(out.code, Some(17 | 18)), "{out}");
    for word in [secure.hub.cdn_url().as_str(), "SSL_CERT_FILE", "a.bin"] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert!(out.took < AT_ONCE, "no hour of retries: {:?}", out.took);
    assert!(secure.fronts[1].accepted() <= 4, "{} tries", secure.fronts[1].accepted());
    assert!(secure.world.model("org/model").join("config.json").exists());
    assert!(!secure.world.model("org/model").join(".muster/receipt.json").exists());
}

// class: network
#[test]
fn a_server_that_does_not_speak_tls_is_told_from_one_that_is_in_trouble() {
    let hub = Hub::start(repo());
    let front = Front::without_tls();
    let world = patient(Muster::on(&hub)).env("HF_ENDPOINT", format!("https://{}", front.address()));
    let company = Authority::new("company");
    let certificate = company.certificate_in(world.home());
    let world = world.env("SSL_CERT_FILE", certificate);
    let out = world.args(["pull", "org/model"]).env("HF_TOKEN", TOKEN).run().expect_code(18);
    assert!(out.stderr.contains(&front.address().to_string()) && out.stderr.contains("speaks https"), "{out}");
    assert!(out.took < AT_ONCE, "{:?}", out.took);
    assert!(front.accepted() <= 1, "asked again and again");
}

// class: credentials, network
#[test]
fn from_https_nothing_leads_to_plain_http() {
    let company = Authority::new("company");
    for (question, file) in [
        (Match::resolve("a.bin").head(), "a.bin"),
        (Match::cdn("a.bin").get(), "a.bin"),
        (Match::resolve("config.json").head(), "config.json"),
    ] {
        let secure = Secure::behind(&company, &company, Oddity::None).trusting(&company);
        secure.hub.require_token(TOKEN);
        let plain = format!("http://{}/elsewhere", secure.hub.address(Origin::Cdn));
        secure.hub.always(question, Behaviour::Redirect { status: 302, location: plain });
        let out = secure.pull().env("HF_TOKEN", TOKEN).run().expect_code(17);
        assert!(out.stderr.contains("from https to plain http") && out.stderr.contains(file), "{out}");
        assert_eq!(secure.hub.count(Match::cdn("elsewhere")), 0);
    }
}

// class: network, stalls
#[test]
fn a_connection_that_breaks_in_the_middle_of_tls_goes_on_where_it_was() {
    let company = Authority::new("company");
    let secure = Secure::behind(&company, &company, Oddity::None).trusting(&company);
    let cuts = [Behaviour::ResetAfter(100_000), Behaviour::StallAfter(50_000), Behaviour::ShortBody(50_000)];
    cuts.into_iter().fold(secure.hub.on(Match::cdn("a.bin").get()), Scripted::then);
    secure.pull().run().expect_code(0);
    secure.assert_complete();
    assert!(secure.hub.bytes_sent_for("a.bin") <= 400_000, "{}", secure.hub.bytes_sent_for("a.bin"));
}
