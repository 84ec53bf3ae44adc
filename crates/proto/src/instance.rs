//! One of a group's calls, carried out by the machine of its kind.
//!
//! Collectives with a barrier move blocks that all ranks agree on ([`Collective`]); exchanges move what pairs of ranks agree
//! on, without a barrier ([`Exchange`]). Never does anything itself.

use outboard_plan::Rank;

use crate::collective::{Collective, Context};
use crate::error::CollectiveError;
use crate::exchange::Exchange;
use crate::fragments::Bulk;
use crate::group::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::interface::{Call, InFlight, Signature};
use crate::link::Tag;

/// One of a group's calls.
#[derive(Debug)]
pub(crate) enum Instance {
    Collective(Box<Collective>),
    Exchange(Box<Exchange>),
}

macro_rules! either {
    ($instance:expr, $name:ident => $what:expr) => {
        match $instance {
            Instance::Collective($name) => $what,
            Instance::Exchange($name) => $what,
        }
    };
}

impl Instance {
    /// A call of which `signer`'s is the first news. Fails when its sizes cannot be.
    pub(crate) fn new(
        cx: &Context<'_>,
        id: InstanceId,
        signature: Signature,
        signer: Rank,
    ) -> Result<Self, &'static str> {
        if signature.kind.is_exchange() {
            Exchange::new(cx, id, signature, signer).map(Box::new).map(Instance::Exchange)
        } else {
            Collective::new(cx, id, signature, signer).map(Box::new).map(Instance::Collective)
        }
    }

    /// The machine of a collective with a barrier.
    pub(crate) fn collective(&mut self) -> Option<&mut Collective> {
        match self {
            Instance::Collective(collective) => Some(collective),
            Instance::Exchange(_) => None,
        }
    }

    /// The machine of an exchange.
    pub(crate) fn exchange(&mut self) -> Option<&mut Exchange> {
        match self {
            Instance::Exchange(exchange) => Some(exchange),
            Instance::Collective(_) => None,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        either!(self, i => i.ended())
    }

    /// Ended with an error.
    pub(crate) fn failed(&self) -> bool {
        either!(self, i => i.failed())
    }

    /// Neither ended nor failed: takes part in the protocol.
    pub(crate) fn alive(&self) -> bool {
        either!(self, i => i.alive())
    }

    pub(crate) fn signature(&self) -> (Rank, Signature) {
        either!(self, i => i.signature())
    }

    /// What is waited for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members) -> InFlight {
        either!(self, i => i.in_flight_now(now, members))
    }

    /// Whether a call of `rank` is in flight here.
    pub(crate) fn in_flight(&self, rank: Rank) -> bool {
        either!(self, i => i.in_flight(rank))
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        either!(self, i => i.has_call(id))
    }

    /// A local rank calls. The caller has compared the signatures. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        match self {
            Instance::Collective(collective) => {
                collective.handle_call(cx, call);
                Ok(())
            }
            Instance::Exchange(exchange) => exchange.handle_call(cx, call),
        }
    }

    /// The window of the group has moved. An error breaks the group.
    pub(crate) fn try_enter(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        match self {
            Instance::Collective(collective) => {
                collective.try_enter(cx);
                Ok(())
            }
            Instance::Exchange(exchange) => exchange.try_open(cx),
        }
    }

    /// Whom there may be bulk for.
    pub(crate) fn bulk_targets(&self, cx: &Context<'_>) -> Vec<SpId> {
        either!(self, i => i.bulk_targets(cx))
    }

    /// The next piece of bulk for `to`, when there is any. Asked while its link has room.
    pub(crate) fn next_bulk(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        either!(self, i => i.next_bulk(cx, to))
    }

    /// A message has been acknowledged.
    pub(crate) fn handle_acked(&mut self, cx: &mut Context<'_>, tag: Tag) {
        either!(self, i => i.handle_acked(cx, tag));
    }

    /// A fragment. False when no such fragment can come now.
    pub(crate) fn handle_data(
        &mut self,
        cx: &mut Context<'_>,
        (source, destination, index): (Rank, Rank, u32),
        piece: (u64, u64),
        payload_len: u32,
    ) -> bool {
        match self {
            Instance::Collective(c) => c.handle_data(cx, (source, destination, index), piece, payload_len),
            Instance::Exchange(e) => index == 0 && e.handle_data(cx, (source, destination), piece, payload_len),
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

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        either!(self, i => i.handle_timeout(cx));
    }

    /// There is something to multicast.
    pub(crate) fn has_batch(&self) -> bool {
        match self {
            Instance::Collective(collective) => collective.has_batch(),
            Instance::Exchange(_) => false,
        }
    }
}
