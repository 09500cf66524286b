//! The live table: one frame drawn over the other, where a person looks; else a few lines.

use std::fmt::Write as _;
use std::io::IsTerminal;

use comfy_table::Table;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::watch::{Event, OutboxLine, QueueLine, Snapshot, WorkerLine};
use crate::output::Global;

/// What the person sees while it runs.
pub(super) struct Screen<'a> {
    global: &'a Global,
    frame: Option<ProgressBar>,
    title: String,
    notes: Vec<Event>,
}

/// Frames a second.
const RATE: u8 = 10;

/// Events in the live table.
const EVENTS: usize = 6;

impl<'a> Screen<'a> {
    /// `what` says where it takes place.
    pub(super) fn open(global: &'a Global, what: &str) -> Screen<'a> {
        // Both streams: with one of them redirected, somebody wants text and no pictures.
        let live = global.interactive && global.color && std::io::stderr().is_terminal();
        let frame = (live && !global.json && !global.quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(RATE));
            bar.with_style(
                ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        if frame.is_none() {
            global.say(format_args!("outhaul demo: a bicycle-courier shop on {what}"));
        }
        Screen { global, frame, title: what.to_owned(), notes: Vec::new() }
    }

    /// Something happened that people should know.
    pub(super) fn note(&mut self, elapsed: f64, text: impl Into<String>) {
        let text = text.into();
        if self.frame.is_none() {
            self.global.say(format_args!("{elapsed:5.1} s  {text}"));
        }
        self.notes.push(Event { at: elapsed, text, loud: true });
    }

    /// Whether anybody sees a snapshot.
    pub(super) fn is_live(&self) -> bool {
        self.frame.is_some()
    }

    pub(super) fn draw(&self, mut snapshot: Snapshot) {
        let Some(frame) = &self.frame else { return };
        snapshot.events.extend(self.notes.iter().cloned());
        snapshot.events.sort_by(|a, b| a.at.total_cmp(&b.at));
        let width = Table::new().use_stderr().width().map_or(80, usize::from);
        frame.set_message(render(&snapshot, &self.title, width));
        frame.tick();
    }

    /// Takes the table away; what is printed next begins where it was.
    pub(super) fn close(mut self) {
        if let Some(frame) = self.frame.take() {
            frame.finish_and_clear();
        }
    }
}

impl Drop for Screen<'_> {
    /// Without an end there is no report: the last picture stays, and says how far it came.
    fn drop(&mut self) {
        if let Some(frame) = &self.frame {
            frame.abandon();
        }
    }
}

/// A frame for a terminal of a width; no line is wider than that.
fn render(snapshot: &Snapshot, title: &str, width: usize) -> String {
    let width = width.clamp(40, 120) - 1;
    let mut lines = Vec::new();
    lines.push(spread(&paint(BOLD, " outhaul demo"), "   a bicycle-courier shop", &paint(DIM, title), width));
    lines.push(progress(snapshot, width));
    lines.push(outbox(&snapshot.outbox));
    lines.extend(queues(&snapshot.queues, width));
    lines.push(String::new());
    lines.extend(workers(&snapshot.workers, width));
    lines.push(String::new());
    lines.extend(events(&snapshot.events, width));
    lines.iter().map(|line| cut(line, width)).collect::<Vec<_>>().join("\n")
}

fn progress(snapshot: &Snapshot, width: usize) -> String {
    let orders = format!(" {:>4} of {} orders placed", snapshot.placed, snapshot.orders);
    let time = format!("{:.1} s", snapshot.elapsed);
    let room = width.saturating_sub(orders.len() + time.len() + 4);
    let full = room * snapshot.placed / snapshot.orders.max(1);
    let bar = format!("{}{}", paint(CYAN, &"━".repeat(full)), paint(DIM, &"─".repeat(room - full.min(room))));
    format!("{orders}  {bar}  {time}")
}

/// The facts, and how far each reader is behind them.
fn outbox(outbox: &OutboxLine) -> String {
    let mut line = format!(" {:>4} facts in the outbox", outbox.facts);
    for (name, behind) in &outbox.readers {
        let behind = if *behind == 0 {
            paint(GREEN, "at the head")
        } else {
            paint(YELLOW, &format!("{behind} behind"))
        };
        let _ = write!(line, "   {name} {behind}");
    }
    line
}

fn queues(queues: &[QueueLine], width: usize) -> Vec<String> {
    let columns = Columns::for_width(width, 14, &[9, 8, 10, 11, 6, 11, 9]);
    let head = ["QUEUE", "WAITING", "LEASED", "RETRYING", "COMPLETED", "DEAD", "CANCELLED", "OLDEST"]
        .map(String::from);
    let cells = |line: &QueueLine| {
        [
            line.queue.to_owned(),
            line.waiting.to_string(),
            colored(BLUE, line.leased),
            colored(YELLOW, line.retrying),
            colored(GREEN, line.completed),
            colored(RED, line.dead),
            colored(DIM, line.cancelled),
            line.oldest_ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1_000.0)),
        ]
    };
    let mut lines = vec![paint(DIM, &columns.row(&head))];
    lines.extend(queues.iter().map(|line| columns.row(&cells(line))));
    lines.push(columns.row(&cells(&sum(queues)).map(|cell| paint(BOLD, &cell))));
    lines
}

fn sum(queues: &[QueueLine]) -> QueueLine {
    let mut all = QueueLine { queue: "all", ..QueueLine::default() };
    for line in queues {
        all.waiting += line.waiting;
        all.leased += line.leased;
        all.retrying += line.retrying;
        all.completed += line.completed;
        all.dead += line.dead;
        all.cancelled += line.cancelled;
        all.oldest_ms = all.oldest_ms.max(line.oldest_ms);
    }
    all
}

fn workers(workers: &[WorkerLine], width: usize) -> Vec<String> {
    let columns = Columns::for_width(width, 14, &[9, 8, 10]);
    let head = ["WORKER", "PID", "LEASES", "HANDLED"].map(String::from);
    let mut lines = vec![paint(DIM, &format!("{}   STATE", columns.row(&head)))];
    for worker in workers {
        let state = match (worker.killed, worker.holds) {
            (false, _) => paint(GREEN, "working"),
            (true, 0) => paint(DIM, "killed; its jobs were taken over"),
            (true, n) => paint(RED, &format!("killed; {n} leases run out")),
        };
        let cells = [
            worker.number.to_string(),
            worker.pid.to_string(),
            worker.holds.to_string(),
            worker.handled.to_string(),
        ];
        lines.push(format!("{}   {state}", columns.row(&cells)));
    }
    lines
}

/// Always the same number of lines, so that the table does not jump.
fn events(events: &[Event], width: usize) -> Vec<String> {
    let mut lines = vec![paint(DIM, " LATELY")];
    // Loud ones are rare and stay longer.
    let loud = events.iter().rev().filter(|event| event.loud).take(3);
    let quiet = events.iter().rev().filter(|event| !event.loud);
    let mut shown: Vec<&Event> = loud.chain(quiet).take(EVENTS).collect();
    shown.sort_by(|a, b| a.at.total_cmp(&b.at));
    for event in &shown {
        let text = cut(&event.text, width.saturating_sub(12));
        let text = if event.loud { paint(MAGENTA, &text) } else { text };
        lines.push(format!(" {:5.1} s   {text}", event.at.max(0.0)));
    }
    lines.resize(EVENTS + 1, String::new());
    lines
}

/// Widths of a table: the first column to the left, the others to the right.
struct Columns {
    first: usize,
    others: Vec<usize>,
}

impl Columns {
    /// A wide terminal gives each column a little more room.
    fn for_width(width: usize, first: usize, others: &[usize]) -> Columns {
        let extra = if width >= 110 { 4 } else { 0 };
        Columns { first: first + extra, others: others.iter().map(|column| column + extra).collect() }
    }

    fn row(&self, cells: &[String]) -> String {
        let mut line = String::from(" ");
        for (i, cell) in cells.iter().enumerate() {
            let room = if i == 0 { self.first } else { self.others[i - 1] };
            let pad = " ".repeat(room.saturating_sub(visible(cell)));
            let _ = if i == 0 { write!(line, "{cell}{pad}") } else { write!(line, "{pad}{cell}") };
        }
        line
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const BLUE: &str = "34";
const MAGENTA: &str = "35";
const CYAN: &str = "36";

/// Text in a colour or weight.
fn paint(code: &str, text: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// A number in a colour, unless it is zero.
fn colored(code: &str, n: i64) -> String {
    if n == 0 { n.to_string() } else { paint(code, &n.to_string()) }
}

/// Left, middle and right text on one line.
fn spread(left: &str, middle: &str, right: &str, width: usize) -> String {
    let used = visible(left) + visible(middle) + visible(right);
    format!("{left}{middle}{}{right}", " ".repeat(width.saturating_sub(used).max(2)))
}

/// Characters that take room on the screen. All of ours are one column wide.
fn visible(text: &str) -> usize {
    let mut escaped = false;
    let mut n = 0;
    for c in text.chars() {
        match c {
            '\x1b' => escaped = true,
            'm' if escaped => escaped = false,
            _ if escaped => {}
            _ => n += 1,
        }
    }
    n
}

/// The text, no wider than `width`, with its colours ended.
fn cut(text: &str, width: usize) -> String {
    if visible(text) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let (mut escaped, mut colored, mut n) = (false, false, 0);
    for c in text.chars() {
        match c {
            '\x1b' => (escaped, colored) = (true, true),
            'm' if escaped => escaped = false,
            _ if escaped => {}
            _ if n + 1 >= width => break,
            _ => n += 1,
        }
        out.push(c);
    }
    out.push('…');
    if colored {
        out.push_str("\x1b[0m");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let queue = QueueLine {
            queue: "notifications",
            waiting: 12_345,
            leased: 80,
            retrying: 17,
            completed: 4_321,
            dead: 12,
            cancelled: 123,
            oldest_ms: Some(12_345),
        };
        let worker = WorkerLine { number: 2, pid: 4_194_304, killed: true, holds: 12, handled: 1_234 };
        let long =
            "mail.confirmation  transient answer_lost    retry after attempt 1, and more that is too much";
        let event = |loud| Event { at: 12.3, text: long.into(), loud };
        Snapshot {
            elapsed: 12.34,
            placed: 62,
            orders: 100,
            queues: vec![queue; 5],
            workers: vec![worker; 3],
            outbox: OutboxLine {
                facts: 1_234,
                readers: vec![("order-jobs".into(), 1_234), ("ledger".into(), 0)],
            },
            events: (0..20).map(|n| event(n % 5 == 0)).collect(),
        }
    }

    #[test]
    fn no_line_of_a_frame_is_wider_than_the_terminal() {
        for width in [40, 79, 80, 100, 120, 300] {
            for line in render(&snapshot(), "private PostgreSQL 15.18", width).lines() {
                assert!(visible(line) < width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn a_frame_keeps_its_height() {
        let height = |snapshot: &Snapshot| render(snapshot, "x", 80).lines().count();
        let mut quiet = snapshot();
        quiet.events.clear();
        quiet.events.push(Event { at: 1.0, text: "x".into(), loud: false });
        assert!(height(&snapshot()) < 24, "a common terminal has 24 lines");
        // Empty last lines are no lines for `lines`, but they are newlines for the terminal.
        let newlines = |snapshot: &Snapshot| render(snapshot, "x", 80).matches('\n').count();
        assert_eq!(newlines(&snapshot()), newlines(&quiet));
    }

    #[test]
    fn what_is_cut_ends_its_colours() {
        assert_eq!(cut(&paint(RED, "abcdef"), 4), "\x1b[31mabc…\x1b[0m");
        assert_eq!(cut("abc", 3), "abc");
    }
}
