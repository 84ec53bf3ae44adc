//! One rank of a trial: carries out acts one by one, and reports how and when each one ended.
//!
//! Every byte of every result is checked. Times are of CLOCK_MONOTONIC, which all processes of a machine share, so that
//! no message is needed to measure the time from a fault to a verdict. The rank ends when its line closes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard::{Context, Error, Group, Status};
use outboard_plan::{Element, Operator, Reduction};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// Bytes of a rank's block, by the number of the call: small calls, calls behind the ready barrier, empty calls.
const SIZES: [usize; 5] = [8, 20_000, 1000, 0, 150_000];
/// The status of a verdict on a call that delivered wrong bytes.
pub(crate) const WRONG: &str = "WrongBytes";

/// Arguments of the hidden command.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    /// Socket from which acts are read
    line: PathBuf,
}

/// An act of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum RankAct {
    /// Attach to the daemon of the host.
    Attach,
    /// Make an offer.
    Offer,
    /// Make the group of these offers.
    Make { offers: Vec<u8>, ranks: u32, rank: u32 },
    /// Make these calls, one after another, until one fails.
    Calls { first: u64, count: u64 },
    /// Forget the group.
    Leave,
    /// End the attachment.
    Detach,
}

/// How an act ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ActAnswer {
    /// Time of the end, on CLOCK_MONOTONIC.
    pub(crate) at_ns: u64,
    /// Calls that ended well.
    pub(crate) calls: u64,
    /// The offer, if one was requested, or nothing; an error if the act failed.
    pub(crate) result: Result<Vec<u8>, Verdict>,
}

/// The error that a rank received.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The name of the status.
    pub(crate) status: String,
    /// The sentence of the error.
    pub(crate) text: String,
}

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        Verdict { status: format!("{:?}", error.status()), text: error.to_string() }
    }
}

/// Now, on the clock of [`ActAnswer::at_ns`].
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The state of the rank.
#[derive(Debug, Default)]
struct RankState {
    context: Option<Context>,
    group: Option<Group>,
    calls: u64,
}

pub(crate) fn rank(args: &RankArgs) -> Result<ExitCode, CliError> {
    let failed = || CliError::system(format!("the line {}", args.line.display()));
    let mut stream = UnixStream::connect(&args.line).map_err(failed())?;
    let mut state = RankState::default();
    for line in BufReader::new(stream.try_clone().map_err(failed())?).lines() {
        let act: RankAct = serde_json::from_str(&line.map_err(failed())?).map_err(CliError::failed)?;
        state.calls = 0;
        let result = state.act(act);
        let answer = ActAnswer { at_ns: now_ns(), calls: state.calls, result };
        let text = serde_json::to_string(&answer).expect("an answer is plain data");
        writeln!(stream, "{text}").map_err(failed())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl RankState {
    fn act(&mut self, act: RankAct) -> Result<Vec<u8>, Verdict> {
        match act {
            RankAct::Attach => self.context = Some(Context::attach(None)?),
            RankAct::Offer => return Ok(self.context()?.offer()?.to_vec()),
            RankAct::Make { offers, ranks, rank } => {
                self.group = Some(self.context()?.create_group(&offers, ranks, rank)?)
            }
            RankAct::Calls { first, count } => {
                let group = self.group.as_ref().ok_or_else(|| out_of_turn("no group has been made"))?;
                for number in first..first + count {
                    call(group, number)?;
                    self.calls += 1;
                }
            }
            RankAct::Leave => self.group.take().map_or(Ok(()), Group::destroy)?,
            RankAct::Detach => self.context.take().map_or(Ok(()), Context::detach)?,
        }
        Ok(Vec::new())
    }

    fn context(&self) -> Result<&Context, Verdict> {
        self.context.as_ref().ok_or_else(|| out_of_turn("it is not attached"))
    }
}

fn out_of_turn(why: &str) -> Verdict {
    Verdict { status: format!("{:?}", Status::Internal), text: why.to_owned() }
}

/// The byte at `at` of `rank`'s contribution to a call.
fn byte(rank: usize, number: u64, at: usize) -> u8 {
    (at * 31 + at / 251 + rank * 101 + number as usize * 17) as u8
}

fn block(rank: usize, number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| byte(rank, number, at)).collect()
}

/// Makes the call that `number` determines completely, and checks the result of the call.
fn call(group: &Group, number: u64) -> Result<(), Verdict> {
    let (rank, ranks) = (group.rank()? as usize, group.size()? as usize);
    let bytes = SIZES[(number / 4) as usize % SIZES.len()];
    let own = block(rank, number, bytes);
    let (received, expected) = match number % 4 {
        0 => {
            let mut all = vec![0; bytes * ranks];
            group.allgather(&own, &mut all)?;
            (all, (0..ranks).flat_map(|rank| block(rank, number, bytes)).collect())
        }
        1 => {
            let root = number as usize % ranks;
            let mut all = if rank == root { own } else { vec![0; bytes] };
            group.broadcast(root as u32, &mut all)?;
            (all, block(root, number, bytes))
        }
        2 => {
            let sum = Reduction::new(Operator::Sum, Element::U8).expect("numbers have a sum");
            let mut all = vec![0; bytes];
            group.allreduce(sum, &own, &mut all)?;
            let of_all = |at| (0..ranks).fold(0, |sum: u8, rank| sum.wrapping_add(byte(rank, number, at)));
            (all, (0..bytes).map(of_all).collect::<Vec<u8>>())
        }
        _ => return Ok(group.barrier()?),
    };
    if received == expected {
        return Ok(());
    }
    let at = received.iter().zip(&expected).position(|(one, other)| one != other).unwrap_or_default();
    let text = format!("call {number} of rank {rank} of {ranks}: wrong from byte {at} of {}", received.len());
    Err(Verdict { status: WRONG.to_owned(), text })
}
