//! The table of failures, row by row: what a service or a library did, what class that is, and what it does to a job.
//!
//! Waits are long here, so that a job that waits can be looked at; that it runs again after them is in `verdicts`.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outhaul::{
    Context, EventContext, Failure, Job, NewJob, Outcome, RecordedEvent, Relay, Start, Subscription,
};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::scripted::{Step, get, hinted, nobody, service, status};
use crate::support::{Db, Running, connect, until};

const BASE: f64 = 600.0;
const JITTER: f64 = 0.2;
const MAX_HINT: f64 = 3600.0;
/// Between the times at which the job's and the attempt's row are written by one statement.
const WRITING: f64 = 1.0;

/// Asks a service, with patience of its own.
#[derive(Debug, Serialize, Deserialize)]
struct Call {
    addr: SocketAddr,
    patience_ms: u64,
}

impl Job for Call {
    const TYPE: &'static str = "test.call";
    const QUEUE: &'static str = "calls";
}

async fn call(call: Call, _: Context) -> Outcome {
    let patience = Duration::from_millis(call.patience_ms);
    let answer = tokio::time::timeout(patience, get(call.addr)).await??;
    if answer.status != 200 {
        return Err(Failure::http(answer.status).headers(|name| answer.header(name)));
    }
    serde_json::from_str::<String>(&answer.body)?;
    Ok(())
}

/// What one attempt has done to its job.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    status: String,
    /// Spent, as the job's row says.
    attempts: i32,
    outcome: String,
    class: String,
    code: Option<String>,
    summary: Option<String>,
    /// Seconds from the report to the time at which it is due, by the server's clock.
    wait: Option<f64>,
}

impl Seen {
    fn brief(&self) -> (&str, i32, &str, &str, Option<&str>) {
        (&self.status, self.attempts, &self.outcome, &self.class, self.code.as_deref())
    }

    /// It waits for as long as a first failure does.
    fn waits_for_the_backoff(&self) {
        self.waits(BASE * (1.0 - JITTER), BASE * (1.0 + JITTER));
    }

    fn waits_for_a_hint_of(&self, seconds: f64) {
        self.waits(seconds, seconds * (1.0 + JITTER));
    }

    fn waits(&self, least: f64, most: f64) {
        let wait = self.wait.unwrap_or_else(|| panic!("it does not wait: {self:?}"));
        assert!(
            wait >= least - WRITING && wait <= most + WRITING,
            "{wait} s, not {least} to {most}: {self:?}"
        );
    }
}

/// A database and a worker that calls services.
struct Bench {
    db: Db,
    running: Running,
    queues: usize,
}

/// How many jobs a test may have. Each has a queue of its own, so that none waits for what happened to another.
const QUEUES: usize = 24;

impl Bench {
    async fn new() -> Bench {
        let db = Db::new().await;
        let url = db.url();
        let saying = move |what: Say, _: Context| {
            let url = url.clone();
            async move { say(&url, what).await }
        };
        let mut builder = db.worker().handle(call).handle(saying);
        for n in 0..QUEUES {
            builder = builder.queue(format!("bench-{n}"), 2);
        }
        let builder = builder.with(|o| {
            o.retry.backoff.base = Duration::from_secs_f64(BASE);
            o.retry.backoff.jitter = JITTER;
            o.retry.max_hint = Duration::from_secs_f64(MAX_HINT);
        });
        let running = Running::start(builder).await;
        Bench { db, running, queues: 0 }
    }

    async fn enqueue(&mut self, job: NewJob) -> Uuid {
        let queue = format!("bench-{}", self.queues);
        self.queues += 1;
        assert!(self.queues <= QUEUES);
        outhaul::enqueue(&mut self.db.client, &job.queue(queue)).await.unwrap().id().0
    }

    async fn call(&mut self, addr: SocketAddr) -> Uuid {
        self.enqueue(calling(addr)).await
    }

    /// One attempt at a service that behaves so.
    async fn after(&mut self, step: Step) -> Seen {
        let id = self.call(service([step]).await).await;
        self.seen(id, 1).await
    }

    /// Waits for the `n`-th report on a job.
    async fn seen(&self, id: Uuid, n: i64) -> Seen {
        until(&format!("attempt {n} is settled"), || async {
            let settled = "select count(*) from outhaul.job_attempts where job_id = $1";
            self.db.client.query_one(settled, &[&id]).await.unwrap().get::<_, i64>(0) >= n
        })
        .await;
        let sql = "select coalesce(j.status::text, f.status::text, 'dead_letter'), coalesce(j.attempts, d.attempts, f.attempts), \
              a.outcome::text, a.error_class::text, a.error_code, a.error_summary, \
              extract(epoch from j.run_at - a.ended_at)::float8 \
            from outhaul.job_attempts a left join outhaul.jobs j on j.id = a.job_id \
            left join outhaul.jobs_dead d on d.id = a.job_id left join outhaul.jobs_finished f on f.id = a.job_id \
            where a.job_id = $1 order by a.claim_no desc limit 1";
        let row = self.db.client.query_one(sql, &[&id]).await.unwrap();
        Seen {
            status: row.get(0),
            attempts: row.get(1),
            outcome: row.get(2),
            class: row.get(3),
            code: row.get(4),
            summary: row.get(5),
            wait: row.get(6),
        }
    }

    /// Lets a job that waits begin again.
    async fn skip_the_wait(&self, id: Uuid) {
        let sql = "update outhaul.jobs set run_at = clock_timestamp() where id = $1 and status = 'retrying'";
        assert_eq!(self.db.client.execute(sql, &[&id]).await.unwrap(), 1);
        // What was told to wait has cooled its queue down.
        let cooled = "update outhaul.queues set cool_until = '-infinity'; notify outhaul";
        self.db.client.batch_execute(cooled).await.unwrap();
    }

    async fn stop(self) {
        self.running.stop().await;
    }
}

fn calling(addr: SocketAddr) -> NewJob {
    NewJob::new(&Call { addr, patience_ms: 60_000 }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_retried_after_the_backoff() {
    let mut bench = Bench::new().await;
    let id = bench.call(nobody().await).await;
    let seen = bench.seen(id, 1).await;
    assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some("io_connection_refused")));
    seen.waits_for_the_backoff();
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_hangs_is_a_timeout_whoever_s_patience_ends() {
    let mut bench = Bench::new().await;
    let addr = service([Step::Hang]).await;
    let own = bench.enqueue(NewJob::new(&Call { addr, patience_ms: 50 }).unwrap()).await;
    let limit = bench.enqueue(calling(addr).timeout(Duration::from_millis(50))).await;
    for id in [own, limit] {
        let seen = bench.seen(id, 1).await;
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some("timeout")));
        seen.waits_for_the_backoff();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_in_trouble_is_retried_after_the_backoff() {
    let mut bench = Bench::new().await;
    for number in [408, 425, 500, 502, 503, 504, 529] {
        let seen = bench.after(status(number)).await;
        let code = format!("http_{number}");
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some(&*code)));
        seen.waits_for_the_backoff();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_is_a_dead_letter_at_once() {
    let mut bench = Bench::new().await;
    for number in [400, 401, 403, 404, 410, 422, 501] {
        let seen = bench.after(status(number)).await;
        let code = format!("http_{number}");
        assert_eq!(seen.brief(), ("dead_letter", 1, "dead_letter", "permanent", Some(&*code)));
        assert_eq!(seen.wait, None);
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_tell_is_tried_three_times() {
    let mut bench = Bench::new().await;
    for number in [302, 409] {
        let id = bench.call(service([status(number)]).await).await;
        let code = format!("http_{number}");
        for n in 1..=2 {
            let seen = bench.seen(id, n).await;
            assert_eq!(seen.brief(), ("retrying", n as i32, "retry", "unknown", Some(&*code)));
            bench.skip_the_wait(id).await;
        }
        let seen = bench.seen(id, 3).await;
        assert_eq!(seen.brief(), ("dead_letter", 3, "dead_letter", "unknown", Some(&*code)));
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_without_a_hint_waits_for_the_backoff() {
    let mut bench = Bench::new().await;
    let seen = bench.after(status(429)).await;
    assert_eq!(seen.brief(), ("retrying", 1, "retry", "rate_limited", Some("http_429")));
    seen.waits_for_the_backoff();
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_in_seconds_is_followed() {
    let mut bench = Bench::new().await;
    for (step, code) in [(hinted(429, "1800"), "http_429"), (hinted(503, "1800"), "http_503")] {
        let seen = bench.after(step).await;
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "rate_limited", Some(code)));
        seen.waits_for_a_hint_of(1800.0);
    }
    bench.stop().await;
}

fn http_date(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_that_is_a_date_is_measured_by_the_clock_of_the_service() {
    let mut bench = Bench::new().await;
    for skew in [-30, -3, 0, 3, 30] {
        let its_now = Timestamp::now() + SignedDuration::from_hours(skew);
        let then = its_now + SignedDuration::from_secs(1800);
        for date in [
            http_date(then),
            then.strftime("%A, %d-%b-%y %H:%M:%S GMT").to_string(),
            then.strftime("%a %b %e %H:%M:%S %Y").to_string(),
        ] {
            let step = Step::Status(429, vec![("Date", http_date(its_now)), ("Retry-After", date.clone())]);
            let seen = bench.after(step).await;
            assert_eq!(seen.class, "rate_limited", "{date}");
            seen.waits_for_a_hint_of(1800.0);
        }
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_that_is_a_date_without_another_is_measured_by_the_worker_s_clock() {
    let mut bench = Bench::new().await;
    let before = Timestamp::now();
    let date = http_date(before + SignedDuration::from_secs(1800));
    let seen = bench.after(hinted(429, date)).await;
    assert_eq!(seen.class, "rate_limited");
    // Whole seconds, of which some have passed until it was read.
    let passed = Timestamp::now().duration_since(before).as_secs_f64() + 1.0;
    seen.waits(1800.0 - passed, 1800.0 * (1.0 + JITTER));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_beyond_all_measure_is_bounded_by_the_policy() {
    let mut bench = Bench::new().await;
    for hint in [
        "3601".to_owned(),
        format!("1{}", "0".repeat(30)),
        u64::MAX.to_string(),
        "Fri, 31 Dec 9999 23:59:59 GMT".to_owned(),
    ] {
        let seen = bench.after(hinted(429, hint)).await;
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "rate_limited", Some("http_429")));
        seen.waits_for_a_hint_of(MAX_HINT);
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_of_no_wait_waits_like_a_first_failure() {
    let mut bench = Bench::new().await;
    for hint in ["0", "1", "Sun, 06 Nov 1994 08:49:37 GMT"] {
        let seen = bench.after(hinted(429, hint)).await;
        assert_eq!(seen.class, "rate_limited", "{hint}");
        seen.waits_for_the_backoff();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_without_sense_is_none() {
    let mut bench = Bench::new().await;
    for hint in ["", "-5", "NaN", "soon", "1e9", "0x10", "Sun, 99 Nov 1994 08:49:37 GMT", "\u{1f600}"] {
        let seen = bench.after(hinted(503, hint)).await;
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some("http_503")), "{hint}");
        seen.waits_for_the_backoff();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_end_is_retried_after_the_backoff() {
    let mut bench = Bench::new().await;
    let addr = service([Step::SlowBody]).await;
    let slow = bench.enqueue(NewJob::new(&Call { addr, patience_ms: 100 }).unwrap()).await;
    let seen = bench.seen(slow, 1).await;
    assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some("timeout")));
    for (step, code) in [
        (Step::ResetInBody, "io_connection_reset"),
        (Step::CloseInBody, "io_unexpected_eof"),
        (Step::Close, "io_unexpected_eof"),
    ] {
        let seen = bench.after(step).await;
        assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some(code)));
        seen.waits_for_the_backoff();
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_makes_no_sense_is_a_dead_letter_that_does_not_repeat_it() {
    let mut bench = Bench::new().await;
    // The body is not JSON.
    let seen = bench.after(status(200)).await;
    assert_eq!(seen.brief(), ("dead_letter", 1, "dead_letter", "permanent", Some("json")));
    assert_eq!(seen.summary.as_deref(), Some("JSON does not have the expected form at line 1"));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_spend_attempts_up_to_the_last() {
    let mut bench = Bench::new().await;
    let addr = service([hinted(429, "1800")]).await;
    let id = bench.enqueue(calling(addr).max_attempts(3)).await;
    for n in 1..=2 {
        let seen = bench.seen(id, n).await;
        assert_eq!(seen.brief(), ("retrying", n as i32, "retry", "rate_limited", Some("http_429")));
        // No longer after a second failure: the service knows, the backoff does not.
        seen.waits_for_a_hint_of(1800.0);
        bench.skip_the_wait(id).await;
    }
    let seen = bench.seen(id, 3).await;
    assert_eq!(seen.brief(), ("dead_letter", 3, "dead_letter", "rate_limited", Some("http_429")));
    bench.stop().await;
}

#[derive(Debug, Serialize, Deserialize)]
enum Say {
    Revoked,
    Crash,
    Json,
    Statement(String),
    Closed,
    Invalid,
    Snooze,
    /// Code and summary, in hexadecimal: JSON cannot carry them all.
    Words(String),
    TenMegabytes(char),
}

impl Job for Say {
    const TYPE: &'static str = "test.say";
    const QUEUE: &'static str = "sayings";
}

impl Say {
    fn job(&self) -> NewJob {
        NewJob::new(self).unwrap()
    }
}

async fn say(url: &str, say: Say) -> Outcome {
    match say {
        Say::Revoked => Err(Failure::revoked("withdrawn").code("withdrawn")),
        Say::Crash => Err(Failure::crash("the converter was killed").code("signal_9")),
        Say::Json => Ok(serde_json::from_str("\"swordfish\"")?),
        Say::Statement(sql) => Ok(connect(url).await.batch_execute(&sql).await?),
        Say::Closed => {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            let connection = tokio::spawn(connection);
            let _ = client.batch_execute("select pg_terminate_backend(pg_backend_pid())").await;
            let _ = connection.await;
            Ok(client.batch_execute("select 1").await?)
        }
        Say::Invalid => {
            let job = NewJob::raw("no queue", "test.say", "{}");
            outhaul::enqueue(&mut connect(url).await, &job).await?;
            Ok(())
        }
        Say::Snooze => Err(Failure::snooze(Duration::from_secs(1800))),
        Say::Words(hex) => {
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            let text = String::from_utf8(bytes.collect()).unwrap();
            Err(Failure::permanent(&text).code(text))
        }
        Say::TenMegabytes(c) => {
            let text: String = std::iter::repeat_n(c, 10_000_000 / c.len_utf8()).collect();
            Err(Failure::permanent(&text).code(text))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_job_is_cancelled_and_a_crash_runs_again_at_once_and_then_waits() {
    let mut bench = Bench::new().await;
    let revoked = bench.enqueue(Say::Revoked.job()).await;
    let seen = bench.seen(revoked, 1).await;
    assert_eq!(seen.brief(), ("cancelled", 1, "cancelled", "revoked", Some("withdrawn")));
    let crash = bench.enqueue(Say::Crash.job()).await;
    let seen = bench.seen(crash, 2).await;
    assert_eq!(seen.brief(), ("retrying", 2, "retry", "crash", Some("signal_9")));
    seen.waits_for_the_backoff();
    let first = "select count(*) from outhaul.job_attempts a join outhaul.job_attempts b using (job_id) \
        where a.attempt = 1 and b.attempt = 2 and b.started_at - a.ended_at < interval '10 s'";
    assert_eq!(bench.db.count(first).await, 1);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_gives_its_attempt_back() {
    let mut bench = Bench::new().await;
    let id = bench.enqueue(Say::Snooze.job()).await;
    let seen = bench.seen(id, 1).await;
    assert_eq!(seen.brief(), ("pending", 0, "snoozed", "snooze", None));
    seen.waits(1800.0, 1800.0);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_database_say_their_class() {
    let mut bench = Bench::new().await;
    bench
        .db
        .client
        .batch_execute("create table taken (id int primary key); insert into taken values (1)")
        .await
        .unwrap();
    let raise = |state: &str| format!("do $$ begin raise 'x' using errcode = '{state}'; end $$");
    let limited = "begin; set local statement_timeout = '50ms'; select pg_sleep(60)".to_owned();
    for (sql, class, code) in [
        (raise("40001"), "transient", "sqlstate_40001"),
        (raise("40P01"), "transient", "sqlstate_40p01"),
        (raise("55P03"), "transient", "sqlstate_55p03"),
        (raise("53300"), "transient", "sqlstate_53300"),
        (raise("57P01"), "transient", "sqlstate_57p01"),
        (limited, "transient", "sqlstate_57014"),
        ("insert into taken values (1)".into(), "permanent", "sqlstate_23505"),
        ("select 1/0".into(), "permanent", "sqlstate_22012"),
        ("select nothing from nowhere".into(), "permanent", "sqlstate_42p01"),
        (raise("23503"), "unknown", "sqlstate_23503"),
        (raise("P0001"), "unknown", "sqlstate_p0001"),
    ] {
        let id = bench.enqueue(Say::Statement(sql).job()).await;
        let seen = bench.seen(id, 1).await;
        let after = if class == "permanent" { ("dead_letter", "dead_letter") } else { ("retrying", "retry") };
        assert_eq!(seen.brief(), (after.0, 1, after.1, class, Some(code)));
    }
    let closed = bench.enqueue(Say::Closed.job()).await;
    let seen = bench.seen(closed, 1).await;
    assert_eq!(seen.brief(), ("retrying", 1, "retry", "transient", Some("connection_closed")));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_enqueuing_and_of_reading_json_are_permanent() {
    let mut bench = Bench::new().await;
    for (what, code) in [(Say::Invalid, "invalid_input"), (Say::Json, "json")] {
        let id = bench.enqueue(what.job()).await;
        let seen = bench.seen(id, 1).await;
        assert_eq!(seen.brief(), ("dead_letter", 1, "dead_letter", "permanent", Some(code)));
        assert!(!seen.summary.unwrap().contains("swordfish"));
    }
    bench.stop().await;
}

/// Texts that have broken rows, logs or terminals somewhere.
fn hostile() -> Vec<String> {
    let mut texts: Vec<String> = (0..32).chain(127..160).map(|c| char::from(c).to_string()).collect();
    texts = vec![texts.concat()];
    texts.extend(
        [
            "",
            "\0",
            "\\u0000 \\ud800 \\xff \\",
            "\u{1b}[2J\u{1b}]0;title\u{7}",
            "\u{202e}gpj.exe\u{2066}\u{2069}",
            "a\u{2028}b\u{2029}c\u{85}d",
            "'; drop table outhaul.jobs; --",
            "$$ $1 %s {} {0} \\N \\.",
            "<script>alert(1)</script>",
            "\u{fffe}\u{ffff}\u{10ffff}\u{feff}",
            "Upper Case\nand lines",
        ]
        .map(str::to_owned),
    );
    // A character at every place around the limits.
    for (c, limit) in [('é', 64), ('€', 64), ('👩', 64), ('é', 1_000), ('€', 1_000), ('👩', 1_000)]
    {
        texts.extend((0..c.len_utf8()).map(|off| "x".repeat(limit - off) + &c.to_string().repeat(9)));
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn no_words_of_a_failure_keep_it_from_being_settled() {
    let mut bench = Bench::new().await;
    let hex = |text: String| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let jobs: Vec<NewJob> = hostile()
        .into_iter()
        .map(|text| Say::Words(hex(text)).job())
        .chain(['x', '\u{1b}', '€', '\n'].map(|c| Say::TenMegabytes(c).job()))
        .map(|job| job.queue("bench-0").id(outhaul::JobId::new()))
        .collect();
    outhaul::enqueue_many(&mut bench.db.client, &jobs).await.unwrap();
    let all = jobs.len();
    bench.db.until("all are settled", &format!("select count(*) = {all} from outhaul.jobs_dead")).await;
    let attempts = "select error_class::text, error_code, error_summary from outhaul.job_attempts";
    for row in bench.db.client.query(attempts, &[]).await.unwrap() {
        let (class, code): (String, Option<String>) = (row.get(0), row.get(1));
        assert_eq!(class, "permanent");
        let simple = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        assert!(code.iter().all(|code| code.len() <= 64 && code.bytes().all(simple)), "{code:?}");
        let summary: String = row.get(2);
        assert!(summary.len() <= outhaul::limits::ERROR_SUMMARY_BYTES);
        let shown = |c: char| {
            !c.is_control()
                && !('\u{202a}'..='\u{202e}').contains(&c)
                && !('\u{2028}'..='\u{2029}').contains(&c)
        };
        assert!(summary.chars().all(shown), "{summary:?}");
    }
    let kept = "select count(*) from outhaul.jobs_dead where last_error_code = 'upper_case_and_lines' \
        and last_error_summary = 'Upper Case and lines' and last_error_class = 'permanent'";
    assert_eq!(bench.db.count(kept).await, 1);
    let longest = "select max(octet_length(error_summary))::bigint from outhaul.job_attempts";
    assert_eq!(bench.db.count(longest).await, 1_000);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stopped_handler_runs_into_is_given_back_and_what_it_says_itself_counts() {
    let mut db = Db::new().await;
    let stopped = |fails: fn() -> Outcome| {
        move |cx: Context| async move {
            cx.cancelled().await;
            fails()
        }
    };
    let interrupted = stopped(|| Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted))?);
    let chosen = stopped(|| Err(Failure::transient("half done")));
    let builder = db.worker().handle_raw("ticks", "test.interrupted", interrupted);
    let builder = builder.handle_raw("ticks", "test.chosen", chosen);
    let running = Running::start(builder.with(|o| o.drain = Duration::ZERO)).await;
    for name in ["test.interrupted", "test.chosen"] {
        outhaul::enqueue(&mut db.client, &NewJob::raw("ticks", name, "{}")).await.unwrap();
    }
    let both = "select count(*) = 2 from outhaul.jobs where status = 'leased'";
    db.until("both run", both).await;
    running.stop().await;
    let sql = "select a.outcome || ' ' || a.error_class || ' ' || j.attempts from outhaul.job_attempts a \
        join outhaul.jobs j on j.id = a.job_id order by j.job_type desc";
    let rows = db.client.query(sql, &[]).await.unwrap();
    let seen: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["released released 0", "retry transient 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_events_wait_for_a_hint_as_jobs_do() {
    let db = Db::new().await;
    db.client
        .execute("select outhaul.publish('a.limited', 'a', gen_random_uuid(), '{}')", &[])
        .await
        .unwrap();
    let limited = |_: RecordedEvent, _: EventContext| async {
        Err::<(), _>(Failure::http(429).headers(|name| (name == "retry-after").then_some("1800")))
    };
    let builder = db
        .worker()
        .relay(Relay::default().start(Start::Beginning), limited)
        .subscribe(Subscription::new("limited").start(Start::Beginning), limited);
    let running = Running::start(builder).await;
    let range = "between clock_timestamp() + interval '1700 s' and clock_timestamp() + interval '2160 s'";
    let relay = format!(
        "select count(*) = 1 from outhaul.outbox_events where attempts = 1 and last_error like 'rate_limited: http_429%' \
        and lease_until is null and available_at {range}"
    );
    db.until("the relay waits for the hint", &relay).await;
    let cursor = format!(
        "select count(*) = 1 from outhaul.subscriptions where attempts = 1 and stuck_class = 'rate_limited' \
        and stuck_code = 'http_429' and due_at {range}"
    );
    db.until("the cursor waits for the hint", &cursor).await;
    running.stop().await;
}

#[cfg(all(feature = "sqlx-0_8", feature = "sqlx-0_9"))]
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_sqlx_say_their_class() {
    macro_rules! failures {
        ($sqlx:ident, $url:expr) => {{
            use $sqlx::Connection as _;
            let mut client = $sqlx::PgConnection::connect($url).await.unwrap();
            let mut failures = Vec::<Failure>::new();
            for sql in [
                "do $$ begin raise 'x' using errcode = '40001'; end $$",
                "select 1/0",
                "do $$ begin raise 'x' using errcode = '23503'; end $$",
            ] {
                failures.push($sqlx::query(sql).execute(&mut client).await.unwrap_err().into());
            }
            let gone = "select pg_terminate_backend(pg_backend_pid())";
            failures.push($sqlx::query(gone).execute(&mut client).await.unwrap_err().into());
            let nobody = format!("postgres://x@{}/x", nobody().await);
            failures.push($sqlx::PgConnection::connect(&nobody).await.unwrap_err().into());
            let pool = $sqlx::postgres::PgPoolOptions::new()
                .max_connections(1)
                .acquire_timeout(Duration::from_millis(50))
                .connect($url)
                .await
                .unwrap();
            let _all = pool.acquire().await.unwrap();
            failures.push(pool.acquire().await.unwrap_err().into());
            failures
        }};
    }
    let db = Db::new().await;
    for failures in [failures!(sqlx_0_8, &db.url()), failures!(sqlx_0_9, &db.url())] {
        let seen: Vec<_> = failures.iter().map(|one| (one.class().unwrap(), one.error_code())).collect();
        use outhaul::FailureClass::*;
        let expected = [
            (Transient, Some("sqlstate_40001")),
            (Permanent, Some("sqlstate_22012")),
            (Unknown, Some("sqlstate_23503")),
            (Transient, Some("sqlstate_57p01")),
            (Transient, Some("io_connection_refused")),
            (Transient, Some("pool_timeout")),
        ];
        assert_eq!(seen, expected);
    }
}
