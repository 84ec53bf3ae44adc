//! The offers of a rank that calls a collective without a barrier (SP-5), and the offers of other service processes.
//! The offers of a call carry all its messages at once, in as few offers as possible, and clear the first bytes of the
//! call's receives early.

use std::collections::BTreeMap;

use outboard_plan::Rank;

use super::incoming::{InboundKey, Unexpected, distance, stage};
use super::{MAX_WAITING, MessageName, Outbound, PostedReceive, Site, Transfer};
use crate::error::{CollectiveError, Rejection};
use crate::ids::{InstanceId, SpId};
use crate::interface::{MemRef, Order};
use crate::wire::{EarlyCts, Few, Message, MessageNumber, OfferOrigin, Rts, Scope, TransferMessage};

/// The messages of one call for one service process.
#[derive(Debug, Default)]
struct CallOffers {
    ready: Vec<Outbound>,
    early: Vec<(MessageName, u64)>,
}

/// The origin of an offer: a rank, its service process, and the scope of the offered messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offerer {
    pub(super) from: SpId,
    pub(super) scope: Scope,
    pub(super) rank: Rank,
}

impl Transfer {
    /// A local rank calls a collective whose messages are offered as its ranks come (SP-5), with all its sends and
    /// receives. The offers carry the signature, since they may be the first news of the call. The offers also carry
    /// early CTS for the first bytes of unannounced messages: ranks are never quite together, and the last caller finds
    /// its messages already requested.
    pub(crate) fn exchange(
        &mut self,
        site: &mut Site<'_>,
        origin: OfferOrigin,
        rank: Rank,
        sends: Vec<Outbound>,
        receives: Vec<(MessageName, PostedReceive)>,
    ) {
        let mut offers: BTreeMap<SpId, CallOffers> = BTreeMap::new();
        for (name, posting) in &receives {
            self.receive(site, *name, *posting);
        }
        for message in sends {
            let to = message.name.destination;
            if site.members.local(to).is_some() {
                self.match_arrival(site, message.name, Unexpected::Local(message));
                continue;
            }
            match self.outgoing.cleared_bytes(&message.name) {
                Some(bytes) if bytes != message.from.len => {
                    self.end(message.step, Err(message.name.mismatch(message.from.len, bytes)));
                }
                Some(_) | None => offers.entry(site.members.sp_of(to)).or_default().ready.push(message),
            }
        }
        for (source, early) in self.clear_early(site, receives) {
            offers.entry(source).or_default().early.push(early);
        }
        for (to, offer) in offers {
            self.offer(site, origin, rank, to, offer);
        }
        self.grant_credit(site, origin.scope());
    }

    /// The first bytes of each waiting receive, together as much as the queue of a switch holds.
    fn clear_early(
        &self,
        site: &Site<'_>,
        receives: Vec<(MessageName, PostedReceive)>,
    ) -> Vec<(SpId, (MessageName, u64))> {
        let waits = |(name, _): &(MessageName, PostedReceive)| {
            site.members.local(name.source).is_none() && self.incoming.matching.has_receive(name)
        };
        let mut waiting: Vec<(MessageName, PostedReceive)> = receives.into_iter().filter(waits).collect();
        waiting.sort_by_key(|(name, _)| distance(site.members.ranks(), name));
        let (mut room, each) = site.quantum().ahead(site.members.locals.len(), waiting.len());
        let up_to = waiting.into_iter().map_while(move |(name, posting)| {
            let up_to = posting.to.len.min(each);
            room = room.checked_sub(up_to)?;
            Some((name, up_to))
        });
        up_to.map(|(name, up_to)| (site.members.sp_of(name.source), (name, up_to))).collect()
    }

    /// Sends one service process the RTS and early CTS of a call, in as few messages as possible.
    fn offer(&mut self, site: &mut Site<'_>, origin: OfferOrigin, rank: Rank, to: SpId, offers: CallOffers) {
        let (mut all_ready, mut all_early) = (offers.ready.into_iter().peekable(), offers.early.into_iter().peekable());
        while all_ready.peek().is_some() || all_early.peek().is_some() {
            let (mut first_ready, mut ready, mut first_early, mut early) = (0, Few::new(), 0, Vec::new());
            loop {
                let mut added = false;
                if let Some(message) = all_ready.next_if(|_| origin.fits(ready.len() + 1, early.len())) {
                    let (number, rts) = self.outgoing.offer(to, message);
                    first_ready = if ready.is_empty() { number } else { first_ready };
                    ready.push(rts);
                    added = true;
                }
                if let Some((name, up_to)) = all_early.next_if(|_| origin.fits(ready.len(), early.len() + 1))
                    && let Some(posting) = self.incoming.matching.receive_for(&name)
                {
                    let number = self.incoming.clear(to, name, posting, up_to);
                    first_early = if early.is_empty() { number } else { first_early };
                    let MessageName { source, tag, occurrence, .. } = name;
                    early.push(EarlyCts { source, tag, occurrence, bytes: posting.to.len, up_to });
                    added = true;
                }
                if !added {
                    break;
                }
            }
            let offer = TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early };
            site.out.messages.push_back((to, Message::transfer(site.members.handle, offer)));
        }
    }

    /// Handles the RTS of one call of `rank`; eager RTS come with their bytes.
    pub(super) fn handle_ready(
        &mut self,
        site: &mut Site<'_>,
        Offerer { from, scope, rank: source }: Offerer,
        first: u64,
        ready: &[Rts],
        payload_len: u32,
    ) -> Result<(), Rejection> {
        let here = |rts: &Rts| site.members.local(rts.destination).is_some();
        let eager = ready.iter().filter(|rts| rts.eager).try_fold(0u64, |sum, rts| sum.checked_add(rts.bytes));
        let tagged = !matches!(scope, Scope::Instance(_));
        Rejection::unless(
            site.members.sp_of_member(source) == Some(from),
            "an RTS of a rank that is served elsewhere",
        )?;
        Rejection::unless(ready.iter().all(here), "an RTS for a rank that is served elsewhere")?;
        Rejection::unless(eager == Some(payload_len.into()), "a payload of another length than its eager messages")?;
        let has_room = self.incoming.matching.messages() + ready.len() <= MAX_WAITING;
        Rejection::unless(has_room, "more messages than may wait for their receives")?;
        Rejection::unless(
            self.incoming.accept_numbers(from, first, ready.len()),
            "an RTS with a number that was used",
        )?;
        let mut end = 0;
        for (rts, number) in ready.iter().zip(first..) {
            let &Rts { destination, tag, occurrence, bytes, eager } = rts;
            let offset = end;
            end += if eager { bytes as u32 } else { 0 };
            let name = MessageName { scope, destination, source, tag, occurrence };
            let key = InboundKey { from, number: MessageNumber::Rts(number) };
            let twice = scope != Scope::Single && self.incoming.matching.has_message(&name);
            Rejection::unless(!twice && (bytes > 0 || eager), "an RTS that came before, or without bytes")?;
            if tagged && self.lost.contains(&destination) {
                // The source learns of the loss by itself.
            } else if eager {
                self.receive_eager_bytes(site, key, name, offset, bytes);
            } else if let Some(PostedReceive { step, to }) = self.incoming.note_announced(site, &name) {
                if to.len != bytes {
                    self.end(step, Err(name.mismatch(bytes, to.len)));
                }
            } else {
                self.match_arrival(site, name, Unexpected::Announced { key, bytes });
            }
        }
        self.grant_credit(site, scope);
        Ok(())
    }

    /// Early CTS of one call of `rank`.
    pub(super) fn handle_early(
        &mut self,
        site: &Site<'_>,
        Offerer { from, scope, rank: destination }: Offerer,
        first: u64,
        early: &[EarlyCts],
    ) -> Result<(), Rejection> {
        let here = |cts: &EarlyCts| site.members.local(cts.source).is_some();
        let is_served = site.members.sp_of_member(destination) == Some(from);
        Rejection::unless(is_served, "an early CTS of a rank that is served elsewhere")?;
        Rejection::unless(early.iter().all(here), "an early CTS for a rank that is served elsewhere")?;
        let has_room = self.outgoing.cleared() + early.len() <= MAX_WAITING;
        Rejection::unless(has_room, "more early CTS than may wait for their messages")?;
        Rejection::unless(
            self.outgoing.accept_numbers(from, first, early.len()),
            "an early CTS with a number that was used",
        )?;
        for (cts, number) in early.iter().zip(first..) {
            let &EarlyCts { source, tag, occurrence, bytes, up_to } = cts;
            let name = MessageName { scope, destination, source, tag, occurrence };
            let sound = match scope {
                Scope::Instance(_) => up_to > 0,
                Scope::Single | Scope::Recorded { .. } => name.awaits_early_cts(bytes),
            };
            let lost = self.lost.contains(&source) || self.lost.contains(&destination);
            let gone = lost && !matches!(scope, Scope::Instance(_));
            Rejection::unless(sound, "an early CTS for a message that needs none")?;
            if !gone {
                self.outgoing.handle_early(from, name, number, *cts)?;
            }
        }
        Ok(())
    }

    /// A message whose bytes lie at `offset` of the payload: delivers them to the receive, or to staging.
    fn receive_eager_bytes(
        &mut self,
        site: &mut Site<'_>,
        key: InboundKey,
        name: MessageName,
        offset: u32,
        bytes: u64,
    ) {
        let deliver = |to: MemRef| (bytes > 0).then_some(Order::Deliver { payload: 0, offset, to });
        if let Some(posting) = self.incoming.matching.receive_for(&name) {
            self.incoming.finish_rts(site, name.scope, key);
            match Self::fit(&name, bytes, posting) {
                Ok(posting) => {
                    site.out.orders.extend(deliver(posting.to));
                    self.end(posting.step, Ok(()));
                }
                Err(error) => self.end(posting.step, Err(error)),
            }
            return;
        }
        let message = match stage(site, bytes) {
            None => Unexpected::Announced { key, bytes },
            Some(staging) => {
                self.incoming.finish_rts(site, name.scope, key);
                site.out.orders.extend(staging.as_ref().and_then(|staging| deliver(staging.whole())));
                Unexpected::Staged(staging)
            }
        };
        self.incoming.matching.keep_message(name, message);
    }

    /// The error for a message of a collective that a local rank sends or expects, and that `gone` does not know.
    pub(crate) fn unanswered(&self, instance: InstanceId, gone: Rank) -> Option<CollectiveError> {
        let scope = Scope::Instance(instance);
        let offered = self.outgoing.offered(scope).find(|(name, _)| name.destination == gone);
        let mut awaited = self.incoming.unannounced(scope);
        let sent = offered.map(|(name, bytes)| name.mismatch(bytes, 0));
        let local = || {
            let mut messages = self.incoming.matching.messages_of(scope);
            let found = messages.find(|(name, m)| name.destination == gone && matches!(m, Unexpected::Local(_)));
            found.map(|(name, message)| name.mismatch(message.bytes(), 0))
        };
        let expected = || awaited.find(|(name, _)| name.source == gone).map(|(name, bytes)| name.mismatch(0, bytes));
        sent.or_else(local).or_else(expected)
    }
}
