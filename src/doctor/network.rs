//! The endpoint: whether it answers, what its clock says, and whether it knows the token.
//!
//! One request, bounded, and never repeated. A token is never shown: where it comes from, and
//! whose it is, is all that is told of it.

use std::time::Duration;

use jiff::Timestamp;

use super::finding::{Check, Finding, Section};
use crate::clock;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::units;
use crate::hub::auth::TokenPlace;
use crate::hub::{Caller, Greeting, HubClient, HubConfig, HubError};

/// An answer that takes longer is worth knowing.
const SLOW: Duration = Duration::from_secs(3);
/// How far the clocks may lie apart before it is worth knowing, and before certificates and signed
/// addresses may be taken for expired.
const SKEW_NOTED: Duration = Duration::from_secs(10);
const SKEW_MAX: Duration = Duration::from_secs(120);
/// A clock before this was never set: 2026-01-01.
const NEVER_SET: i64 = 1_767_225_600;

/// Whom to call.
#[derive(Debug)]
pub struct Call {
    /// Endpoint, token and patience.
    pub config: HubConfig,
    /// Where the endpoint was set.
    pub origin: String,
}

/// Why nobody is called.
#[derive(Debug, Clone)]
pub enum Offline {
    /// The user said so; where.
    Asked(String),
    /// The token that was named cannot be used.
    BadToken {
        /// The outcome of a pull.
        code: Code,
        /// What is wrong.
        why: String,
        /// What to do.
        hint: Option<String>,
    },
}

/// Calls the endpoint and judges what came.
pub(super) async fn examine(call: Result<Call, Offline>) -> Vec<Check> {
    let [endpoint, clock, token] = match call {
        Ok(call) => called(call).await,
        Err(Offline::Asked(origin)) => {
            let why = || Finding::not_checked(format!("offline ({origin}): nobody was asked"));
            [why(), own_clock().unwrap_or_else(why), why()]
        }
        Err(Offline::BadToken { code, why, hint }) => {
            let token = Finding::problem(code, why);
            let token = match hint {
                Some(hint) => token.advise(hint),
                None => token,
            };
            let why = || Finding::not_checked("nobody was asked, since the token cannot be used");
            [why(), own_clock().unwrap_or_else(why), token]
        }
    };
    [("endpoint", endpoint), ("clock", clock), ("token", token)]
        .into_iter()
        .map(|(name, finding)| finding.of(Section::Network, name))
        .collect()
}

async fn called(call: Call) -> [Finding; 3] {
    let Call { config, origin } = call;
    let (endpoint, place) = (config.endpoint.clone(), config.token.as_ref().map(|token| token.place().clone()));
    let shown = format!("{endpoint} ({origin})");
    let plain = endpoint.to_string().starts_with("http://") && !endpoint.may_carry_token();
    let asked = match HubClient::new(config) {
        Err(error) => Err(error),
        Ok(client) => client.greet().await.map(|greeting| (greeting, client.caller())),
    };
    let (greeting, caller) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            let unknown = || Finding::not_checked("the endpoint did not answer");
            return [unreachable(&shown, &error), own_clock().unwrap_or_else(unknown), token_unknown(place.as_ref())];
        }
    };
    let reached = reached(&shown, &greeting);
    let reached = if plain {
        reached
            .advise("plain http to another machine: anybody on the way can read along, and no token is sent; use https")
    } else {
        reached
    };
    let reached = reached
        .value("endpoint", endpoint.to_string())
        .value("status", greeting.status)
        .value("answer_ms", u64::try_from(greeting.took.as_millis()).unwrap_or(u64::MAX));
    let token = match (&place, caller) {
        (None, _) => {
            Finding::ok("none: public repositories only, and fewer requests at a time").value("place", None::<String>)
        }
        (Some(place), Caller::Withheld) => Finding::warning(format!(
            "the token from {place} is not sent: plain http to another machine may not carry it"
        ))
        .advise("use https for the endpoint"),
        (Some(place), _) => token(place, &greeting, &endpoint.origin().to_string()),
    };
    [reached, skew(&greeting), token]
}

fn unreachable(shown: &str, error: &HubError) -> Finding {
    let finding = Finding::problem(error.code(), format!("{shown} cannot be used: {}", in_words(error)));
    match error.hint() {
        Some(hint) => finding.advise(hint),
        None => finding,
    }
}

fn reached(shown: &str, greeting: &Greeting) -> Finding {
    let Greeting { status, took, .. } = greeting;
    let took_words = units::duration(*took);
    let words = greeting.words.as_ref().map(|words| format!(", saying \"{words}\"")).unwrap_or_default();
    if greeting.is_page {
        return Finding::problem(Code::UpstreamRefused, format!("{shown} answers with a page for people"))
            .advise("check --endpoint (or HF_ENDPOINT), and that no proxy or login page answers in its place");
    }
    if let Some(elsewhere) = &greeting.elsewhere {
        return Finding::problem(Code::UpstreamRefused, format!("{shown} sends us to another server, {elsewhere}"))
            .advise("if the server has moved, give its new address with --endpoint");
    }
    match status {
        407 => Finding::problem(Code::UpstreamRefused, format!("the proxy before {shown} wants credentials{words}"))
            .advise("put them into HTTPS_PROXY: http://user:password@proxy:port"),
        429 => Finding::warning(format!("{shown} answers, and says that there are too many requests"))
            .advise("wait some minutes; with a token more requests are allowed"),
        500..=599 => Finding::problem(Code::UpstreamRefused, format!("{shown} fails: HTTP {status}{words}"))
            .advise("nothing here can mend it: look at the server's own status, or try again later"),
        _ if *took > SLOW => Finding::note(format!("{shown} answers after {took_words}, which is slow")),
        _ => Finding::ok(format!("{shown} answers after {took_words}")),
    }
}

fn token(place: &TokenPlace, greeting: &Greeting, origin: &str) -> Finding {
    let words = greeting.words.as_ref().map(|words| format!(", saying \"{words}\"")).unwrap_or_default();
    let finding = match (greeting.status, &greeting.account) {
        (200, Some(account)) => {
            Finding::ok(format!("the token from {place} is {account}'s, and goes to {origin} alone"))
        }
        (200, None) if !greeting.is_page => {
            Finding::ok(format!("the token from {place} is accepted, and goes to {origin} alone"))
        }
        (401 | 403, _) => Finding::problem(
            Code::UpstreamRefused,
            format!("the token from {place} is refused: HTTP {}{words}", greeting.status),
        )
        .advise("it may have expired: make a new one, or unset it for public repositories"),
        (404 | 405 | 501, _) => Finding::not_checked(format!("{origin} does not tell whose the token from {place} is")),
        (status, _) => {
            Finding::not_checked(format!("{origin} did not say whether the token from {place} is good (HTTP {status})"))
        }
    };
    finding.value("place", place.to_string()).value("origin", origin)
}

fn token_unknown(place: Option<&TokenPlace>) -> Finding {
    match place {
        None => {
            Finding::ok("none: public repositories only, and fewer requests at a time").value("place", None::<String>)
        }
        Some(place) => Finding::not_checked(format!("one is in {place}; the endpoint did not answer"))
            .value("place", place.to_string()),
    }
}

/// The server's clock against ours.
fn skew(greeting: &Greeting) -> Finding {
    if let Some(finding) = own_clock() {
        return finding;
    }
    let Some(date) = greeting.date else {
        return Finding::not_checked("the endpoint does not tell the time");
    };
    // The answer was made at some time during the request, and says whole seconds.
    let ahead = greeting.at.duration_since(date);
    let apart = ahead.unsigned_abs().saturating_sub(greeting.took);
    let side = if ahead.is_negative() { "behind" } else { "ahead of" };
    let found = format!("this machine's clock is {} {side} the endpoint's", units::duration(apart));
    let advice = "let NTP or chrony set this machine's clock; certificates and signed addresses are judged by it";
    let finding = match apart {
        far if far > SKEW_MAX => Finding::warning(found).advise(advice),
        some if some > SKEW_NOTED => Finding::note(found).advise(advice),
        _ => Finding::ok("this machine's clock agrees with the endpoint's"),
    };
    finding.value("ahead_s", ahead.as_secs())
}

/// What is wrong with our clock whatever others say.
fn own_clock() -> Option<Finding> {
    let now = clock::now();
    let set = Timestamp::from_second(NEVER_SET).ok()?;
    (now < set).then(|| {
        let found = format!("this machine believes that it is {now}");
        Finding::warning(found).advise("set the clock: no certificate is valid at that time")
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn greeting(status: u16) -> Greeting {
        let now = clock::now();
        Greeting {
            status,
            took: Duration::from_millis(20),
            date: Some(now),
            at: now,
            account: None,
            words: None,
            is_page: false,
            elsewhere: None,
        }
    }

    fn status(finding: Finding) -> (Status, Option<Code>) {
        let check = finding.of(Section::Network, "x");
        (check.status, check.code)
    }

    #[test]
    fn an_answer_is_judged_by_what_a_pull_would_make_of_it() {
        let refused = (Status::Problem, Some(Code::UpstreamRefused));
        for (code, expected) in [
            (200, (Status::Ok, None)),
            (401, (Status::Ok, None)),
            (404, (Status::Ok, None)),
            (429, (Status::Warning, None)),
            (407, refused),
            (503, refused),
        ] {
            assert_eq!(status(reached("x", &greeting(code))), expected, "{code}");
        }
        assert_eq!(status(reached("x", &Greeting { is_page: true, ..greeting(200) })), refused);
        let place = TokenPlace::Variable("HF_TOKEN");
        for (code, expected) in [
            (200, (Status::Ok, None)),
            (401, refused),
            (404, (Status::NotChecked, None)),
            (503, (Status::NotChecked, None)),
        ] {
            assert_eq!(status(token(&place, &greeting(code), "https://hub.example")), expected, "{code}");
        }
    }

    #[test]
    fn a_clock_is_compared_within_what_an_answer_can_tell() {
        let at = |seconds: i64| {
            let now = clock::now();
            let date = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
            status(skew(&Greeting { at: now, date: Some(date), ..greeting(200) })).0
        };
        assert_eq!((at(0), at(-5), at(30), at(-3600)), (Status::Ok, Status::Ok, Status::Note, Status::Warning));
        assert_eq!(status(skew(&Greeting { date: None, ..greeting(200) })).0, Status::NotChecked);
    }
}
