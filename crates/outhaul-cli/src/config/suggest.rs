//! "Did you mean": the known name that is closest to a misspelt one.

/// The closest of the known names, when it is close enough to be what was meant.
pub(super) fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let normal = |text: &str| text.to_lowercase().replace('-', "_");
    let name = normal(name);
    known
        .into_iter()
        .map(|candidate| (distance(&name, &normal(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, remove, replace one character, or swap two neighbours) from one text to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let swapped = match i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        true => rows[i - 2][j - 2] + 1,
                        false => usize::MAX,
                    };
                    replaced.min(swapped).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_a_stranger_is_not() {
        let known = ["schema", "database_url", "lease", "log", "poll"];
        for (name, meant) in [
            ("shema", Some("schema")),
            ("databse_url", Some("database_url")),
            ("database-url", Some("database_url")),
            ("laese", Some("lease")),
            ("logs", Some("log")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(closest(name, known), meant, "{name}");
        }
    }
}
