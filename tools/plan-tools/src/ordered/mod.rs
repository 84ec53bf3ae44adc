//! Plans as descriptor sequences of an order-triggered NIC ([`outboard_nic::ordered`]): a host posts one sequence for
//! each pulse of a call and takes the completion (TH-6).
//!
//! | step of a plan | becomes |
//! |---|---|
//! | receive | awaited by the next descriptor, which stores the message if the message itself is needed |
//! | reduce of a received message | a descriptor with ReduceFlag; several in a row with one SeqID share one (CPCount) |
//! | copy | a descriptor with operand and result |
//! | send | CP of the descriptor that produces the message, else a descriptor of its own |
//!
//! Short messages from a rank's input travel in the descriptor, because the host has the bytes when it posts. A
//! descriptor that sends to the source that it read last takes the port from this source (SwapLocalVP).
//!
//! A call that does not fit goes from point to point (C = 0) if no message follows the arrival of another message, as
//! in gathers and exchanges of pairs. Then each rank first posts its receives, which name places, and then its sends.
//!
//! A collective that exceeds the room of a pulse is cut into pulses. Each pulse is a whole call for a part of every
//! vector, so contributions to an element meet as they would in one call (TH-5). In some plans, such as rings, the
//! position of an element decides its path. Such plans fit one pulse or are rejected.
//!
//! Invariants: descriptors of a rank run in the order of its plan, and no rank waits for a message that the order of
//! another rank holds back. A template has no addresses, so it serves all calls of its kind. SeqID counts the messages
//! from one rank to another within a pulse.

mod exchange;
mod lower;
mod pulses;

pub use exchange::RankExchange;
pub use lower::OrderedLowerError;
pub use pulses::{LoweredCall, lower};

use outboard_nic::ordered::descriptor::{
    Descriptor, DescriptorAddress, DescriptorPiece, Flags, MAX_INLINE, PULSES, PortAddress,
};
use outboard_plan::{Buffer, OpId, Rank, Reduction, Span};

/// The operation of a descriptor on the messages that it has waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepWork {
    /// No operation: the descriptor only waits, or sends bytes from memory.
    Nothing,
    /// Stores the message in `result`.
    Store { result: Vec<Span> },
    /// Copies within memory.
    Copy { operand: Vec<Span>, result: Vec<Span> },
    /// Combines all messages with the operand, one after another.
    Reduce { operand: Vec<Span>, result: Vec<Span>, packet_left: bool },
}

/// A descriptor without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceStep {
    /// The step of the program that the descriptor begins with.
    pub of: OpId,
    /// Bytes of each message, or of the copy.
    pub length: u64,
    /// The ranks whose messages the descriptor reads, in order, and the number of these messages.
    pub awaits: (Vec<Rank>, usize),
    pub work: StepWork,
    /// The destination, the number and the bytes of the message that the descriptor sends.
    pub sends: Option<(Rank, usize, Vec<Span>)>,
}

/// The descriptors that one rank posts for one pulse, without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceTemplate {
    pub rank: Rank,
    /// The table of sources. A descriptor waits for a run of this table.
    pub sources: Vec<Rank>,
    pub steps: Vec<SequenceStep>,
}

/// The values that turn a template into descriptors.
#[derive(Clone, Copy)]
pub struct OrderedCall<'a> {
    pub job: u8,
    pub members: &'a [PortAddress],
    pub reduction: Option<Reduction>,
    /// Address of the rank's input.
    pub input: u64,
    /// Address of the rank's output.
    pub output: u64,
    /// Reads the bytes of a span of the rank's input.
    pub bytes: &'a dyn Fn(Span) -> Vec<u8>,
}

impl OrderedCall<'_> {
    /// Gives a descriptor the message in these spans. The descriptor holds the bytes themselves if they are few and
    /// from the rank's input.
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

impl SequenceTemplate {
    /// The descriptors of pulse number `pulse` of the job; with `ends`, the call ends with the last descriptor.
    fn post(&self, call: &OrderedCall<'_>, pulse: u64, ends: bool) -> Vec<Descriptor> {
        let own = call.members[self.rank.0 as usize];
        let last = self.steps.len().saturating_sub(1);
        let member = |rank: &Rank| call.members[rank.0 as usize];
        // A rank without work in a pulse still ends the pulse.
        let nothing =
            SequenceStep { of: OpId(0), length: 0, awaits: (Vec::new(), 0), work: StepWork::Nothing, sends: None };
        let steps = if self.steps.is_empty() { std::slice::from_ref(&nothing) } else { &self.steps };
        let one = |(at, step): (usize, &SequenceStep)| {
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
                StepWork::Nothing => {}
                StepWork::Store { result } => {
                    flags = flags.with(Flags::SWAP_LOCAL_DATA);
                    descriptor.result = places(result);
                }
                StepWork::Copy { operand, result } => {
                    (descriptor.operand, descriptor.result) = (places(operand), places(result));
                }
                StepWork::Reduce { operand, result, packet_left } => {
                    flags = flags.with(Flags::REDUCE);
                    (descriptor.operand, descriptor.result) = (places(operand), places(result));
                    (descriptor.packet_left, descriptor.reduction) = (*packet_left, call.reduction);
                }
            }
            if let Some((to, seq, message)) = &step.sends {
                flags = flags.with(Flags::SENDS);
                let PortAddress { node, port } = member(to);
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

    /// The index in the table at which `sources` begins as a run.
    fn first_source(&self, sources: &[Rank]) -> usize {
        let run = |first: &usize| self.sources[*first..].starts_with(sources);
        (0..=self.sources.len()).find(run).expect("the table has every run")
    }
}

fn piece(call: &OrderedCall<'_>, span: &Span) -> DescriptorPiece {
    let address = match span.buffer {
        Buffer::Input => DescriptorAddress::Host(call.input + span.offset),
        Buffer::Output => DescriptorAddress::Host(call.output + span.offset),
        Buffer::Scratch => DescriptorAddress::Intermediate(span.offset),
    };
    DescriptorPiece { address, len: span.len }
}
