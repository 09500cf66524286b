//! What a command writes: read to the end, so that it never blocks, and kept only as far as it is shown.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes kept of the end of standard error. More than a summary holds, so that cutting at a line break leaves
/// enough.
const KEPT: usize = 4_096;
/// Lines of the end that make the summary.
const LINES: usize = 5;
/// A line in the log is cut here.
const LINE_BYTES: usize = 1_000;

/// The last bytes of a stream.
#[derive(Default)]
pub(super) struct Tail(Mutex<VecDeque<u8>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[bytes.len().saturating_sub(KEPT)..]);
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
    }

    /// The value of the last line that is a header of this name, as HTTP writes one.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let text = self.text();
        let headers = text.lines().filter_map(|line| line.split_once(':'));
        let mut named = headers.filter(|header| header.0.trim().eq_ignore_ascii_case(name));
        named.next_back().map(|(_, value)| value.trim().to_owned())
    }

    /// The last lines that are not empty, in one line; empty when nothing was written.
    pub(super) fn summary(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(LINES)..].join("; ")
    }

    /// What was kept, in whole lines if there are any.
    fn text(&self) -> String {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = kept.len() == KEPT;
        let text = String::from_utf8_lossy(kept.make_contiguous());
        // The first line may be the end of one.
        let text = match text.split_once('\n') {
            Some((_, rest)) if cut && !rest.trim().is_empty() => rest,
            _ => &text,
        };
        text.to_owned()
    }
}

/// Reads a stream to its end, keeping its tail and writing its lines to the log at debug level.
pub(super) async fn drain(mut stream: impl AsyncRead + Unpin, name: &'static str, tail: Option<&Tail>) {
    let mut buffer = vec![0; 8_192];
    let mut line = Vec::new();
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        let bytes = &buffer[..n];
        if let Some(tail) = tail {
            tail.push(bytes);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            log_lines(&mut line, bytes, name);
        }
    }
    if !line.is_empty() {
        log_line(&line, name);
    }
}

fn log_lines(line: &mut Vec<u8>, bytes: &[u8], name: &'static str) {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        let room = LINE_BYTES.saturating_sub(line.len());
        line.extend(&part[..part.len().min(room)]);
        if part.ends_with(b"\n") {
            log_line(line, name);
            line.clear();
        }
    }
}

fn log_line(line: &[u8], name: &'static str) {
    let text = String::from_utf8_lossy(line);
    tracing::debug!(stream = name, line = text.trim_end(), "command output");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_made_of_the_last_whole_lines() {
        let tail = Tail::default();
        tail.push(b"one\n\n  two \nthree");
        assert_eq!(tail.summary(), "one; two; three");
        tail.push(b"\n4\n5\n6\n7\n");
        assert_eq!(tail.summary(), "three; 4; 5; 6; 7");
        assert_eq!(Tail::default().summary(), "");
    }

    #[test]
    fn the_last_line_of_a_header_is_found_by_its_name() {
        let tail = Tail::default();
        tail.push(b"note: Retry-After: 1\nRetry-After: 5\r\nretry-after:30\nslow down\n");
        assert_eq!(tail.header("retry-after").as_deref(), Some("30"));
        assert_eq!(tail.header("date"), None);
        tail.push(&[b'x'; KEPT]);
        assert_eq!(tail.header("retry-after"), None);
    }

    #[test]
    fn megabytes_leave_only_their_end() {
        let tail = Tail::default();
        for n in 0..100_000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        tail.push(&[b'x'; 100_000]);
        tail.push(b"\nthe end\n");
        assert_eq!(tail.0.lock().unwrap().len(), KEPT);
        assert_eq!(tail.summary(), "the end");
    }
}
