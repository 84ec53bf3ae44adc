//! The service process's side: ranks that attach through relays (SP-1, GP-9).
//!
//! A connection goes through these states, on a thread of its own:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | the right greeting, and the service process takes the rank | attached |
//! | greeting | anything else | refused |
//! | attached | the end of the connection, the service process's end, `Detach` | gone: the rank has left |
//! | attached | a frame that cannot be, or more memory than the quota | refused |
//!
//! A call is *filling* while its input comes, then *waiting* until those before it are posted and its arena is registered, then
//! *posted* until its completion word says how it ended; a second thread sends output and completion.
//!
//! Invariants: calls are posted in the order in which they came; the service process reaches shadows and nothing else, since
//! the dock never proves access to its own memory.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_shm::attach::message::Message;
use outboard_shm::attach::{Channel, ChannelError, Hello, OFFER_BYTES, Reply, Request};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::entry::{
    AllgatherEntry, AllgathervEntry, AlltoallEntry, BlockSizes, BroadcastEntry, Direction, Entry, MessageEnd,
    MessageEntry, Reduced, ReductionEntry, RootedBlocks, RootedEntry,
};
use outboard_shm::region::seal_bytes;
use outboard_shm::status::Status;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::frame::{DATA_BYTES, Decoder, Frame};
use super::output::{Berths, Docking, Output, Spans};
use super::shadow::{Shadow, ShadowError, Shadows, Taken};
use super::wire::{Wire, WireError};
use crate::attach::random;
use crate::topology::{Place, Seat};

/// How long a relay may take to greet, and the service process to answer.
const GREETING_LIMIT: Duration = Duration::from_secs(20);
/// Tokens from here on are the dock's own; ranks count from 1.
const OWN_TOKENS: u64 = 1 << 63;
/// An address where no shadow lies: what is read there fails the call.
const NOWHERE: u64 = 64;

/// What all connections are served by.
#[derive(Debug)]
struct Terms {
    /// Where the service process itself listens.
    socket: PathBuf,
    key: Vec<u8>,
    quota: u64,
    most: usize,
    present: AtomicUsize,
    berths: Arc<Berths>,
}

/// The listening socket's thread; connections end with the service process.
#[derive(Debug)]
pub(crate) struct Dock {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Dock {
    /// Listens for relays at `address`; `socket` and `berths` are the service process's own, `key` is what relays have to
    /// know, `quota` the memory for calls of one rank, `most` the ranks.
    ///
    /// # Errors
    /// The kernel's reason.
    pub(crate) fn start(
        address: SocketAddr,
        (socket, berths): (PathBuf, Arc<Berths>),
        key: &str,
        quota: u64,
        most: usize,
    ) -> io::Result<(Dock, SocketAddr)> {
        let listener = TcpListener::bind(address)?;
        let local = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (key, present) = (key.as_bytes().to_owned(), AtomicUsize::new(0));
        let terms = Terms { socket, key, quota, most, present, berths };
        let (terms, until) = (Arc::new(terms), stop.try_clone()?);
        let thread =
            std::thread::Builder::new().name("dock".into()).spawn(move || listen(&listener, &until, &terms))?;
        Ok((Dock { stop, thread: Some(thread) }, local))
    }
}

impl Drop for Dock {
    fn drop(&mut self) {
        // A counter that is at its end wakes as well.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that listens for relays panicked");
        }
    }
}

fn listen(listener: &TcpListener, stop: &OwnedFd, terms: &Arc<Terms>) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return tracing::error!(%errno, "relays are not listened for any more");
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, from)) => take_in(stream, from, terms),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "a relay cannot connect"),
        }
    }
}

fn take_in(stream: TcpStream, from: SocketAddr, terms: &Arc<Terms>) {
    let wire = match stream.set_nonblocking(false).and_then(|()| Wire::new(stream)) {
        Ok(wire) => wire,
        Err(error) => return tracing::warn!(%error, %from, "a relay cannot connect"),
    };
    if terms.present.fetch_add(1, Ordering::Relaxed) >= terms.most {
        terms.present.fetch_sub(1, Ordering::Relaxed);
        let text = format!("{} ranks are attached through relays already; raise --max-ranks", terms.most);
        return refuse(&wire, from, &text);
    }
    let own = Arc::clone(terms);
    let serve = move || {
        if let Err(Refusal(text)) = serve(wire, from, &own) {
            tracing::warn!(%from, text, "a relay is refused");
        }
        own.present.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("dock-rank".into()).spawn(serve) {
        terms.present.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(%error, %from, "no thread for a relay");
    }
}

fn refuse(wire: &Wire, from: SocketAddr, text: &str) {
    if let Err(error) = wire.send(&Frame::Refused { text }) {
        tracing::debug!(%from, %error, "a relay does not hear why it is refused");
    }
    wire.end();
}

/// Why a rank is not served, or not any more; the relay has been told.
struct Refusal(String);

/// Why a session ends.
#[derive(Debug)]
enum End {
    /// Relay or service process has ended it.
    Over,
    /// The relay is to blame, or to be told.
    Refused(String),
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Ended | WireError::Broken(_) => End::Over,
            WireError::Frame(error) => End::Refused(error.to_string()),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        // It has broken.
        End::Over
    }
}

fn refused<T>(text: impl ToString) -> Result<T, End> {
    Err(End::Refused(text.to_string()))
}

/// Serves one relayed rank to its end.
fn serve(wire: Wire, from: SocketAddr, terms: &Terms) -> Result<(), Refusal> {
    let mut decoder = Decoder::default();
    let session = greet(&wire, &mut decoder, terms);
    let ended = match session {
        Ok((channel, side, output)) => {
            output.wake(&side);
            let shared = Arc::new(Shared {
                side,
                output,
                wire,
                books: Mutex::new(Books { posted: HashMap::new(), shadows: Shadows::new(terms.quota), over: false }),
                changed: Condvar::new(),
            });
            let ended = attached(&channel, &shared, &mut decoder);
            // The service process lets go of the shadows first.
            drop(channel);
            if let Err(End::Refused(text)) = &ended {
                refuse(&shared.wire, from, text);
            }
            shared.finish();
            ended
        }
        Err(end) => {
            if let End::Refused(text) = &end {
                refuse(&wire, from, text);
            }
            Err(end)
        }
    };
    match ended {
        Err(End::Refused(text)) => Err(Refusal(text)),
        Ok(()) | Err(End::Over) => Ok(()),
    }
}

/// Hears the greeting and attaches to the service process on behalf of the rank.
fn greet(wire: &Wire, decoder: &mut Decoder, terms: &Terms) -> Result<(Channel, Arc<RankSide>, Arc<Output>), End> {
    wire.stream().set_read_timeout(Some(GREETING_LIMIT))?;
    let output = Arc::default();
    let (known, docking) = loop {
        match decoder.next().map_err(WireError::from)? {
            Some(Frame::Greeting { pid, socket, core, node, key }) => {
                let seat = Seat { node: node.into(), place: Place { socket, core } };
                break (same(key, &terms.key), Docking { pid, seat, output: Arc::clone(&output) });
            }
            Some(_) => return refused("the first frame of a connection is a greeting"),
            None => wire.fill(decoder)?,
        }
    };
    wire.stream().set_read_timeout(None)?;
    if !known {
        return refused("the key is not ours; give relay and daemon the same OUTBOARD_RELAY_KEY");
    }
    let nonce = match random::<2>() {
        Ok(words) => std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]),
        Err(errno) => return refused(format!("the service process cannot draw random numbers: {errno}")),
    };
    terms.berths.expect(nonce, docking);
    let attached = attach(terms, nonce);
    // Taken by the service process already, unless it has refused.
    terms.berths.take(&nonce);
    let (channel, side, welcome) = attached?;
    wire.send(&Frame::Reply(&welcome.encode(0)))?;
    Ok((channel, Arc::new(side), output))
}

/// Attaches as a rank of this machine would; the nonce tells the service process whom for.
fn attach(terms: &Terms, nonce: [u8; 16]) -> Result<(Channel, RankSide, Reply), End> {
    let failed = |error: &dyn std::fmt::Display| End::Refused(format!("the service process does not attach: {error}"));
    let channel = Channel::connect(&terms.socket).map_err(|errno| failed(&errno))?;
    let hello = Hello {
        abi_version: 1,
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        // Nothing of ours is to be reached but what is registered.
        probe_address: NOWHERE,
        nonce,
        descriptor: false,
        // One for all ranks of other machines.
        job: 0,
    };
    channel.send(OWN_TOKENS, &Request::Hello(hello), &[]).map_err(|error| failed(&error))?;
    channel.wait(GREETING_LIMIT).map_err(|error| failed(&error))?;
    let Some(mut welcome) = channel.receive::<Reply>().map_err(|error| failed(&error))? else {
        return refused("the service process does not answer");
    };
    if let Reply::Error { text, .. } = welcome.message {
        return refused(text);
    }
    let (Some(doorbell), Some(region)) = (welcome.descriptors.pop(), welcome.descriptors.pop()) else {
        return refused("the service process answers what was not asked");
    };
    let side = RankSide::attach(region, doorbell).map_err(|error| failed(&error))?;
    Ok((channel, side, welcome.message))
}

/// Compares without telling by its time how much is the same.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A call on behalf of the relayed rank.
#[derive(Debug)]
struct Docked {
    entry: Entry,
    shadow: Shadow,
    input: u64,
    output: u64,
    /// Where table and output begin in the shadow; the input is its beginning.
    table_at: u64,
    output_at: u64,
    /// Bytes of input and table that have not come.
    missing: u64,
    /// What has left of the output.
    sent: Spans,
    readable: bool,
}

impl Docked {
    /// Lays a call out; returns its bytes too, `None` if they exceed the address space.
    fn layout(input: u64, table: u64, output: u64) -> Option<(u64, u64, u64)> {
        let table_at = input.checked_next_multiple_of(64)?;
        let output_at = table_at.checked_add(table)?.checked_next_multiple_of(64)?;
        Some((table_at, output_at, output_at.checked_add(output)?))
    }

    /// The entry with addresses of the shadow.
    fn placed(&self) -> Entry {
        let base = self.shadow.address();
        let send = if self.readable { base } else { NOWHERE };
        let receive = base + self.output_at;
        match self.entry {
            Entry::Allgather(entry) => Entry::Allgather(AllgatherEntry { in_place: false, send, receive, ..entry }),
            Entry::Allgatherv(entry) => {
                let table = base + self.table_at;
                Entry::Allgatherv(AllgathervEntry { in_place: false, send, receive, table, ..entry })
            }
            Entry::Broadcast(entry) => {
                let buffer = if self.input > 0 { send } else { receive };
                Entry::Broadcast(BroadcastEntry { buffer, ..entry })
            }
            Entry::Alltoall(entry) => {
                let blocks = match entry.blocks {
                    BlockSizes::Even { bytes } => BlockSizes::Even { bytes },
                    BlockSizes::Table { .. } => BlockSizes::Table { address: base + self.table_at },
                };
                Entry::Alltoall(AlltoallEntry { send, receive, blocks, ..entry })
            }
            Entry::Rooted(entry) => {
                let blocks = match entry.blocks {
                    RootedBlocks::Table { .. } => RootedBlocks::Table { address: base + self.table_at },
                    sizes @ (RootedBlocks::Even { .. } | RootedBlocks::Own { .. }) => sizes,
                };
                // The root's own block was carried with the input of a gather.
                let in_place = entry.in_place && entry.direction == Direction::Scatter;
                Entry::Rooted(RootedEntry { in_place, send, receive, blocks, ..entry })
            }
            Entry::Barrier(entry) => Entry::Barrier(entry),
            Entry::Reduction(entry) => {
                let result = match entry.result {
                    Reduced::ReduceScatter { .. } => Reduced::ReduceScatter { table: base + self.table_at },
                    whole => whole,
                };
                Entry::Reduction(ReductionEntry { in_place: false, send, receive, result, ..entry })
            }
            Entry::Message(entry) => {
                let buffer = match entry.end {
                    MessageEnd::Send => send,
                    MessageEnd::Receive => receive,
                };
                Entry::Message(MessageEntry { buffer, ..entry })
            }
            // Refused where it was recorded and posted: its group is not one of this connection's recordings.
            Entry::Recorded(entry) => Entry::Recorded(entry),
        }
    }

    /// Addresses of the output.
    fn output_addresses(&self) -> (u64, u64) {
        let start = self.shadow.address() + self.output_at;
        (start, start + self.output)
    }

    /// Takes a piece of input or table; false if it is beyond them.
    fn fill(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let length = bytes.len() as u64;
        let table = offset.checked_sub(self.input);
        let (at, room) = match table {
            Some(offset) => (self.table_at + offset, self.output_at.saturating_sub(self.table_at + offset)),
            None => (offset, self.input - offset),
        };
        if length > room || length > self.missing {
            return false;
        }
        self.shadow.write(at, bytes);
        self.missing -= length;
        true
    }
}

/// What the two threads of a session share.
#[derive(Debug)]
struct Shared {
    side: Arc<RankSide>,
    output: Arc<Output>,
    wire: Wire,
    books: Mutex<Books>,
    changed: Condvar,
}

#[derive(Debug)]
struct Books {
    /// By completion word.
    posted: HashMap<u32, Docked>,
    shadows: Shadows,
    over: bool,
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the other thread end.
    fn finish(&self) {
        self.wire.end();
        self.books().over = true;
        self.changed.notify_all();
        self.side.nudge();
    }

    /// Sends output as it comes, and the rest with the completion of every call that ends, until the session is over.
    fn deliver(&self) {
        let mut buffer = Vec::new();
        loop {
            let idle = |books: &mut Books| books.posted.is_empty() && !books.over;
            drop(self.changed.wait_while(self.books(), idle).unwrap_or_else(PoisonError::into_inner));
            let news = |books: &Books| books.over || books.posted.keys().any(|slot| self.side.result(*slot).is_some());
            self.side.wait(None, || news(&self.books()) || self.output.is_worth_a_frame());
            let mut books = self.books();
            if books.over {
                return;
            }
            let ended: Vec<_> = books.posted.extract_if(|slot, _| self.side.result(*slot).is_some()).collect();
            drop(books);
            // A connection that has broken is seen by the thread that reads.
            for (slot, call) in ended {
                let status = self.side.result(slot).unwrap_or(Status::Internal);
                if self.answer(slot, &call, status, &mut buffer).is_err() {
                    return;
                }
                self.books().shadows.give_back(call.shadow);
            }
            if let Some(span) = self.output.take()
                && self.send_early(span, &mut buffer).is_err()
            {
                return;
            }
        }
    }

    /// Sends what has been written between two addresses of a call that has not ended.
    fn send_early(&self, (mut start, end): (u64, u64), buffer: &mut Vec<u8>) -> io::Result<()> {
        while start < end {
            let mut books = self.books();
            let of_call = |call: &Docked| {
                let (from, to) = call.output_addresses();
                (from..to).contains(&start).then_some((from, to))
            };
            let found = books.posted.iter_mut().find_map(|(slot, call)| of_call(call).map(|span| (*slot, call, span)));
            // Shadows are written for calls in flight alone; what has ended meanwhile has left.
            let Some((slot, call, (from, to))) = found else { return Ok(()) };
            let (offset, stop) = (start - from, to.min(end).min(start + DATA_BYTES as u64));
            buffer.resize((stop - start) as usize, 0);
            call.shadow.read(call.output_at + offset, buffer);
            call.sent.insert(offset, stop - from);
            drop(books);
            self.wire.send(&Frame::Data { slot, offset, bytes: buffer })?;
            start = stop;
        }
        Ok(())
    }

    /// Sends what has not left of a call that has ended, and its completion.
    fn answer(&self, slot: u32, call: &Docked, status: Status, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (from, to) = call.output_addresses();
        let late = self.output.take_between(from, to);
        let mut sent = call.sent.clone();
        late.into_iter().for_each(|(start, end)| drop(sent.remove(start - from, end - from)));
        let rest = if status == Status::Ok { sent.missing(0, call.output) } else { Vec::new() };
        for (mut offset, end) in rest {
            while offset < end {
                let count = (end - offset).min(DATA_BYTES as u64);
                buffer.resize(count as usize, 0);
                call.shadow.read(call.output_at + offset, buffer);
                self.wire.send(&Frame::Data { slot, offset, bytes: buffer })?;
                offset += count;
            }
        }
        self.wire.send(&Frame::Complete { slot, status })
    }
}

/// Serves an attached rank until it is over.
fn attached(channel: &Channel, shared: &Arc<Shared>, decoder: &mut Decoder) -> Result<(), End> {
    let delivering = Arc::clone(shared);
    let started = std::thread::Builder::new().name("dock-deliver".into()).spawn(move || delivering.deliver());
    if let Err(error) = started {
        return refused(format!("no thread is left for another rank: {error}"));
    }
    let mut session = Session {
        channel,
        shared,
        filling: None,
        waiting: VecDeque::new(),
        offers: None,
        registering: HashMap::new(),
        next_token: OWN_TOKENS,
    };
    loop {
        while let Some(frame) = decoder.next().map_err(WireError::from)? {
            session.take(frame)?;
        }
        let mut fds = [
            PollFd::new(shared.wire.stream(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
        ];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return refused(format!("the service process cannot wait: {errno}"));
        }
        let [from_relay, from_service] = [0, 1].map(|at| !fds[at].revents().is_empty());
        if from_service {
            session.replies()?;
        }
        if from_relay {
            shared.wire.fill(decoder)?;
        }
    }
}

/// Offers on their way.
#[derive(Debug)]
struct Gathering {
    token: u64,
    ranks: u32,
    rank: u32,
    bytes: Vec<u8>,
}

/// The reading side of an attached rank.
struct Session<'a> {
    channel: &'a Channel,
    shared: &'a Shared,
    filling: Option<Docked>,
    waiting: VecDeque<Docked>,
    offers: Option<Gathering>,
    /// Addresses of arenas by the token of their registration.
    registering: HashMap<u64, u64>,
    next_token: u64,
}

fn ended(error: &ChannelError) -> End {
    match error {
        ChannelError::Closed => End::Over,
        error => End::Refused(format!("the service process does not take a request: {error}")),
    }
}

impl Session<'_> {
    fn take(&mut self, frame: Frame<'_>) -> Result<(), End> {
        match frame {
            Frame::Request(bytes) => self.request(bytes),
            Frame::CreateGroup { token, ranks, rank } => {
                if self.offers.is_some() || token >= OWN_TOKENS || rank >= ranks || ranks > u32::from(u16::MAX) {
                    return refused("malformed relay frame: a group that cannot be");
                }
                self.offers = Some(Gathering { token, ranks, rank, bytes: Vec::new() });
                Ok(())
            }
            Frame::Offers(bytes) => self.gather(bytes),
            Frame::Call { words, input, table, output } => {
                let slots = self.shared.side.slots();
                let Ok(entry) = Entry::decode(&words, slots) else { return refused("malformed relay frame: bad call") };
                self.call(entry, input, table, output)
            }
            Frame::Unreadable { slot } => match self.filling.take_if(|call| call.entry.slot() == slot) {
                Some(call) => self.filled(Docked { readable: false, ..call }),
                None => refused("malformed relay frame: no such call needs bytes"),
            },
            Frame::Data { slot, offset, bytes } => {
                let call = self.filling.as_mut().filter(|call| call.entry.slot() == slot);
                if !call.is_some_and(|call| call.fill(offset, bytes)) {
                    return refused("malformed relay frame: bytes that no call needs");
                }
                match self.filling.take_if(|call| call.missing == 0) {
                    Some(call) => self.filled(call),
                    None => Ok(()),
                }
            }
            Frame::Greeting { .. } | Frame::Reply(_) | Frame::Complete { .. } | Frame::Refused { .. } => {
                refused("malformed relay frame: not a relay's")
            }
        }
    }

    fn request(&self, bytes: &[u8]) -> Result<(), End> {
        let (token, request) = match Request::decode(bytes) {
            Ok(decoded) => decoded,
            Err(error) => return refused(error),
        };
        match request {
            Request::Offer
            | Request::DestroyGroup { .. }
            | Request::SetDeadline { .. }
            | Request::ErrorText { .. }
            | Request::Detach
                if token < OWN_TOKENS =>
            {
                self.channel.send(token, &request, &[]).map_err(|error| ended(&error))
            }
            _ => refused("malformed relay frame: a request that is the relay's to answer"),
        }
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<(), End> {
        let Some(offers) = &mut self.offers else { return refused("malformed relay frame: offers of no group") };
        let whole = offers.ranks as usize * OFFER_BYTES;
        if bytes.len() > whole - offers.bytes.len() {
            return refused("malformed relay frame: more offers than ranks");
        }
        offers.bytes.extend(bytes);
        match self.offers.take_if(|offers| offers.bytes.len() == whole) {
            None => Ok(()),
            Some(Gathering { token, ranks, rank, bytes }) => {
                let sealed = seal_bytes("outboard-offers", &bytes).or_else(refused)?;
                let request = Request::CreateGroup { ranks, rank };
                self.channel.send(token, &request, &[sealed.as_fd()]).map_err(|error| ended(&error))
            }
        }
    }

    fn call(&mut self, entry: Entry, input: u64, table: u64, output: u64) -> Result<(), End> {
        let slot = entry.slot();
        let mut books = self.shared.books();
        let busy = books.posted.contains_key(&slot) || self.waiting.iter().any(|call| call.entry.slot() == slot);
        if busy || self.filling.is_some() {
            return refused("malformed relay frame: a call amid another");
        }
        let (table_at, output_at, bytes) = Docked::layout(input, table, output).unwrap_or((0, 0, u64::MAX));
        let Taken { shadow, register, unregister } =
            books.shadows.take(bytes).or_else(|error: ShadowError| refused(error))?;
        drop(books);
        for address in unregister {
            self.order(&Request::UnregisterMemory { address }, &[])?;
        }
        if let Some((address, bytes, region)) = register {
            let token = self.order(&Request::RegisterMemory { address, bytes }, &[region.fd()])?;
            self.registering.insert(token, address);
        }
        let call = Docked {
            entry,
            shadow,
            input,
            output,
            table_at,
            output_at,
            missing: input + table,
            sent: Spans::default(),
            readable: true,
        };
        if call.missing == 0 {
            return self.filled(call);
        }
        self.filling = Some(call);
        Ok(())
    }

    /// Sends a request of our own; returns its token.
    fn order(&mut self, request: &Request, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Result<u64, End> {
        self.next_token += 1;
        self.channel.send(self.next_token, request, descriptors).map_err(|error| ended(&error))?;
        Ok(self.next_token)
    }

    fn filled(&mut self, call: Docked) -> Result<(), End> {
        self.waiting.push_back(call);
        self.post()
    }

    /// Posts the calls whose turn it is.
    fn post(&mut self) -> Result<(), End> {
        let mut books = self.shared.books();
        while self.waiting.front().is_some_and(|call| books.shadows.is_registered(&call.shadow)) {
            let Some(call) = self.waiting.pop_front() else { break };
            let slot = call.entry.slot();
            self.shared.side.arm(slot);
            let posted = self.shared.side.post(&call.placed());
            books.posted.insert(slot, call);
            if let Err(full) = posted {
                return refused(full);
            }
        }
        drop(books);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Passes on what the service process replies.
    fn replies(&mut self) -> Result<(), End> {
        while let Some(reply) = self.channel.receive::<Reply>().map_err(|error| ended(&error))? {
            if reply.token < OWN_TOKENS {
                self.shared.wire.send(&Frame::Reply(&reply.message.encode(reply.token)))?;
                continue;
            }
            if let Reply::Error { text, .. } = reply.message {
                return refused(text);
            }
            if let Some(address) = self.registering.remove(&reply.token) {
                self.shared.books().shadows.registered(address);
                self.post()?;
            }
        }
        Ok(())
    }
}
