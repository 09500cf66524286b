//! A part of a worker that dies takes the worker with it, and other workers run what it held.

use outhaul_local::{Action, Match, Phase, Proxy, Rule};
use uuid::Uuid;

use crate::fault::{Act, EffectLog, Post};
use crate::support::{Db, PATIENCE};

/// A worker whose log panics at some words, in a database where a function is missing.
struct Case {
    db: Db,
    log: EffectLog,
    post: Post,
}

impl Case {
    async fn new(words: &str) -> Case {
        let (db, log) = (Db::new().await, EffectLog::new().await);
        let post = Post { trap: Some(words.into()), ..Post::new("trapped", &db.url(), &log) };
        Case { db, log, post }
    }

    /// Runs the worker with a job and without a function of the schema, until it ends by itself.
    async fn ends(mut self, part: &str, act: Act, missing: Option<&str>) -> (Case, Uuid) {
        let mut trapped = self.post.start().await;
        if let Some(name) = missing {
            self.rename(name, "away").await;
        }
        let job = act.enqueue(&mut self.db.client).await;
        let ended = trapped.line_with("ended ", PATIENCE).await.unwrap();
        assert!(ended.contains(&format!("internal: the {part} panicked: the log is trapped")), "{ended}");
        assert_eq!(trapped.wait(PATIENCE).await.unwrap().code(), Some(3));
        if let Some(name) = missing {
            self.rename("away", name).await;
        }
        (self, job)
    }

    async fn rename(&self, from: &str, to: &str) {
        let sql = format!("alter function outhaul.{from} rename to {to}");
        self.db.client.batch_execute(&sql).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_settler_ends_the_worker_and_its_jobs_run_elsewhere() {
    let case = Case::new("settling waits for the database").await;
    let (case, job) = case.ends("settler", Act::Nothing, Some("complete")).await;
    assert_eq!(case.db.status(job).await, "leased", "nothing was settled");
    let _other = Post { name: "other".into(), trap: None, ..case.post }.start().await;
    case.db.until("completed elsewhere", "select count(*) = 1 from outhaul.jobs_finished").await;
    assert_eq!(case.log.count("begin").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_claiming_task_ends_the_worker() {
    let case = Case::new("claim failed").await;
    let (case, job) = case.ends("claiming task", Act::Nothing, Some("claim")).await;
    assert_eq!(case.db.status(job).await, "pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_pulse_ends_the_worker() {
    let case = Case::new("leases could not be renewed").await;
    case.ends("pulse", Act::Hang, Some("renew")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_upkeep_ends_the_worker() {
    let case = Case::new("upkeep failed").await;
    case.ends("upkeep", Act::Nothing, Some("expired")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_listener_ends_the_worker() {
    let mut case = Case::new("notifications do not arrive").await;
    let proxy = Proxy::start(&case.db.database.tcp_url()).await.unwrap();
    proxy.add(Rule::on(Match::at(Phase::BeforeForward).tag("listen")).always().then(Action::Cut));
    case.post.listen_url = Some(proxy.url());
    case.ends("listener", Act::Nothing, None).await;
}
