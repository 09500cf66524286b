//! Where settings come from, and which place decides.

use std::collections::BTreeMap;

use crate::support::Place;

/// Value and origin of every setting.
fn shown(place: &Place, args: &[&str]) -> BTreeMap<String, (String, String)> {
    let args: Vec<&str> = ["config", "show", "--origin", "--json"].iter().chain(args).copied().collect();
    let answer = place.run(&args).ok().json();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
    let settings = answer["settings"].as_array().unwrap().iter();
    settings.map(|s| (text(&s["key"]), (text(&s["value"]), text(&s["origin"])))).collect()
}

#[test]
fn the_first_place_that_has_a_setting_decides() {
    let own = "postgres://u@own:5432/d";
    let file = |url: &str, schema: &str| format!("database_url = {url:?}\nschema = {schema:?}\n");
    let place = |variables: &[(&str, &str)], local: bool, home: bool| {
        let place = variables.iter().fold(Place::bare(), |place, (name, value)| place.with(name, value));
        if local {
            place.write("outhaul.toml", &file("postgres://u@local/d", "local"));
        }
        if home {
            place.write("home/.config/outhaul/config.toml", &file("postgres://u@home/d", "home"));
        }
        place
    };
    let variables =
        [("OUTHAUL_DATABASE_URL", own), ("OUTHAUL_SCHEMA", "own"), ("DATABASE_URL", "postgres://u@all/d")];
    let decides = |place: &Place, args: &[&str], host: &str, origin: &str, schema: &str| {
        let settings = shown(place, args);
        let (url, from) = &settings["database_url"];
        assert!(url.contains(host) && from.ends_with(origin), "{host} from {origin}, not {url} from {from}");
        assert_eq!(settings["schema"].0, schema);
    };
    let flags = ["--database-url", "postgres://u@flag/d", "--schema", "flag"];
    decides(&place(&variables, true, true), &flags, "@flag", "--database-url", "flag");
    decides(&place(&variables, true, true), &[], "@own", "OUTHAUL_DATABASE_URL", "own");
    decides(&place(&variables[2..], true, true), &[], "@all", "DATABASE_URL", "local");
    decides(&place(&[("PGHOST", "pg")], true, true), &[], "@pg", "PGHOST", "local");
    decides(&place(&[], true, true), &[], "@local", "/outhaul.toml", "local");
    decides(&place(&[], false, true), &[], "@home", "/outhaul/config.toml", "home");
    let none = shown(&place(&[], false, false), &[]);
    assert_eq!(none["database_url"], ("-".into(), "-".into()));
    assert_eq!(none["schema"], ("outhaul".into(), "default".into()));
    assert_eq!(none["lease"], ("60s".into(), "default".into()));
}

#[test]
fn a_queue_or_type_is_as_the_first_file_says_and_others_are_added() {
    let place = Place::bare();
    place.write(
        "outhaul.toml",
        "[queues]\nmail = 3\n[jobs.\"test.ok\"]\ncommand = [\"local\"]\n\
        [[projections.p.rules]]\nevent = \"a.local\"\njob = \"j\"\n",
    );
    let home = "[queues]\nmail = 7\nbulk = 8\n[jobs.\"test.ok\"]\ncommand = [\"home\"]\n\
        [jobs.\"test.more\"]\ncommand = [\"more\"]\n\
        [[projections.p.rules]]\nevent = \"a.home\"\njob = \"j\"\n\
        [[projections.q.rules]]\nevent = \"a.more\"\njob = \"j\"\n";
    place.write("home/.config/outhaul/config.toml", home);
    let settings = shown(&place, &[]);
    for (key, value, origin) in [
        ("queues.mail", "3", "/outhaul.toml"),
        ("queues.bulk", "8", "/outhaul/config.toml"),
        ("jobs.test.ok", "local", "/outhaul.toml"),
        ("jobs.test.more", "more", "/outhaul/config.toml"),
        ("projections.p", "a.local -> j", "/outhaul.toml"),
        ("projections.q", "a.more -> j", "/outhaul/config.toml"),
    ] {
        let (shown, from) = &settings[key];
        assert!(shown == value && from.ends_with(origin), "{key} is {shown} from {from}");
    }
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let place = Place::bare().with("OUTHAUL_SCHEMA", "").with("DATABASE_URL", "").with("OUTHAUL_CONFIG", "");
    let settings = shown(&place, &[]);
    assert_eq!(settings["schema"], ("outhaul".into(), "default".into()));
    assert_eq!(settings["database_url"], ("-".into(), "-".into()));
}

#[test]
fn a_user_or_password_alone_names_no_database() {
    let place = Place::bare().with("PGUSER", "u").with("PGPASSWORD", "x");
    assert_eq!(shown(&place, &[])["database_url"].0, "-");
}

#[test]
fn a_secret_comes_from_a_file() {
    let place = Place::bare();
    let secret = place.write("secret", "postgres://u:pw@secret/d\n");
    let place = place.with("OUTHAUL_DATABASE_URL_FILE", &secret.to_string_lossy());
    let (url, origin) = &shown(&place, &[])["database_url"];
    assert_eq!(origin, "OUTHAUL_DATABASE_URL_FILE");
    let (target, _) = url.split_once('?').unwrap();
    assert_eq!(target, "postgres://u@secret:5432/d", "the line break is no part of it");
    place.write("outhaul.toml", "listen_url_file = \"listen\"");
    place.write("listen", "postgres://u:pw@listen/d");
    assert!(shown(&place, &[])["listen_url"].0.contains("@listen"));

    let both = place.with("OUTHAUL_DATABASE_URL", "postgres://u@h/d");
    let problem = both.run(&["config", "show", "--json"]).exits(2).problem();
    assert!(problem["message"].as_str().unwrap().contains("both set"), "{problem}");
}

#[test]
fn an_unknown_key_is_an_error_that_knows_the_right_one() {
    let place = Place::bare();
    for (text, hint) in [
        ("shema = \"x\"", "Did you mean \"schema\"?"),
        ("[jobs.\"a.b\"]\ncommand = [\"x\"]\ntimout = \"1s\"", "Did you mean \"timeout\"?"),
        ("colour = true", "Known keys: database_url,"),
    ] {
        place.write("outhaul.toml", text);
        let problem = place.run(&["queues", "list", "--json"]).exits(2).problem();
        assert_eq!(problem["code"], "unknown_key", "{problem}");
        assert!(problem["hint"].as_str().unwrap().starts_with(hint), "{problem}");
    }
    // What needs no settings is not held up.
    place.run(&["version"]).ok();
}

#[test]
fn a_value_of_the_wrong_form_is_named_with_its_place() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d").with("OUTHAUL_LEASE", "30");
    place.bind("test.ok", "exit 0", "");
    let problem = place.run(&["work", "--json"]).exits(2).problem();
    assert!(
        problem["message"]
            .as_str()
            .unwrap()
            .starts_with("lease (from OUTHAUL_LEASE) is not a time that can be used: its unit is missing"),
        "{problem}"
    );
    for (text, part) in [
        ("schema = [1]", "schema must be text"),
        ("[queues]\nmail = 0", "queue \"mail\""),
        ("[jobs.\"a\"]\nqueue = \"q\"", "needs a command"),
        ("[jobs.\"a\"]\ncommand = []", "needs a command"),
        ("[jobs.\"a\"]\ncommand = [\"x\"]\ntimeout = \"30\"", "timeout in [jobs.\"a\"]: its unit is missing"),
        ("[jobs.\"a\"]\ncommand = [\"x\"]\ntimeout = 30", "use 1ms to 24h"),
        ("a = ", "outhaul.toml:1:"),
    ] {
        place.write("outhaul.toml", text);
        let problem = place.run(&["config", "show", "--json"]).exits(2).problem();
        assert!(problem["message"].as_str().unwrap().contains(part), "{text}: {problem}");
    }
    place.write("outhaul.toml", "[jobs.\"no such type\"]\ncommand = [\"x\"]");
    let problem = place.with("OUTHAUL_LEASE", "30s").run(&["work", "--json"]).exits(2).problem();
    assert!(problem["message"].as_str().unwrap().contains("no such type"), "{problem}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_reason() {
    let place = Place::bare().with("DATABASE_URL", "postgres://u@127.0.0.1:1/d");
    std::fs::write(place.path("latin.toml"), b"schema = \"a\xff\"\n").unwrap();
    place.write("schema.toml", "schema = \"A b\"\n");
    place.write("empty.toml", "");
    for (file, part) in [
        (".", "the configuration file . cannot be read: Is a directory"),
        ("latin.toml", "the configuration file latin.toml cannot be read: it is not UTF-8"),
        ("schema.toml", "schema \"A b\" (from "),
    ] {
        let problem = place.run(&["queues", "list", "--config", file, "--json"]).exits(2).problem();
        assert!(problem["message"].as_str().unwrap().contains(part), "{problem}");
        assert!(problem["hint"].is_string(), "{problem}");
    }
    place.run(&["config", "show", "--config", "empty.toml"]).ok();
    let twice = place.run(&["config", "show", "--config", "empty.toml", "--config", "schema.toml"]).exits(2);
    assert!(twice.err.contains("'--config <FILE>' cannot be used multiple times"), "{}", twice.err);
}

#[test]
fn a_misspelt_variable_is_pointed_out() {
    let place = Place::bare().with("OUTHAUL_SHEMA", "x").with("OUTHAUL_JOB_ID", "y");
    let ran = place.run(&["config", "show"]).ok();
    assert!(ran.err.contains("did you mean OUTHAUL_SCHEMA?"), "{}", ran.err);
    assert!(!ran.err.contains("OUTHAUL_JOB_ID"), "{}", ran.err);
}
