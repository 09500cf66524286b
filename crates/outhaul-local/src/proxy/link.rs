//! One connection: greeting, then a pump for each direction, with the rules between reading and writing.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::rule::{Action, Firing, Phase, Proof};
use super::session::{Answer, Ready, Session};
use super::upstream::Upstream;
use super::wire::{Frame, Inlet, Outlet, Startup};
use super::{Link, Mode, Shared};

/// An answer is kept from the client in memory, and no larger than this.
const MOST_HELD: usize = 4 * 1024 * 1024;

/// A cancel request is answered by closing the connection.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

/// How a connection ends.
#[derive(Debug)]
enum End {
    /// One side has closed: the other is closed in order.
    Closed,
    /// Both sides are reset.
    Cut,
    /// The client is reset; the server gets all that was written to it and then the end of the stream.
    Deliver,
}

/// Serves one client until either side or a fault ends it.
pub(super) async fn serve(shared: Arc<Shared>, link: Arc<Link>, client: TcpStream) {
    let at = At { shared: &shared, link: &link };
    let (reader, writer) = client.into_split();
    let mut from_client = Inlet::new(reader, link.flow.subscribe());
    let mut to_client = Outlet::new(writer, link.flow.subscribe(), |flow| !flow.dark && !flow.mute);

    let greeted = tokio::select! {
        biased;
        () = link.until_cut() => Err(End::Cut),
        greeted = at.greet(&mut from_client, &mut to_client) => greeted,
    };
    let (end, upstream) = match greeted {
        Ok(upstream) => at.pass(upstream, &mut from_client, &mut to_client).await,
        Err(end) => (end, None),
    };
    let client = from_client.into_inner().reunite(to_client.into_inner()).expect("two halves of one stream");
    if !matches!(end, End::Closed) {
        // Fails only on a socket that is already gone.
        let _ = client.set_zero_linger();
    }
    drop(client);
    match (end, upstream) {
        (End::Cut, Some(upstream)) => upstream.reset_on_close(),
        (End::Deliver, Some(upstream)) => deliver(&link, upstream).await,
        _ => {}
    }
}

/// Ends the writing side in order and swallows the answer until the server closes too.
///
/// Closing with an unread answer would reset the connection, and a reset may overtake what was sent.
async fn deliver(link: &Link, mut upstream: Upstream) {
    let _ = upstream.shutdown().await;
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        () = link.until_cut() => upstream.reset_on_close(),
        _ = tokio::io::copy(&mut upstream, &mut nowhere) => {}
    }
}

/// Where the pumps are: which proxy, which connection.
#[derive(Clone, Copy)]
struct At<'a> {
    shared: &'a Shared,
    link: &'a Link,
}

impl At<'_> {
    /// Answers the client's first packets and connects to the server.
    async fn greet<R, W>(&self, inlet: &mut Inlet<R>, outlet: &mut Outlet<W>) -> Result<Upstream, End>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (packet, parameters) = loop {
            match inlet.startup().await.map_err(|_| End::Closed)? {
                None => return Err(End::Closed),
                Some(Startup::Encryption) => {
                    outlet.buffer.push(b'N');
                    outlet.flush().await.map_err(|_| End::Closed)?;
                }
                Some(Startup::Cancel(packet)) => {
                    // Clients do not wait for more than the end of the connection.
                    let _ = tokio::time::timeout(CANCEL_LIMIT, self.cancel(&packet)).await;
                    return Err(End::Closed);
                }
                Some(Startup::Session { packet, parameters }) => break (packet, parameters),
            }
        };
        *self.link.session() = Session::started(&parameters);
        self.shared.changed();
        match self.shared.mode_of(Some(&self.role())) {
            Some(Mode::Refuse) => return Err(End::Cut),
            Some(Mode::Blackhole) => self.link.darken(true),
            None => {}
        }
        if let Some(firing) = self.shared.rules.fire(Phase::Connect, &self.role(), &[]) {
            self.act(firing, Proof::NotForwarded).await.map_or(Ok(()), Err)?;
        }
        self.connect(&packet).await.map_err(|error| {
            tracing::debug!(%error, "the proxy cannot reach its server");
            End::Cut
        })
    }

    async fn connect(&self, packet: &[u8]) -> io::Result<Upstream> {
        let place = self.shared.target().place().clone();
        // A blackholed connection must not reach the server.
        let _ = self.link.flow.subscribe().wait_for(|flow| !flow.dark).await;
        let mut upstream = Upstream::connect(&place).await?;
        upstream.write_all(packet).await?;
        Ok(upstream)
    }

    async fn cancel(&self, packet: &[u8]) -> io::Result<()> {
        let mut upstream = self.connect(packet).await?;
        upstream.read_to_end(&mut Vec::new()).await?;
        Ok(())
    }

    /// Passes messages both ways until the end; gives the server's side back.
    async fn pass<R, W>(
        &self,
        upstream: Upstream,
        inlet: &mut Inlet<R>,
        outlet: &mut Outlet<W>,
    ) -> (End, Option<Upstream>)
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let flow = &self.link.flow;
        let (reader, writer) = tokio::io::split(upstream);
        let mut from_server = Inlet::new(reader, flow.subscribe());
        let mut to_server = Outlet::new(writer, flow.subscribe(), |flow| !flow.dark);
        let end = tokio::select! {
            biased;
            () = self.link.until_cut() => End::Cut,
            end = self.frontend(inlet, &mut to_server) => end,
            end = self.backend(&mut from_server, outlet) => end,
        };
        (end, Some(from_server.into_inner().unsplit(to_server.into_inner())))
    }

    /// Client to server. Ends only by a fault: when the client leaves, the server decides about the end.
    async fn frontend<R, W>(&self, inlet: &mut Inlet<R>, outlet: &mut Outlet<W>) -> End
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match self.pump_frontend(inlet, outlet).await {
            Ok(Some(end)) => end,
            Ok(None) | Err(_) => {
                let _ = outlet.shutdown().await;
                std::future::pending().await
            }
        }
    }

    async fn pump_frontend<R, W>(
        &self,
        inlet: &mut Inlet<R>,
        outlet: &mut Outlet<W>,
    ) -> io::Result<Option<End>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // Bytes of the outlet that end with a whole group: a rule may stop before the group in progress.
        let mut whole = 0;
        loop {
            let Some(frame) = inlet.frame()? else {
                outlet.flush().await?;
                whole = 0;
                if inlet.fill().await? {
                    continue;
                }
                return Ok(None);
            };
            let sent = self.link.session().sent(frame.kind, inlet.body(&frame));
            if let Some(statement) = sent.executes {
                let firing = self.shared.rules.fire(Phase::BeforeForward, &self.role(), &[statement]);
                if let Some(firing) = firing {
                    outlet.flush_first(whole.min(outlet.buffer.len())).await?;
                    whole = 0;
                    if let Some(end) = self.act(firing, Proof::NotForwarded).await {
                        return Ok(Some(end));
                    }
                }
            }
            if !copy(inlet, &frame, outlet).await? {
                return Ok(None);
            }
            if sent.closes {
                if let Some(end) = self.after_forward(outlet).await? {
                    return Ok(Some(end));
                }
                whole = outlet.buffer.len();
            }
        }
    }

    async fn after_forward<W: AsyncWrite + Unpin>(&self, outlet: &mut Outlet<W>) -> io::Result<Option<End>> {
        let group = self.link.session().last_group();
        if group.is_empty() {
            return Ok(None);
        }
        let Some(firing) = self.shared.rules.fire(Phase::AfterForward, &self.role(), &group) else {
            return Ok(None);
        };
        // Muted before the server can have anything to answer.
        self.link.mute(true);
        outlet.flush().await?;
        let end = self.act(firing, Proof::Forwarded).await;
        if end.is_some() {
            return Ok(Some(End::Deliver));
        }
        self.link.mute(false);
        Ok(None)
    }

    /// Server to client.
    async fn backend<R, W>(&self, inlet: &mut Inlet<R>, outlet: &mut Outlet<W>) -> End
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut kept = Kept::default();
        let end = self.pump_backend(inlet, outlet, &mut kept).await;
        if let Ok(Some(end)) = end {
            return end;
        }
        // The server has left: what it said last, such as why, is for the client.
        outlet.buffer.extend(kept.answer.unwrap_or_default());
        let _ = outlet.flush().await;
        let _ = outlet.shutdown().await;
        End::Closed
    }

    async fn pump_backend<R, W>(
        &self,
        inlet: &mut Inlet<R>,
        outlet: &mut Outlet<W>,
        kept: &mut Kept,
    ) -> io::Result<Option<End>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            for notification in kept.due() {
                outlet.buffer.extend(notification);
                self.link.notified(0, 1);
            }
            let Some(frame) = inlet.frame()? else {
                outlet.flush().await?;
                let more = tokio::select! {
                    more = inlet.fill() => more?,
                    () = kept.until_due() => true,
                };
                if more {
                    continue;
                }
                return Ok(None);
            };
            let answer = self.link.session().received(frame.kind, inlet.body(&frame));
            let end = match answer {
                Answer::Notification(channel) => {
                    self.notification(inlet, &frame, &channel, outlet, kept).await?
                }
                Answer::Ready(ready) => self.ready(inlet, &frame, ready, outlet, kept).await?,
                part => {
                    self.consider_keeping(&frame, &part, kept);
                    self.keep_or_pass(inlet, &frame, outlet, kept).await?
                }
            };
            if end.is_some() {
                return Ok(end);
            }
        }
    }

    /// Begins to keep the answer from the client when a rule may need it at the coming ReadyForQuery.
    fn consider_keeping(&self, frame: &Frame, answer: &Answer, kept: &mut Kept) {
        if *answer == Answer::Aside {
            return;
        }
        let begun = std::mem::replace(&mut kept.within_group, true);
        // Rows never begin to matter in the middle; looking at each would cost.
        if kept.answer.is_some() || (begun && matches!(frame.kind, b'D' | b'd')) {
            return;
        }
        let (role, statements) = (self.role(), self.link.session().undecided());
        let rules = &self.shared.rules;
        let on_commit = *answer == Answer::Commit && rules.waits_for(Phase::OnCommit, &role, &statements);
        if on_commit || (!statements.is_empty() && rules.waits_for(Phase::AfterCommitted, &role, &statements))
        {
            kept.answer = Some(Vec::new());
        }
    }

    async fn keep_or_pass<R, W>(
        &self,
        inlet: &mut Inlet<R>,
        frame: &Frame,
        outlet: &mut Outlet<W>,
        kept: &mut Kept,
    ) -> io::Result<Option<End>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if let Some(answer) = &mut kept.answer {
            if answer.len() + frame.total <= MOST_HELD && frame.total == frame.look {
                answer.extend_from_slice(inlet.bytes(frame));
                inlet.consume(frame.look);
                return Ok(None);
            }
            outlet.buffer.extend(kept.answer.take().unwrap_or_default());
            self.give_up_keeping();
        }
        Ok((!copy(inlet, frame, outlet).await?).then_some(End::Closed))
    }

    /// The answer is too large: the rule is used up and says so.
    fn give_up_keeping(&self) {
        let (role, statements) = (self.role(), self.link.session().undecided());
        for phase in [Phase::OnCommit, Phase::AfterCommitted] {
            if let Some(firing) = self.shared.rules.fire(phase, &role, &statements) {
                self.shared.record(self.link, &firing, Proof::NotReached);
            }
        }
    }

    async fn ready<R, W>(
        &self,
        inlet: &mut Inlet<R>,
        frame: &Frame,
        ready: Ready,
        outlet: &mut Outlet<W>,
        kept: &mut Kept,
    ) -> io::Result<Option<End>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        self.shared.changed();
        kept.within_group = false;
        if let Some(answer) = kept.answer.take() {
            let wanted = [(Phase::OnCommit, ready.own_commit), (Phase::AfterCommitted, true)];
            for (phase, _) in wanted.into_iter().filter(|(_, proved)| *proved && !ready.committed.is_empty())
            {
                let Some(firing) = self.shared.rules.fire(phase, &self.role(), &ready.committed) else {
                    continue;
                };
                outlet.flush().await?;
                if let Some(end) = self.act(firing, Proof::Committed).await {
                    return Ok(Some(end));
                }
            }
            outlet.buffer.extend(answer);
        }
        copy(inlet, frame, outlet).await?;
        Ok(None)
    }

    async fn notification<R, W>(
        &self,
        inlet: &mut Inlet<R>,
        frame: &Frame,
        channel: &str,
        outlet: &mut Outlet<W>,
        kept: &mut Kept,
    ) -> io::Result<Option<End>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // A notification has at most 8,000 bytes of payload, so all of it is in the buffer.
        let message = inlet.bytes(frame).to_vec();
        inlet.consume(frame.look);
        self.link.notified(1, 0);
        let mut copies = 1;
        if let Some(firing) = self.shared.rules.fire_notification(&self.role(), channel) {
            match firing.rule.action() {
                Action::DropNotifications => copies = 0,
                Action::DoubleNotifications => copies = 2,
                Action::Delay(delay) => {
                    copies = 0;
                    kept.delay(Instant::now() + delay, message.clone());
                }
                Action::Hold => outlet.flush().await?,
                _ => {}
            }
            if let Some(end) = self.act(firing, Proof::Notified).await {
                return Ok(Some(end));
            }
        }
        let place = kept.answer.as_mut().unwrap_or(&mut outlet.buffer);
        (0..copies).for_each(|_| place.extend_from_slice(&message));
        self.link.notified(0, copies);
        self.shared.changed();
        Ok(None)
    }

    /// Records the firing, does what it says and returns how the connection ends, if it does.
    async fn act(&self, firing: Firing, proof: Proof) -> Option<End> {
        self.shared.record(self.link, &firing, proof);
        match firing.rule.action() {
            Action::Cut | Action::Refuse => return Some(End::Cut),
            Action::Blackhole => self.link.darken(true),
            // Delayed notifications wait on their own.
            Action::Delay(_) if firing.rule.phase() == Phase::Notification => {}
            Action::Delay(delay) => tokio::time::sleep(delay).await,
            Action::Hold => firing.rule.until_released().await,
            Action::DropNotifications | Action::DoubleNotifications => {}
        }
        None
    }

    fn role(&self) -> String {
        self.link.session().role.clone()
    }
}

/// What the server has said and the client has not been told.
#[derive(Default)]
struct Kept {
    /// The answer of the group in progress, when a rule may act at its end.
    answer: Option<Vec<u8>>,
    /// Part of that answer has been seen.
    within_group: bool,
    /// Notifications by the time at which they are due, which is not the order in which they came.
    delayed: VecDeque<(Instant, Vec<u8>)>,
}

impl Kept {
    fn delay(&mut self, until: Instant, message: Vec<u8>) {
        let place = self.delayed.partition_point(|(at, _)| *at <= until);
        self.delayed.insert(place, (until, message));
    }

    fn due(&mut self) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let mut due = Vec::new();
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.delayed.pop_front().map(|(_, message)| message));
        }
        due
    }

    async fn until_due(&self) {
        match self.delayed.front() {
            Some((at, _)) => tokio::time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

/// Passes one message on, however long; false when the stream ends in the middle.
async fn copy<R, W>(inlet: &mut Inlet<R>, frame: &Frame, outlet: &mut Outlet<W>) -> io::Result<bool>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut left = frame.total;
    loop {
        let bytes = inlet.take(left);
        left -= bytes.len();
        outlet.buffer.extend_from_slice(bytes);
        if left == 0 {
            return Ok(true);
        }
        outlet.flush().await?;
        if !inlet.fill().await? {
            return Ok(false);
        }
    }
}
