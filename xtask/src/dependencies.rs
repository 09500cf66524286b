//! Licences, duplicate versions and sources of the dependencies, by the policy in `deny.toml`.
//!
//! cargo-deny reads the same file, so there is one policy; this check needs no network and no other tool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::{Problems, licence, output_of, read};

/// The parts of `deny.toml` that are understood here; cargo-deny knows more.
#[derive(Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skip>,
}

/// A version that may stand beside another one.
#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    spec: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// What `cargo metadata` tells.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for a package of this workspace.
    source: Option<String>,
}

pub(crate) fn check(root: &Path) -> Result<Problems, String> {
    let policy: Policy =
        toml::from_str(&read(&root.join("deny.toml"))?).map_err(|e| format!("deny.toml: {e}"))?;
    let targets: Vec<&str> = policy.graph.targets.iter().map(String::as_str).collect();
    let packages = packages(&targets, &[], root).or_else(|_| {
        // Without a network there is only what the builds of this machine have fetched.
        let packages = packages(&["host-tuple"], &["--offline"], root)?;
        eprintln!(
            "dependencies: checked for this platform only, the packages of the others cannot be fetched"
        );
        Ok::<_, String>(packages)
    })?;
    Ok(judge(&policy, &packages))
}

/// Every package that some build for these targets takes in.
fn packages(targets: &[&str], options: &[&str], root: &Path) -> Result<Vec<Package>, String> {
    let mut args = vec!["metadata", "--locked", "--format-version=1", "--all-features"];
    targets.iter().for_each(|target| args.extend(["--filter-platform", target]));
    args.extend(options);
    let told = output_of(&cargo(), &args, root)?;
    let metadata: Metadata = serde_json::from_slice(&told).map_err(|e| format!("cargo metadata: {e}"))?;
    let used = used(targets, options, root)?;
    let is_used = |package: &Package| used.contains(&format!("{} v{}", package.name, package.version));
    Ok(metadata.packages.into_iter().filter(is_used).collect())
}

/// Names and versions as `name v1.2.3`: metadata also lists what only a feature that is off would bring.
fn used(targets: &[&str], options: &[&str], root: &Path) -> Result<BTreeSet<String>, String> {
    let mut args = vec!["tree", "--locked", "--workspace", "--all-features", "--edges=normal,build,dev"];
    args.extend(["--prefix=none", "--format={p}"]);
    targets.iter().for_each(|target| args.extend(["--target", target]));
    args.extend(options);
    let told = output_of(&cargo(), &args, root)?;
    let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(String::from_utf8_lossy(&told).lines().map(words).collect())
}

/// The cargo that runs us, which need not be the one on PATH.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn judge(policy: &Policy, packages: &[Package]) -> Problems {
    let mut problems = licences(policy, packages);
    problems.extend(sources(policy, packages));
    problems.extend(duplicates(policy, packages));
    problems
}

fn licences(policy: &Policy, packages: &[Package]) -> Problems {
    let allowed = |licence: &str| policy.licenses.allow.iter().any(|name| name == licence);
    let refused = |package: &&Package| match &package.license {
        Some(expression) => !licence::satisfied(expression, &allowed),
        None => true,
    };
    let say = |package: &Package| {
        let licence = package.license.as_deref().unwrap_or("no licence expression");
        format!("{} {} has {licence}, which deny.toml does not allow", package.name, package.version)
    };
    packages.iter().filter(refused).map(say).collect()
}

fn sources(policy: &Policy, packages: &[Package]) -> Problems {
    let known = |source: &str| {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| policy.sources.allow_registry.iter().any(|known| known == registry))
    };
    let foreign = packages.iter().filter_map(|package| {
        let source = package.source.as_deref().filter(|source| !known(source))?;
        Some(format!("{} {} comes from {source}", package.name, package.version))
    });
    foreign.collect()
}

fn duplicates(policy: &Policy, packages: &[Package]) -> Problems {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let mut problems = Problems::new();
    for skip in &policy.bans.skip {
        let (name, version) = skip.spec.split_once('@').unwrap_or((&skip.spec, ""));
        let present = versions.get_mut(name);
        let found = present.and_then(|all| all.iter().find(|found| stands_for(version, found)).copied());
        match found {
            Some(found) => _ = versions.get_mut(name).map(|all| all.remove(found)),
            None => problems.push(format!("deny.toml skips {}, which is no duplicate any more", skip.spec)),
        }
        if skip.reason.trim().is_empty() {
            problems.push(format!("deny.toml skips {} without a reason", skip.spec));
        }
    }
    problems.extend(versions.iter().filter(|(_, left)| left.len() != 1).map(|(name, left)| {
        let left: Vec<&str> = left.iter().copied().collect();
        match left.is_empty() {
            true => format!("deny.toml skips every version of {name}; leave one out"),
            false => format!("{name} is there in versions {}; deny.toml skips too few", left.join(", ")),
        }
    }));
    problems
}

/// `2` stands for every 2.x, `0.10` for every 0.10.x.
fn stands_for(spec: &str, version: &str) -> bool {
    version == spec || version.strip_prefix(spec).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "https://registry.example/index";

    fn problems_of(skip: &str, packages: &[(&str, &str, Option<&str>, Option<&str>)]) -> Problems {
        let policy = format!(
            "graph.targets = []\nlicenses.allow = ['MIT']\nsources.allow-registry = ['{REGISTRY}']\nbans.skip = [{skip}]"
        );
        let named = packages.iter().map(|(name, version, license, source)| Package {
            name: (*name).into(),
            version: (*version).into(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
        });
        judge(&toml::from_str(&policy).unwrap(), &named.collect::<Vec<_>>())
    }

    fn two_versions(skip: &str) -> Problems {
        problems_of(skip, &[("a", "1.4.0", Some("MIT"), None), ("a", "2.0.1", Some("MIT"), None)])
    }

    #[test]
    fn a_licence_that_is_not_allowed_or_not_told_is_a_problem() {
        assert!(problems_of("", &[("a", "1.0.0", Some("MIT OR GPL-3.0"), None)]).is_empty());
        assert!(problems_of("", &[("a", "1.0.0", Some("GPL-3.0"), None)])[0].contains("GPL-3.0"));
        assert!(problems_of("", &[("a", "1.0.0", None, None)])[0].contains("no licence"));
    }

    #[test]
    fn a_second_version_needs_an_entry_with_a_reason() {
        assert!(two_versions("")[0].contains("1.4.0, 2.0.1"));
        assert!(two_versions("{ crate = 'a@1', reason = 'b' }").is_empty());
        assert!(two_versions("{ crate = 'a@1', reason = ' ' }")[0].contains("without a reason"));
    }

    #[test]
    fn an_entry_that_stands_for_no_duplicate_is_a_problem() {
        assert!(two_versions("{ crate = 'a@1.3', reason = 'b' }")[0].contains("no duplicate any more"));
        assert!(two_versions("{ crate = 'a@1', reason = 'b' }, { crate = 'a@2', reason = 'b' }").len() == 1);
        let one = [("a", "1.4.0", Some("MIT"), None)];
        assert!(problems_of("{ crate = 'a@1', reason = 'b' }", &one)[0].contains("no duplicate any more"));
    }

    #[test]
    fn a_package_from_anywhere_but_the_registry_is_a_problem() {
        let from = |source: &str| problems_of("", &[("a", "1.0.0", Some("MIT"), Some(source))]);
        assert!(from(&format!("registry+{REGISTRY}")).is_empty());
        assert!(from("git+https://example.com/a")[0].contains("comes from git"));
        assert!(from("registry+https://mirror.example/index")[0].contains("mirror.example"));
    }

    #[test]
    fn a_short_version_stands_for_whole_components() {
        assert!(stands_for("2", "2.0.119"));
        assert!(stands_for("0.10", "0.10.4"));
        assert!(!stands_for("0.1", "0.10.4"));
        assert!(stands_for("1.0.0", "1.0.0"));
    }
}
