//! The server's end: accepts connections, waits for the ranks, and answers all.
//!
//! Invariants: beside the connections of missing ranks at most [`STRANGERS`] are held; beyond that the oldest one
//! without a valid begin is closed. No connection is held longer than [`GREETING_LIMIT`] without its blob.

use super::sealed::{self, GREETING, Sealed, TAG};
use super::{
    ANOTHER, HANDSHAKE, HEADER, LIMIT, MAGIC, MOST_BYTES, RendezvousError, Timed, Token, VERSION, Visitor, nonsense,
    record,
};
use outboard_call::codec::{DecodeError, Reader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const MOST_RANKS: u32 = 1 << 20;
/// Connections beyond the ranks' own that the server holds at a time.
const STRANGERS: usize = 64;
const TURN: usize = 64;
/// The most time that a visitor may take to send everything.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// The time left to notify the last ranks when the others have taken all of it.
const LAST_WORD: Duration = Duration::from_millis(100);

struct Arriving {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// The rank that the visitor claims, once it has begun with the token; the claim may still be a replay.
    greeted: Option<(Arrival, Sealed)>,
    until: Instant,
}

struct Member {
    /// `None` for the rank that serves.
    connection: Option<(TcpStream, Sealed)>,
    blob: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Arrival {
    rank: u32,
    ranks: u32,
}

impl Arrival {
    /// The reason for which this visitor is not one of the missing ranks.
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

/// Serves one exchange among `ranks` ranks with this token; returns when all have come and been answered. After a
/// failure the ranks that came get the list of missing ranks.
///
/// # Errors
/// [`RendezvousError::Missing`] at the deadline, [`RendezvousError::Server`], [`RendezvousError::Broken`] for a rank
/// that came and then could not be answered.
pub fn serve(listener: &TcpListener, ranks: u32, token: &Token, deadline: Instant) -> Result<(), RendezvousError> {
    assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks");
    gather(listener, (0..ranks).map(|_| None).collect(), token, deadline).map(drop)
}

/// Serves one exchange after another until one fails. The ranks of each have `limit` to come once the first has come.
///
/// # Errors
/// As for [`serve`]; the function ends in no other way.
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

/// Serves one exchange as one of its ranks, which contributes `blob`. Returns all blobs in rank order.
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

/// Waits for the ranks that are not in `members` and answers all; returns their blobs in rank order.
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
        let now = Instant::now();
        if deadline <= now {
            return Err(dismiss(members));
        }
        arriving.retain(|one| one.until > now);
        let until = arriving.iter().map(|one| one.until).fold(deadline, Instant::min);
        await_any(listener, &arriving, until - now).map_err(RendezvousError::Server)?;
        accept(listener, &mut arriving).map_err(RendezvousError::Server)?;
        for mut one in std::mem::take(&mut arriving) {
            match one.progress(token) {
                Ok(Progress::More) => arriving.push(one),
                Ok(Progress::Whole(arrival, mut sealed, blob)) => match arrival.problem(&members) {
                    None => {
                        let connection = Some((one.stream, *sealed));
                        members[arrival.rank as usize] = Some(Member { connection, blob });
                        missing -= 1;
                    }
                    // A visitor that cannot be notified sees the connection close.
                    Some(problem) => drop(one.stream.write_all(&record(&mut sealed, problem.as_bytes()))),
                },
                Ok(Progress::Another) => drop(one.stream.write_all(&ANOTHER.to_le_bytes())),
                // The visitor is no rank: its connection closes.
                Err(_) => {}
            }
        }
        // A rank sends its number at once, so a silent connection is dropped first; a slow rank comes again.
        while arriving.len() > missing + STRANGERS {
            arriving.remove(arriving.iter().position(|one| one.greeted.is_none()).unwrap_or(0));
        }
    }
    let (connections, blobs): (Vec<_>, Vec<_>) =
        members.into_iter().flatten().map(|member| (member.connection, member.blob)).unzip();
    answer_all(connections, &blobs)?;
    Ok(blobs)
}

/// Sleeps until a connection is pending or one has bytes.
fn await_any(listener: &TcpListener, arriving: &[Arriving], left: Duration) -> io::Result<()> {
    let mut watched = vec![PollFd::new(listener, PollFlags::IN)];
    watched.extend(arriving.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
    let left = Timespec::try_from(left).map_err(|_| nonsense("deadline"))?;
    match poll(&mut watched, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Accepts pending connections, a limited number at a time, so that earlier ones are read in between.
fn accept(listener: &TcpListener, arriving: &mut Vec<Arriving>) -> io::Result<()> {
    for _ in 0..TURN {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                let until = Instant::now() + GREETING_LIMIT;
                arriving.push(Arriving { stream, bytes: Vec::new(), greeted: None, until });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

enum Progress {
    More,
    Whole(Arrival, Box<Sealed>, Vec<u8>),
    Another,
}

impl Arriving {
    /// Reads the available bytes, and answers the handshake.
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
                    // The first words on a fresh connection always fit its send buffer.
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

/// The length of the record that begins with these bytes, once the length has arrived.
fn record_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match u32::from_le_bytes(*length) as usize {
        length @ TAG.. if length <= MOST_BYTES as usize + TAG => Ok(Some(length)),
        _ => Err(nonsense("length out of range")),
    }
}

/// The plain-text header of a rank.
fn arrival(header: &[u8]) -> io::Result<Arrival> {
    let mut r = Reader::new(header);
    let mut fields = || Ok::<_, DecodeError>((r.u32()?, r.u32()?, r.u32()?, r.u32()?));
    match fields() {
        Ok((MAGIC, VERSION, rank, ranks)) => Ok(Arrival { rank, ranks }),
        Ok(_) | Err(_) => Err(nonsense("header")),
    }
}

/// Sends the list of missing ranks to the ranks that came.
fn dismiss(members: Vec<Option<Member>>) -> RendezvousError {
    let ranks = members.len() as u32;
    let missing = members.iter().zip(0..).filter(|(member, _)| member.is_none()).map(|(_, rank)| rank).collect();
    let error = RendezvousError::Missing { missing, ranks };
    let (sentence, until) = (error.to_string(), Instant::now() + LIMIT);
    for (stream, mut sealed) in members.into_iter().flatten().filter_map(|member| member.connection) {
        // A rank that cannot be notified sees the connection close.
        let _ = tell(&stream, &record(&mut sealed, sentence.as_bytes()), until);
    }
    error
}

fn answer_all(connections: Vec<Option<(TcpStream, Sealed)>>, blobs: &[Vec<u8>]) -> Result<(), RendezvousError> {
    let until = Instant::now() + LIMIT;
    let answer = |(stream, mut sealed): (TcpStream, Sealed)| {
        let mut answer = record(&mut sealed, &[]);
        blobs.iter().for_each(|blob| sealed.seal(blob, &mut answer));
        tell(&stream, &answer, until)
    };
    let told = connections.into_iter().zip(0..).map(|(connection, rank)| {
        connection.map_or(Ok(()), answer).map_err(|reason| RendezvousError::Broken { rank, reason })
    });
    // All ranks are answered, if possible, before the first failure counts.
    told.fold(Ok(()), Result::and)
}

fn tell(stream: &TcpStream, answer: &[u8], until: Instant) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    Timed { stream, until: until.max(Instant::now() + LAST_WORD) }.write_all(answer)
}
