//! Starts, shows and stops the server that tests share: `outhaul-test-server start|stop`.

use std::process::ExitCode;

use outhaul_local::{Result, TestServer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    let done = match verb.as_str() {
        "start" => start().await,
        "stop" => stop().await,
        _ => {
            eprintln!("usage: outhaul-test-server start|stop");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the URL of the running server.
async fn start() -> Result<()> {
    println!("{}", TestServer::shared().await?.url());
    Ok(())
}

async fn stop() -> Result<()> {
    if TestServer::stop_shared().await? {
        println!("stopped");
    }
    Ok(())
}
