//! Users by their numbers, as a setting.

use super::value::{Value, ValueError};

/// Numbers of users; none of them by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uids(Vec<u32>);

impl Uids {
    /// The numbers.
    #[must_use]
    pub fn list(&self) -> &[u32] {
        &self.0
    }
}

impl Value for Uids {
    fn parse(text: &str) -> Result<Self, ValueError> {
        let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty());
        let wrong = || ValueError::Word { text: text.to_owned(), words: "numbers of users, like 1000 or 0,1000" };
        numbers.map(|number| number.parse().map_err(|_| wrong())).collect::<Result<_, _>>().map(Self)
    }

    fn show(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_with_commas_between() {
        for (text, list) in [("", &[][..]), ("0", &[0]), ("0, 1000", &[0, 1000]), ("4294967295", &[u32::MAX])] {
            let uids = Uids::parse(text).unwrap();
            assert_eq!(uids.list(), list);
            assert_eq!(Uids::parse(&uids.show()).unwrap(), uids);
        }
        for wrong in ["root", "-1", "1 2", "4294967296"] {
            assert!(Uids::parse(wrong).is_err(), "{wrong}");
        }
    }
}
