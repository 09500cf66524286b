//! Texts that must not be in any file: where somebody's machine keeps things, and where packages came from.

use std::path::Path;

use crate::{Problems, output_of};

/// Hosts of package registries, in pieces because this file is checked like any other.
const REGISTRY_HOSTS: [[&str; 2]; 9] = [
    ["index.", "crates.io"],
    ["static.", "crates.io"],
    ["registry.", "npmjs.org"],
    ["registry.", "yarnpkg.com"],
    ["files.", "pythonhosted.org"],
    ["pypi", ".org"],
    ["deb.", "debian.org"],
    ["snapshot.", "debian.org"],
    ["security.", "debian.org"],
];

/// Looks through every file that git knows or would add.
pub(crate) fn check(root: &Path) -> Result<Problems, String> {
    let listed = output_of("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"], root)?;
    let folders = machine_folders(root);
    let mut problems = Problems::new();
    for name in String::from_utf8_lossy(&listed).split('\0').filter(|name| !name.is_empty()) {
        // Not a text, or deleted and not yet committed.
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        problems.extend(judge(name, &text, &folders));
    }
    Ok(problems)
}

/// Folders of this machine that are no use to anybody else, each with a slash at its end.
fn machine_folders(root: &Path) -> Vec<String> {
    let named = ["HOME", "CARGO_HOME", "RUSTUP_HOME"].map(|name| std::env::var(name).unwrap_or_default());
    let folders = named.into_iter().chain([root.to_string_lossy().into_owned(), ["", "work"].join("/")]);
    // A root such as /outhaul would be found in addresses and in prose.
    let telling = folders.filter(|folder| folder.len() > 4 && folder.starts_with('/'));
    telling.map(|folder| format!("{}/", folder.trim_end_matches('/'))).collect()
}

fn judge(name: &str, text: &str, folders: &[String]) -> Problems {
    let mut problems = Problems::new();
    for (number, line) in (1..).zip(text.lines()) {
        let host = REGISTRY_HOSTS.iter().map(|parts| parts.concat()).find(|host| line.contains(host));
        let folder = folders.iter().find(|folder| mentions(line, folder));
        for found in [host.as_ref(), folder].into_iter().flatten() {
            problems.push(format!("{name}:{number} mentions {found}"));
        }
        if name.ends_with("package-lock.json") && line.trim_start().starts_with("\"resolved\"") {
            problems.push(format!("{name}:{number} records where a package was fetched from"));
        }
    }
    problems
}

/// Whether an absolute path begins here: `/home/me/` is not in `examples/home/me/`.
fn mentions(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}])*$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(name: &str, text: &str) -> Problems {
        judge(name, text, &["/home/me/".to_owned()])
    }

    #[test]
    fn a_path_of_the_machine_is_found_and_a_relative_one_is_not() {
        assert_eq!(problems_of("a.md", "one\nsee `/home/me/notes`"), ["a.md:2 mentions /home/me/"]);
        assert!(problems_of("a.md", "examples/home/me/x $DIR/home/me/x /home/mew/").is_empty());
    }

    #[test]
    fn the_address_of_a_registry_is_found() {
        let host = REGISTRY_HOSTS[2].concat();
        assert_eq!(problems_of("a.md", &format!("https://{host}/x")).len(), 1);
        assert!(
            problems_of("Cargo.lock", "registry+https://github.com/rust-lang/crates.io-index").is_empty()
        );
    }

    #[test]
    fn a_lock_file_may_not_say_where_a_package_was_fetched_from() {
        let line = "  \"resolved\": \"https://mirror.example/a.tgz\",";
        assert_eq!(problems_of("x/package-lock.json", line).len(), 1);
        assert!(problems_of("x/other.json", line).is_empty());
    }
}
