//! The quick start in SQL, as the README shows it.

use crate::projections::until_true;
use crate::support::{PATIENCE, Place, client, migrated, until};

/// The first block of a language behind a heading of the README.
fn block(heading: &str, language: &str) -> String {
    let readme = include_str!("../../../../README.md");
    let section = readme.split(&format!("## {heading}\n")).nth(1).expect("the heading");
    let rest = section.split(&format!("```{language}\n")).nth(1).expect("a block of that language");
    rest.split("```").next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_in_sql_does_what_the_readme_says() {
    let database = migrated().await;
    let client = client(&database.url()).await;
    let setup = block("Quick start in Rust", "sh");
    for table in setup.split("-c '").skip(1).map(|rest| rest.split('\'').next().unwrap()) {
        client.batch_execute(table).await.unwrap();
    }
    let place = Place::at(&database);
    place.write("outhaul.toml", &block("Quick start in SQL", "toml"));
    let mut worker = place.worker(&[]).await;
    // Its projection begins now, which is when the worker has made it.
    until_true(&client, "select count(*) = 1 from outhaul.subscriptions").await;
    client.batch_execute(&block("Quick start in SQL", "sql")).await.unwrap();
    until("three jobs have said hello", || place.read("hello.txt").lines().count() == 3).await;
    for args in [&["jobs", "list"][..], &["queues", "list"], &["subs", "show", "mail-jobs"]] {
        place.run(args).ok();
    }
    worker.term().unwrap();
    assert_eq!(worker.wait(PATIENCE).await.unwrap().code(), Some(0), "{}", place.log());
}
