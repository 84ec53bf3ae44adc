//! Exchange of blobs between all ranks of a job over one TCP server, for jobs without MPI.
//!
//! `outboard run` serves and its ranks connect, or rank 0 serves ([`TcpBootstrap`](crate::bootstrap::TcpBootstrap)).
//! Both ends prove that they have the job's [`JobToken`], and seal their messages ([`sealed_channel`]). Numbers are
//! little-endian; a blob is at most [`MAX_BLOB_BYTES`] long.
//!
//! | from | message |
//! |---|---|
//! | client | magic (u32), version (u32), rank (u32), ranks (u32), handshake |
//! | server | 2 (u32), handshake |
//! | server, to a client with another token | 1 (u32) |
//! | client | blob, as a record: its length (u32), sealed |
//! | server, when all ranks came | an empty record, then the blob of each rank in order, as records |
//! | server, when ranks are missing | the sentence that names the missing ranks, as a record |
//! | server, to a rank it cannot place | the reason, as a record |
//!
//! Invariants: every exchange has a deadline, however slowly the other end sends. A process without the token cannot
//! take a rank's place, serve a rank or receive a blob. A client never shows text of a server without the token.

mod job_token;
mod sealed_channel;
mod server;

pub use job_token::{JobToken, TOKEN_VARIABLE};
pub(crate) use server::serve_as_rank;
pub use server::{serve, serve_repeatedly};

use sealed_channel::{HANDSHAKE_BYTES, SealedChannel, TAG_BYTES};

use outboard_call::codec::Writer;
use outboard_shm::status::Status;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest blob of a rank: a blob fits one message of the handshake's protocol, which is at most 64 KiB long.
pub const MAX_BLOB_BYTES: u32 = 63 << 10;
/// A client tries this long to reach the server. Then the client waits for the other ranks at most twice as long.
pub const LIMIT: Duration = Duration::from_secs(30);

const MAGIC: u32 = u32::from_le_bytes(*b"OBRV");
const VERSION: u32 = 4;
const HEADER: usize = 16;
/// The first word of the server's answer.
const WRONG_TOKEN: u32 = 1;
const HANDSHAKE: u32 = 2;
/// Pause before a client tries again.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Reasons for which the ranks did not find each other.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, thiserror::Error)]
pub enum TcpBootstrapError {
    #[error("rank {rank} cannot reach the rendezvous at {address} within {}s: {reason}; is rank 0 alive, and does OUTBOARD_RENDEZVOUS name its host?", LIMIT.as_secs())]
    Unreachable { rank: u32, address: String, reason: io::Error },
    #[error("ranks {} of {ranks} did not come to the rendezvous in time", list(missing))]
    Missing { missing: Vec<u32>, ranks: u32 },
    #[error("{0}")]
    Rejected(String),
    #[error(
        "what serves the rendezvous at {address} does not know this job's token: another job meets there, or ranks \
         have different ones; give all ranks the same OUTBOARD_TOKEN, or set OUTBOARD_RENDEZVOUS to another port"
    )]
    WrongToken { address: String },
    #[error("rendezvous of rank {rank}: {reason}")]
    Broken { rank: u32, reason: io::Error },
    #[error("rendezvous server: {0}")]
    Server(io::Error),
    #[error("rank 0 cannot serve the rendezvous at {address}: {reason}; set OUTBOARD_RENDEZVOUS to a port above 1023")]
    Listen { address: String, reason: io::Error },
}

impl TcpBootstrapError {
    /// The kind of failure.
    pub fn status(&self) -> Status {
        match self {
            TcpBootstrapError::Unreachable { .. } => Status::PeerLost,
            TcpBootstrapError::Missing { .. }
            | TcpBootstrapError::Rejected(_)
            | TcpBootstrapError::WrongToken { .. } => Status::RankLost,
            TcpBootstrapError::Broken { .. } => Status::Protocol,
            TcpBootstrapError::Server(_) | TcpBootstrapError::Listen { .. } => Status::Resource,
        }
    }
}

/// Ranks as text in a sentence; long lists are cut.
fn list(ranks: &[u32]) -> String {
    let named: Vec<_> = ranks.iter().take(16).map(u32::to_string).collect();
    let more = ranks.len().saturating_sub(named.len());
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

/// A rank that exchanges through a server of another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TcpClient {
    pub(crate) address: String,
    /// Equal on all ranks of the job.
    pub(crate) token: JobToken,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
}

impl TcpClient {
    /// Sends this rank's blob and returns all blobs, in rank order. Collective. Tries for `reach` to reach the server,
    /// then waits for the other ranks for twice `limit`.
    pub(crate) fn exchange_within(
        &self,
        reach: Duration,
        limit: Duration,
        blob: &[u8],
    ) -> Result<Vec<Vec<u8>>, TcpBootstrapError> {
        assert!(blob.len() <= MAX_BLOB_BYTES as usize, "checked by the caller");
        let deadline = Instant::now() + reach;
        let broken = |reason| TcpBootstrapError::Broken { rank: self.rank, reason };
        loop {
            let stream = self.connect(deadline)?;
            // The server's own deadline must pass first, because the server names the missing ranks.
            let mut server = DeadlineStream { stream: &stream, until: Instant::now() + 2 * limit };
            match self.join_exchange(&mut server, blob) {
                Ok(begun) => {
                    let mut sealed = begun?;
                    return (0..self.ranks).map(|_| read_record(&mut server, &mut sealed).map_err(broken)).collect();
                }
                // The server of an earlier exchange was just closing; the next one will listen soon.
                Err(reason) if closed_by_server(&reason) => {
                    self.check_retry(deadline, FIRST_PAUSE, reason)?;
                    std::thread::sleep(FIRST_PAUSE);
                }
                Err(reason) => return Err(broken(reason)),
            }
        }
    }

    /// Sends rank and blob, and waits for the blobs of all ranks.
    fn join_exchange(
        &self,
        server: &mut DeadlineStream<'_>,
        blob: &[u8],
    ) -> io::Result<Result<SealedChannel, TcpBootstrapError>> {
        let mut message = Vec::with_capacity(HEADER + HANDSHAKE_BYTES);
        Writer::new(&mut message).u32(MAGIC).u32(VERSION).u32(self.rank).u32(self.ranks);
        let (greeted, greeting) = sealed_channel::initiate(&self.token, &message);
        message.extend_from_slice(&greeting);
        server.write_all(&message)?;
        // The text of a server that has not proved the token is never shown.
        let mut answer = [0; HANDSHAKE_BYTES];
        let greets = read_u32(server)? == HANDSHAKE;
        if greets {
            server.read_exact(&mut answer)?;
        }
        let Some(mut sealed) = greeted.finish(&answer).filter(|_| greets) else {
            return Ok(Err(TcpBootstrapError::WrongToken { address: self.address.clone() }));
        };
        server.write_all(&record(&mut sealed, blob))?;
        let sentence = read_record(server, &mut sealed)?;
        if sentence.is_empty() {
            return Ok(Ok(sealed));
        }
        Ok(Err(TcpBootstrapError::Rejected(String::from_utf8_lossy(&sentence).into_owned())))
    }

    fn connect(&self, deadline: Instant) -> Result<TcpStream, TcpBootstrapError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match connect_until(&self.address, deadline) {
                Ok(server) => return Ok(server),
                Err(reason) => self.check_retry(deadline, pause, reason)?,
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(500));
        }
    }

    /// Fails if the deadline comes before the end of the pause.
    fn check_retry(&self, deadline: Instant, pause: Duration, reason: io::Error) -> Result<(), TcpBootstrapError> {
        if Instant::now() + pause < deadline {
            return Ok(());
        }
        Err(TcpBootstrapError::Unreachable { rank: self.rank, address: self.address.clone(), reason })
    }
}

/// Connects to the first of the addresses that answers in time.
fn connect_until(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = None;
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(FIRST_PAUSE);
        match TcpStream::connect_timeout(&address, left) {
            Ok(server) => return Ok(server),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// A connection whose waits all end at one time, however slowly the other end sends or receives.
struct DeadlineStream<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl DeadlineStream<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(too_slow()) } else { Ok(Some(left)) }
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other end is too slow")
}

/// Maps the kernel's error for an expired wait to a timeout.
fn map_timeout<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { too_slow() } else { error })
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        map_timeout(self.stream.read(into))
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        map_timeout(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn closed_by_server(reason: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(reason.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_record(from: &mut impl Read, sealed: &mut SealedChannel) -> io::Result<Vec<u8>> {
    let length = read_u32(from)?;
    if length > MAX_BLOB_BYTES + TAG_BYTES as u32 {
        return Err(invalid_data("length out of range"));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    sealed.open(&bytes)
}

fn record(sealed: &mut SealedChannel, what: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    sealed.seal(what, &mut record);
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn server() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    const SHORT: Duration = Duration::from_millis(200);

    fn token() -> JobToken {
        JobToken::new(b"secret", "job")
    }

    fn client(address: &str, rank: u32, ranks: u32) -> TcpClient {
        TcpClient { address: address.to_owned(), token: token(), rank, ranks }
    }

    #[test]
    fn exchange_returns_blobs_in_rank_order_despite_a_foreign_connection() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&listener, 3, &token(), Instant::now() + LIMIT));
            let mut stranger = TcpStream::connect(&address).unwrap();
            stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let ranks: Vec<_> = [2, 0, 1]
                .map(|rank| {
                    let world = client(&address, rank, 3);
                    scope.spawn(move || world.exchange_within(LIMIT, LIMIT, &vec![rank as u8; 1000 * rank as usize]))
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
    fn missing_ranks_are_reported_to_server_and_arrived_ranks() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let arrived = scope.spawn(|| client(&address, 1, 4).exchange_within(LIMIT, LIMIT, b"x"));
            let served = serve(&listener, 4, &token(), Instant::now() + Duration::from_millis(500));
            let sentence = "ranks 0, 2, 3 of 4 did not come to the rendezvous in time";
            assert_eq!(served.unwrap_err().to_string(), sentence);
            assert_eq!(arrived.join().unwrap().unwrap_err().to_string(), sentence);
        });
    }

    /// Bytes that arrive one by one renew no deadline.
    #[test]
    fn slow_server_times_the_exchange_out() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let rank = scope.spawn(|| client(&address, 1, 2).exchange_within(SHORT, SHORT, b"x"));
            let mut slow = listener.accept().unwrap().0;
            let words = [&HANDSHAKE.to_le_bytes()[..], &[0; HANDSHAKE_BYTES]].concat();
            for byte in words {
                std::thread::sleep(Duration::from_millis(100));
                if rank.is_finished() || slow.write_all(&[byte]).is_err() {
                    break;
                }
            }
            let failed = rank.join().unwrap().unwrap_err();
            let timed_out = |reason: &io::Error| reason.kind() == io::ErrorKind::TimedOut;
            assert!(matches!(&failed, TcpBootstrapError::Broken { reason, .. } if timed_out(reason)), "{failed}");
        });
    }

    /// Silent connections are closed in time, and do not displace a rank that has begun.
    #[test]
    fn silent_connections_displace_no_rank() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&listener, 2, &token(), Instant::now() + LIMIT));
            let mut stalled = TcpStream::connect(&address).unwrap();
            let mut header = Vec::new();
            Writer::new(&mut header).u32(MAGIC).u32(VERSION).u32(0).u32(2);
            let (greeted, greeting) = sealed_channel::initiate(&token(), &header);
            stalled.write_all(&[&header[..], &greeting].concat()).unwrap();
            let mut answer = [0; HANDSHAKE_BYTES];
            assert_eq!(read_u32(&mut stalled).unwrap(), HANDSHAKE);
            stalled.read_exact(&mut answer).unwrap();
            let mut sealed = greeted.finish(&answer).unwrap();
            let mut crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
            let closed = |one: &mut TcpStream| assert_eq!(one.read(&mut [0]).unwrap(), 0);
            closed(&mut crowd[0]);
            stalled.write_all(&record(&mut sealed, b"mine")).unwrap();
            crowd.iter_mut().for_each(closed);
            assert!(!serving.is_finished(), "rank 1 is waited for");
            let blobs = client(&address, 1, 2).exchange_within(LIMIT, LIMIT, b"other").unwrap();
            assert_eq!(blobs, [&b"mine"[..], b"other"]);
            let records: Vec<_> = (0..3).map(|_| read_record(&mut stalled, &mut sealed).unwrap()).collect();
            assert_eq!(records, [&b""[..], b"mine", b"other"]);
            serving.join().unwrap().unwrap();
        });
    }

    #[test]
    fn rank_with_other_world_size_or_duplicate_number_is_rejected() {
        let (listener, address) = server();
        std::thread::scope(|scope| {
            let own = client(&address, 0, 2);
            let hosting = scope.spawn(move || serve_as_rank(&listener, &own, b"ours", Instant::now() + LIMIT));
            let refused = |client: TcpClient| client.exchange_within(LIMIT, LIMIT, b"theirs").unwrap_err().to_string();
            assert!(refused(client(&address, 1, 3)).contains("rank 1 has a world of 3 ranks, others of 2"));
            assert!(refused(client(&address, 0, 2)).contains("rank 0 came twice"));
            let blobs = client(&address, 1, 2).exchange_within(LIMIT, LIMIT, b"own").unwrap();
            assert_eq!(blobs, [b"ours".to_vec(), b"own".to_vec()]);
            assert_eq!(hosting.join().unwrap().unwrap(), blobs);
        });
    }
}
