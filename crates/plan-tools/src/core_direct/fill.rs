//! Fills a template with the addresses and sizes of a call (CD-3).

use thiserror::Error;

use super::{HostStep, Place, Protocol, Request, Task, Template};
use outboard_plan::{Buffer, Span};

/// Bytes in the memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Of the first byte.
    pub address: u64,
    /// How many.
    pub bytes: u64,
}

/// What a call adds to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Bytes that a byte of the plan stands for: the block's where the plan was made for blocks of 1 byte, else 1.
    pub unit: u64,
    /// Of the plan's input.
    pub input: u64,
    /// Of its output.
    pub output: u64,
    /// Of its scratch.
    pub scratch: u64,
    /// Of the eager buffers in which messages of this call arrive, one behind another.
    pub arrived: u64,
    /// Of those for the next call.
    pub next: u64,
    /// Bytes of an eager buffer in memory.
    pub buffer: u64,
}

/// Why a call does not fit a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FillError {
    /// Messages that are larger than the buffers for them.
    #[error("{needed} bytes in an eager buffer of {buffer}: choose the rendezvous protocol for this call")]
    Buffer {
        /// Bytes that a buffer has to take.
        needed: u64,
        /// Bytes that it has.
        buffer: u64,
    },
    /// Addresses beyond 64 bits.
    #[error("{bytes} bytes behind address {address:#x} exceed 64 bits")]
    Address {
        /// Where something begins.
        address: u64,
        /// How far it would reach.
        bytes: u128,
    },
}

/// A template with addresses and sizes: what is posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// What the host does before it posts the list.
    pub before: Vec<HostStep<Region>>,
    /// The list, in the order of posting.
    pub tasks: Vec<Task<Region>>,
    /// What the host does when the last task is complete.
    pub after: Vec<HostStep<Region>>,
}

impl Template {
    /// The list of a call.
    ///
    /// A template of a plan for blocks of 1 byte serves blocks of any size, where the plan scales with them: `unit` is the
    /// size of a block then. A template of a plan for the sizes of the call takes the unit 1.
    ///
    /// # Errors
    /// When a message exceeds its buffer, or an address 64 bits.
    pub fn fill(&self, call: &Addresses) -> Result<Filled, FillError> {
        if let Protocol::Eager { buffer: units } = self.protocol {
            let needed =
                self.tasks.iter().filter_map(|task| message_units(&task.request)).max().unwrap_or(0).min(units);
            let needed = needed.saturating_mul(call.unit);
            if needed > call.buffer {
                return Err(FillError::Buffer { needed, buffer: call.buffer });
            }
        }
        let task = |task: &Task<Place>| Ok(Task { round: task.round, request: request(&task.request, call)? });
        let host = |steps: &[HostStep<Place>]| -> Result<Vec<_>, _> {
            steps.iter().map(|step| host_step(step, call)).collect()
        };
        Ok(Filled {
            before: host(&self.before)?,
            tasks: self.tasks.iter().map(task).collect::<Result<_, _>>()?,
            after: host(&self.after)?,
        })
    }
}

/// The size of a message that is sent.
fn message_units(request: &Request<Place>) -> Option<u64> {
    match request {
        Request::Send { from, .. } => Some(from.iter().map(units).sum()),
        Request::Receive { .. }
        | Request::WaitReceived { .. }
        | Request::WaitSent { .. }
        | Request::SendEnable { .. }
        | Request::ReceiveEnable { .. } => None,
    }
}

fn units(place: &Place) -> u64 {
    match place {
        Place::Memory(span) => span.len,
        Place::Arrived { len, .. } => *len,
        Place::Next { .. } => 0,
    }
}

fn request(request: &Request<Place>, call: &Addresses) -> Result<Request<Region>, FillError> {
    Ok(match *request {
        Request::Receive { on, into } => {
            Request::Receive { on, into: into.map(|place| region(place, call)).transpose()? }
        }
        Request::Send { on, ref from } => {
            Request::Send { on, from: from.iter().map(|place| region(*place, call)).collect::<Result<_, _>>()? }
        }
        Request::WaitReceived { on, count } => Request::WaitReceived { on, count },
        Request::WaitSent { on, count } => Request::WaitSent { on, count },
        Request::SendEnable { on, count } => Request::SendEnable { on, count },
        Request::ReceiveEnable { on, count } => Request::ReceiveEnable { on, count },
    })
}

fn host_step(step: &HostStep<Place>, call: &Addresses) -> Result<HostStep<Region>, FillError> {
    Ok(match *step {
        HostStep::Copy { from, to } => HostStep::Copy { from: region(from, call)?, to: region(to, call)? },
        HostStep::Reduce { from, into, from_left } => {
            HostStep::Reduce { from: region(from, call)?, into: region(into, call)?, from_left }
        }
    })
}

fn region(place: Place, call: &Addresses) -> Result<Region, FillError> {
    let unit = u128::from(call.unit);
    let (base, offset, bytes) = match place {
        Place::Memory(Span { buffer, offset, len }) => {
            let base = match buffer {
                Buffer::Input => call.input,
                Buffer::Output => call.output,
                Buffer::Scratch => call.scratch,
            };
            (base, u128::from(offset) * unit, u128::from(len) * unit)
        }
        Place::Arrived { slot, offset, len } => {
            let slot = u128::from(slot) * u128::from(call.buffer);
            (call.arrived, slot + u128::from(offset) * unit, u128::from(len) * unit)
        }
        Place::Next { slot } => (call.next, u128::from(slot) * u128::from(call.buffer), u128::from(call.buffer)),
    };
    let beyond = || FillError::Address { address: base, bytes: offset.saturating_add(bytes) };
    let end = u128::from(base).checked_add(offset).and_then(|start| start.checked_add(bytes)).ok_or_else(beyond)?;
    let within = |number: u128| u64::try_from(number).map_err(|_| beyond());
    within(end)?;
    Ok(Region { address: within(u128::from(base) + offset)?, bytes: within(bytes)? })
}
