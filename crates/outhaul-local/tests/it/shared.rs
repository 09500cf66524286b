//! The shared test server, its templates and clones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outhaul_local::{TestServer, until};
use tokio_postgres::NoTls;

use crate::common::connect;

fn unique() -> String {
    uuid::Uuid::now_v7().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_prepared_once_and_every_clone_has_it() {
    let runs = Arc::new(AtomicU32::new(0));
    let fingerprint = unique();
    let ask = |_| {
        let (runs, fingerprint) = (runs.clone(), fingerprint.clone());
        tokio::spawn(async move {
            let server = TestServer::shared().await?;
            let prepare = |url: String| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute("create table t (n int); insert into t values (7)").await
            };
            let template = server.template("its own/Name", &fingerprint, prepare).await?;
            server.database(&template).await
        })
    };
    let mut names = Vec::new();
    for task in (0..8).map(ask).collect::<Vec<_>>() {
        let database = task.await.unwrap().unwrap();
        let by_socket = connect(&database.url()).await;
        assert_eq!(by_socket.query_one("select n from t", &[]).await.unwrap().get::<_, i32>(0), 7);
        by_socket.batch_execute("update t set n = 8").await.unwrap();
        let by_tcp = connect(&database.tcp_url()).await;
        assert_eq!(by_tcp.query_one("select n from t", &[]).await.unwrap().get::<_, i32>(0), 8);
        names.push(database.name().to_owned());
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 8);
}

#[tokio::test]
async fn a_failed_preparation_leaves_no_template() {
    let server = TestServer::shared().await.unwrap();
    let fingerprint = unique();
    let failed = server.template("failing", &fingerprint, |_| async { Err("no migration today") }).await;
    assert!(failed.unwrap_err().message().contains("no migration today"));
    let template =
        server.template("failing", &fingerprint, |_| async { Ok::<(), String>(()) }).await.unwrap();
    server.database(&template).await.unwrap();
}

#[tokio::test]
async fn a_connection_left_open_by_the_preparation_does_not_block_clones() {
    let server = TestServer::shared().await.unwrap();
    let left_open = std::sync::Mutex::new(None);
    let prepare = |url: String| async {
        let url = url;
        *left_open.lock().unwrap() = Some(connect(&url).await);
        Ok::<(), String>(())
    };
    let template = server.template("left open", &unique(), prepare).await.unwrap();
    server.database(&template).await.unwrap();
}

#[tokio::test]
async fn databases_of_dead_processes_are_dropped_and_those_of_living_ones_kept() {
    let server = TestServer::shared().await.unwrap();
    let mine = server.empty_database().await.unwrap();
    let client = connect(&server.url()).await;
    // Process numbers end far below this one.
    let gone = format!("t_{}_1_0", fastrand::u32(1_000_000_000..2_000_000_000));
    client.batch_execute(&format!("create database {gone}")).await.unwrap();
    let helper = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shared::helper_uses_the_shared_server", "--ignored"])
        .env("OUTHAUL_IT_GONE", &gone)
        .output()
        .unwrap();
    assert!(helper.status.success(), "{}", String::from_utf8_lossy(&helper.stdout));
    connect(&mine.url()).await;
    mine.remove().await.unwrap();
}

#[tokio::test]
#[ignore = "helper process of another test"]
async fn helper_uses_the_shared_server() {
    let server = TestServer::shared().await.unwrap();
    let gone = std::env::var("OUTHAUL_IT_GONE").expect("set by the caller");
    let client = connect(&server.url()).await;
    let exists = "select 1 from pg_database where datname = $1";
    until("it is dropped", async || client.query_opt(exists, &[&gone]).await.unwrap().is_none()).await;
}

#[tokio::test]
async fn a_run_directory_has_a_server_of_its_own_that_can_be_stopped() {
    let folder = std::env::temp_dir().join(format!("outhaul-run-{}", unique()));
    std::fs::create_dir(&folder).unwrap();
    let tool = |verb: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_outhaul-test-server"))
            .arg(verb)
            .env("OUTHAUL_TEST_RUN", &folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let url = tool("start");
    assert_eq!(tool("start"), url);
    assert_ne!(TestServer::shared().await.unwrap().url(), url);
    connect(&url).await;
    assert_eq!(tool("stop"), "stopped");
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    assert_eq!(tool("stop"), "");
    std::fs::remove_dir_all(&folder).unwrap();
}
