//! Reads the text of a GOAL schedule: ranks, their operations, and the requirements among operations.
//!
//! Ends of lines separate words as spaces do, and a label may be used above the line that defines it; `txt2bin` is
//! stricter in both. Every other departure from the dialect is an error with its place.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use thiserror::Error;

use crate::tokens::{
    Comments, ReadError, Scanner, SyntaxError, TextPosition, TextToken, error_at, shortened, unexpected,
};
use outboard_plan::{MAX_RANKS, Rank};

/// The reason why no plan can be made from a text, with its place.
pub type GoalError = ReadError<GoalReason>;

/// The reason why no plan can be made from a text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GoalReason {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("{ranks} ranks: a plan has 1 to {MAX_RANKS}")]
    Ranks { ranks: u32 },
    #[error("rank {rank}, but `num_ranks` says {ranks} and ranks count from 0")]
    Rank { rank: u32, ranks: u32 },
    #[error("rank {rank} has had its operations on line {line}: join both")]
    RankAgain { rank: u32, line: usize },
    #[error("the label `{label}` is that of line {line}: choose another")]
    LabelAgain { label: String, line: usize },
    #[error("no operation of this rank has the label `{label}`")]
    Label { label: String },
    #[error("-1 stands for any source or tag: a plan names every message, so give the source and tag that it takes")]
    Any,
    #[error("a message of rank {rank} to itself: use `calc` for work inside a rank")]
    ToItself { rank: u32 },
    #[error("this operation requires itself, directly or through others of its rank")]
    Circle,
    #[error("no {counterpart} on rank {peer} is left for this message of tag {tag}")]
    Unmatched { counterpart: &'static str, peer: u32, tag: u32 },
    #[error("{received} bytes are received here, but {sent} are sent on line {line}: make them equal")]
    Bytes { received: u64, sent: u64, line: usize },
    #[error("with this message rank {rank} has more than 2^64 bytes on one side: lower the sizes")]
    TooLarge { rank: u32 },
}

/// A message as one of its ends states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GoalMessage {
    pub(super) peer: Rank,
    pub(super) tag: u32,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoalAction {
    Send(GoalMessage),
    Recv(GoalMessage),
    /// `calc` of any time.
    Calc,
}

#[derive(Debug, Clone)]
pub(super) struct GoalOperation {
    pub(super) at: TextPosition,
    pub(super) action: GoalAction,
    /// Operations that are complete before this one starts (`requires`), by number.
    pub(super) requires: Vec<usize>,
    /// Operations that have started before this one starts (`irequires`), by number.
    pub(super) requires_start: Vec<usize>,
}

/// `a requires b` or `a irequires b`, still with labels.
struct Requirement<'a> {
    label: (TextPosition, &'a str),
    on: (TextPosition, &'a str),
    start: bool,
}

/// The operations of all ranks, by rank.
pub(super) fn read(text: &str) -> Result<Vec<Vec<GoalOperation>>, GoalError> {
    let mut scanner = Scanner::new(text, Comments::Slashes, false);
    let scan = &mut scanner;
    scan.phrase("num_ranks")?;
    let (at, _) = scan.peek()?;
    let ranks = scan.number("the number of ranks", u32::MAX)?;
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(error_at(at, GoalReason::Ranks { ranks }));
    }
    let mut blocks = vec![Vec::new(); ranks as usize];
    let mut begins: Vec<Option<TextPosition>> = vec![None; ranks as usize];
    loop {
        match scan.next()? {
            (_, TextToken::End) => return Ok(blocks),
            (at, TextToken::Word("rank")) => {
                let rank = rank(scan, ranks)?;
                if let Some(first) = begins[rank as usize].replace(at) {
                    return Err(error_at(at, GoalReason::RankAgain { rank, line: first.line }));
                }
                blocks[rank as usize] = block(scan, Rank(rank), ranks)?;
            }
            found => return Err(unexpected(found, "`rank`").into()),
        }
    }
}

fn rank(scan: &mut Scanner<'_>, ranks: u32) -> Result<u32, GoalError> {
    let (at, _) = scan.peek()?;
    let rank = scan.number("a rank", u32::MAX)?;
    if rank < ranks { Ok(rank) } else { Err(error_at(at, GoalReason::Rank { rank, ranks })) }
}

/// Reads `{ ... }`.
fn block(scan: &mut Scanner<'_>, me: Rank, ranks: u32) -> Result<Vec<GoalOperation>, GoalError> {
    scan.phrase("{")?;
    let mut operations = Vec::new();
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut orders: Vec<Requirement<'_>> = Vec::new();
    loop {
        let (at, token) = scan.peek()?;
        match token {
            TextToken::Symbol('}') => break,
            TextToken::Word("send" | "recv" | "calc") => operations.push(operation(scan, me, ranks)?),
            TextToken::Word(label) => {
                scan.next()?;
                match scan.next()? {
                    (_, TextToken::Symbol(':')) => {
                        match labels.entry(label) {
                            Entry::Vacant(free) => free.insert(operations.len()),
                            Entry::Occupied(taken) => {
                                let line = operations[*taken.get()].at.line;
                                return Err(error_at(at, GoalReason::LabelAgain { label: shortened(label), line }));
                            }
                        };
                        operations.push(operation(scan, me, ranks)?);
                    }
                    (_, TextToken::Word(kind @ ("requires" | "irequires"))) => {
                        let on = match scan.next()? {
                            (at, TextToken::Word(on)) => (at, on),
                            found => return Err(unexpected(found, "a label").into()),
                        };
                        orders.push(Requirement { label: (at, label), on, start: kind == "irequires" });
                    }
                    found => return Err(unexpected(found, "`:`, `requires` or `irequires`").into()),
                }
            }
            _ => return Err(unexpected((at, token), "an operation, a label or `}`").into()),
        }
    }
    scan.next()?;
    let find = |(at, label): (TextPosition, &str)| {
        labels.get(label).copied().ok_or_else(|| error_at(at, GoalReason::Label { label: shortened(label) }))
    };
    for Requirement { label, on, start } in orders {
        let (label, on) = (find(label)?, find(on)?);
        let operation = &mut operations[label];
        if start { &mut operation.requires_start } else { &mut operation.requires }.push(on);
    }
    Ok(operations)
}

/// Reads `send 8b to 1 tag 0 cpu 0 nic 0`, `recv 8b from 1 tag 0 cpu 0 nic 0` or `calc 100 cpu 0`.
fn operation(scan: &mut Scanner<'_>, me: Rank, ranks: u32) -> Result<GoalOperation, GoalError> {
    let (at, kind) = scan.next()?;
    let action = match kind {
        TextToken::Word("calc") => {
            scan.number("a time in nanoseconds", u64::MAX)?;
            GoalAction::Calc
        }
        TextToken::Word("send") => GoalAction::Send(message(scan, "to", me, ranks)?),
        TextToken::Word("recv") => GoalAction::Recv(message(scan, "from", me, ranks)?),
        _ => return Err(unexpected((at, kind), "`send`, `recv` or `calc`").into()),
    };
    // Core and network interface belong to the machine, not to the plan.
    for place in ["cpu", "nic"] {
        if scan.skip_if(TextToken::Word(place))? {
            scan.number("a number", u64::MAX)?;
        }
    }
    Ok(GoalOperation { at, action, requires: Vec::new(), requires_start: Vec::new() })
}

fn message(scan: &mut Scanner<'_>, way: &str, me: Rank, ranks: u32) -> Result<GoalMessage, GoalError> {
    let bytes = scan.number("a number of bytes", u64::MAX)?;
    scan.phrase("b")?;
    scan.phrase(way)?;
    no_wildcard(scan)?;
    let (at, _) = scan.peek()?;
    let peer = rank(scan, ranks)?;
    if peer == me.0 {
        return Err(error_at(at, GoalReason::ToItself { rank: peer }));
    }
    let mut tag = 0;
    if scan.skip_if(TextToken::Word("tag"))? {
        no_wildcard(scan)?;
        tag = scan.number("a tag", u32::MAX)?;
    }
    Ok(GoalMessage { peer: Rank(peer), tag, bytes })
}

fn no_wildcard(scan: &mut Scanner<'_>) -> Result<(), GoalError> {
    match scan.peek()? {
        (at, TextToken::Symbol('-')) => Err(error_at(at, GoalReason::Any)),
        _ => Ok(()),
    }
}
