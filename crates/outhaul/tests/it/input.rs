//! Bad input is refused before anything is stored, in the same words at every door.

use std::time::Duration;

use outhaul::{Error, Failure, NewEvent, NewJob, SchemaName, enqueue_many, limits, publish, publish_many};

use crate::doors::{Door, Fact, Offer, all_words};
use crate::support::{Db, connect};

/// Offers a job at every door and expects the same refusal everywhere.
async fn refused_everywhere(db: &mut Db, offer: &Offer, field: &str, what: &str) {
    for door in Door::ALL {
        match offer.at(door, &mut db.client).await {
            Ok(id) => panic!("{what}: {door:?} stored {id}"),
            Err(error) => {
                assert_eq!(
                    (error.code(), error.field()),
                    ("invalid_input", Some(field)),
                    "{what}: {door:?}: {error:?}"
                );
                assert!(error.hint().is_some(), "{what}: {door:?}: {error:?}");
                assert!(!error.is_retryable(), "{what}: {door:?}: {error:?}");
            }
        }
    }
}

async fn accepted_everywhere(db: &mut Db, offer: &Offer, what: &str) {
    for door in Door::ALL {
        let offer = offer.again();
        let key = offer.key.clone().map(|key| key.replacen('k', &format!("{}", door as u8), 1));
        let offer = Offer { key, ..offer };
        offer.at(door, &mut db.client).await.unwrap_or_else(|error| panic!("{what}: {door:?}: {error:?}"));
    }
}

async fn nothing_is_stored(db: &Db) {
    let sql = "select (select count(*) from outhaul.all_jobs) + (select count(*) from outhaul.job_keys)";
    assert_eq!(db.count(sql).await, 0);
}

fn string_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

#[tokio::test]
async fn the_size_limit_is_one_byte_sharp_at_every_door() {
    let mut db = Db::new().await;
    let over = Offer::of_payload(string_of(limits::PAYLOAD_BYTES + 1));
    refused_everywhere(&mut db, &over, "payload", "limit + 1").await;
    // White space is no part of the payload, and an escape counts as the character it stands for; the blanks that
    // PostgreSQL prints between elements do count.
    let spread = Offer::of_payload(format!("[{}1]", "1,".repeat(limits::PAYLOAD_BYTES / 3)));
    refused_everywhere(&mut db, &spread, "payload", "elements with their blanks").await;
    nothing_is_stored(&db).await;
    for bytes in [limits::PAYLOAD_BYTES - 1, limits::PAYLOAD_BYTES] {
        accepted_everywhere(&mut db, &Offer::of_payload(string_of(bytes)), "within the limit").await;
    }
    let padded = format!("[1, {}2]", " ".repeat(2 * limits::PAYLOAD_BYTES));
    accepted_everywhere(&mut db, &Offer::of_payload(padded), "white space").await;
    let escaped = format!("\"{}\"", "\\u00e9".repeat(100_000));
    accepted_everywhere(&mut db, &Offer::of_payload(escaped), "600 kB of escapes").await;
}

#[tokio::test]
async fn what_jsonb_cannot_hold_is_refused_at_every_door() {
    let mut db = Db::new().await;
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let bad = [
        r#"{"a":"\u0000"}"#.to_owned(),
        r#"{"\u0000":1}"#.to_owned(),
        r#"{"name":"\ud800"}"#.to_owned(),
        r#""\udc00""#.to_owned(),
        r#""\ud83d\ud83d""#.to_owned(),
        r#""\ud800\u0041""#.to_owned(),
        "1e131073".to_owned(),
        "[1e-20000]".to_owned(),
        "1e99999999999999999999".to_owned(),
        "-1E+200000".to_owned(),
        deep(100_000),
        format!("{}1{}", r#"{"a":"#.repeat(50_000), "}".repeat(50_000)),
        "[".repeat(100_000),
        "{".to_owned(),
        String::new(),
        "{\"a\":1,}".to_owned(),
        "{'a':1}".to_owned(),
        "NaN".to_owned(),
        "Infinity".to_owned(),
        "undefined".to_owned(),
        "01".to_owned(),
        "1 2".to_owned(),
        "\"tab\there\"".to_owned(),
        "\"no end".to_owned(),
        "\"raw \0\"".to_owned(),
        "\u{feff}{}".to_owned(),
    ];
    for payload in bad {
        let what: String = payload.chars().take(30).collect();
        refused_everywhere(&mut db, &Offer::of_payload(payload.clone()), "payload", &what).await;
        let keyed = Offer { payload, ..Offer::keyed("k") };
        refused_everywhere(&mut db, &keyed, "payload", &what).await;
    }
    nothing_is_stored(&db).await;
}

#[tokio::test]
async fn honest_text_comes_back_byte_for_byte() {
    let mut db = Db::new().await;
    let honest = [
        r#""\\u0000""#,
        r#""\\\\u0000""#,
        r#""six visible characters: \\u0000""#,
        r#"{"😀": "\u0001 \"quoted\" \\ / ü €"}"#,
        r#""a'; drop table jobs; --""#,
        r#"[1.10, 100, -0.5, 12345678901234567890123456789, true, null, ""]"#,
    ];
    for text in honest {
        for door in Door::ALL {
            let offer = Offer::of_payload(text);
            offer.at(door, &mut db.client).await.unwrap_or_else(|error| panic!("{text} {door:?}: {error:?}"));
            let stored = "select payload::text from outhaul.jobs where id = $1";
            let stored: String = db.client.query_one(stored, &[&offer.id]).await.unwrap().get(0);
            assert_eq!(stored, text, "{door:?}");
        }
    }
}

/// Refusing early is a kindness and must never refuse what the database would take.
#[tokio::test]
async fn the_library_refuses_nothing_that_the_database_would_store() {
    let db = Db::new().await;
    let mut documents = Vec::new();
    let mantissas = ["0", "-0", "0.0", "0.000", "1", "-1", "9.99", "0.001", "12345", "1.50"];
    let exponents = [
        "",
        "e0",
        "E+1",
        "e-1",
        "e400",
        "e16383",
        "e-16382",
        "e-16383",
        "e-16384",
        "e-16390",
        "e131071",
        "e131072",
        "e131073",
        "e200000",
        "e-200000",
        "e1073741822",
        "e-1073741822",
        "e1073741824",
        "e99999999999999999999",
    ];
    for mantissa in mantissas {
        documents.extend(exponents.iter().map(|exponent| format!("{mantissa}{exponent}")));
    }
    documents.push(format!("0.{}1e20000", "0".repeat(20_000)));
    documents.push(format!("1{}e-20000", "0".repeat(20_000)));
    documents.push("1".repeat(131_072));
    documents.push("1".repeat(131_073));
    documents.push(format!("0.{}", "1".repeat(16_383)));
    documents.push(format!("0.{}", "1".repeat(16_384)));
    let units = [
        "\\u0000",
        "\\u0001",
        "\\u007f",
        "\\u00ff",
        "\\ud83d",
        "\\ude00",
        "\\uD83D\\uDE00",
        "\\uffff",
        "\\\\",
        "\\\"",
        "x",
        "é",
        "u0000",
    ];
    for first in units {
        for second in units {
            documents.push(format!("\"{first}{second}\""));
            documents.push(format!("{{\"{first}{second}\": []}}"));
        }
    }
    for document in [
        "",
        " ",
        "{}",
        " [ ] ",
        "nul",
        "null",
        "tru",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "\"\u{7f}\"",
        "\"\u{1f}\"",
        "1.",
        ".5",
        "+1",
        "--1",
        "0x10",
        "1e",
        "\"\\x\"",
        "\"\\u12\"",
        "/**/1",
        "[1]]",
        "\u{a0}1",
    ] {
        documents.push(document.to_owned());
    }
    let (mut both, mut neither, mut late) = (0, 0, 0);
    for document in &documents {
        let early = NewJob::raw("q", "t", document.as_str()).check();
        let stored = "select octet_length($1::text::jsonb::text) <= 262144";
        let stored = db.client.query_one(stored, &[document]).await.is_ok_and(|row| row.get(0));
        match (early, stored) {
            (Ok(()), true) => both += 1,
            (Err(_), false) => neither += 1,
            (Ok(()), false) => late += 1,
            (Err(error), true) => {
                let what: String = document.chars().take(60).collect();
                panic!("the database stores {what} but the library says: {error}");
            }
        }
    }
    assert!(both > 100 && neither > 50, "{both} {neither}");
    assert_eq!(late, 0, "everything here can be seen without the database");
}

/// Two hundred names that have hurt somebody, or could.
fn hostile_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "a\n",
        "\na",
        " a",
        "a ",
        "a b",
        "1",
        "1a",
        "-",
        "-a",
        "--",
        "_",
        "_a",
        ".",
        "..",
        ".a",
        ":",
        ":a",
        "/",
        "a/b",
        "../../etc/passwd",
        "a\\b",
        "\\",
        "'",
        "''",
        "a'",
        "\"",
        "\"\"",
        "a\"b",
        "`a`",
        "$",
        "$$",
        "$$a$$",
        "$1",
        "a$1",
        "${a}",
        "%",
        "%s",
        "%n",
        "a%20b",
        "?",
        "a?",
        "*",
        "a*",
        "**",
        "#",
        "a#b",
        "!",
        "a!",
        "@",
        "a@b",
        "&",
        "a&b",
        "|",
        "a|b",
        ";",
        "a;b",
        ",",
        "a,b",
        "(",
        ")",
        "()",
        "a()",
        "[",
        "]",
        "[]",
        "{",
        "}",
        "{}",
        "{a}",
        "<",
        ">",
        "<a>",
        "=",
        "a=b",
        "+",
        "a+b",
        "~",
        "^",
        "a^",
        "a~",
        "x\"; drop table t;--",
        "x'); select pg_sleep(5);--",
        "x' or '1'='1",
        "x\\'; drop table t;--",
        "a;--",
        "a/*",
        "a*/",
        "/**/",
        "a\u{7f}",
        "a\u{1b}[31m",
        "a\u{8}",
        "a\u{0b}",
        "a\u{0c}",
        "a\u{85}",
        "a\u{a0}",
        "a\u{ad}",
        "a\u{2028}",
        "a\u{2029}",
        "a\u{200b}",
        "a\u{200d}b",
        "a\u{202e}b",
        "a\u{feff}",
        "\u{feff}a",
        "a\u{fffd}",
        "a\u{ffff}",
        "a\u{10ffff}",
        "a\u{e000}",
        "ä",
        "aä",
        "é",
        "e\u{301}",
        "ß",
        "ſ",
        "\u{212a}",
        "İ",
        "ı",
        "ﬁ",
        "Ａ",
        "ａ",
        "а",
        "Α",
        "аdmin",
        "日本",
        "a日",
        "😀",
        "a😀",
        "🏳️‍🌈",
        "नमस्ते",
        "עברית",
        "العربية",
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\"><svg onload=alert(1)>",
        "a\"onclick=\"x",
        "&lt;a&gt;",
        "a&#0;",
        "{{7*7}}",
        "${7*7}",
        "#{7*7}",
        "<%= 7 %>",
        "$(id)",
        "`id`",
        "a|id",
        "a&&id",
        "a>b",
        "a<b",
        "%00",
        "a%00b",
        "\\0",
        "a\\0",
        "\\x00",
        "\\u0000",
        "a\\u0000",
        "=1+1",
        "+1",
        "@SUM(1)",
        "https://example.test/",
        "a://b",
        "a b c",
        "a\tb",
        "a\u{3000}b",
        "null\u{0}",
        "a\u{0}",
        "\u{0}",
        "\u{0}a",
        "a'||'b",
        "a\"||\"b",
        "E'\\x41'",
        "U&\"\\0041\"",
        "a::text;",
        "::text",
        "a b::int",
        "select 1",
        "drop table jobs",
        "a\u{300}",
        "A\u{30a}",
        "…",
        "a…",
        "“a”",
        "’",
        "a’b",
        "–",
        "—",
        "×",
        "§",
    ]
    .map(str::to_owned)
    .to_vec();
    for length in [64, 65, 100, 255, 256, 1_000, 10_000, 100_000] {
        names.push("x".repeat(length));
    }
    names.push(format!("{}é", "x".repeat(62)));
    names.push(format!("{}\u{0}", "x".repeat(62)));
    names.push("é".repeat(63));
    names.push(" ".repeat(63));
    names
}

#[tokio::test]
async fn two_hundred_hostile_names_are_refused_by_one_rule_at_every_door() {
    let mut db = Db::new().await;
    let names = hostile_names();
    assert!(names.len() >= 200, "{}", names.len());
    for name in &names {
        // A NUL cannot even be sent: the server refuses the text before it knows what it is for.
        let field = |field| if name.contains('\0') { "payload" } else { field };
        for (offer, name_of) in [
            (Offer { queue: name.clone(), ..Offer::keyed("k") }, "queue"),
            (Offer { job_type: name.clone(), ..Offer::keyed("k") }, "job_type"),
        ] {
            for door in Door::ALL {
                let error = offer.at(door, &mut db.client).await.expect_err(name);
                let expected = if Door::SQL.contains(&door) { field(name_of) } else { name_of };
                assert_eq!(
                    (error.code(), error.field()),
                    ("invalid_input", Some(expected)),
                    "{name:?} {door:?}"
                );
                assert!(
                    name.len() < 3 || !all_words(&error).contains(name.as_str()),
                    "{name:?} {door:?}: {error:?}"
                );
            }
        }
        assert!(SchemaName::new(name).is_err_and(|error| error.is_invalid_input()), "schema {name:?}");
    }
    nothing_is_stored(&db).await;
    assert_eq!(db.count("select count(*) from pg_class where relname = 't'").await, 0);
}

#[tokio::test]
async fn hostile_names_are_refused_by_operators_and_workers_and_find_nothing_in_claims() {
    let db = Db::new().await;
    let operator = db.operator().await;
    let observer = db.observer().await;
    let sane: Vec<String> = hostile_names().into_iter().filter(|name| !name.contains('\0')).collect();
    for name in &sane {
        for refused in [operator.pause(name, None).await.err(), operator.history(name, "row").await.err()] {
            let error: Error = refused.expect(name);
            assert_eq!((error.code(), error.field()), ("invalid_input", Some("queue")), "{name:?}");
        }
        let claimed = "select count(*) from outhaul.claim($1, 1, gen_random_uuid(), '60 s')";
        assert_eq!(db.client.query_one(claimed, &[name]).await.unwrap().get::<_, i64>(0), 0);
        let filter = outhaul::JobFilter {
            queue: Some(name.clone()),
            job_type: Some(name.clone()),
            ..Default::default()
        };
        assert!(observer.jobs(&filter).await.unwrap().is_empty(), "{name:?}");
        let worker = db.worker().handle_raw("ticks", "t", |_| async { Ok::<(), Failure>(()) }).queue(name, 1);
        assert!(worker.build().await.is_err_and(|error| error.is_invalid_input()), "worker of {name:?}");
        let worker = db.worker().handle_raw("ticks", name, |_| async { Ok::<(), Failure>(()) });
        assert!(worker.build().await.is_err_and(|error| error.is_invalid_input()), "worker for {name:?}");
    }
    assert_eq!(db.count("select count(*) from outhaul.queues where age_objective is null").await, 0);
    assert_eq!(db.count("select count(*) from outhaul.audit_log").await, 0);
}

#[tokio::test]
async fn numbers_and_times_out_of_range_are_refused_at_every_door_and_the_last_allowed_are_not() {
    let mut db = Db::new().await;
    let o = Offer::default;
    let t = |text: &str| Some(text.to_owned());
    let bad = [
        ("priority", Offer { priority: 11, ..o() }),
        ("priority", Offer { priority: -11, ..o() }),
        ("priority", Offer { priority: 32_767, ..o() }),
        ("priority", Offer { priority: -32_768, ..o() }),
        ("max_attempts", Offer { max_attempts: 0, ..o() }),
        ("max_attempts", Offer { max_attempts: -1, ..o() }),
        ("max_attempts", Offer { max_attempts: 1_001, ..o() }),
        ("max_attempts", Offer { max_attempts: 32_767, ..o() }),
        ("timeout", Offer { timeout: Some(0), ..o() }),
        ("timeout", Offer { timeout: Some(86_400_001), ..o() }),
        ("run_at", Offer { run_at: t("2200-01-01T00:00:00Z"), ..o() }),
        ("run_at", Offer { run_at: t("9999-12-30T00:00:00Z"), ..o() }),
        ("idempotency_key", Offer { key: t(""), ..o() }),
        ("idempotency_key", Offer { key: Some("k".repeat(256)), ..o() }),
        ("idempotency_key", Offer { key: Some("é".repeat(128)), ..o() }),
        ("traceparent", Offer { traceparent: t(""), ..o() }),
        (
            "traceparent",
            Offer { traceparent: t("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"), ..o() },
        ),
        (
            "traceparent",
            Offer { traceparent: t("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n"), ..o() },
        ),
        (
            "traceparent",
            Offer { traceparent: t("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"), ..o() },
        ),
    ];
    for (field, offer) in &bad {
        refused_everywhere(&mut db, offer, field, &format!("{offer:?}")).await;
    }
    // Longer than an index entry can be, and not to be compressed.
    let endless: String = (0..700).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    refused_everywhere(&mut db, &Offer { key: Some(endless), ..o() }, "idempotency_key", "22 kB of key")
        .await;
    nothing_is_stored(&db).await;
    let good = [
        Offer { priority: 10, ..o() },
        Offer { priority: -10, ..o() },
        Offer { max_attempts: 1, ..o() },
        Offer { max_attempts: 1_000, ..o() },
        Offer { timeout: Some(1), ..o() },
        Offer { timeout: Some(86_400_000), ..o() },
        Offer { run_at: t("0001-01-01T00:00:00Z"), ..o() },
        Offer { run_at: t("2199-12-31T23:59:59Z"), ..o() },
        Offer { key: Some("k".repeat(255)), ..o() },
        Offer { key: Some(format!("k{}", "é".repeat(127))), ..o() },
        Offer { queue: "x".repeat(63), job_type: "A:b.c-D_9".into(), ..o() },
    ];
    for offer in &good {
        accepted_everywhere(&mut db, offer, &format!("{offer:?}")).await;
    }
}

#[tokio::test]
async fn delays_and_timeouts_that_fit_no_clock_are_refused_before_anything_is_sent() {
    let job = || NewJob::raw("q", "t", "{}");
    for (field, job) in [
        ("run_at", job().delay(Duration::MAX)),
        ("run_at", job().delay(Duration::from_secs(86_400 * 36_501))),
        ("timeout", job().timeout(Duration::MAX)),
        ("timeout", job().timeout(Duration::ZERO)),
        ("timeout", job().timeout(Duration::from_micros(999))),
    ] {
        assert_eq!(job.check().unwrap_err().field(), Some(field));
    }
    assert!(job().delay(Duration::ZERO).check().is_ok());
    assert!(job().delay(Duration::from_secs(86_400 * 36_500)).check().is_ok());
}

#[tokio::test]
async fn missing_and_infinite_arguments_are_refused_by_the_functions() {
    let db = Db::new().await;
    let refused = [
        ("queue", "outhaul.enqueue(null, 't')"),
        ("job_type", "outhaul.enqueue('q', null)"),
        ("payload", "outhaul.enqueue('q', 't', null)"),
        ("priority", "outhaul.enqueue('q', 't', priority => null)"),
        ("max_attempts", "outhaul.enqueue('q', 't', max_attempts => null)"),
        ("max_attempts", "outhaul.enqueue('q', 't', max_attempts => 2147483647)"),
        ("priority", "outhaul.enqueue('q', 't', priority => -2147483648)"),
        ("run_at", "outhaul.enqueue('q', 't', run_at => 'infinity')"),
        ("run_at", "outhaul.enqueue('q', 't', run_at => '-infinity')"),
        ("timeout", "outhaul.enqueue('q', 't', timeout => '-1 s')"),
        ("timeout", "outhaul.enqueue('q', 't', timeout => '1 month')"),
        ("queue", "outhaul.enqueue_many(null, 't', '{1}', array[gen_random_uuid()])"),
        (
            "payload",
            "outhaul.enqueue_many('q', 't', '{1,null}', array[gen_random_uuid(), gen_random_uuid()])",
        ),
        (
            "payload",
            "outhaul.enqueue_many('q', 't', '{1,null}', array[gen_random_uuid(), gen_random_uuid()], '{a,b}')",
        ),
        ("ids", "outhaul.enqueue_many('q', 't', null, array[gen_random_uuid()])"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1}', null)"),
        ("ids", "outhaul.enqueue_many('q', 't', null, null)"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1}', array[null]::uuid[])"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1}', array[null]::uuid[], '{a}')"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1,2}', array[gen_random_uuid()])"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], '{a,b}')"),
        ("ids", "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], organization_ids => '{}')"),
        (
            "ids",
            "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], run_ats => array[now(), now()])",
        ),
        (
            "run_at",
            "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], run_ats => '{infinity}')",
        ),
        (
            "run_at",
            "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], '{a}', run_ats => '{-infinity}')",
        ),
        (
            "organization_id",
            "outhaul.enqueue_many('q', 't', '{1}', array[gen_random_uuid()], \
                organization_ids => '{00000000-0000-0000-0000-000000000000}')",
        ),
        ("reason", "outhaul.cancel(gen_random_uuid(), repeat('x', 65))"),
    ];
    for (field, call) in refused {
        let error = Error::from(db.client.execute(&format!("select {call}"), &[]).await.expect_err(call));
        assert_eq!(
            (error.code(), error.field(), error.sqlstate()),
            ("invalid_input", Some(field), Some("OH001")),
            "{call}"
        );
    }
    for infinite in ["infinity", "-infinity"] {
        let sql =
            format!("insert into outhaul.jobs (queue, job_type, run_at) values ('q', 't', '{infinite}')");
        let error = Error::from(db.client.execute(&sql, &[]).await.expect_err(infinite));
        let why = "and a job is stored with the point in time at which it is due";
        assert_eq!(error.to_string(), format!("run_at is {infinite}, {why}"));
    }
    nothing_is_stored(&db).await;
}

#[tokio::test]
async fn no_error_carries_a_part_of_the_payload() {
    const CANARY: &str = "swordfish";
    let mut db = Db::new().await;
    let long = "x".repeat(limits::PAYLOAD_BYTES);
    let bad = [
        format!("{{\"{CANARY}\": {CANARY}}}"),
        format!("{{\"{CANARY}\": \"\\u0000{CANARY}\"}}"),
        format!("\"{CANARY}\\ud800\""),
        format!("[\"{CANARY}\", 1e200000]"),
        format!("\"{CANARY}{long}\""),
        format!("{{\"{CANARY}\": 1"),
        CANARY.to_owned(),
        format!("\"{CANARY}\u{0}\""),
        format!("{}\"{CANARY}\"{}", "[".repeat(90_000), "]".repeat(90_000)),
    ];
    for door in Door::ALL {
        for payload in &bad {
            for offer in [
                Offer::of_payload(payload.clone()),
                Offer { payload: payload.clone(), ..Offer::keyed("bad") },
            ] {
                let error = offer.at(door, &mut db.client).await.unwrap_err();
                assert!(!all_words(&error).contains(CANARY), "{door:?}: {}", all_words(&error));
            }
        }
        let first = Offer { payload: format!("\"{CANARY}\""), ..Offer::keyed(&format!("{door:?}")) };
        first.at(door, &mut db.client).await.unwrap();
        let other = Offer { payload: format!("\"{CANARY} 2\""), ..first.again() };
        let same_id = Offer { key: None, ..other.clone() };
        let same_id = Offer { id: first.id, ..same_id };
        for offer in [other, same_id] {
            let error = offer.at(door, &mut db.client).await.unwrap_err();
            assert!(error.is_conflict(), "{door:?}: {error:?}");
            assert!(!all_words(&error).contains(CANARY), "{door:?}: {}", all_words(&error));
        }
    }
    assert!(!format!("{:?}", Offer::of_payload(CANARY).job()).contains(CANARY));
    // What the functions themselves say holds none either, in any of the fields that a server log prints.
    for payload in ["\"swordfish\"", "\"swordfish 2\""] {
        let call = "select outhaul.enqueue('ticks', 'test.tick', $1::text::jsonb, idempotency_key => 'raw')";
        if let Err(error) = db.client.execute(call, &[&payload]).await {
            let error = error.as_db_error().unwrap();
            assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
        }
    }
}

#[tokio::test]
async fn one_bad_element_refuses_the_whole_call_of_the_function() {
    let db = Db::new().await;
    for keys in ["null", "array(select 'k' || n from generate_series(1, 100) n)"] {
        for bad in ["'\"\\u0000\"'", "'{'", "repeat('[', 5)", "'\"' || repeat('x', 262143) || '\"'"] {
            let call = format!(
                "select outhaul.enqueue_many('q', 't', array(select case when n = 77 then {bad} else '1' end from generate_series(1, 100) n), \
                 array(select gen_random_uuid() from generate_series(1, 100)), {keys})"
            );
            let error = Error::from(db.client.execute(&call, &[]).await.expect_err(&call));
            assert_eq!((error.code(), error.field()), ("invalid_input", Some("payload")), "{call}");
        }
    }
    nothing_is_stored(&db).await;
}

#[tokio::test]
async fn a_refusal_by_the_library_leaves_the_callers_transaction_usable() {
    let db = Db::new().await;
    let mut client = connect(&db.url()).await;
    let mut tx = client.transaction().await.unwrap();
    let bad = NewJob::raw("q", "t", "{").idempotency_key("k");
    assert!(outhaul::enqueue(&mut tx, &bad).await.is_err());
    assert!(enqueue_many(&mut tx, &[NewJob::raw("q", "t", "1"), bad]).await.is_err());
    outhaul::enqueue(&mut tx, &NewJob::raw("q", "t", "1").idempotency_key("k")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.jobs").await, 1);
}

/// Offers an event at every door and expects the same refusal everywhere, in the same words.
async fn no_fact(db: &mut Db, fact: &Fact, field: &str, what: &str) {
    let doors = if fact.key.is_some() { &Fact::KEYED[..] } else { &Door::ALL[..] };
    for door in doors {
        match fact.at(*door, &mut db.client).await {
            Ok(id) => panic!("{what}: {door:?} stored {id}"),
            Err(error) => {
                assert_eq!(
                    (error.code(), error.field()),
                    ("invalid_input", Some(field)),
                    "{what}: {door:?}: {error:?}"
                );
                assert!(error.hint().is_some() && !error.is_retryable(), "{what}: {door:?}: {error:?}");
            }
        }
    }
}

async fn no_event_is_stored(db: &Db) {
    let sql = "select (select count(*) from outhaul.outbox_events) + (select count(*) from outhaul.outbox_unsequenced) \
        + (select count(*) from outhaul.job_keys)";
    assert_eq!(db.count(sql).await, 0);
}

#[tokio::test]
async fn payloads_of_events_have_the_limits_of_payloads_of_jobs() {
    let mut db = Db::new().await;
    let bad = [
        string_of(limits::PAYLOAD_BYTES + 1),
        format!("[{}1]", "1,".repeat(limits::PAYLOAD_BYTES / 3)),
        r#"{"a":"\u0000"}"#.to_owned(),
        r#""\ud800""#.to_owned(),
        r#""\ud83d\ud83d""#.to_owned(),
        "1e131073".to_owned(),
        "[".repeat(100_000),
        "{".to_owned(),
        String::new(),
        "NaN".to_owned(),
        "\"raw \0\"".to_owned(),
    ];
    for payload in bad {
        let what: String = payload.chars().take(30).collect();
        no_fact(&mut db, &Fact::of_payload(payload.clone()), "payload", &what).await;
        no_fact(&mut db, &Fact { payload, ..Fact::keyed("k") }, "payload", &what).await;
    }
    no_event_is_stored(&db).await;
    let largest = string_of(limits::PAYLOAD_BYTES);
    let honest =
        r#"{"😀": "\u0001 \"quoted\" \\u0000 / ü €", "n": [1.10, 12345678901234567890123456789, null]}"#;
    for text in [&*largest, honest] {
        for door in Door::ALL {
            let fact = Fact::of_payload(text);
            fact.at(door, &mut db.client).await.unwrap_or_else(|error| panic!("{door:?}: {error:?}"));
            let stored = "select payload = $2::text::jsonb from outhaul.outbox_events where id = $1";
            assert!(
                db.client.query_one(stored, &[&fact.id, &text]).await.unwrap().get::<_, bool>(0),
                "{door:?}"
            );
        }
    }
}

#[tokio::test]
async fn hostile_names_of_events_are_refused_by_the_one_rule_at_every_door() {
    let mut db = Db::new().await;
    for name in hostile_names() {
        // A NUL cannot even be sent: the server refuses the text before it knows what it is for.
        let nul = name.contains('\0');
        for (fact, field) in [
            (Fact { event_type: name.clone(), ..Fact::default() }, "event_type"),
            (Fact { aggregate_type: name.clone(), ..Fact::default() }, "aggregate_type"),
            (Fact { event_type: name.clone(), ..Fact::keyed("k") }, "event_type"),
        ] {
            for door in Door::ALL.into_iter().filter(|door| fact.key.is_none() || Fact::KEYED.contains(door))
            {
                let error = fact.at(door, &mut db.client).await.expect_err(&name);
                let expected = if nul && Door::SQL.contains(&door) { "payload" } else { field };
                assert_eq!(
                    (error.code(), error.field()),
                    ("invalid_input", Some(expected)),
                    "{name:?} {door:?}"
                );
                assert!(
                    name.len() < 3 || !all_words(&error).contains(name.as_str()),
                    "{name:?} {door:?}: {error:?}"
                );
            }
        }
    }
    no_event_is_stored(&db).await;
}

#[tokio::test]
async fn what_is_out_of_range_in_an_event_is_refused_at_every_door_and_the_last_allowed_is_not() {
    let mut db = Db::new().await;
    let f = Fact::default;
    let t = |text: &str| Some(text.to_owned());
    let endless: String = (0..700).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let bad = [
        ("schema_version", Fact { schema_version: 0, ..f() }),
        ("schema_version", Fact { schema_version: i32::MIN, ..f() }),
        ("occurred_at", Fact { occurred_at: t("1900-01-01T00:00:00Z"), ..f() }),
        ("occurred_at", Fact { occurred_at: t("2200-01-01T00:00:00Z"), ..f() }),
        ("occurred_at", Fact { occurred_at: t("0001-01-01T00:00:00Z"), ..f() }),
        ("available_at", Fact { available_at: t("1900-01-01T00:00:00Z"), ..f() }),
        ("available_at", Fact { available_at: t("2200-01-01T00:00:00Z"), ..f() }),
        ("available_at", Fact { available_at: t("9999-12-30T00:00:00Z"), ..f() }),
        ("partition_key", Fact { partition_key: t(""), ..f() }),
        ("partition_key", Fact { partition_key: Some("é".repeat(128)), ..f() }),
        ("idempotency_key", Fact { key: t(""), ..f() }),
        ("idempotency_key", Fact { key: Some("k".repeat(256)), ..f() }),
        ("idempotency_key", Fact { key: Some(endless.clone()), ..f() }),
        ("event_type", Fact { event_type: endless, ..Fact::keyed("k") }),
        ("organization_id", Fact { organization: Some(uuid::Uuid::nil()), ..f() }),
        ("organization_id", Fact { organization: Some(uuid::Uuid::nil()), ..Fact::keyed("k") }),
        ("traceparent", Fact { traceparent: t(""), ..f() }),
        (
            "traceparent",
            Fact { traceparent: t("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"), ..f() },
        ),
        (
            "traceparent",
            Fact { traceparent: t("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n"), ..f() },
        ),
    ];
    for (field, fact) in &bad {
        no_fact(&mut db, fact, field, &format!("{fact:?}")).await;
    }
    no_event_is_stored(&db).await;
    let good = [
        Fact { schema_version: i32::MAX, ..f() },
        Fact { occurred_at: t("1900-01-01T00:00:00.000001Z"), ..f() },
        Fact { occurred_at: t("2199-12-31T23:59:59.999999Z"), ..f() },
        Fact { available_at: t("1900-01-01T00:00:00.000001Z"), ..f() },
        Fact { available_at: t("2199-12-31T23:59:59.999999Z"), ..f() },
        Fact { partition_key: Some(format!("k{}", "é".repeat(127))), ..f() },
        Fact { event_type: "x".repeat(63), aggregate_type: "A:b.c-D_9".into(), ..f() },
    ];
    for fact in &good {
        for door in Door::ALL {
            fact.at(door, &mut db.client)
                .await
                .unwrap_or_else(|error| panic!("{fact:?} {door:?}: {error:?}"));
        }
    }
    let longest = Fact { event_type: "x".repeat(63), ..Fact::keyed(&"k".repeat(255)) };
    longest.at(Door::Function, &mut db.client).await.unwrap();
}

/// The library and the schema say the same thing about the same mistake.
#[tokio::test]
async fn the_library_refuses_an_event_in_the_words_of_the_database() {
    let mut db = Db::new().await;
    let f = Fact::default;
    for fact in [
        Fact { event_type: "1".into(), ..f() },
        Fact { aggregate_type: "1".into(), ..f() },
        Fact { schema_version: 0, ..f() },
        Fact { occurred_at: Some("2200-01-01T00:00:00Z".into()), ..f() },
        Fact { available_at: Some("2200-01-01T00:00:00Z".into()), ..f() },
        Fact { organization: Some(uuid::Uuid::nil()), ..f() },
        Fact { traceparent: Some("x".into()), ..f() },
        Fact { payload: string_of(limits::PAYLOAD_BYTES + 1), ..f() },
        Fact { partition_key: Some("k".repeat(256)), ..f() },
        Fact { key: Some("k".repeat(256)), ..f() },
    ] {
        let early = fact.event().check().unwrap_err();
        let doors = if fact.key.is_some() { &Fact::KEYED[2..] } else { &Door::SQL[..] };
        for door in doors {
            let late = fact.at(*door, &mut db.client).await.unwrap_err();
            assert_eq!((early.field(), early.hint()), (late.field(), late.hint()), "{door:?}");
            // A key of this machine's can hold a NUL besides.
            let words = early.to_string().replace(", or contains U+0000", "");
            assert_eq!(words, late.to_string(), "{door:?}");
        }
    }
    let nul = |event: NewEvent| event.check().unwrap_err().field().map(str::to_owned);
    let event = || NewEvent::raw("a.b", "a", uuid::Uuid::now_v7(), "{}");
    assert_eq!(nul(event().partition_key("a\0b")).as_deref(), Some("partition_key"));
    assert_eq!(nul(event().idempotency_key("a\0b")).as_deref(), Some("idempotency_key"));
}

#[tokio::test]
async fn missing_and_infinite_arguments_of_publish_are_refused_by_the_functions() {
    let db = Db::new().await;
    let u = "gen_random_uuid()";
    let one = |rest: &str| format!("outhaul.publish('a.b', 'a', {u}{rest})");
    let many = |rest: &str| {
        format!("outhaul.publish_many('{{a.b}}', '{{a}}', array[{u}], '{{1}}', array[{u}]{rest})")
    };
    let refused = [
        ("event_type", format!("outhaul.publish(null, 'a', {u})")),
        ("aggregate_type", format!("outhaul.publish('a.b', null, {u})")),
        ("aggregate_id", "outhaul.publish('a.b', 'a', null)".into()),
        ("payload", one(", null")),
        ("schema_version", one(", schema_version => null")),
        ("occurred_at", one(", occurred_at => 'infinity'")),
        ("occurred_at", one(", occurred_at => '-infinity'")),
        ("available_at", one(", available_at => 'infinity'")),
        ("available_at", one(", available_at => '-infinity'")),
        ("ids", many(", schema_versions => '{1,2}'")),
        ("ids", many(", occurred_ats => array[now(), now()]")),
        ("ids", many(", available_ats => '{}'")),
        ("ids", many(", partition_keys => '{a,b}'")),
        ("ids", many(", organization_ids => '{}'")),
        ("ids", many(", traceparents => '{}'")),
        ("ids", many(", idempotency_keys => '{a,b}'")),
        ("schema_version", many(", schema_versions => '{0}'")),
        ("occurred_at", many(", occurred_ats => '{infinity}'")),
        ("available_at", many(", available_ats => '{-infinity}', idempotency_keys => '{k}'")),
        ("ids", format!("outhaul.publish_many(null, '{{a}}', array[{u}], '{{1}}', array[{u}])")),
        ("ids", format!("outhaul.publish_many('{{a.b}}', '{{a,b}}', array[{u}], '{{1}}', array[{u}])")),
        ("ids", format!("outhaul.publish_many('{{a.b}}', '{{a}}', '{{}}', '{{1}}', array[{u}])")),
        ("ids", format!("outhaul.publish_many('{{a.b}}', '{{a}}', array[{u}], null, array[{u}])")),
        ("ids", format!("outhaul.publish_many('{{a.b}}', '{{a}}', array[{u}], '{{1}}', null)")),
        ("ids", format!("outhaul.publish_many('{{a.b}}', '{{a}}', array[{u}], '{{1}}', '{{null}}')")),
    ];
    for (field, call) in &refused {
        let error = Error::from(db.client.execute(&format!("select {call}"), &[]).await.expect_err(call));
        assert_eq!(
            (error.code(), error.field(), error.sqlstate()),
            ("invalid_input", Some(*field), Some("OH001")),
            "{call}"
        );
    }
    // Each element that may not be missing, with a key and without.
    for keys in ["null", "'{k,l}'"] {
        for (field, arrays) in [
            ("event_type", format!("'{{a.b,null}}', '{{a,a}}', array[{u}, {u}], '{{1,1}}'")),
            ("aggregate_type", format!("'{{a.b,a.b}}', '{{a,null}}', array[{u}, {u}], '{{1,1}}'")),
            ("aggregate_id", format!("'{{a.b,a.b}}', '{{a,a}}', array[{u}, null], '{{1,1}}'")),
            ("payload", format!("'{{a.b,a.b}}', '{{a,a}}', array[{u}, {u}], '{{1,null}}'")),
        ] {
            let call =
                format!("select outhaul.publish_many({arrays}, array[{u}, {u}], idempotency_keys => {keys})");
            let error = Error::from(db.client.execute(&call, &[]).await.expect_err(&call));
            assert_eq!((error.code(), error.field()), ("invalid_input", Some(field)), "{call}");
        }
    }
    no_event_is_stored(&db).await;
    // Elements that may be missing mean the default.
    let call =
        format!("select {}", many(", '{null}', '{null}', '{null}', '{null}', '{null}', '{null}', '{null}'"));
    db.client.execute(&call, &[]).await.unwrap();
    let sql = "select count(*) from outhaul.outbox_events where schema_version = 1 and occurred_at = at and available_at = at";
    assert_eq!(db.count(sql).await, 1);
}

#[tokio::test]
async fn no_error_carries_a_part_of_an_events_payload() {
    const CANARY: &str = "swordfish";
    let mut db = Db::new().await;
    let long = "x".repeat(limits::PAYLOAD_BYTES);
    for payload in [
        format!("{{\"{CANARY}\": {CANARY}}}"),
        format!("{{\"{CANARY}\": \"\\u0000{CANARY}\"}}"),
        format!("\"{CANARY}{long}\""),
    ] {
        for fact in
            [Fact::of_payload(payload.clone()), Fact { payload: payload.clone(), ..Fact::keyed("bad") }]
        {
            for door in Fact::KEYED {
                let error = fact.at(door, &mut db.client).await.unwrap_err();
                assert!(!all_words(&error).contains(CANARY), "{door:?}: {}", all_words(&error));
            }
        }
    }
    for door in Fact::KEYED {
        let first = Fact { payload: format!("\"{CANARY}\""), ..Fact::keyed(&format!("{door:?}")) };
        first.at(door, &mut db.client).await.unwrap();
        let error = Fact { payload: format!("\"{CANARY} 2\""), ..first.again() }
            .at(door, &mut db.client)
            .await
            .unwrap_err();
        assert!(error.is_conflict() && !all_words(&error).contains(CANARY), "{}", all_words(&error));
    }
    assert!(!format!("{:?}", Fact::of_payload(CANARY).event()).contains(CANARY));
}

#[tokio::test]
async fn a_refusal_of_an_event_by_the_library_leaves_the_callers_transaction_usable() {
    let mut db = Db::new().await;
    let event = |text: &str| NewEvent::raw("a.b", "a", uuid::Uuid::now_v7(), text).idempotency_key("k");
    let mut tx = db.client.transaction().await.unwrap();
    assert!(publish(&mut tx, &event("{")).await.is_err());
    assert!(publish_many(&mut tx, &[event("1"), event("{")]).await.is_err());
    publish(&mut tx, &event("1")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.count("select count(*) from outhaul.outbox_events").await, 1);
}
