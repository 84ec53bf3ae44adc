//! What a rank that calls an exchange tells the others: what it has for them, and what of theirs may come at once (SP-5).
//!
//! Each hears of it once, ahead of all bytes. Who has a block says how large it is, and so does who asks for it ahead; they are
//! compared once both have called. Never asks for anything that was announced: that is [`Exchange::pull`]'s.

use std::collections::BTreeMap;

use outboard_plan::{Op, Rank, Span};

use super::{Exchange, Inbound, Local, Offered, Pair, Presence, distance};
use crate::collective::Context;
use crate::error::CollectiveError;
use crate::ids::SpId;
use crate::interface::{MemRef, Region};
use crate::wire::{MAX_TERMS, Message, Terms};

/// What a destination asked for of a rank that had not called.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Bytes of the whole block.
    expects: u64,
    /// So many of them may come at once.
    up_to: u64,
}

impl Exchange {
    /// Announces the blocks of a rank that has called, and asks for the first of what it expects.
    pub(super) fn offer(&mut self, cx: &mut Context<'_>, i: usize) -> Result<(), CollectiveError> {
        let source = self.locals[i].rank;
        let mut all: BTreeMap<Rank, Terms> = BTreeMap::new();
        while let Presence::Called { call, run } = &mut self.locals[i].presence
            && let Some(id) = run.next_ready()
        {
            match run.op(id) {
                // Posted with the program.
                Op::Recv { .. } => {}
                Op::Copy { from, to } => {
                    let piece = |region, span: Span| MemRef { region, offset: span.offset, len: span.len };
                    cx.out.copy(piece(Region::Input(call.id), from), piece(Region::Output(call.id), to));
                    run.complete(id);
                }
                Op::Send { to, span, .. } => {
                    let (pair, block) = ((to, source), Offered { local: i, op: id, span });
                    if cx.members.local(to).is_some() {
                        self.offered.insert(pair, block);
                        self.announced(cx, pair, span.len)?;
                        continue;
                    }
                    all.insert(to, Terms { with: to, sends: span.len, expects: 0, up_to: 0 });
                    match self.ahead.remove(&pair) {
                        Some(asked) => self.send_asked(pair, Some(block), &asked)?,
                        None => {
                            self.offered.insert(pair, block);
                        }
                    }
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("no exchange multicasts"),
                Op::Reduce { .. } => unreachable!("no all-to-all reduces"),
            }
        }
        if let Some((&pair, _)) = self.ahead.iter().find(|((_, of), _)| *of == source) {
            let asked = self.ahead.remove(&pair).expect("just found");
            return self.send_asked(pair, None, &asked);
        }
        self.ask_ahead(cx, i, &mut all);
        let mut by_sp: BTreeMap<SpId, Vec<Terms>> = BTreeMap::new();
        all.into_values().for_each(|terms| by_sp.entry(cx.members.sp_of(terms.with)).or_default().push(terms));
        let (group, instance, signature, rank) = (cx.members.handle, self.instance, self.signature, source);
        for (sp, terms) in by_sp {
            for terms in terms.chunks(MAX_TERMS) {
                let message = Message::Announce { group, instance, signature, rank, terms: terms.to_vec() };
                cx.out.messages.push_back((sp, message));
            }
        }
        Ok(())
    }

    /// Asks for the first bytes of what the rank at `i` expects and nobody has announced yet: so much of each that all of it
    /// fits the queue of a switch when all sources send at once.
    fn ask_ahead(&mut self, cx: &Context<'_>, i: usize, all: &mut BTreeMap<Rank, Terms>) {
        let Local { rank, presence: Presence::Called { run, .. } } = &mut self.locals[i] else { return };
        let (rank, quantum) = (*rank, cx.quantum());
        let unannounced =
            |source: &Rank| cx.members.local(*source).is_none() && !self.inbound.contains_key(&(rank, *source));
        let mut sources: Vec<Rank> = run.awaited().filter(unannounced).collect();
        sources.sort_by_key(|source| distance(cx, (rank, *source)));
        let (mut room, each) = quantum.ahead(cx.members.locals.len(), sources.len());
        for source in sources {
            let bytes = run.receive(source, 0).expect("it is awaited").span.len;
            let up_to = bytes.min(each);
            let Some(left) = room.checked_sub(up_to) else { break };
            room = left;
            let coming = Inbound::Coming { bytes, announced: false, asked: up_to, got: 0, staging: None };
            self.inbound.insert((rank, source), coming);
            let terms = all.entry(source).or_insert(Terms { with: source, sends: 0, expects: 0, up_to: 0 });
            (terms.expects, terms.up_to) = (bytes, up_to);
        }
    }

    /// What was asked for ahead may leave, now that its source has called, if it has the block.
    fn send_asked(
        &mut self,
        (destination, source_rank): Pair,
        block: Option<Offered>,
        asked: &Ahead,
    ) -> Result<(), CollectiveError> {
        let sent = block.as_ref().map_or(0, |block| block.span.len);
        match block {
            Some(Offered { local, op, span }) if sent == asked.expects => {
                let known = self.sends.push_asked((local, op), (destination, 0, span), asked.up_to);
                assert!(known, "no more is asked for than is expected");
                Ok(())
            }
            _ => Err(CollectiveError::Block { source_rank, sent, destination, expected: asked.expects }),
        }
    }

    /// `rank` has called: its blocks for local ranks, and what it asks for of theirs. False when they cannot be; an error breaks
    /// the group.
    pub(crate) fn handle_announce(
        &mut self,
        cx: &mut Context<'_>,
        rank: Rank,
        terms: &[Terms],
    ) -> Result<bool, CollectiveError> {
        for terms in terms {
            let Some(i) = cx.members.local(terms.with) else { return Ok(false) };
            let (with, pair) = (terms.with, (terms.with, rank));
            if terms.sends > 0 {
                let repeated = match &mut self.locals[i].presence {
                    Presence::Absent { .. } | Presence::Ended => false,
                    Presence::Called { run, .. } => run.receive(rank, 0).is_some_and(|r| r.done),
                };
                if repeated || self.inbound.get(&pair).is_some_and(Inbound::is_announced) {
                    return Ok(false);
                }
                self.announced(cx, pair, terms.sends)?;
            }
            if terms.expects > 0 {
                let asked = Ahead { expects: terms.expects, up_to: terms.up_to };
                match &self.locals[i].presence {
                    Presence::Called { .. } if self.open => {
                        let block = self.offered.remove(&(rank, with));
                        self.send_asked((rank, with), block, &asked)?;
                    }
                    Presence::Ended => return Err(terms.unmet(rank)),
                    Presence::Called { .. } | Presence::Absent { .. } => {
                        if self.ahead.insert((rank, with), asked).is_some() {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        self.advance(cx);
        Ok(true)
    }

    fn announced(&mut self, cx: &mut Context<'_>, pair: Pair, bytes: u64) -> Result<(), CollectiveError> {
        let i = cx.members.local(pair.0).expect("the caller has looked it up");
        self.expect(pair, bytes, i)?;
        if let Some(Inbound::Coming { announced, asked, .. }) = self.inbound.get_mut(&pair) {
            *announced = true;
            self.coming += *asked;
            if *asked < bytes {
                self.queue.insert((*asked, distance(cx, pair), pair));
            }
            return Ok(());
        }
        self.inbound.insert(pair, Inbound::Announced { bytes });
        let absent = match &mut self.locals[i].presence {
            Presence::Absent { wanted } => {
                wanted.get_or_insert(cx.out.now);
                true
            }
            Presence::Called { .. } | Presence::Ended => false,
        };
        if !absent || self.standing {
            self.want(cx, pair);
        } else if self.open && self.stand_in_at.is_none() {
            self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after);
        }
        Ok(())
    }
}
