//! The policy that the settings name: a file, the rules in the configuration, both together.

#![allow(clippy::disallowed_methods, reason = "reads its own file, which is on no volume")]

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::settings::{GateSettings, Setting};
use super::{ConfigError, SettingOrigin};
use crate::core::policy::{LocalEdits, Policy};
use crate::limits;

/// All rules that a gate has to hold a model against; none when nobody gave any.
///
/// # Errors
/// [`ConfigError`]: a policy that was named must be there and make sense.
pub fn policy(settings: &GateSettings) -> Result<Policy, ConfigError> {
    let GateSettings { policy, local_edits, rules, .. } = settings;
    let mut all = rules.clone();
    if let Setting { value: Some(file), origin } = policy {
        let text = read(file, origin)?;
        all = all.and(Policy::parse(&text, &file.display().to_string()).map_err(ConfigError::Policy)?);
    }
    // Whoever denies, wins: it is enough that one of them does.
    if all.local_edits() == LocalEdits::Allow {
        all = all.and(Policy::of_local_edits(local_edits.value, &local_edits.origin.to_string()));
    }
    Ok(all)
}

fn read(file: &Path, origin: &SettingOrigin) -> Result<String, ConfigError> {
    let origin = || Box::new(origin.clone());
    let unreadable = |source| ConfigError::PolicyUnreadable { file: file.to_owned(), origin: origin(), source };
    let mut text = String::new();
    let opened = File::open(file).map_err(unreadable)?;
    opened.take(limits::CONFIG_MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > limits::CONFIG_MAX_BYTES {
        return Err(ConfigError::PolicyTooLarge { file: file.to_owned(), origin: origin() });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, Environment, Settings};

    fn settings(text: &str, variables: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let file = ConfigFile { path: "/etc/muster/muster.toml".into(), text: text.to_owned() };
        Settings::resolve(Some(&file), &Environment::of(variables))
    }

    const RULE: &str = "commit = \"5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c\"\nmessage = \"no\"\n";

    #[test]
    fn rules_in_the_configuration_and_in_a_file_both_count() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("p.toml");
        std::fs::write(&file, format!("local_edits = \"deny\"\n[[rule]]\n{RULE}")).unwrap();
        let text = format!("volume = \"/v\"\n[gate]\nlocal_edits = \"allow\"\n[[gate.rule]]\n{RULE}");
        let inline = settings(&text, &[]).unwrap();
        let alone = policy(&inline.gate).unwrap();
        assert_eq!(alone.rules().len(), 1);
        assert_eq!(alone.rules()[0].shown(), "rule 1 in /etc/muster/muster.toml line 4");
        let both = settings(&text, &[("MUSTER_POLICY", file.to_str().unwrap())]).unwrap();
        let both = policy(&both.gate).unwrap();
        assert_eq!((both.rules().len(), both.local_edits()), (3, LocalEdits::Deny));
        let by_variable = settings("", &[("MUSTER_LOCAL_EDITS", "deny")]).unwrap();
        assert_eq!(policy(&by_variable.gate).unwrap().local_edits(), LocalEdits::Deny);
        assert!(policy(&settings("", &[]).unwrap().gate).unwrap().is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let error = settings("[gate]\n[[gate.rule]]\nmesage = \"x\"\n", &[]).unwrap_err().to_string();
        assert!(error.starts_with("/etc/muster/muster.toml line 3: unknown field `mesage`"), "{error}");
        let error = settings("[gate]\nrules = 1\n", &[]).unwrap_err().to_string();
        assert!(error.contains("unknown key `gate.rules`"), "{error}");
        let error = settings("[gate]\nlocal_edits = \"no\"\n", &[]).unwrap_err().to_string();
        assert!(error.contains("`gate.local_edits`") && error.contains("line 2"), "{error}");
        let missing = settings("[gate]\npolicy = \"/nowhere/p.toml\"\n", &[]).unwrap();
        let error = policy(&missing.gate).unwrap_err().to_string();
        assert_eq!(error, "cannot read the policy /nowhere/p.toml (from /etc/muster/muster.toml line 2)");
    }
}
