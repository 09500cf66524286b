//! CPU time and memory of processes, from `/proc`: the benchmark runs on Linux only.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The unit of CPU times in `/proc/PID/stat`: fixed at 100 a second in the kernel's interface to programs.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of a server so far: the postmaster, the children it has waited for, and its living children.
///
/// Backends that end between two calls are counted, because the postmaster's own figures take theirs over.
pub(crate) fn server_cpu(postmaster: u32) -> Result<Duration> {
    let own = Stat::of(&postmaster.to_string())?;
    let mut ticks = own.ticks + own.ended_children;
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        // A process may end between being listed and being read.
        let Ok(stat) = Stat::of(pid) else { continue };
        if stat.parent == postmaster {
            ticks += stat.ticks + stat.ended_children;
        }
    }
    Ok(TICK * ticks)
}

/// CPU time of this process so far.
pub(crate) fn own_cpu() -> Result<Duration> {
    Ok(TICK * Stat::of("self")?.ticks)
}

/// Resident memory of this process, now and at its highest, in KiB.
pub(crate) fn own_memory() -> Result<(u64, u64)> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> Result<u64> {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

struct Stat {
    parent: u32,
    ticks: u32,
    ended_children: u32,
}

impl Stat {
    fn of(pid: &str) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The second field is the program's name in parentheses and may itself contain spaces and parentheses.
        let rest = text.rsplit_once(')').context("stat without a name")?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| -> Result<u32> { Ok(fields.get(index).context("short stat")?.parse()?) };
        Ok(Self {
            parent: number(1)?,
            ticks: number(11)? + number(12)?,
            ended_children: number(13)? + number(14)?,
        })
    }
}
