//! The server's end: accepts connections, waits for the ranks, and answers all.
//!
//! Invariants: beside one connection for each missing rank the server holds at most [`MAX_UNAUTHENTICATED`]. Beyond
//! that bound it closes the oldest connection without a valid begin. No connection stays longer than [`ARRIVAL_LIMIT`]
//! without its blob.

use super::sealed_channel::{self, HANDSHAKE_BYTES, SealedChannel, TAG_BYTES};
use super::{
    DeadlineStream, HANDSHAKE, HEADER, JobToken, LIMIT, MAGIC, MAX_BLOB_BYTES, TcpBootstrapError, TcpClient, VERSION,
    WRONG_TOKEN, invalid_data, record,
};
use outboard_call::codec::{DecodeError, Reader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const MOST_RANKS: u32 = 1 << 20;
/// The most connections that the server holds beside one for each missing rank.
const MAX_UNAUTHENTICATED: usize = 64;
const ACCEPTS_PER_TURN: usize = 64;
/// The most time that a client may take to send everything.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(5);
/// The least time for each send of an answer, also when earlier sends have used up the limit.
const LAST_SEND_LIMIT: Duration = Duration::from_millis(100);

struct PendingConnection {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// The rank that the client claims, once it has begun with the token; the claim may still be a replay.
    greeted: Option<(RankHeader, SealedChannel)>,
    until: Instant,
}

struct ArrivedRank {
    /// `None` for the rank that serves.
    connection: Option<(TcpStream, SealedChannel)>,
    blob: Vec<u8>,
}

#[derive(Clone, Copy)]
struct RankHeader {
    rank: u32,
    ranks: u32,
}

impl RankHeader {
    /// The reason for which this client is not one of the missing ranks.
    fn problem(&self, arrived: &[Option<ArrivedRank>]) -> Option<String> {
        let ranks = arrived.len();
        if self.ranks as usize != ranks {
            let problem = "take all ranks' number of ranks from one launcher";
            return Some(format!(
                "rank {} has a world of {} ranks, others of {ranks}; {problem}",
                self.rank, self.ranks
            ));
        }
        match arrived.get(self.rank as usize) {
            Some(None) => None,
            Some(Some(_)) => Some(format!("rank {} came twice; give every rank a number of its own", self.rank)),
            None => Some(format!("rank {} is none of {ranks} ranks", self.rank)),
        }
    }
}

/// Serves one exchange among `ranks` ranks with this token; returns when all ranks have come and been answered. After a
/// failure the ranks that came get the list of missing ranks.
///
/// # Errors
/// [`TcpBootstrapError::Missing`] at the deadline, [`TcpBootstrapError::Server`], [`TcpBootstrapError::Broken`]
/// for a rank that came and then could not be answered.
pub fn serve(listener: &TcpListener, ranks: u32, token: &JobToken, deadline: Instant) -> Result<(), TcpBootstrapError> {
    assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks");
    gather_ranks(listener, (0..ranks).map(|_| None).collect(), token, deadline).map(drop)
}

/// Serves one exchange after another until one fails. Once the first rank of an exchange has come, the other ranks have
/// `limit` to come.
///
/// # Errors
/// As for [`serve`]; the function ends in no other way.
pub fn serve_repeatedly(listener: &TcpListener, ranks: u32, token: &JobToken, limit: Duration) -> TcpBootstrapError {
    loop {
        if let Err(error) = serve(listener, ranks, token, Instant::now() + limit) {
            return error;
        }
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return TcpBootstrapError::Server(errno.into()),
        }
    }
}

/// Serves one exchange as one of its ranks, which contributes `blob`. Returns all blobs in rank order.
pub(crate) fn serve_as_rank(
    listener: &TcpListener,
    own: &TcpClient,
    blob: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, TcpBootstrapError> {
    let mut arrived: Vec<Option<ArrivedRank>> = (0..own.ranks).map(|_| None).collect();
    arrived[own.rank as usize] = Some(ArrivedRank { connection: None, blob: blob.to_vec() });
    gather_ranks(listener, arrived, &own.token, deadline)
}

/// Waits for the ranks that are not in `arrived` and answers all ranks; returns their blobs in rank order.
fn gather_ranks(
    listener: &TcpListener,
    mut arrived: Vec<Option<ArrivedRank>>,
    token: &JobToken,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, TcpBootstrapError> {
    listener.set_nonblocking(true).map_err(TcpBootstrapError::Server)?;
    let mut pending: Vec<PendingConnection> = Vec::new();
    let mut missing = arrived.iter().filter(|rank| rank.is_none()).count();
    while missing > 0 {
        let now = Instant::now();
        if deadline <= now {
            return Err(report_missing(arrived));
        }
        pending.retain(|one| one.until > now);
        let until = pending.iter().map(|one| one.until).fold(deadline, Instant::min);
        poll_connections(listener, &pending, until - now).map_err(TcpBootstrapError::Server)?;
        accept(listener, &mut pending).map_err(TcpBootstrapError::Server)?;
        for mut one in std::mem::take(&mut pending) {
            match one.progress(token) {
                Ok(ArrivalProgress::Incomplete) => pending.push(one),
                Ok(ArrivalProgress::Complete(rank_header, mut sealed, blob)) => match rank_header.problem(&arrived) {
                    None => {
                        let connection = Some((one.stream, *sealed));
                        arrived[rank_header.rank as usize] = Some(ArrivedRank { connection, blob });
                        missing -= 1;
                    }
                    // A client that cannot be notified sees the connection close.
                    Some(problem) => drop(one.stream.write_all(&record(&mut sealed, problem.as_bytes()))),
                },
                Ok(ArrivalProgress::WrongToken) => drop(one.stream.write_all(&WRONG_TOKEN.to_le_bytes())),
                // The client is no rank: its connection closes.
                Err(_) => {}
            }
        }
        // A rank sends its number at once, so a silent connection is dropped first; a slow rank connects again.
        while pending.len() > missing + MAX_UNAUTHENTICATED {
            pending.remove(pending.iter().position(|one| one.greeted.is_none()).unwrap_or(0));
        }
    }
    let (connections, blobs): (Vec<_>, Vec<_>) =
        arrived.into_iter().flatten().map(|rank| (rank.connection, rank.blob)).unzip();
    send_blobs(connections, &blobs)?;
    Ok(blobs)
}

/// Sleeps until a connection is pending or an accepted one has bytes to read.
fn poll_connections(listener: &TcpListener, pending: &[PendingConnection], left: Duration) -> io::Result<()> {
    let mut watched = vec![PollFd::new(listener, PollFlags::IN)];
    watched.extend(pending.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
    let left = Timespec::try_from(left).map_err(|_| invalid_data("deadline"))?;
    match poll(&mut watched, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Accepts pending connections, a limited number at a time, so that earlier ones are read in between.
fn accept(listener: &TcpListener, pending: &mut Vec<PendingConnection>) -> io::Result<()> {
    for _ in 0..ACCEPTS_PER_TURN {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                let until = Instant::now() + ARRIVAL_LIMIT;
                pending.push(PendingConnection { stream, bytes: Vec::new(), greeted: None, until });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

enum ArrivalProgress {
    Incomplete,
    Complete(RankHeader, Box<SealedChannel>, Vec<u8>),
    WrongToken,
}

impl PendingConnection {
    /// Reads the available bytes, and answers the handshake.
    fn progress(&mut self, token: &JobToken) -> io::Result<ArrivalProgress> {
        loop {
            let needed = match &self.greeted {
                None => HEADER + HANDSHAKE_BYTES,
                Some(_) => 4 + record_length(&self.bytes)?.unwrap_or_default(),
            };
            let have = self.bytes.len();
            if have < needed {
                self.bytes.resize(needed, 0);
                let read = self.stream.read(&mut self.bytes[have..]);
                self.bytes.truncate(have + read.as_ref().map_or(0, |count| *count));
                match read {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ArrivalProgress::Incomplete),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            let received = std::mem::take(&mut self.bytes);
            match self.greeted.take() {
                None => {
                    let (head, greeting) = received.split_at(HEADER);
                    let rank_header = rank_header(head)?;
                    let greeting = greeting.try_into().map_err(|_| invalid_data("greeting"))?;
                    let Some((sealed, answer)) = sealed_channel::respond(token, head, greeting) else {
                        return Ok(ArrivalProgress::WrongToken);
                    };
                    // The first words on a fresh connection always fit its send buffer.
                    self.stream.write_all(&[&HANDSHAKE.to_le_bytes()[..], &answer].concat())?;
                    self.greeted = Some((rank_header, sealed));
                }
                Some(greeted) if received.len() == 4 => (self.bytes, self.greeted) = (received, Some(greeted)),
                Some((rank_header, mut sealed)) => {
                    let blob = sealed.open(&received[4..])?;
                    return Ok(ArrivalProgress::Complete(rank_header, Box::new(sealed), blob));
                }
            }
        }
    }
}

/// The length of the record that begins with these bytes, once the length has arrived.
fn record_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match u32::from_le_bytes(*length) as usize {
        length @ TAG_BYTES.. if length <= MAX_BLOB_BYTES as usize + TAG_BYTES => Ok(Some(length)),
        _ => Err(invalid_data("length out of range")),
    }
}

/// The plain-text header of a rank.
fn rank_header(header: &[u8]) -> io::Result<RankHeader> {
    let mut r = Reader::new(header);
    let mut fields = || Ok::<_, DecodeError>((r.u32()?, r.u32()?, r.u32()?, r.u32()?));
    match fields() {
        Ok((MAGIC, VERSION, rank, ranks)) => Ok(RankHeader { rank, ranks }),
        Ok(_) | Err(_) => Err(invalid_data("header")),
    }
}

/// Sends the list of missing ranks to the ranks that came.
fn report_missing(arrived: Vec<Option<ArrivedRank>>) -> TcpBootstrapError {
    let ranks = arrived.len() as u32;
    let missing = arrived.iter().zip(0..).filter(|(rank, _)| rank.is_none()).map(|(_, rank)| rank).collect();
    let error = TcpBootstrapError::Missing { missing, ranks };
    let (sentence, until) = (error.to_string(), Instant::now() + LIMIT);
    for (stream, mut sealed) in arrived.into_iter().flatten().filter_map(|rank| rank.connection) {
        // A rank that cannot be notified sees the connection close.
        let _ = send_until(&stream, &record(&mut sealed, sentence.as_bytes()), until);
    }
    error
}

fn send_blobs(
    connections: Vec<Option<(TcpStream, SealedChannel)>>,
    blobs: &[Vec<u8>],
) -> Result<(), TcpBootstrapError> {
    let until = Instant::now() + LIMIT;
    let answer = |(stream, mut sealed): (TcpStream, SealedChannel)| {
        let mut answer = record(&mut sealed, &[]);
        blobs.iter().for_each(|blob| sealed.seal(blob, &mut answer));
        send_until(&stream, &answer, until)
    };
    let results = connections.into_iter().zip(0..).map(|(connection, rank)| {
        connection.map_or(Ok(()), answer).map_err(|reason| TcpBootstrapError::Broken { rank, reason })
    });
    // All ranks are answered, if possible, before the first failure counts.
    results.fold(Ok(()), Result::and)
}

fn send_until(stream: &TcpStream, answer: &[u8], until: Instant) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    DeadlineStream { stream, until: until.max(Instant::now() + LAST_SEND_LIMIT) }.write_all(answer)
}
