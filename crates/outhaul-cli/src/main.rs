//! The `outhaul` binary: a thin layer of commands over the library.

mod cli;
mod commands;
mod config;
mod demo;
mod exit;
mod output;

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command, GlobalArgs};
use config::{Config, Flags};
use exit::{Exit, Problem};
use output::{Global, Unwritten};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error).into(),
    };
    let (json, no_color) = (cli.global.json, cli.global.no_color);
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(error) if error.downcast_ref().is_some_and(Unwritten::is_closed) => Exit::Ok.into(),
        Err(error) => output::report(Problem::of(error), json, no_color).into(),
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let global = global(&cli)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let role = cli.command.role();
    let result = runtime.block_on(dispatch(cli.command, &global));
    // A blocked read of standard input is no reason to stay.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result.map_err(|error| with_role(error, role, &global))
}

async fn dispatch(command: Command, global: &Global) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => demo::run(args, global).await,
        Command::Dev(what) => commands::dev::run(what, global).await,
        Command::Migrate(args) => commands::migrate::run(args, global).await,
        Command::Enqueue(args) => commands::enqueue::run(args, global).await,
        Command::Publish(args) => commands::publish::run(args, global).await,
        Command::Work(args) => commands::work::run(args, global).await,
        Command::Jobs(what) => commands::jobs::run(what, global).await,
        Command::Dead(what) => commands::dead::run(what, global).await,
        Command::Operations(what) => commands::operations::run(what, global).await,
        Command::Queues(what) => commands::queues::run(what, global).await,
        Command::Outbox(what) => commands::outbox::run(what, global).await,
        Command::Subs(what) => commands::subs::run(what, global).await,
        Command::Config(what) => commands::config::run(&what, global),
        Command::Completions { shell } => commands::completions::run(shell),
        Command::Version => commands::version::run(global),
    }
}

fn global(cli: &Cli) -> anyhow::Result<Global> {
    let args: &GlobalArgs = &cli.global;
    let flags = Flags {
        database_url: args.database_url.clone(),
        schema: args.schema.clone(),
        config: args.config.clone(),
    };
    // What needs no settings works with a broken file too.
    let config = match cli.command {
        Command::Completions { .. } | Command::Version => Config::none(),
        _ => {
            config::refuse_unreadable_variables()?;
            Config::load(&flags, config::process_env)?
        }
    };
    let global = Global {
        json: args.json,
        quiet: args.quiet,
        color: output::color(args.no_color, &io::stdout()),
        color_err: output::color(args.no_color, &io::stderr()),
        interactive: io::stdout().is_terminal(),
        config,
    };
    for (name, meant) in config::misspelt_variables() {
        global.say(format_args!("warning: the variable {name} means nothing; did you mean {meant}?"));
    }
    Ok(global)
}

/// Help and version are answers; everything else that clap has to say is a problem.
fn refused(error: &clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return Exit::Ok;
    }
    let given = |flag: &str| std::env::args_os().any(|arg| arg == OsStr::new(flag));
    let json = given("--json");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json {
        let _ = error.print();
        return Exit::Usage;
    }
    output::report(usage(error), json, given("--no-color"))
}

/// Clap's text: what is wrong, then perhaps a tip, then the usage, then where help is.
fn usage(error: &clap::Error) -> Problem {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Problem::usage("a command is missing").hint("Try `outhaul --help`.");
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        return not_utf8();
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let what = paragraphs.next().unwrap_or_default();
    let rest: Vec<&str> = paragraphs.collect();
    let tip = rest.iter().find_map(|paragraph| paragraph.strip_prefix("tip: "));
    let problem = Problem::usage(what.strip_prefix("error: ").unwrap_or(what));
    let library = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<outhaul::Error>());
    if let Some(hint) = library.and_then(outhaul::Error::hint) {
        return problem.hint(hint);
    }
    match tip.or_else(|| rest.iter().find(|paragraph| paragraph.starts_with("Usage:")).copied()) {
        Some(hint) => problem.hint(output::scrub(hint)),
        None => problem.hint("Try --help."),
    }
}

/// Says which argument it is, by its place: it cannot be shown.
fn not_utf8() -> Problem {
    let place = std::env::args_os().position(|arg| arg.to_str().is_none()).unwrap_or_default();
    Problem::usage(format!("argument {place} is not valid UTF-8"))
        .hint("Arguments are text in UTF-8; so is JSON, also on standard input: outhaul enqueue TYPE -")
}

/// The role to grant, where the library knows only that some right is missing.
fn with_role(error: anyhow::Error, role: Option<&str>, global: &Global) -> anyhow::Error {
    let refused = error.downcast_ref::<outhaul::Error>().is_some_and(|e| e.sqlstate() == Some("42501"));
    let (true, Some(role), Ok(Some(dsn))) = (refused, role, global.config.database()) else { return error };
    let user = dsn.user().replace('"', "\"\"");
    let hint = format!(
        "It takes {role}: run `grant {role} to \"{user}\"` as an administrator. A schema that was migrated with \
         --no-roles is its owner's alone."
    );
    Problem::of(error).hint(hint).into()
}
