//! What anybody may have put beside a model: a signature, what it says, a key.

use std::error::Error;

use muster::core::oms::bundle::{claimed, open};
use muster::core::oms::key::{Curve, PrivateKey, PublicKey};
use muster::core::oms::statement::Statement;

use super::{one_line, text};

/// No bytes from outside are what the key signed.
pub(super) fn bundle(bytes: &[u8]) {
    let key = PrivateKey::generate(Curve::P256, |bytes| bytes.fill(7)).expect("a key");
    let error = open(bytes, &key.public()).expect_err("nobody has the key");
    told(&error);
    if let Some(statement) = claimed(bytes) {
        sound(&statement);
    }
}

/// What a signer may say.
pub(super) fn statement(bytes: &[u8]) {
    match Statement::from_json(bytes) {
        Ok(statement) => sound(&statement),
        Err(error) => told(&error),
    }
}

/// Either half of a key; what is wrong with one is told without any of it.
pub(super) fn key(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match PrivateKey::parse(text) {
        Ok(key) => {
            let again = PrivateKey::parse(&key.to_pem().expect("it has a form")).expect("what was written can be read");
            assert_eq!(again.public(), key.public());
            assert_eq!(key.public().verify(b"x", &key.sign(b"x")), Ok(()));
        }
        Err(error) => told(&error),
    }
    match PublicKey::parse(text) {
        Ok(key) => assert_eq!(PublicKey::parse(&key.to_pem()).expect("what was written can be read"), key),
        Err(error) => told(&error),
    }
}

fn sound(statement: &Statement) {
    assert!(!statement.files().is_empty());
    assert!(statement.files().windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted, each once");
    let again = Statement::from_json(&statement.to_json()).expect("what was written can be read");
    assert_eq!(&again, statement);
}

fn told(error: &(dyn Error + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        one_line(&error);
        next = error.source();
    }
}
