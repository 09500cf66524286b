//! Bytes: buffered frames in, gated writes out.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::session::c_string;

/// As much of a message as is looked at; the rest is passed on without being kept.
pub(super) const LOOK: usize = 64 * 1024;
const CHUNK: usize = 32 * 1024;
const HEADER: usize = 5;
/// PostgreSQL's own limit for a startup packet.
const LONGEST_STARTUP: usize = 10_000;

/// Whether bytes may move on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Nothing is read or written on either side.
    pub(super) dark: bool,
    /// Nothing is written to the client.
    pub(super) mute: bool,
    /// The connection is to be reset.
    pub(super) cut: bool,
}

/// One message with its header; `look` is cut short when the message is longer than [`LOOK`].
pub(super) struct Frame {
    pub(super) kind: u8,
    /// Length of the whole message, header included.
    pub(super) total: usize,
    /// How much of it is in the buffer.
    pub(super) look: usize,
}

/// The reading side of a socket.
pub(super) struct Inlet<R> {
    reader: R,
    buffer: Vec<u8>,
    at: usize,
    flow: watch::Receiver<Flow>,
}

impl<R: AsyncRead + Unpin> Inlet<R> {
    pub(super) fn new(reader: R, flow: watch::Receiver<Flow>) -> Inlet<R> {
        Inlet { reader, buffer: Vec::with_capacity(CHUNK), at: 0, flow }
    }

    pub(super) fn into_inner(self) -> R {
        self.reader
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// The next message when enough of it is in the buffer.
    pub(super) fn frame(&self) -> io::Result<Option<Frame>> {
        let waiting = self.waiting();
        if waiting.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_be_bytes([waiting[1], waiting[2], waiting[3], waiting[4]]) as usize;
        if !(4..=0x7fff_ffff).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "impossible message length"));
        }
        let total = length + 1;
        let look = total.min(LOOK);
        Ok((waiting.len() >= look).then_some(Frame { kind: waiting[0], total, look }))
    }

    pub(super) fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.waiting()[..frame.look]
    }

    pub(super) fn body(&self, frame: &Frame) -> &[u8] {
        &self.waiting()[HEADER..frame.look]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.at += count;
    }

    /// Up to `most` bytes that are in the buffer.
    pub(super) fn take(&mut self, most: usize) -> &[u8] {
        let (from, count) = (self.at, self.waiting().len().min(most));
        self.at += count;
        &self.buffer[from..from + count]
    }

    /// Reads more, not while the connection is dark; false at the end of the stream.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.reserve(CHUNK);
        loop {
            open(&mut self.flow, |flow| !flow.dark).await?;
            tokio::select! {
                count = self.reader.read_buf(&mut self.buffer) => return Ok(count? > 0),
                changed = self.flow.changed() => changed.map_err(gone)?,
            }
        }
    }

    /// One packet without a type byte: its length, its code, the rest.
    pub(super) async fn startup(&mut self) -> io::Result<Option<Startup>> {
        let length = loop {
            if let Some(head) = self.waiting().first_chunk::<4>() {
                break u32::from_be_bytes(*head) as usize;
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        if !(8..=LONGEST_STARTUP).contains(&length) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a PostgreSQL client"));
        }
        while self.waiting().len() < length {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        Ok(Some(Startup::parse(self.take(length).to_vec())))
    }
}

/// The first packets of a client.
pub(super) enum Startup {
    /// Asks for TLS or GSS encryption.
    Encryption,
    /// Asks to cancel another connection's statement.
    Cancel(Vec<u8>),
    /// Opens a session.
    Session { packet: Vec<u8>, parameters: HashMap<String, String> },
}

impl Startup {
    fn parse(packet: Vec<u8>) -> Startup {
        match u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]) {
            80_877_103 | 80_877_104 => Startup::Encryption,
            80_877_102 => Startup::Cancel(packet),
            _ => {
                let parameters = parameters(&packet[8..]);
                Startup::Session { packet, parameters }
            }
        }
    }
}

fn parameters(mut bytes: &[u8]) -> HashMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut parameters = HashMap::new();
    while !bytes.is_empty() {
        let (name, rest) = c_string(bytes);
        let (value, rest) = c_string(rest);
        if !name.is_empty() {
            parameters.insert(text(name), text(value));
        }
        bytes = rest;
    }
    parameters
}

/// The writing side of a socket.
pub(super) struct Outlet<W> {
    writer: W,
    pub(super) buffer: Vec<u8>,
    flow: watch::Receiver<Flow>,
    passes: fn(&Flow) -> bool,
}

impl<W: AsyncWrite + Unpin> Outlet<W> {
    pub(super) fn new(writer: W, flow: watch::Receiver<Flow>, passes: fn(&Flow) -> bool) -> Outlet<W> {
        Outlet { writer, buffer: Vec::new(), flow, passes }
    }

    pub(super) fn into_inner(self) -> W {
        self.writer
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.flush_first(self.buffer.len()).await
    }

    /// Writes the first `count` bytes, stopping and going on as the flow says.
    pub(super) async fn flush_first(&mut self, count: usize) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            open(&mut self.flow, self.passes).await?;
            tokio::select! {
                written = self.writer.write(&self.buffer[done..count]) => match written? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    written => done += written,
                },
                changed = self.flow.changed() => changed.map_err(gone)?,
            }
        }
        self.buffer.drain(..count);
        Ok(())
    }

    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        self.writer.shutdown().await
    }
}

async fn open(flow: &mut watch::Receiver<Flow>, passes: impl Fn(&Flow) -> bool) -> io::Result<()> {
    flow.wait_for(|flow| passes(flow)).await.map(|_| ()).map_err(gone)
}

fn gone(_: watch::error::RecvError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the proxy has ended")
}
