//! Licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`.

/// Whether the licences that `allowed` accepts are enough to use something under this expression.
///
/// `AND` binds tighter than `OR`; `A WITH exception` is one licence of that whole name; the old notation
/// `MIT/Apache-2.0` means `OR`. An expression that cannot be read satisfies nothing.
pub(crate) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut parser = Parser { words: spaced.split_whitespace().collect(), at: 0, allowed };
    parser.any() == Some(true) && parser.at == parser.words.len()
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Option<bool> {
        let mut holds = self.all()?;
        while self.take("OR") {
            // Not short-circuited: the rest has to be read in any case.
            holds |= self.all()?;
        }
        Some(holds)
    }

    fn all(&mut self) -> Option<bool> {
        let mut holds = self.one()?;
        while self.take("AND") {
            holds &= self.one()?;
        }
        Some(holds)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let holds = self.any()?;
            return self.take(")").then_some(holds);
        }
        let licence = self.word()?;
        if self.take("WITH") {
            let exception = self.word()?;
            return Some((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Some((self.allowed)(licence))
    }

    fn word(&mut self) -> Option<&'a str> {
        let word = *self.words.get(self.at)?;
        self.at += 1;
        (!["OR", "AND", "WITH", "(", ")"].contains(&word)).then_some(word)
    }

    fn take(&mut self, word: &str) -> bool {
        let taken = self.words.get(self.at) == Some(&word);
        self.at += usize::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(expression: &str) -> bool {
        satisfied(expression, &|licence| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&licence))
    }

    #[test]
    fn one_side_of_or_is_enough_and_both_sides_of_and_are_needed() {
        assert!(allows("MIT"));
        assert!(allows("GPL-3.0 OR MIT"));
        assert!(allows("GPL-3.0/MIT"));
        assert!(allows("(GPL-3.0 OR MIT) AND ISC"));
        assert!(allows("GPL-3.0 AND Zlib OR MIT"));
        assert!(!allows("GPL-3.0"));
        assert!(!allows("MIT AND GPL-3.0"));
        assert!(!allows("(MIT OR ISC) AND GPL-3.0"));
    }

    #[test]
    fn a_licence_with_an_exception_is_another_licence() {
        assert!(allows("Apache-2.0 WITH LLVM-exception"));
        assert!(!allows("Apache-2.0"));
        assert!(!allows("MIT WITH LLVM-exception"));
    }

    #[test]
    fn what_cannot_be_read_is_not_allowed() {
        for broken in ["", "MIT OR", "MIT MIT", "(MIT", "MIT)", "AND MIT", "MIT WITH", "MIT OR OR ISC"] {
            assert!(!allows(broken), "{broken}");
        }
    }
}
