//! Which names a file system may take for one.
//!
//! Some file systems fold the case of names, some their Unicode form, some both (ext4 with
//! `casefold`, FAT, CIFS, APFS). Owns the comparison; what a certain directory does is found out in
//! `volume`. Invariant: [`Folding::apply`] gives one text for all names that such a file system
//! takes for one; where file systems differ it rather gives one text too often.

use icu_normalizer::DecomposingNormalizer;

/// How a directory compares names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folding {
    /// `Model.bin` is `model.bin`.
    pub case: bool,
    /// `é` in one code point is `é` in two; characters that nobody sees count for nothing.
    pub form: bool,
}

impl Folding {
    /// Byte by byte, as POSIX has it.
    pub const NONE: Self = Self { case: false, form: false };
    /// Everything that any file system folds.
    pub const ALL: Self = Self { case: true, form: true };

    /// The name that stands for all names it is taken for.
    #[must_use]
    pub fn apply(self, name: &str) -> String {
        let cased = |text: &str| {
            if self.case {
                // Upper case first: `ß` and `ſ` have one, and it is not theirs alone.
                text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
            } else {
                text.to_owned()
            }
        };
        if name.is_ascii() {
            return if self.case { name.to_ascii_lowercase() } else { name.to_owned() };
        }
        if !self.form {
            return cased(name);
        }
        let normalizer = DecomposingNormalizer::new_nfd();
        let seen: String = name.chars().filter(|c| !is_ignorable(*c)).collect();
        normalizer.normalize(&cased(&normalizer.normalize(&seen))).into_owned()
    }
}

/// Characters that folding file systems leave out (Unicode's `Default_Ignorable_Code_Point`).
const fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_a_folding_file_system_takes_for_one_become_one() {
        let case = Folding { case: true, form: false };
        let form = Folding { case: false, form: true };
        for (one, other, by) in [
            ("Model.bin", "model.bin", case),
            ("GRÖSSE", "größe", case),
            ("MUſTER", "muster", case),
            ("caf\u{e9}", "cafe\u{301}", form),
            ("\u{212b}", "A\u{30a}", form),
            ("\u{1e69}", "s\u{307}\u{323}", form),
            ("한", "\u{1112}\u{1161}\u{11ab}", form),
            ("mus\u{200d}ter", "muster", form),
            ("CAF\u{c9}", "cafe\u{301}", Folding::ALL),
        ] {
            assert_eq!(by.apply(one), by.apply(other), "{one:?} {other:?}");
            assert_eq!(Folding::ALL.apply(one), Folding::ALL.apply(other), "{one:?} {other:?}");
            assert_ne!(Folding::NONE.apply(one), Folding::NONE.apply(other), "{one:?} {other:?}");
        }
        assert_ne!(case.apply("caf\u{e9}"), case.apply("cafe\u{301}"));
        assert_ne!(form.apply("Model"), form.apply("model"));
        assert_ne!(Folding::ALL.apply("model-1"), Folding::ALL.apply("model_1"));
    }

    proptest! {
        #[test]
        fn folding_twice_is_folding_once(name in "\\PC{0,20}", case: bool, form: bool) {
            let folding = Folding { case, form };
            let once = folding.apply(&name);
            prop_assert_eq!(folding.apply(&once), once);
        }
    }
}
