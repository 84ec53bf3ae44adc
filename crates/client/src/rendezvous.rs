//! Bringing the ranks of a job together where no MPI does: everybody's blob to everybody, over one TCP server.
//!
//! `outboard run` serves and its ranks visit, or rank 0 serves ([`Tcp`](crate::bootstrap::Tcp)). Little-endian; a blob
//! is at most [`MOST_BYTES`] long; the token keeps ranks of different jobs apart that meet at one address.
//!
//! | from | message |
//! |---|---|
//! | visitor | magic (u32), version (u32), rank (u32), ranks (u32), token (u64), length (u32), blob |
//! | server, when all came | 0 (u32), ranks (u32), then length (u32) and blob of each rank in order |
//! | server, when some did not | 1 (u32), length (u32), the sentence that names them |
//! | server, to a rank it cannot place | the same, with the reason |
//!
//! Invariants: every wait has a deadline; what a stranger sends costs the server one connection and bounded memory.

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_shm::status::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest blob of a rank.
pub const MOST_BYTES: u32 = 64 << 10;
/// How long a visitor tries to reach the server and then waits for the others.
pub const LIMIT: Duration = Duration::from_secs(30);

const MAGIC: u32 = u32::from_le_bytes(*b"OBRV");
const VERSION: u32 = 2;
const HEADER: usize = 28;
/// Before a visitor tries again.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MOST_RANKS: u32 = 1 << 20;
/// Connections beyond the ranks' own that the server holds at a time.
const STRANGERS: usize = 64;

/// Why the ranks did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Nobody listens.
    #[error("rank {rank} cannot reach the rendezvous at {address} within {}s: {reason}; is rank 0 alive, and does OUTBOARD_RENDEZVOUS name its host?", LIMIT.as_secs())]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// Where.
        address: String,
        /// The last reason.
        reason: io::Error,
    },
    /// Not all ranks came.
    #[error("ranks {} of {ranks} did not come to the rendezvous in time", list(missing))]
    Missing {
        /// Those that did not.
        missing: Vec<u32>,
        /// How many should have.
        ranks: u32,
    },
    /// The server says so.
    #[error("{0}")]
    Refused(String),
    /// The connection broke or carried nonsense.
    #[error("rendezvous of rank {rank}: {reason}")]
    Broken {
        /// The rank.
        rank: u32,
        /// What happened.
        reason: io::Error,
    },
    /// The server's own socket.
    #[error("rendezvous server: {0}")]
    Server(io::Error),
    /// Rank 0 may not listen there.
    #[error("rank 0 cannot serve the rendezvous at {address}: {reason}; set OUTBOARD_RENDEZVOUS to a port above 1023")]
    Listen {
        /// Where.
        address: String,
        /// The kernel's reason.
        reason: io::Error,
    },
}

impl RendezvousError {
    /// The kind of failure.
    pub fn status(&self) -> Status {
        match self {
            RendezvousError::Unreachable { .. } => Status::PeerLost,
            RendezvousError::Missing { .. } | RendezvousError::Refused(_) => Status::RankLost,
            RendezvousError::Broken { .. } => Status::Protocol,
            RendezvousError::Server(_) | RendezvousError::Listen { .. } => Status::Resource,
        }
    }
}

/// Ranks in a sentence; long lists are cut.
fn list(ranks: &[u32]) -> String {
    let named: Vec<_> = ranks.iter().take(16).map(u32::to_string).collect();
    let more = ranks.len().saturating_sub(named.len());
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

/// A rank that somebody else serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visitor {
    /// Where the server listens: host and port.
    pub(crate) address: String,
    /// Equal on all ranks of the job.
    pub(crate) token: u64,
    /// This rank.
    pub(crate) rank: u32,
    /// All ranks.
    pub(crate) ranks: u32,
}

impl Visitor {
    /// Brings `blob` to all ranks and all ranks' blobs here, in rank order. Collective; every wait ends after
    /// [`LIMIT`].
    pub(crate) fn exchange(&self, blob: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        assert!(blob.len() <= MOST_BYTES as usize, "checked by the caller");
        let mut message = Vec::with_capacity(HEADER + blob.len());
        let mut w = Writer::new(&mut message);
        w.u32(MAGIC).u32(VERSION).u32(self.rank).u32(self.ranks).u64(self.token).u32(blob.len() as u32).bytes(blob);
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut server = self.connect(deadline)?;
            match Self::begin(&mut server, &message) {
                Ok(kind) => return self.answer(kind, &mut server),
                // We came while the server of an earlier exchange was closing: the next one will listen soon.
                Err(reason) if turned_away(&reason) && Instant::now() < deadline => std::thread::sleep(FIRST_PAUSE),
                Err(reason) => return Err(RendezvousError::Broken { rank: self.rank, reason }),
            }
        }
    }

    /// Says who we are and waits for the first word of the answer.
    fn begin(server: &mut TcpStream, message: &[u8]) -> io::Result<u32> {
        // The server has a deadline of its own and says who is missing: it must be first.
        server.set_read_timeout(Some(2 * LIMIT))?;
        server.write_all(message)?;
        read_u32(server)
    }

    fn connect(&self, deadline: Instant) -> Result<TcpStream, RendezvousError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match TcpStream::connect(&self.address) {
                Ok(server) => return Ok(server),
                Err(_) if Instant::now() + pause < deadline => std::thread::sleep(pause),
                Err(reason) => {
                    let (rank, address) = (self.rank, self.address.clone());
                    return Err(RendezvousError::Unreachable { rank, address, reason });
                }
            }
            pause = (2 * pause).min(Duration::from_millis(500));
        }
    }

    fn answer(&self, kind: u32, server: &mut TcpStream) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let broken = |reason| RendezvousError::Broken { rank: self.rank, reason };
        if kind != 0 {
            let sentence = read_bytes(server).map_err(broken)?;
            return Err(RendezvousError::Refused(String::from_utf8_lossy(&sentence).into_owned()));
        }
        if read_u32(server).map_err(broken)? != self.ranks {
            return Err(broken(nonsense("number of ranks differs")));
        }
        (0..self.ranks).map(|_| read_bytes(server).map_err(broken)).collect()
    }
}

fn turned_away(reason: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(reason.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = read_u32(from)?;
    if length > MOST_BYTES {
        return Err(nonsense("length out of range"));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A connection that has not yet said everything.
struct Arriving {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// A rank that has come.
struct Member {
    /// None for the rank that serves.
    stream: Option<TcpStream>,
    blob: Vec<u8>,
}

/// What a rank says.
struct Arrival {
    rank: u32,
    ranks: u32,
    token: u64,
    blob: Vec<u8>,
}

impl Arrival {
    /// Why it is none of those that are waited for.
    fn problem(&self, members: &[Option<Member>], token: u64) -> Option<String> {
        let ranks = members.len();
        if self.token != token {
            return Some("another job meets at this address; set OUTBOARD_RENDEZVOUS to another port".to_owned());
        }
        if self.ranks as usize != ranks {
            let problem = "take all ranks' number of ranks from one launcher";
            return Some(format!(
                "rank {} has a world of {} ranks, others of {ranks}; {problem}",
                self.rank, self.ranks
            ));
        }
        match members.get(self.rank as usize) {
            Some(None) => None,
            Some(Some(_)) => Some(format!("rank {} came twice; give every rank a number of its own", self.rank)),
            None => Some(format!("rank {} is none of {ranks} ranks", self.rank)),
        }
    }
}

/// Serves one exchange among `ranks` ranks; done when all have come and been answered. Those that came are told who did
/// not.
///
/// # Errors
/// [`RendezvousError::Missing`] at the deadline, [`RendezvousError::Server`], [`RendezvousError::Broken`] for
/// a rank that came and then could not be answered.
pub fn serve(listener: &TcpListener, ranks: u32, deadline: Instant) -> Result<(), RendezvousError> {
    assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks");
    gather(listener, (0..ranks).map(|_| None).collect(), None, deadline).map(drop)
}

/// Serves one exchange after another, until one fails: its ranks have `limit` to come once the first of them has.
///
/// # Errors
/// As [`serve`]; it ends in no other way.
pub fn serve_on(listener: &TcpListener, ranks: u32, limit: Duration) -> RendezvousError {
    loop {
        if let Err(error) = serve(listener, ranks, Instant::now() + limit) {
            return error;
        }
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return RendezvousError::Server(errno.into()),
        }
    }
}

/// Serves one exchange as one of its ranks, whose contribution is `blob`; all blobs in rank order.
pub(crate) fn host(
    listener: &TcpListener,
    own: &Visitor,
    blob: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, RendezvousError> {
    let mut members: Vec<Option<Member>> = (0..own.ranks).map(|_| None).collect();
    members[own.rank as usize] = Some(Member { stream: None, blob: blob.to_vec() });
    let members = gather(listener, members, Some(own.token), deadline)?;
    Ok(members.into_iter().map(|member| member.blob).collect())
}

/// Waits for the ranks that are not in `members` and answers all. Without a `token` the first to come says which it is.
fn gather(
    listener: &TcpListener,
    mut members: Vec<Option<Member>>,
    mut token: Option<u64>,
    deadline: Instant,
) -> Result<Vec<Member>, RendezvousError> {
    listener.set_nonblocking(true).map_err(RendezvousError::Server)?;
    let mut arriving: Vec<Arriving> = Vec::new();
    let mut missing = members.iter().filter(|member| member.is_none()).count();
    while missing > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(dismiss(members));
        }
        await_any(listener, &arriving, left).map_err(RendezvousError::Server)?;
        accept(listener, &mut arriving, missing + STRANGERS)?;
        for mut one in std::mem::take(&mut arriving) {
            match one.progress() {
                Ok(None) => arriving.push(one),
                Ok(Some(arrival)) => match arrival.problem(&members, *token.get_or_insert(arrival.token)) {
                    None => {
                        let member = Member { stream: Some(one.stream), blob: arrival.blob };
                        members[arrival.rank as usize] = Some(member);
                        missing -= 1;
                    }
                    // Who cannot be told sees the connection close.
                    Some(problem) => drop(one.stream.write_all(&refusal(&problem))),
                },
                // A stranger: its connection closes.
                Err(_) => {}
            }
        }
    }
    let members: Vec<Member> = members.into_iter().flatten().collect();
    answer_all(&members)?;
    Ok(members)
}

/// Sleeps until a connection or bytes of one are there.
fn await_any(listener: &TcpListener, arriving: &[Arriving], left: Duration) -> io::Result<()> {
    let mut watched = vec![PollFd::new(listener, PollFlags::IN)];
    watched.extend(arriving.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
    let left = Timespec::try_from(left).map_err(|_| nonsense("deadline"))?;
    match poll(&mut watched, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn accept(listener: &TcpListener, arriving: &mut Vec<Arriving>, most: usize) -> Result<(), RendezvousError> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if arriving.len() < most && stream.set_nonblocking(true).is_ok() {
                    arriving.push(Arriving { stream, bytes: Vec::new() });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(RendezvousError::Server(error)),
        }
    }
}

impl Arriving {
    /// Reads what is there; what the rank says once it is whole.
    fn progress(&mut self) -> io::Result<Option<Arrival>> {
        loop {
            let have = self.bytes.len();
            let wanted = match header(&self.bytes)? {
                None => HEADER,
                Some((arrival, length)) if have == HEADER + length => {
                    return Ok(Some(Arrival { blob: self.bytes.split_off(HEADER), ..arrival }));
                }
                Some((_, length)) => HEADER + length,
            };
            self.bytes.resize(wanted, 0);
            let read = self.stream.read(&mut self.bytes[have..]);
            self.bytes.truncate(have + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a rank says, and the length of the blob that follows, once the header is there.
fn header(bytes: &[u8]) -> io::Result<Option<(Arrival, usize)>> {
    let mut r = Reader::new(bytes);
    let mut fields = || Ok::<_, DecodeError>((r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u64()?, r.u32()?));
    match fields() {
        Ok((MAGIC, VERSION, rank, ranks, token, length @ ..=MOST_BYTES)) => {
            Ok(Some((Arrival { rank, ranks, token, blob: Vec::new() }, length as usize)))
        }
        Ok(_) => Err(nonsense("header")),
        Err(_) => Ok(None),
    }
}

fn refusal(sentence: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    Writer::new(&mut answer).u32(1).u32(sentence.len() as u32).bytes(sentence.as_bytes());
    answer
}

/// Tells those that came who did not.
fn dismiss(members: Vec<Option<Member>>) -> RendezvousError {
    let ranks = members.len() as u32;
    let missing = members.iter().zip(0..).filter(|(member, _)| member.is_none()).map(|(_, rank)| rank).collect();
    let error = RendezvousError::Missing { missing, ranks };
    let answer = refusal(&error.to_string());
    for member in members.into_iter().flatten() {
        // Who cannot be told sees the connection close.
        let _ = member.tell(&answer);
    }
    error
}

fn answer_all(members: &[Member]) -> Result<(), RendezvousError> {
    let mut answer = Vec::new();
    let mut w = Writer::new(&mut answer);
    w.u32(0).u32(members.len() as u32);
    for member in members {
        w.u32(member.blob.len() as u32).bytes(&member.blob);
    }
    let told = members
        .iter()
        .zip(0..)
        .map(|(member, rank)| member.tell(&answer).map_err(|reason| RendezvousError::Broken { rank, reason }));
    // All are told what can be told before the first failure counts.
    told.fold(Ok(()), Result::and)
}

impl Member {
    fn tell(&self, answer: &[u8]) -> io::Result<()> {
        let Some(mut stream) = self.stream.as_ref() else { return Ok(()) };
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    fn visitor(address: &str, rank: u32, ranks: u32) -> Visitor {
        Visitor { address: address.to_owned(), token: 7, rank, ranks }
    }

    #[test]
    fn all_blobs_reach_all_ranks_in_order_whatever_strangers_send() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&listener, 3, Instant::now() + LIMIT));
            let mut stranger = TcpStream::connect(&address).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let ranks: Vec<_> = [2, 0, 1]
                .map(|rank| {
                    let world = visitor(&address, rank, 3);
                    scope.spawn(move || world.exchange(&vec![rank as u8; 1000 * rank as usize]))
                })
                .into_iter()
                .collect();
            for rank in ranks {
                let blobs = rank.join().unwrap().unwrap();
                assert_eq!(blobs, [vec![], vec![1; 1000], vec![2; 2000]]);
            }
            serving.join().unwrap().unwrap();
        });
    }

    #[test]
    fn missing_ranks_are_named_to_the_server_and_to_those_that_came() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let came = scope.spawn(|| visitor(&address, 1, 4).exchange(b"x"));
            let served = serve(&listener, 4, Instant::now() + Duration::from_millis(500));
            let sentence = "ranks 0, 2, 3 of 4 did not come to the rendezvous in time";
            assert_eq!(served.unwrap_err().to_string(), sentence);
            assert_eq!(came.join().unwrap().unwrap_err().to_string(), sentence);
        });
    }

    /// Two jobs at one address: the second's ranks do not end up among the first's.
    #[test]
    fn ranks_that_belong_elsewhere_are_told_so() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let own = visitor(&address, 0, 2);
            let hosting = scope.spawn(move || host(&listener, &own, b"ours", Instant::now() + LIMIT));
            let stranger = Visitor { token: 8, ..visitor(&address, 1, 2) };
            let refused = |visitor: Visitor| visitor.exchange(b"theirs").unwrap_err().to_string();
            assert!(refused(stranger).contains("another job"));
            assert!(refused(visitor(&address, 1, 3)).contains("rank 1 has a world of 3 ranks, others of 2"));
            assert!(refused(visitor(&address, 0, 2)).contains("rank 0 came twice"));
            let blobs = visitor(&address, 1, 2).exchange(b"own").unwrap();
            assert_eq!(blobs, [b"ours".to_vec(), b"own".to_vec()]);
            assert_eq!(hosting.join().unwrap().unwrap(), blobs);
        });
    }
}
