//! `outhaul dev up|url|psql|down`: a private PostgreSQL server for people.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use outhaul_local::{Installation, Server, ServerOptions};
use serde_json::json;

use super::confirm;
use crate::cli::{Dev, DevWhat};
use crate::exit::{Exit, Problem};
use crate::output::{self, Global};

/// The database that people get. `postgres` is everybody's and stays empty.
const DATABASE: &str = "outhaul";

pub(crate) async fn run(args: Dev, global: &Global) -> anyhow::Result<Exit> {
    match args.what {
        DevWhat::Up { tcp } => up(args.dir, tcp, global).await,
        DevWhat::Url { tcp } => print_url(&running(args.dir)?, tcp, global).map(|()| Exit::Ok),
        DevWhat::Psql { args: arguments } => psql(&running(args.dir)?, &arguments),
        DevWhat::Down { remove, yes } => down(args.dir, remove, yes, global).await,
    }
}

async fn up(dir: Option<PathBuf>, tcp: bool, global: &Global) -> anyhow::Result<Exit> {
    let installation = Installation::find()?;
    let named = dir.is_some();
    let dir = dir.map_or_else(|| Server::default_dir(installation.major()), Ok)?;
    let server = Server::open(ServerOptions::new(&dir).installation(installation.clone()).tcp(tcp)).await?;
    server.ensure_database(DATABASE).await?;
    let word = if server.adopted() { "runs already" } else { "started" };
    global.say(format_args!("PostgreSQL {} {word} in {}", installation.version(), dir.display()));
    let at = if named { format!("--dir {} ", dir.display()) } else { String::new() };
    global.say(format_args!("next: export DATABASE_URL=$(outhaul dev {at}url) && outhaul migrate"));
    output::told(
        print_url(&server, tcp, global),
        "the server runs",
        format!("Its URL: outhaul dev {at}url"),
    )?;
    Ok(Exit::Ok)
}

fn print_url(server: &Server, tcp: bool, global: &Global) -> anyhow::Result<()> {
    let (socket_url, tcp_url) = (server.url_of(DATABASE), server.tcp_url_of(DATABASE));
    if global.json {
        return global.print_json(&json!({
            "url": socket_url,
            "tcp_url": tcp_url,
            "dir": server.dir(),
            "log": server.log_path(),
            "adopted": server.adopted(),
        }));
    }
    let no_tcp = || {
        Problem::new(Exit::NotFound, "no_tcp", "the server does not listen on TCP")
            .hint("Start it anew: outhaul dev down && outhaul dev up --tcp")
    };
    Ok(global.print(if tcp { tcp_url.ok_or_else(no_tcp)? } else { socket_url })?)
}

/// Becomes psql, which is no part of a server's programs in every distribution.
fn psql(server: &Server, args: &[String]) -> anyhow::Result<Exit> {
    let own = Installation::find().ok().and_then(|installation| installation.tool("psql"));
    let Some(psql) = own.or_else(|| on_path("psql")) else {
        return Err(Problem::new(Exit::NotFound, "no_psql", "there is no psql beside the server or on PATH")
            .hint(format!(
                "Install your system's package postgresql-client, or connect with {}",
                server.url_of(DATABASE)
            ))
            .into());
    };
    let error = Command::new(&psql).arg(server.url_of(DATABASE)).args(args).exec();
    Err(Problem::new(Exit::Failed, "psql", format!("{} cannot be run: {error}", psql.display())).into())
}

async fn down(dir: Option<PathBuf>, remove: bool, yes: bool, global: &Global) -> anyhow::Result<Exit> {
    let dirs = dirs(dir);
    if remove && !yes {
        let doing = "removing the data of the private server";
        if !confirm::somebody() {
            return Err(confirm::refused(doing).into());
        }
        let names: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        confirm::ask(format_args!("remove all data in {}?", names.join(", ")), doing)?;
    }
    let mut stopped = Vec::new();
    for dir in dirs {
        match Server::find(&dir)? {
            Some(server) => {
                stopped.push(dir);
                if remove { server.remove().await? } else { server.stop().await? }
            }
            None if remove => std::fs::remove_dir_all(&dir)?,
            None => {}
        }
    }
    let lines: Vec<String> =
        stopped.iter().map(|dir| format!("stopped the server in {}", dir.display())).collect();
    let printed = match global.json {
        true => global.print_json(&json!({ "stopped": stopped, "removed": remove })),
        false => lines.iter().try_for_each(|line| Ok(global.print(line)?)),
    };
    let done = if stopped.is_empty() { "no server runs any more".to_owned() } else { lines.join(", ") };
    output::told(printed, done, "Look: outhaul dev url")?;
    if stopped.is_empty() && !global.json {
        global.say("no server of `outhaul dev` runs");
    }
    Ok(Exit::Ok)
}

/// The server that runs. It may belong to another version than the newest one installed by now.
fn running(dir: Option<PathBuf>) -> anyhow::Result<Server> {
    for dir in dirs(dir) {
        if let Some(server) = Server::find(dir)? {
            return Ok(server);
        }
    }
    let problem = Problem::new(Exit::NotFound, "not_running", "no server of `outhaul dev` runs");
    Err(problem.hint("Start it: outhaul dev up").into())
}

/// Where servers of people are: the named directory, else one for each installed version.
fn dirs(named: Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(dir) = named {
        return if dir.is_dir() { vec![dir] } else { Vec::new() };
    }
    // The one that a variable names comes first, and is not among all others.
    let installations = Installation::find().into_iter().chain(Installation::all());
    let mut majors: Vec<u32> = installations.map(|installation| installation.major()).collect();
    majors.dedup();
    majors
        .into_iter()
        .filter_map(|major| Server::default_dir(major).ok())
        .filter(|dir| dir.is_dir())
        .collect()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program: &PathBuf| Path::is_file(program))
}
