//! Child processes.

use std::process::Command;
use std::time::Duration;

use outhaul_local::{Child, ChildOptions, PATIENCE, until};

use crate::common::runs;

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn a_stopped_child_does_nothing_until_it_is_continued() {
    let script = "echo ready; n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.01; done";
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let mut child = Child::spawn(shell(script), ChildOptions::new().output_to(&output)).unwrap();
    let size = || std::fs::metadata(&output).map(|meta| meta.len()).unwrap_or(0);
    until("it ticks", async || size() > 20).await;

    child.stop().await.unwrap();
    assert!(child.is_stopped());
    let stopped_at = size();
    assert!(child.wait(Duration::from_millis(200)).await.is_err());
    assert_eq!(size(), stopped_at);

    child.cont().unwrap();
    until("it goes on", async || size() > stopped_at).await;
    assert!(!child.is_stopped());
    child.kill().await.unwrap();
    assert!(!runs(child.pid()));
}

#[tokio::test]
async fn output_is_read_up_to_a_mark_and_the_exit_status_is_told() {
    let mut child = Child::spawn(shell("echo one; echo two=2; exit 3"), ChildOptions::new()).unwrap();
    assert_eq!(child.line_with("two=", PATIENCE).await.unwrap(), "two=2");
    assert_eq!(child.wait(PATIENCE).await.unwrap().code(), Some(3));
    let error = child.line_with("three", PATIENCE).await.unwrap_err();
    assert!(error.message().contains("ended without saying"), "{error}");
    // Signals to a child that has ended are no error and reach nobody.
    child.term().unwrap();
}

#[tokio::test]
async fn term_can_be_handled_by_the_child() {
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = Child::spawn(shell(script), ChildOptions::new()).unwrap();
    child.line_with("ready", PATIENCE).await.unwrap();
    child.term().unwrap();
    child.line_with("bye", PATIENCE).await.unwrap();
    assert!(child.wait(PATIENCE).await.unwrap().success());
}

#[tokio::test]
async fn dropping_a_child_kills_it_even_when_stopped() {
    let mut child = Child::spawn(shell("sleep 1000"), ChildOptions::new()).unwrap();
    let pid = child.pid();
    child.stop().await.unwrap();
    drop(child);
    assert!(!runs(pid));
}

#[tokio::test]
async fn a_group_is_killed_with_its_grandchildren() {
    let options = ChildOptions::new().group(true);
    let mut child = Child::spawn(shell("sleep 1000 & echo grandchild=$!; wait"), options).unwrap();
    let line = child.line_with("grandchild=", PATIENCE).await.unwrap();
    let grandchild = line.trim_start_matches("grandchild=").parse().unwrap();
    assert!(runs(grandchild));
    drop(child);
    until("the grandchild has gone", async || !runs(grandchild)).await;
}
