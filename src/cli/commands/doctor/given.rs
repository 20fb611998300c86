//! What settings and environment say: files, variables, proxies, certificates.
//!
//! Invariant (P7): of a variable that may hold a secret only its name is told.

#![allow(clippy::disallowed_methods, reason = "reads certificates, which are on no volume")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::{Context, args};
use crate::config::{CONFIG_VARIABLE, Environment, KEYS, SettingOrigin, Settings, load, most_like};
use crate::core::units;
use crate::doctor::{Check, Finding, Section};
use crate::gate::exec::{ENV_COMMIT, ENV_DIR};
use crate::hub::trust::built_in_count;

/// Variables that the gate sets for what it starts.
const OF_THE_GATE: [&str; 2] = [ENV_DIR, ENV_COMMIT];
/// Variables of the Hub's tools that muster reads, and what for.
const OF_THE_HUB: [(&str, &str); 9] = [
    ("HF_ENDPOINT", "the server to ask"),
    ("HF_TOKEN", "a token (not shown)"),
    ("HUGGING_FACE_HUB_TOKEN", "a token (not shown)"),
    ("HF_TOKEN_PATH", "a file with a token"),
    ("HF_HOME", "where the token file is looked for"),
    ("XDG_CACHE_HOME", "where the Hub's home is, without HF_HOME"),
    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "whether a token is used that no flag named"),
    ("HF_HUB_OFFLINE", "whether anybody is asked"),
    ("TRANSFORMERS_OFFLINE", "whether anybody is asked"),
];
/// Variables that name proxies.
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
/// Where systems keep the certificates of authorities.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// All of these checks.
pub(super) fn checks(context: &Context) -> Vec<Check> {
    let Context { settings, environment, config, .. } = context;
    vec![
        configuration(settings, environment, config.as_deref()).of(Section::Settings, "configuration"),
        variables(environment).of(Section::Settings, "variables"),
        hub_variables(environment).of(Section::Settings, "hub_variables"),
        proxy(environment).of(Section::Network, "proxy"),
        certificates(settings, environment).of(Section::Network, "certificates"),
    ]
}

fn configuration(settings: &Settings, environment: &Environment, flag: Option<&Path>) -> Finding {
    let file = load(flag, environment).ok().flatten().map(|file| file.path.display().to_string());
    let changed = KEYS.iter().filter(|key| *(key.origin)(settings) != SettingOrigin::Default);
    let items: Vec<_> = changed
        .map(|key| format!("{} = {} (from {})", key.name, (key.show)(settings), (key.origin)(settings)))
        .collect();
    let found = match (&file, items.len()) {
        (Some(file), _) => format!("{file} is used"),
        (None, 0) => "no file, and every setting is the default".to_owned(),
        (None, _) => "no file; settings from flags and environment".to_owned(),
    };
    Finding::ok(found).items(items).value("file", file)
}

fn variables(environment: &Environment) -> Finding {
    let mut known = args::twins();
    known.extend(KEYS.iter().map(|key| key.env.to_owned()));
    known.extend(OF_THE_GATE.iter().chain([&CONFIG_VARIABLE]).map(|name| (*name).to_owned()));
    let ours = names(environment, "MUSTER_");
    // Kubernetes sets these for a service called `muster`.
    let injected = |name: &str| {
        let rest = name.trim_start_matches("MUSTER_");
        rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_")
    };
    let unknown: Vec<_> = ours.iter().filter(|name| !known.contains(*name) && !injected(name)).collect();
    let count = unknown.len() as u64;
    let items = unknown.iter().map(|name| match most_like(name, known.iter().map(String::as_str)) {
        Some(near) => format!("{name}: did you mean {near}?"),
        None => (*name).clone(),
    });
    let finding = match count {
        0 if ours.is_empty() => Finding::ok("no MUSTER_ variable is set"),
        0 => Finding::ok(format!("every MUSTER_ variable is known: {}", ours.join(", "))),
        1 => Finding::warning("a MUSTER_ variable is set that nothing reads").advise("correct its name or unset it"),
        _ => Finding::warning(format!("{count} MUSTER_ variables are set that nothing reads"))
            .advise("correct their names or unset them"),
    };
    finding.items(items).value("unknown", count)
}

fn hub_variables(environment: &Environment) -> Finding {
    let read = OF_THE_HUB.iter().filter(|(name, _)| environment.is_set(name));
    let read: Vec<_> = read.map(|(name, what)| format!("{name}: {what}")).collect();
    let is_read = |name: &String| OF_THE_HUB.iter().any(|(known, _)| known == name);
    let unread: Vec<_> = names(environment, "HF_").into_iter().filter(|name| !is_read(name)).collect();
    let found = match (read.is_empty(), unread.is_empty()) {
        (true, true) => return Finding::ok("no variable of the Hub's tools is set"),
        (true, false) => "variables of the Hub's tools are set, and muster reads none of them",
        (false, _) => "variables of the Hub's tools are set, and muster reads them",
    };
    let unread = (!unread.is_empty()).then(|| format!("muster does not read {}", unread.join(", ")));
    Finding::note(found).items(read).items(unread)
}

fn names(environment: &Environment, start: &str) -> Vec<String> {
    let names = environment.names().filter_map(|name| name.to_str());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(start)).map(str::to_owned).collect();
    names.sort();
    names
}

fn proxy(environment: &Environment) -> Finding {
    let mut items = Vec::new();
    let mut broken = false;
    for name in PROXIES {
        match environment.text(name) {
            Ok(None) => {}
            Ok(Some(value)) => {
                let shown = shown_proxy(value);
                broken |= shown.is_none();
                let no_address = || format!("{name} is set to something that is no address");
                items.push(shown.map_or_else(no_address, |shown| format!("{name} = {shown}")));
            }
            Err(_) => {
                broken = true;
                items.push(format!("{name} is set to something that is no text"));
            }
        }
    }
    if items.is_empty() {
        return Finding::ok("no proxy is set");
    }
    let past = ["NO_PROXY", "no_proxy"]
        .into_iter()
        .find_map(|name| Some(format!("{name} = {}: these are asked without it", environment.text(name).ok()??)));
    let finding = if broken {
        Finding::warning("a proxy is set that cannot be used").advise("write it as http://host:port, or unset it")
    } else {
        Finding::note("requests go through a proxy")
    };
    finding.items(items).items(past)
}

/// A proxy's address without its credentials.
fn shown_proxy(value: &str) -> Option<String> {
    let with_scheme = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
    let url = url::Url::parse(&with_scheme).ok().filter(url::Url::has_host)?;
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let secret = !url.username().is_empty() || url.password().is_some();
    let secret = if secret { " (with credentials, not shown)" } else { "" };
    Some(format!("{}://{}{port}{secret}", url.scheme(), url.host_str()?))
}

fn certificates(settings: &Settings, environment: &Environment) -> Finding {
    let https = settings.endpoint.value.to_string().starts_with("https:");
    let file = environment.text("SSL_CERT_FILE").ok().flatten().map(PathBuf::from);
    let dir = environment.text("SSL_CERT_DIR").ok().flatten();
    let python = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"].into_iter().filter(|name| environment.is_set(name));
    let unread = python.map(|name| format!("muster does not read {name}; SSL_CERT_FILE is what it reads"));
    let finding = match (&file, dir) {
        (Some(file), _) => match count_certificates(file) {
            Ok(0) => {
                Finding::warning(format!("SSL_CERT_FILE names {}, which has no certificate in it", file.display()))
                    .advise("name a file with certificates in PEM form")
            }
            Ok(count) => {
                Finding::note(format!("{} from {} (SSL_CERT_FILE)", units::count(count, "certificate"), file.display()))
                    .value("certificates", count)
            }
            Err(error) => {
                Finding::warning(format!("SSL_CERT_FILE names {}, which cannot be read: {error}", file.display()))
                    .advise("make it readable, or unset the variable")
            }
        },
        (None, Some(dir)) => Finding::note(format!("those in {dir} (SSL_CERT_DIR)")),
        (None, None) => {
            let counted = |path: &&str| count_certificates(Path::new(path)).ok().filter(|count| *count > 0);
            match BUNDLES.iter().find_map(|path| Some((path, counted(path)?))) {
                Some((path, count)) => {
                    Finding::ok(format!("{} of this machine, {path}", units::count(count, "certificate")))
                        .value("certificates", count)
                }
                None if https => {
                    let count = built_in_count() as u64;
                    Finding::note(format!("none on this machine; the {count} authorities that came with muster count"))
                        .value("certificates", count)
                }
                None => Finding::ok("none were found, and this endpoint needs none"),
            }
        }
    };
    // Whoever names one that is read knows.
    if file.is_some() { finding } else { finding.items(unread) }
}

fn count_certificates(path: &Path) -> std::io::Result<u64> {
    Ok(fs::read_to_string(path)?.matches("-----BEGIN CERTIFICATE-----").count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_proxy_is_shown_without_its_password() {
        for (value, shown) in [
            ("http://proxy:3128", Some("http://proxy:3128")),
            ("proxy.example:3128", Some("http://proxy.example:3128")),
            ("http://me:secret@proxy:3128/", Some("http://proxy:3128 (with credentials, not shown)")),
            ("me:secret@proxy:3128", Some("http://proxy:3128 (with credentials, not shown)")),
            ("http://:secret@", None),
        ] {
            assert_eq!(shown_proxy(value).as_deref(), shown, "{value}");
        }
    }

    #[test]
    fn an_unknown_variable_is_named_and_those_of_kubernetes_are_not() {
        let status = |variables: &[(&str, &str)]| {
            let check = variables_of(variables);
            (check.status, check.items)
        };
        let variables_ok = [("MUSTER_VOLUME", "/x"), ("MUSTER_PORT_8642_TCP", "x"), ("MUSTER_SERVICE_HOST", "x")];
        assert_eq!(status(&variables_ok).0, Status::Ok);
        assert_eq!(status(&[("MUSTER_VERDICT", "/x"), ("MUSTER_CONFIG", "/x"), ("MUSTER_COMMIT", "x")]).0, Status::Ok);
        let (found, items) = status(&[("MUSTER_VOLUM", "/x")]);
        assert_eq!((found, &*items), (Status::Warning, &["MUSTER_VOLUM: did you mean MUSTER_VOLUME?".to_owned()][..]));
    }

    fn variables_of(variables: &[(&str, &str)]) -> Check {
        super::variables(&Environment::of(variables)).of(Section::Settings, "variables")
    }
}
