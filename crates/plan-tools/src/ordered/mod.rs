//! Plans as descriptor sequences of an order-triggered NIC ([`outboard_nic::ordered`]): a host posts one sequence for
//! each pulse of a call and takes the completion (TH-6).
//!
//! | step of a plan | becomes |
//! |---|---|
//! | receive | what the first descriptor behind it waits for; one that stores it, where it is wanted itself |
//! | reduce of what was received | a descriptor with ReduceFlag; several in a row, of one step each, one with CPCount |
//! | copy | a descriptor with operand and result |
//! | send | CP of the descriptor that makes what is sent, else a descriptor of its own |
//!
//! What lies in a rank's input travels in the descriptor where it is short, since the host has it when it posts. A
//! message that goes back to whom its descriptor has heard last takes the port from there (SwapLocalVP).
//!
//! Where that does not fit and no message follows another one's arrival, as in gathers and exchanges of pairs, a call
//! goes from point to point (C = 0): each rank names places for what it receives and sends the rest.
//!
//! A collective beyond what a pulse has room for is cut into pulses, each a whole call for a part of every vector, so
//! that contributions to an element meet as they would in one (TH-5). Plans in which an element's place decides how it
//! goes, such as rings, fit one pulse or are refused.
//!
//! Invariants: descriptors of a rank run in the order of its plan, and no rank waits for what the order of another one
//! holds back; a template has no addresses, so it serves all calls of its kind. SeqID counts the messages from one rank
//! to another within a pulse.

mod exchange;
mod lower;
mod pulses;

pub use exchange::Exchange;
pub use lower::LowerError;
pub use pulses::{Lowered, lower};

use outboard_nic::ordered::descriptor::{Address, Descriptor, Flags, MAX_INLINE, PULSES, Piece, Source};
use outboard_plan::{Buffer, OpId, Rank, Reduction, Span};

/// What a descriptor does with what it has waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Nothing: it waits, or sends what lies in memory.
    Nothing,
    /// Puts the message there.
    Store { result: Vec<Span> },
    /// Copies within memory.
    Copy { operand: Vec<Span>, result: Vec<Span> },
    /// Combines all messages with the operand, one after another.
    Reduce { operand: Vec<Span>, result: Vec<Span>, packet_left: bool },
}

/// A descriptor without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The step of the program that it begins with.
    pub of: OpId,
    /// Bytes of each message, or of what is copied.
    pub length: u64,
    /// The ranks whose messages it reads, in this order, and the number of those messages.
    pub awaits: (Vec<Rank>, usize),
    pub work: Work,
    /// To whom it sends which message, and what that is.
    pub sends: Option<(Rank, usize, Vec<Span>)>,
}

/// What one rank posts for one pulse, without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub rank: Rank,
    /// The table of sources: runs of it are what descriptors wait for.
    pub sources: Vec<Rank>,
    pub steps: Vec<Step>,
}

/// What a template becomes descriptors with.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub job: u8,
    pub members: &'a [Source],
    pub reduction: Option<Reduction>,
    /// Where the input of the rank begins in its memory.
    pub input: u64,
    /// Where its output does.
    pub output: u64,
    /// The bytes of a span of its input.
    pub bytes: &'a dyn Fn(Span) -> Vec<u8>,
}

impl Call<'_> {
    /// Has a descriptor send what lies at these spans: the words themselves where they are few and are the rank's own.
    fn carry(&self, descriptor: &mut Descriptor, message: &[Span]) {
        let own = message.iter().all(|span| span.buffer == Buffer::Input);
        if own && (1..=MAX_INLINE).contains(&descriptor.length.into()) {
            let bytes: Vec<u8> = message.iter().flat_map(|span| (self.bytes)(*span)).collect();
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            descriptor.inline = bytes.chunks(8).map(word).collect();
        } else {
            descriptor.message = message.iter().map(|span| piece(self, span)).collect();
        }
    }
}

impl Template {
    /// Its descriptors as pulse number `pulse` of the job; a call `ends` with its last one.
    fn post(&self, call: &Call<'_>, pulse: u64, ends: bool) -> Vec<Descriptor> {
        let own = call.members[self.rank.0 as usize];
        let last = self.steps.len().saturating_sub(1);
        let member = |rank: &Rank| call.members[rank.0 as usize];
        // A rank that does nothing in a pulse still ends it.
        let nothing = Step { of: OpId(0), length: 0, awaits: (Vec::new(), 0), work: Work::Nothing, sends: None };
        let steps = if self.steps.is_empty() { std::slice::from_ref(&nothing) } else { &self.steps };
        let one = |(at, step): (usize, &Step)| {
            let mut descriptor = Descriptor {
                job: call.job,
                pulse: (pulse % PULSES) as u16,
                source_port: own.port,
                length: step.length as u32,
                count: step.awaits.0.len() as u8,
                await_seq: step.awaits.1 as u8,
                first_source: self.first_source(&step.awaits.0) as u8,
                ..Descriptor::default()
            };
            let mut flags = Flags::COLLECTIVE;
            if at == 0 {
                flags = flags.with(Flags::HEAD);
                descriptor.sources = self.sources.iter().map(member).collect();
            }
            if at == last {
                flags = flags.with(Flags::TAIL).with(if ends { Flags::ENDS } else { Flags::default() });
            }
            let places = |spans: &[Span]| spans.iter().map(|span| piece(call, span)).collect();
            match &step.work {
                Work::Nothing => {}
                Work::Store { result } => {
                    flags = flags.with(Flags::SWAP_LOCAL_DATA);
                    descriptor.result = places(result);
                }
                Work::Copy { operand, result } => {
                    (descriptor.operand, descriptor.result) = (places(operand), places(result));
                }
                Work::Reduce { operand, result, packet_left } => {
                    flags = flags.with(Flags::REDUCE);
                    (descriptor.operand, descriptor.result) = (places(operand), places(result));
                    (descriptor.packet_left, descriptor.reduction) = (*packet_left, call.reduction);
                }
            }
            if let Some((to, seq, message)) = &step.sends {
                flags = flags.with(Flags::SENDS);
                let Source { node, port } = member(to);
                let answers = step.awaits.0.last() == Some(to);
                flags = flags.with(if answers { Flags::SWAP_LOCAL_PORT } else { Flags::default() });
                (descriptor.dest, descriptor.seq) = (node, *seq as u8);
                descriptor.dest_port = if answers { 0 } else { port };
                call.carry(&mut descriptor, message);
            }
            Descriptor { flags, ..descriptor }
        };
        steps.iter().enumerate().map(one).collect()
    }

    /// Where in the table these sources lie, one after another.
    fn first_source(&self, sources: &[Rank]) -> usize {
        let run = |first: &usize| self.sources[*first..].starts_with(sources);
        (0..=self.sources.len()).find(run).expect("the table has every run")
    }
}

fn piece(call: &Call<'_>, span: &Span) -> Piece {
    let address = match span.buffer {
        Buffer::Input => Address::Host(call.input + span.offset),
        Buffer::Output => Address::Host(call.output + span.offset),
        Buffer::Scratch => Address::Intermediate(span.offset),
    };
    Piece { address, len: span.len }
}
