//! Reads the text that [`super::print()`] writes.

use thiserror::Error;

use crate::tokens::{
    Comments, ReadError, Scanner, SyntaxError, SyntaxErrorAt, TextPosition, TextToken, error_at, unexpected,
};
use outboard_plan::{Buffer, MAX_RANKS, Op, OpId, Program, Rank, Span, Step};

use super::VERSION;

/// The reason why a text is not a plan, with its place.
pub type TextError = ReadError<TextReason>;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TextReason {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("version {found} of the format: this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("a group of {ranks} ranks: a group has 1 to {MAX_RANKS}")]
    Ranks { ranks: u32 },
    #[error("a program of a group of {found} ranks in a plan of {ranks}: make them equal")]
    Group { found: u32, ranks: u32 },
    #[error("one more program, but the group has {ranks} ranks and each has its program: remove it")]
    TooMany { ranks: u32 },
    #[error("the program of rank {found} where that of rank {expected} comes: programs stand in the order of ranks")]
    Order { found: u32, expected: u32 },
    #[error("the plan ends behind {found} programs, its group has {ranks} ranks: write one for each, even if empty")]
    Missing { found: u32, ranks: u32 },
    #[error("step {found} where step {expected} comes: steps count from 0 in each program")]
    Step { found: u32, expected: u32 },
    #[error("step {step} follows step {on}, which is not before it")]
    Dependency { step: u32, on: u32 },
    #[error("the span from {start} to {end}: the end is not before the start and at most 2^64 - 1 bytes behind it")]
    Span { start: u64, end: u128 },
}

/// Reads the programs of a group, by rank, from their text.
///
/// The result is well formed: all ranks and steps are present, in order, and follow earlier steps only. Spans and peers
/// may lie outside buffers and group; [`crate::verify()`] checks whether the plan makes sense.
pub fn parse(text: &str) -> Result<Vec<Program>, TextError> {
    let mut scanner = Scanner::new(text, Comments::Hash, true);
    let scan = &mut scanner;
    blank_lines(scan)?;
    scan.phrase("plan")?;
    let (at, _) = scan.peek()?;
    let found = scan.number("the version of the format", u32::MAX)?;
    if found != VERSION {
        return Err(error_at(at, TextReason::Version { found }));
    }
    end_of_line(scan)?;
    let mut programs: Vec<Program> = Vec::new();
    loop {
        blank_lines(scan)?;
        match scan.peek()? {
            (at, TextToken::End) => {
                let ranks = programs.first().map_or(0, |program| program.ranks);
                let found = programs.len() as u32;
                if ranks == 0 {
                    return Err(unexpected((at, TextToken::End), "the program of rank 0").into());
                }
                if found < ranks {
                    return Err(error_at(at, TextReason::Missing { found, ranks }));
                }
                return Ok(programs);
            }
            (at, TextToken::Word("rank")) => {
                let next = header(scan, at, &programs)?;
                programs.push(next);
            }
            (at, TextToken::Number(_)) if !programs.is_empty() => {
                let program = programs.last_mut().expect("there is one");
                let step = step(scan, at, program.steps.len())?;
                program.steps.push(step);
            }
            found if programs.is_empty() => return Err(unexpected(found, "`rank`").into()),
            found => return Err(unexpected(found, "the number of a step, or `rank`").into()),
        }
    }
}

fn blank_lines(scan: &mut Scanner<'_>) -> Result<(), SyntaxErrorAt> {
    while scan.skip_if(TextToken::Newline)? {}
    Ok(())
}

fn end_of_line(scan: &mut Scanner<'_>) -> Result<(), SyntaxErrorAt> {
    match scan.peek()? {
        (_, TextToken::Newline | TextToken::End) => scan.next().map(|_| ()),
        found => Err(unexpected(found, "the end of the line")),
    }
}

/// Reads `rank 1 of 3: input 8 B, output 24 B, scratch 0 B, chains 1, subgroups 1`.
fn header(scan: &mut Scanner<'_>, at: TextPosition, before: &[Program]) -> Result<Program, TextError> {
    let rank = rank(scan)?;
    scan.phrase("of")?;
    let (ranks_at, _) = scan.peek()?;
    let ranks = scan.number("the ranks of the group", u32::MAX)?;
    let agreed = before.first().map_or(ranks, |first| first.ranks);
    let expected = before.len() as u32;
    if ranks != agreed {
        return Err(error_at(ranks_at, TextReason::Group { found: ranks, ranks: agreed }));
    }
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(error_at(ranks_at, TextReason::Ranks { ranks }));
    }
    if expected == ranks {
        return Err(error_at(at, TextReason::TooMany { ranks }));
    }
    if rank.0 != expected {
        return Err(error_at(at, TextReason::Order { found: rank.0, expected }));
    }
    scan.phrase(": input")?;
    let input_bytes = bytes(scan)?;
    scan.phrase(", output")?;
    let output_bytes = bytes(scan)?;
    scan.phrase(", scratch")?;
    let scratch_bytes = bytes(scan)?;
    scan.phrase(", chains")?;
    let chains = scan.number("the number of chains", u32::MAX)?;
    scan.phrase(", subgroups")?;
    let subgroups = scan.number("the number of subgroups", u16::MAX)?;
    end_of_line(scan)?;
    Ok(Program { rank, ranks, steps: Vec::new(), input_bytes, output_bytes, scratch_bytes, subgroups, chains })
}

fn bytes(scan: &mut Scanner<'_>) -> Result<u64, SyntaxErrorAt> {
    let bytes = scan.number("a number of bytes", u64::MAX)?;
    scan.phrase("B")?;
    Ok(bytes)
}

fn rank(scan: &mut Scanner<'_>) -> Result<Rank, SyntaxErrorAt> {
    scan.phrase("rank")?;
    scan.number("a rank", u32::MAX).map(Rank)
}

/// Reads `4  send output[0..8] to rank 2 as message 1, after 0 3`.
fn step(scan: &mut Scanner<'_>, at: TextPosition, expected: usize) -> Result<Step, TextError> {
    let found = scan.number("the number of a step", u32::MAX)?;
    if found as usize != expected {
        // Every step has a line of its own, so a text with more steps than a program can have is too long to be read.
        let expected = u32::try_from(expected).unwrap_or(u32::MAX);
        return Err(error_at(at, TextReason::Step { found, expected }));
    }
    let op = op(scan)?;
    let mut after = Vec::new();
    if scan.skip_if(TextToken::Symbol(','))? {
        scan.phrase("after")?;
        loop {
            let (at, token) = scan.peek()?;
            if !after.is_empty() && !matches!(token, TextToken::Number(_)) {
                break;
            }
            let on = scan.number("the number of an earlier step", u32::MAX)?;
            if on >= found {
                return Err(error_at(at, TextReason::Dependency { step: found, on }));
            }
            after.push(OpId(on));
        }
    }
    end_of_line(scan)?;
    Ok(Step { op, after })
}

fn op(scan: &mut Scanner<'_>) -> Result<Op, TextError> {
    match scan.next()? {
        (_, TextToken::Word("send")) if scan.skip_if(TextToken::Word("signal"))? => {
            let index = index(scan)?;
            scan.phrase("to")?;
            Ok(Op::Send { to: rank(scan)?, index, span: Span::signal() })
        }
        (_, TextToken::Word("send")) => {
            let span = span(scan)?;
            scan.phrase("to")?;
            let to = rank(scan)?;
            scan.phrase("as message")?;
            Ok(Op::Send { to, index: index(scan)?, span })
        }
        (_, TextToken::Word("receive")) => receive(scan),
        (_, TextToken::Word("multicast")) => Ok(Op::Multicast { span: span(scan)? }),
        (_, TextToken::Word("copy")) => {
            let from = span(scan)?;
            scan.phrase("to")?;
            Ok(Op::Copy { from, to: span(scan)? })
        }
        (_, TextToken::Word("reduce")) => {
            let from = span(scan)?;
            scan.phrase("from the")?;
            let from_left = match scan.next()? {
                (_, TextToken::Word("left")) => true,
                (_, TextToken::Word("right")) => false,
                found => return Err(unexpected(found, "`left` or `right`").into()),
            };
            scan.phrase("into")?;
            Ok(Op::Reduce { from, into: span(scan)?, from_left })
        }
        found => Err(unexpected(found, "`send`, `receive`, `multicast`, `copy` or `reduce`").into()),
    }
}

fn receive(scan: &mut Scanner<'_>) -> Result<Op, TextError> {
    match scan.next()? {
        (_, TextToken::Word("signal")) => {
            let index = index(scan)?;
            scan.phrase("from")?;
            Ok(Op::Recv { from: rank(scan)?, index, span: Span::signal() })
        }
        (_, TextToken::Word("message")) => {
            let index = index(scan)?;
            scan.phrase("from")?;
            let from = rank(scan)?;
            scan.phrase("into")?;
            Ok(Op::Recv { from, index, span: span(scan)? })
        }
        (_, TextToken::Word("multicast")) => {
            scan.phrase("of")?;
            let root = rank(scan)?;
            scan.phrase("into")?;
            Ok(Op::MulticastRecv { root, span: span(scan)? })
        }
        found => Err(unexpected(found, "`signal`, `message` or `multicast`").into()),
    }
}

fn index(scan: &mut Scanner<'_>) -> Result<u32, SyntaxErrorAt> {
    scan.number("the index of a message", u32::MAX)
}

/// Reads `scratch[8..24]`.
fn span(scan: &mut Scanner<'_>) -> Result<Span, TextError> {
    let (at, buffer) = match scan.next()? {
        (at, TextToken::Word("input")) => (at, Buffer::Input),
        (at, TextToken::Word("output")) => (at, Buffer::Output),
        (at, TextToken::Word("scratch")) => (at, Buffer::Scratch),
        found => return Err(unexpected(found, "`input`, `output` or `scratch`").into()),
    };
    scan.phrase("[")?;
    let start = scan.number("the first byte of a span", u64::MAX)?;
    scan.phrase(". .")?;
    let end = scan.number("the end of a span", u128::MAX)?;
    scan.phrase("]")?;
    let len = end.checked_sub(start.into()).and_then(|len| u64::try_from(len).ok());
    let len = len.ok_or_else(|| error_at(at, TextReason::Span { start, end }))?;
    Ok(Span { buffer, offset: start, len })
}
