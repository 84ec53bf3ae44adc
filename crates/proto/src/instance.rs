//! One of a group's calls, carried out by the machine of its kind.
//!
//! Collectives with a barrier move blocks that all ranks agree on ([`Collective`]); exchanges move what pairs of ranks agree
//! on, without a barrier ([`Exchange`]): blocks of one size go either way, as the group chooses; of an allgatherv or uneven reduce-scatter that only others have called the sizes are
//! unknown ([`Unsized`]).
//! Never does anything itself.

mod by_rank;
mod collective;
mod exchange;
pub(crate) mod recording;
mod run;
mod sizes;
pub(crate) mod tagged;

use outboard_plan::{Extents, OpId, Rank};

pub(crate) use collective::{Batch, Collective, Layout};
use exchange::Exchange;
use sizes::Unsized;

use crate::config::Config;
use crate::error::CollectiveError;
use crate::group::members::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::interface::{Call, Class, InFlight, Moves, Signature, Sizes};
use crate::multicast::pacing::Quantum;
use crate::outbox::Outbox;
use crate::transfer::{Bulk, Site, Transfer};

/// What an instance works with while it handles something.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) members: &'a mut Members,
    pub(crate) out: &'a mut Outbox,
    pub(crate) transfer: &'a mut Transfer,
}

impl Context<'_> {
    /// How much of a link one collective may take at once.
    pub(crate) fn quantum(&self) -> Quantum {
        Quantum::new(self.config, self.out.contention)
    }

    /// The messages of the group, and what they work with.
    pub(crate) fn transfer(&mut self) -> (&mut Transfer, Site<'_>) {
        (self.transfer, Site { config: self.config, members: self.members, out: self.out })
    }
}

/// One of a group's calls.
#[derive(Debug)]
pub(crate) enum Instance {
    Collective(Box<Collective>),
    Exchange(Box<Exchange>),
    Unsized(Box<Unsized>),
}

macro_rules! either {
    ($instance:expr, $name:ident => $what:expr) => {
        match $instance {
            Instance::Collective($name) => $what,
            Instance::Exchange($name) => $what,
            Instance::Unsized($name) => $what,
        }
    };
}

impl Instance {
    /// A call of which `signer`'s is the first news, with the sizes of its blocks where they are known. Fails when they cannot
    /// be.
    pub(crate) fn new(
        cx: &mut Context<'_>,
        id: InstanceId,
        signature: Signature,
        signer: Rank,
        sizes: Option<Extents>,
    ) -> Result<Self, &'static str> {
        let Class { moves, sizes: known } = signature.kind.class();
        let extents = match (moves, known) {
            (Moves::Messages(_), _) => return Err("tagged messages as an instance of a group"),
            (_, Sizes::Paired) => {
                return Exchange::new(cx, id, signature, signer).map(Box::new).map(Instance::Exchange);
            }
            (_, Sizes::Agreed(_)) if sizes.is_none() => {
                return Ok(Instance::Unsized(Box::new(Unsized::new(cx, id, signature, signer))));
            }
            (_, Sizes::Agreed(_)) => sizes,
            (_, Sizes::Even) => Extents::even(cx.members.ranks(), signature.bytes),
            (_, Sizes::Whole) => Extents::even(1, signature.bytes),
        };
        let extents = extents.ok_or("blocks beyond the address space")?;
        let layout = Layout::choose(signature, cx.members, cx.config);
        if layout.pulls() {
            return Exchange::new(cx, id, signature, signer).map(Box::new).map(Instance::Exchange);
        }
        Collective::new(cx, id, (signer, signature), (extents, layout)).map(Box::new).map(Instance::Collective)
    }

    /// The machine of a collective with a barrier.
    pub(crate) fn collective(&mut self) -> Option<&mut Collective> {
        match self {
            Instance::Collective(collective) => Some(collective),
            Instance::Exchange(_) | Instance::Unsized(_) => None,
        }
    }

    /// The machine of an exchange.
    pub(crate) fn exchange(&mut self) -> Option<&mut Exchange> {
        match self {
            Instance::Exchange(exchange) => Some(exchange),
            Instance::Collective(_) | Instance::Unsized(_) => None,
        }
    }

    /// The call whose sizes are unknown.
    pub(crate) fn unsized_call(&mut self) -> Option<&mut Unsized> {
        match self {
            Instance::Unsized(call) => Some(call),
            Instance::Collective(_) | Instance::Exchange(_) => None,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        either!(self, i => i.ended())
    }

    /// Ended with an error.
    pub(crate) fn failed(&self) -> bool {
        match self {
            Instance::Collective(collective) => collective.failed(),
            Instance::Exchange(exchange) => exchange.failed(),
            // Nobody here has called it.
            Instance::Unsized(_) => false,
        }
    }

    /// Neither ended nor failed: takes part in the protocol.
    pub(crate) fn alive(&self) -> bool {
        either!(self, i => i.alive())
    }

    pub(crate) fn signature(&self) -> (Rank, Signature) {
        either!(self, i => i.signature())
    }

    /// What is waited for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members, transfer: &Transfer) -> InFlight {
        match self {
            Instance::Collective(collective) => collective.in_flight_now(now, members, transfer),
            Instance::Exchange(exchange) => exchange.in_flight_now(now, members, transfer),
            Instance::Unsized(call) => call.in_flight_now(now, members),
        }
    }

    /// Whether a call of `rank` is in flight here.
    pub(crate) fn in_flight(&self, rank: Rank) -> bool {
        match self {
            Instance::Collective(collective) => collective.in_flight(rank),
            Instance::Exchange(exchange) => exchange.in_flight(rank),
            Instance::Unsized(_) => false,
        }
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        match self {
            Instance::Collective(collective) => collective.has_call(id),
            Instance::Exchange(exchange) => exchange.has_call(id),
            Instance::Unsized(_) => None,
        }
    }

    /// A local rank calls. The caller has compared the signatures. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        match self {
            Instance::Collective(collective) => collective.handle_call(cx, call),
            Instance::Exchange(exchange) => exchange.handle_call(cx, call),
            Instance::Unsized(_) => unreachable!("a call brings its sizes along"),
        }
    }

    /// The window of the group has moved. An error breaks the group.
    pub(crate) fn try_enter(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        match self {
            Instance::Collective(collective) => collective.try_enter(cx),
            Instance::Exchange(exchange) => exchange.try_open(cx),
            Instance::Unsized(_) => Ok(()),
        }
    }

    /// Whether there may be repairs for the right neighbour.
    pub(crate) fn has_repair(&self) -> bool {
        match self {
            Instance::Collective(collective) => collective.has_repair(),
            Instance::Exchange(_) | Instance::Unsized(_) => false,
        }
    }

    /// The next repair for `to`, when there is any. Asked while its link has room.
    pub(crate) fn next_repair(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        match self {
            Instance::Collective(collective) => collective.next_repair(cx, to),
            Instance::Exchange(_) | Instance::Unsized(_) => None,
        }
    }

    /// A NAK has been acknowledged.
    pub(crate) fn handle_asked(&mut self) {
        if let Some(collective) = self.collective() {
            collective.handle_asked();
        }
    }

    /// A step that sends or receives is done.
    pub(crate) fn complete(&mut self, cx: &mut Context<'_>, local: usize, op: OpId) {
        match self {
            Instance::Collective(collective) => collective.complete(cx, local, op),
            Instance::Exchange(exchange) => exchange.complete(cx, local, op),
            Instance::Unsized(_) => {}
        }
    }

    /// Ends with an error, as soon as the driver has given back what it was handed.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, error: CollectiveError) {
        either!(self, i => i.fail(cx, error));
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        either!(self, i => i.poll_timeout())
    }

    /// Time has passed. An error breaks the group.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        match self {
            Instance::Collective(collective) => return collective.handle_timeout(cx),
            Instance::Exchange(exchange) => exchange.handle_timeout(cx),
            Instance::Unsized(call) => call.handle_timeout(cx),
        }
        Ok(())
    }

    /// There is something to multicast.
    pub(crate) fn has_batch(&self) -> bool {
        match self {
            Instance::Collective(collective) => collective.has_batch(),
            Instance::Exchange(_) | Instance::Unsized(_) => false,
        }
    }
}
