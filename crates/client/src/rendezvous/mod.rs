//! Bringing the ranks of a job together where no MPI does: everybody's blob to everybody, over one TCP server.
//!
//! `outboard run` serves and its ranks visit, or rank 0 serves ([`Tcp`](crate::bootstrap::Tcp)). Both ends prove that
//! they have the job's [`Token`], and seal what they say ([`sealed`]). Little-endian; a blob is at most [`MOST_BYTES`]
//! long.
//!
//! | from | message |
//! |---|---|
//! | visitor | magic (u32), version (u32), rank (u32), ranks (u32), handshake |
//! | server | 2 (u32), handshake |
//! | visitor | blob, as a record: its length (u32), sealed |
//! | server, when all came | 0 (u32), then the blob of each rank in order, as records |
//! | server, when some did not | 1 (u32), length (u32), the sentence that names them |
//! | server, to a rank it cannot place | the same, with the reason |
//!
//! Invariants: every wait has a deadline; what a stranger sends costs the server one connection and bounded memory;
//! nobody without the token takes a rank's place, serves it, or hears a blob.

mod sealed;
mod token;

pub use token::{TOKEN, Token};

use sealed::{GREETING, Sealed, TAG};

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_shm::status::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest blob of a rank: it fits one message of the handshake's protocol, which ends at 64 KiB.
pub const MOST_BYTES: u32 = 63 << 10;
/// How long a visitor tries to reach the server and then waits for the others.
pub const LIMIT: Duration = Duration::from_secs(30);

const MAGIC: u32 = u32::from_le_bytes(*b"OBRV");
const VERSION: u32 = 3;
/// What a visitor says in the clear.
const HEADER: usize = 16;
/// First words of the server's answers.
const ALL: u32 = 0;
const REFUSAL: u32 = 1;
const HANDSHAKE: u32 = 2;
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
    /// Who serves has not the job's token.
    #[error(
        "what serves the rendezvous at {address} does not know this job's token; give all ranks the same \
         OUTBOARD_TOKEN, or set OUTBOARD_RENDEZVOUS to another port"
    )]
    Stranger {
        /// Where.
        address: String,
    },
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
            RendezvousError::Missing { .. } | RendezvousError::Refused(_) | RendezvousError::Stranger { .. } => {
                Status::RankLost
            }
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
    pub(crate) token: Token,
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
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut server = self.connect(deadline)?;
            match self.begin(&mut server, blob) {
                Ok(begun) => return begun?.answer(self, &mut server),
                // We came while the server of an earlier exchange was closing: the next one will listen soon.
                Err(reason) if turned_away(&reason) && Instant::now() < deadline => std::thread::sleep(FIRST_PAUSE),
                Err(reason) => return Err(RendezvousError::Broken { rank: self.rank, reason }),
            }
        }
    }

    /// Says who we are and what we bring, and waits for the first word of the answer.
    fn begin(&self, server: &mut TcpStream, blob: &[u8]) -> io::Result<Result<Begun, RendezvousError>> {
        // The server has a deadline of its own and says who is missing: it must be first.
        server.set_read_timeout(Some(2 * LIMIT))?;
        let mut message = Vec::with_capacity(HEADER + GREETING);
        Writer::new(&mut message).u32(MAGIC).u32(VERSION).u32(self.rank).u32(self.ranks);
        let (greeted, greeting) = sealed::greet(&self.token, &message);
        message.extend_from_slice(&greeting);
        server.write_all(&message)?;
        let kind = read_u32(server)?;
        if kind == REFUSAL {
            return Ok(Ok(Begun::Refused));
        }
        let mut answer = [0; GREETING];
        server.read_exact(&mut answer)?;
        let Some(mut sealed) = greeted.finish(&answer).filter(|_| kind == HANDSHAKE) else {
            return Ok(Err(RendezvousError::Stranger { address: self.address.clone() }));
        };
        let mut record = Vec::new();
        sealed.seal(blob, &mut record);
        server.write_all(&record)?;
        let all = read_u32(server)? == ALL;
        Ok(Ok(if all { Begun::All(sealed) } else { Begun::Refused }))
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
}

/// How the server's answer begins.
enum Begun {
    /// Everybody's blob follows.
    All(Sealed),
    /// A sentence follows.
    Refused,
}

impl Begun {
    /// The rest of the answer.
    fn answer(self, visitor: &Visitor, server: &mut TcpStream) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let broken = |reason| RendezvousError::Broken { rank: visitor.rank, reason };
        match self {
            Begun::Refused => {
                let sentence = read_bytes(server).map_err(broken)?;
                Err(RendezvousError::Refused(String::from_utf8_lossy(&sentence).into_owned()))
            }
            Begun::All(mut sealed) => {
                let mut blob = |_| read_bytes(server).and_then(|record| sealed.open(&record)).map_err(broken);
                (0..visitor.ranks).map(&mut blob).collect()
            }
        }
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
    if length > MOST_BYTES + TAG as u32 {
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
    /// Who it says it is, once it has proved to have the token.
    greeted: Option<(Arrival, Sealed)>,
}

/// A rank that has come.
struct Member {
    /// None for the rank that serves.
    connection: Option<(TcpStream, Sealed)>,
    blob: Vec<u8>,
}

/// What a rank says of itself.
#[derive(Clone, Copy)]
struct Arrival {
    rank: u32,
    ranks: u32,
}

impl Arrival {
    /// Why it is none of those that are waited for.
    fn problem(&self, members: &[Option<Member>]) -> Option<String> {
        let ranks = members.len();
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

/// Serves one exchange among `ranks` ranks with this token; done when all have come and been answered. Those that came
/// are told who did not.
///
/// # Errors
/// [`RendezvousError::Missing`] at the deadline, [`RendezvousError::Server`], [`RendezvousError::Broken`] for
/// a rank that came and then could not be answered.
pub fn serve(listener: &TcpListener, ranks: u32, token: &Token, deadline: Instant) -> Result<(), RendezvousError> {
    assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks");
    gather(listener, (0..ranks).map(|_| None).collect(), token, deadline).map(drop)
}

/// Serves one exchange after another, until one fails: its ranks have `limit` to come once the first of them has.
///
/// # Errors
/// As [`serve`]; it ends in no other way.
pub fn serve_on(listener: &TcpListener, ranks: u32, token: &Token, limit: Duration) -> RendezvousError {
    loop {
        if let Err(error) = serve(listener, ranks, token, Instant::now() + limit) {
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
    members[own.rank as usize] = Some(Member { connection: None, blob: blob.to_vec() });
    gather(listener, members, &own.token, deadline)
}

/// Waits for the ranks that are not in `members` and answers all; their blobs in rank order.
fn gather(
    listener: &TcpListener,
    mut members: Vec<Option<Member>>,
    token: &Token,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, RendezvousError> {
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
            match one.progress(token) {
                Ok(Progress::More) => arriving.push(one),
                Ok(Progress::Whole(arrival, sealed, blob)) => match arrival.problem(&members) {
                    None => {
                        let connection = Some((one.stream, *sealed));
                        members[arrival.rank as usize] = Some(Member { connection, blob });
                        missing -= 1;
                    }
                    // Who cannot be told sees the connection close.
                    Some(problem) => drop(one.stream.write_all(&refusal(&problem))),
                },
                Ok(Progress::Another) => {
                    let problem = "another job meets at this address; set OUTBOARD_RENDEZVOUS to another port, or all \
                                   ranks' OUTBOARD_TOKEN to the same";
                    drop(one.stream.write_all(&refusal(problem)));
                }
                // A stranger: its connection closes.
                Err(_) => {}
            }
        }
    }
    let (connections, blobs): (Vec<_>, Vec<_>) =
        members.into_iter().flatten().map(|member| (member.connection, member.blob)).unzip();
    answer_all(connections, &blobs)?;
    Ok(blobs)
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
                if arriving.len() >= most {
                    // A rank says at once who it is, and comes again if it was too slow.
                    arriving.remove(0);
                }
                if stream.set_nonblocking(true).is_ok() {
                    arriving.push(Arriving { stream, bytes: Vec::new(), greeted: None });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(RendezvousError::Server(error)),
        }
    }
}

/// How far a connection has come.
enum Progress {
    /// More has to come.
    More,
    /// A rank of the job, with its blob.
    Whole(Arrival, Box<Sealed>, Vec<u8>),
    /// It has not the job's token.
    Another,
}

impl Arriving {
    /// Reads what is there, and answers the handshake.
    fn progress(&mut self, token: &Token) -> io::Result<Progress> {
        loop {
            let wanted = match &self.greeted {
                None => HEADER + GREETING,
                Some(_) => 4 + record_length(&self.bytes)?.unwrap_or_default(),
            };
            let have = self.bytes.len();
            if have < wanted {
                self.bytes.resize(wanted, 0);
                let read = self.stream.read(&mut self.bytes[have..]);
                self.bytes.truncate(have + read.as_ref().map_or(0, |count| *count));
                match read {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Progress::More),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            let said = std::mem::take(&mut self.bytes);
            match self.greeted.take() {
                None => {
                    let (head, greeting) = said.split_at(HEADER);
                    let arrival = arrival(head)?;
                    let greeting = greeting.try_into().map_err(|_| nonsense("greeting"))?;
                    let Some((sealed, answer)) = sealed::answer(token, head, greeting) else {
                        return Ok(Progress::Another);
                    };
                    // The first words on a fresh connection: there is room for them.
                    self.stream.write_all(&[&HANDSHAKE.to_le_bytes()[..], &answer].concat())?;
                    self.greeted = Some((arrival, sealed));
                }
                Some(greeted) if said.len() == 4 => (self.bytes, self.greeted) = (said, Some(greeted)),
                Some((arrival, mut sealed)) => {
                    let blob = sealed.open(&said[4..])?;
                    return Ok(Progress::Whole(arrival, Box::new(sealed), blob));
                }
            }
        }
    }
}

/// The length of a record whose first bytes these are, once it is there.
fn record_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match u32::from_le_bytes(*length) as usize {
        length @ TAG.. if length <= MOST_BYTES as usize + TAG => Ok(Some(length)),
        _ => Err(nonsense("length out of range")),
    }
}

/// What a rank says of itself in the clear.
fn arrival(header: &[u8]) -> io::Result<Arrival> {
    let mut r = Reader::new(header);
    let mut fields = || Ok::<_, DecodeError>((r.u32()?, r.u32()?, r.u32()?, r.u32()?));
    match fields() {
        Ok((MAGIC, VERSION, rank, ranks)) => Ok(Arrival { rank, ranks }),
        Ok(_) | Err(_) => Err(nonsense("header")),
    }
}

fn refusal(sentence: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    Writer::new(&mut answer).u32(REFUSAL).u32(sentence.len() as u32).bytes(sentence.as_bytes());
    answer
}

/// Tells those that came who did not.
fn dismiss(members: Vec<Option<Member>>) -> RendezvousError {
    let ranks = members.len() as u32;
    let missing = members.iter().zip(0..).filter(|(member, _)| member.is_none()).map(|(_, rank)| rank).collect();
    let error = RendezvousError::Missing { missing, ranks };
    let answer = refusal(&error.to_string());
    for (stream, _) in members.into_iter().flatten().filter_map(|member| member.connection) {
        // Who cannot be told sees the connection close.
        let _ = tell(&stream, &answer);
    }
    error
}

/// Everybody's blob to everybody.
fn answer_all(connections: Vec<Option<(TcpStream, Sealed)>>, blobs: &[Vec<u8>]) -> Result<(), RendezvousError> {
    let answer = |(stream, mut sealed): (TcpStream, Sealed)| {
        let mut answer = ALL.to_le_bytes().to_vec();
        blobs.iter().for_each(|blob| sealed.seal(blob, &mut answer));
        tell(&stream, &answer)
    };
    let told = connections.into_iter().zip(0..).map(|(connection, rank)| {
        connection.map_or(Ok(()), answer).map_err(|reason| RendezvousError::Broken { rank, reason })
    });
    // All are told what can be told before the first failure counts.
    told.fold(Ok(()), Result::and)
}

fn tell(mut stream: &TcpStream, answer: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    fn token() -> Token {
        Token::new(b"secret", "job")
    }

    fn visitor(address: &str, rank: u32, ranks: u32) -> Visitor {
        Visitor { address: address.to_owned(), token: token(), rank, ranks }
    }

    #[test]
    fn all_blobs_reach_all_ranks_in_order_whatever_strangers_send() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&listener, 3, &token(), Instant::now() + LIMIT));
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
            let served = serve(&listener, 4, &token(), Instant::now() + Duration::from_millis(500));
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
            let stranger = Visitor { token: Token::new(b"guess", "job"), ..visitor(&address, 1, 2) };
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
