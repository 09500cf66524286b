//! A service that answers as a script says, and the smallest client that can ask it: HTTP/1.1 over plain sockets.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the service does with one connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A status with headers, and a body of two bytes.
    Status(u16, Vec<(&'static str, String)>),
    /// Takes the request and says nothing.
    Hang,
    /// Sends half of the body, and nothing more.
    SlowBody,
    /// Sends half of the body, and resets the connection.
    ResetInBody,
    /// Sends half of the body, and ends the connection as if that were all.
    CloseInBody,
    /// Ends the connection without a word.
    Close,
}

pub(crate) fn status(status: u16) -> Step {
    Step::Status(status, Vec::new())
}

pub(crate) fn hinted(status: u16, retry_after: impl Into<String>) -> Step {
    Step::Status(status, vec![("Retry-After", retry_after.into())])
}

/// Runs a service that takes one step for each connection, the last one for all that follow. Ends with the test's runtime.
pub(crate) async fn service(script: impl IntoIterator<Item = Step>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut script: VecDeque<Step> = script.into_iter().collect();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let step = if script.len() > 1 { script.pop_front() } else { script.front().cloned() };
            if play(step.expect("a script has a step"), &mut stream).await.unwrap_or(false) {
                // It stays open as long as the service.
                open.push(stream);
            }
        }
    });
    addr
}

/// An address at which nobody listens.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// True when the connection is to be kept open.
async fn play(step: Step, stream: &mut TcpStream) -> io::Result<bool> {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        asked.push(stream.read_u8().await?);
    }
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
    match step {
        Step::Status(status, headers) => {
            let mut head = format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n");
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            stream.write_all(format!("{head}\r\nok").as_bytes()).await?;
        }
        Step::Hang => return Ok(true),
        Step::SlowBody => {
            stream.write_all(half).await?;
            return Ok(true);
        }
        Step::CloseInBody => stream.write_all(half).await?,
        Step::ResetInBody => {
            stream.write_all(half).await?;
            // The client has read it, so that the reset meets a body that is half there.
            let mut heard = [0];
            stream.read_exact(&mut heard).await?;
            stream.set_zero_linger()?;
        }
        Step::Close => {}
    }
    Ok(false)
}

/// What a service has answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }
}

/// One GET, one connection.
pub(crate) async fn get(addr: SocketAddr) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|word| word.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let mut answer = Answer { status: status.unwrap_or(0), headers, body: String::new() };
    let length = answer.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let (first, rest) = body.split_at_mut(length.min(1));
    stream.read_exact(first).await?;
    // Says that it has heard the beginning of the body, which a service that resets waits for.
    let _ = stream.write_all(b"!").await;
    stream.read_exact(rest).await?;
    answer.body = String::from_utf8_lossy(&body).into_owned();
    Ok(answer)
}
