//! The conductor: the one thread that owns the machine, the fabric and the ranks, and sleeps when there is no work.
//!
//! One turn polls each source once: the fabric if it is ready, mailbox, submissions, timers, then the machine's output.
//! Each turn ends with one poll of all descriptors. The wake rule: before that poll the fabric is armed and the
//! sleeping flags are raised, after which the queues are checked again. The poll lasts until the machine's next timer;
//! with work left it does not wait. So descriptors wait one turn at most, and an idle conductor takes no processor
//! time. Before it sleeps the conductor may poll for a moment ([`looking`]). Meanwhile the flags stay down, since the
//! conductor's own turns find what ranks and threads leave.
//!
//! | state | on | goes to |
//! |---|---|---|
//! | serving | the caller's stop | draining |
//! | serving | the last rank's leaving, if the settings ask for it | ended |
//! | draining | no call in flight | ended: groups left, sockets removed |
//! | draining | its limit is over, a second stop | parting: calls in flight fail, no rank's memory is touched |
//! | parting | all ranks gone, [`LAST_WORDS`] over, another stop | ended |
//!
//! Every part of a turn is bounded: submissions, requests, reports, transmissions and their bytes. So attaching, the
//! death of a rank, requests for statistics and stops wait for one turn at most, under any load.
//!
//! Invariant: a channel is joined before the machine may announce it (Join before `poll_transmit`).

mod arrivals;
pub(crate) mod engine;
pub(crate) mod lifetime;
pub(crate) mod looking;
pub(crate) mod offload;
pub(crate) mod outbox;
pub(crate) mod poller;
pub(crate) mod processor;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_fabric::multicast::Datagram;
use outboard_fabric::{Armed, ConnectError};
use outboard_proto::wire::PayloadHash;
use outboard_proto::{Event, ReceivedDatagram};
use outboard_shm::attach::{AttachChannel, AttachReply};
use outboard_shm::closer::REFUSAL_CLOSER;
use outboard_shm::status::Status;
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::conductor::arrivals::Arrivals;
use crate::conductor::engine::Engine;
use crate::conductor::lifetime::Lifetime;
use crate::conductor::looking::Looking;
use crate::conductor::offload::Offload;
use crate::conductor::outbox::Outbox;
use crate::conductor::poller::{Poller, Token, Trigger};
use crate::conductor::processor::{Processor, Turns};
use crate::datapath::mailbox::Mailbox;
use crate::datapath::{Batch, Datapath, Report, split};
use crate::ranks::Ranks;
use crate::ranks::attach::{Desk, Host, MORE_DESCRIPTORS};
use crate::socket::NamedSocket;
use crate::telemetry::overdue;
use crate::telemetry::statistics::{Statistics, answer};
use crate::telemetry::trace::Trace;
use crate::telemetry::turns::{Part, Stopwatch};

/// Datapath reports handled per turn.
const REPORTS: usize = 16;
/// Rounds of events and transmissions per turn.
const ANSWERS: usize = 3;
/// Connections accepted per wake-up.
const CONNECTIONS: usize = 64;
/// Time in which ranks may request why their calls failed at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Limit of the farewell to other service processes.
const FAREWELL: Duration = Duration::from_millis(200);

pub(crate) struct Conductor {
    pub(crate) engine: Engine,
    pub(crate) outbox: Outbox,
    pub(crate) fabric_calls: bool,
    pub(crate) ranks: Ranks,
    pub(crate) host: Host,
    pub(crate) poller: Poller,
    pub(crate) attach: NamedSocket,
    pub(crate) statistics_socket: Option<NamedSocket>,
    pub(crate) mailbox: Mailbox<Report>,
    pub(crate) datapath: Option<Datapath>,
    /// Carries out the collectives that it supports.
    pub(crate) offload: Option<Offload>,
    pub(crate) statistics: Statistics,
    pub(crate) trace: Option<Trace>,
    pub(crate) lifetime: Lifetime,
    pub(crate) looking: Looking,
    pub(crate) processor: Processor,
    pub(crate) stopwatch: Stopwatch,
}

/// Outcome of one turn.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// The machine may have more output.
    unfinished: bool,
    /// A rank, another service process or a datapath thread had left work.
    found: bool,
    at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining { until: Instant },
    Parting { until: Instant },
    Ended,
}

impl Conductor {
    pub(crate) fn watch(&mut self, stop: BorrowedFd<'_>) -> Result<(), Errno> {
        self.poller.watch(stop, Token::Stop, Trigger::Level)?;
        self.poller.watch(self.outbox.fabric().event_fd(), Token::Fabric, Trigger::Level)?;
        self.poller.watch(self.mailbox.bell(), Token::Mailbox, Trigger::Level)?;
        self.poller.watch(&self.attach, Token::Attach, Trigger::Level)?;
        if let Some(receives) = self.datapath.as_ref().and_then(Datapath::event_fd) {
            self.poller.watch(receives, Token::Datapath, Trigger::Edge)?;
        }
        if let Some(offload) = &self.offload {
            self.poller.watch(offload.event_fd(), Token::Engine, Trigger::Level)?;
        }
        if let Some(socket) = &self.statistics_socket {
            self.poller.watch(socket, Token::Statistics, Trigger::Level)?;
        }
        Ok(())
    }

    /// Serves until `stopped` reports a stop; `stopped` reads the stop descriptor. Fails if the kernel refuses the
    /// sleep.
    pub(crate) fn run(&mut self, mut stopped: impl FnMut() -> bool) -> Result<(), Errno> {
        let mut phase = Phase::Serving;
        self.stopwatch = Stopwatch::start(Instant::now());
        while phase != Phase::Ended {
            let turn = self.turn();
            // This follows a turn, so a call posted before the stop is in flight by now.
            phase = self.drained(phase);
            if phase == Phase::Ended || (phase == Phase::Serving && !turn.unfinished && self.unused()) {
                break;
            }
            for token in self.sleep(phase, turn)? {
                self.wake(token, &mut phase, &mut stopped);
                Part::of(token).into_iter().for_each(|part| self.stopwatch.lap(part));
            }
        }
        self.farewell();
        tracing::info!(longest_turn = %self.stopwatch.lengths.longest, "ended");
        Ok(())
    }

    /// The next phase, from the calls and ranks that are left.
    fn drained(&mut self, phase: Phase) -> Phase {
        match phase {
            Phase::Draining { .. } if self.ranks.calls_in_flight() == 0 => Phase::Ended,
            Phase::Draining { until } if Instant::now() >= until => self.part(),
            Phase::Parting { until } if Instant::now() >= until || self.ranks.connections.is_empty() => Phase::Ended,
            Phase::Serving | Phase::Draining { .. } | Phase::Parting { .. } | Phase::Ended => phase,
        }
    }

    /// Gives up the calls in flight; their ranks may request the reason.
    fn part(&mut self) -> Phase {
        let failed = self.ranks.give_up(&mut self.engine);
        tracing::warn!(failed, "calls in flight did not end in time");
        Phase::Parting { until: Instant::now() + LAST_WORDS }
    }

    /// Whether no rank is connected and none is expected ([`Lifetime`]).
    fn unused(&mut self) -> bool {
        if !self.ranks.connections.is_empty() || !self.lifetime.over(self.ranks.attached_once) {
            return false;
        }
        // Connections that wait at the socket count.
        self.accept(Phase::Serving);
        self.ranks.connections.is_empty()
    }

    fn turn(&mut self) -> Turn {
        let heard = std::mem::take(&mut self.fabric_calls) && self.progress_fabric();
        let now = Instant::now();
        self.stopwatch.lap_at(Part::Fabric, now);
        if self.given_up().is_some_and(|at| at <= now) {
            self.take_offloaded();
            self.stopwatch.lap(Part::Reports);
        }
        let reported = self.take_reports(now);
        self.lap_if(reported, Part::Reports);
        let asked = self.ranks.take_submissions(&mut self.engine, self.trace.as_mut());
        self.lap_if(asked, Part::Submissions);
        let copied = self.engine.attend_errands();
        self.lap_if(copied, Part::RankCopies);
        let requests = !self.ranks.waiting.is_empty();
        self.desk().go_on();
        self.lap_if(requests, Part::Requests);
        // Stalls come before the timers, which would count a stall of this process as silence of its peers.
        self.note_stall();
        let due = self.engine.timeout();
        self.lap_if(due, Part::Timers);
        // Transmissions may end calls, and ended calls may cause transmissions.
        let unfinished = (0..ANSWERS).all(|_| self.answer());
        self.offload.iter_mut().for_each(Offload::count_wake);
        self.trace.take_if(|trace| trace.is_over());
        let at = Instant::now();
        self.stopwatch.lap_at(Part::Rest, at);
        let gone = self.ranks.mind_memory(at, &self.poller, &mut self.engine);
        self.review_landings();
        self.stopwatch.lap(Part::Memory);
        let unfinished = gone || unfinished || !self.ranks.waiting.is_empty();
        Turn { unfinished, found: heard || reported || asked || copied, at }
    }

    /// One round of events and transmissions; returns whether there were any.
    fn answer(&mut self) -> bool {
        let happened = self.take_events();
        self.lap_if(happened, Part::Events);
        let moved = self.outbox.pump(&mut self.engine, self.datapath.as_mut(), self.trace.as_mut());
        self.lap_if(moved, Part::Transmissions);
        happened | moved
    }

    /// Ends a part of the turn. A part without work does not read the clock.
    fn lap_if(&mut self, worked: bool, part: Part) {
        if worked {
            self.stopwatch.lap(part);
        }
    }

    /// Notes a turn as long as `dead_after`: peers count a service process as dead after that long without a sign of
    /// life.
    fn note_stall(&mut self) {
        if let Some(turn) = self.stopwatch.stall(self.engine.machine().config().dead_after) {
            self.engine.stalled(turn);
        }
    }

    fn desk(&mut self) -> Desk<'_> {
        let Conductor { engine, ranks, host, poller, trace, .. } = self;
        Desk { ranks, engine, poller, host, trace: trace.as_mut() }
    }

    /// Time at which a list that the engine has given up is reported.
    fn given_up(&self) -> Option<Instant> {
        self.offload.as_ref().and_then(Offload::due)
    }

    fn take_offloaded(&mut self) {
        let now = Instant::now();
        for (place, carried_out) in self.offload.iter_mut().flat_map(|offload| offload.take_ended(now)) {
            self.engine.offloaded(place, carried_out);
        }
    }

    /// Returns whether the fabric had anything.
    fn progress_fabric(&mut self) -> bool {
        let Conductor { engine, outbox, statistics, trace, .. } = self;
        let mut arrivals = Arrivals { engine, statistics, trace, lost: Vec::new() };
        let done = outbox.fabric().progress_into(&mut arrivals);
        for (peer, why) in arrivals.lost {
            outbox.forget(engine, peer);
            engine.lose(peer, &why);
        }
        done > 0
    }

    /// Releases memory that was withdrawn.
    fn review_landings(&mut self) {
        if self.engine.take_withdrawn() {
            let Conductor { engine, outbox, statistics, trace, .. } = self;
            outbox.fabric().recheck_placements(&mut Arrivals { engine, statistics, trace, lost: Vec::new() });
        }
    }

    /// Returns whether the datapath had anything.
    fn take_reports(&mut self, now: Instant) -> bool {
        for taken in 0..REPORTS {
            let own = || self.datapath.as_mut()?.report(now);
            let Some(report) = self.mailbox.take().or_else(own) else { return taken > 0 };
            let counts = &mut self.statistics.datapath;
            match report {
                Report::Sent { token, read, datagrams, bytes, failures } => {
                    counts.datagrams_sent += datagrams;
                    counts.bytes_sent += bytes;
                    counts.send_failures += failures;
                    self.engine.multicast_done(token, read);
                    if let Some(trace) = &mut self.trace {
                        trace.multicast_done(token);
                    }
                }
                Report::Received { receiver, batch, overflowed } => {
                    counts.overflowed += overflowed;
                    let headers: Vec<_> = batch.datagrams().map(received).collect();
                    counts.datagrams_received += headers.len() as u64;
                    let chunks: Vec<_> = batch.datagrams().map(|(datagram, _)| split(datagram.bytes).1).collect();
                    let since = self.trace.as_ref().map(|_| Trace::now());
                    self.engine.datagrams(&headers, &chunks);
                    if let (Some(trace), Some(since)) = (&mut self.trace, since) {
                        trace.did("receive multicast", since, json!({ "datagrams": headers.len() }));
                    }
                    self.give_back(receiver, batch);
                }
                Report::Failed { receiver, batch, error } => {
                    counts.receive_failures += 1;
                    limited!(warn, receiver, %error, "multicast cannot be received; unicast repairs it until it can");
                    self.give_back(receiver, batch);
                }
                Report::Gone { receiver } => {
                    counts.receivers_gone += 1;
                    tracing::error!(receiver, "a multicast receiver is gone; unicast repairs all until a restart");
                }
            }
        }
        true
    }

    fn give_back(&mut self, receiver: usize, batch: Batch) {
        if let Some(datapath) = &mut self.datapath {
            datapath.give_back(receiver, batch);
        }
    }

    fn take_events(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.engine.poll_event() {
            worked = true;
            match event {
                Event::Connect { peer, address } => {
                    if let Err(error) = self.outbox.connect(peer, &address) {
                        limited!(warn, %peer, %error, "a service process cannot be reached");
                        match &error {
                            ConnectError::Transport { why, .. } => self.engine.lose(peer, why),
                            _ => self.engine.peer_lost(peer),
                        }
                    }
                }
                Event::Disconnect { peer } => self.outbox.disconnect(&mut self.engine, peer),
                Event::Join { channel, group, key } => {
                    if let Some(Err(error)) = self.datapath.as_mut().map(|datapath| datapath.join(channel, group, key))
                    {
                        limited!(warn, %error, "a multicast address cannot be joined; unicast repairs all of it");
                    }
                }
                Event::Leave { channel, group } => {
                    if let Some(Err(error)) = self.datapath.as_mut().map(|datapath| datapath.leave(channel, group)) {
                        limited!(warn, %error, "a multicast address cannot be left");
                    }
                }
                Event::GroupReady { group, rank, result } => {
                    let config = self.engine.machine().config();
                    if let Some(id) = self.ranks.group_ready(group, rank, result, config) {
                        self.ranks.remove(id, &self.poller, &mut self.engine);
                    }
                }
                Event::Offload(offload) => {
                    let place = (offload.group, offload.instance, offload.call);
                    let engine = self.offload.as_mut().expect("asked for where there is one");
                    if !engine.begin(*offload, |memory| self.engine.resident(memory)) {
                        self.engine.offloaded(place, false);
                    }
                }
                Event::Completed { call, result } => {
                    let failed = result.is_err();
                    if let (true, Some(offload)) = (failed, &mut self.offload) {
                        offload.withdraw(call);
                    }
                    if let Some(ended) = self.ranks.completed(call, result, &mut self.engine) {
                        self.statistics.ended(&ended, failed);
                        if let Some(trace) = &mut self.trace {
                            trace.ended(call, ended.place, ended.kind.name(), failed);
                        }
                    }
                }
                Event::Late { group, rank, instance, kind, by_ns } => {
                    tracing::debug!(%group, %rank, instance = instance.0, by_ns, "a rank called late");
                    self.statistics.late(group, rank, kind, by_ns);
                }
                Event::Milestone { group, instance, step } => {
                    if let Some(trace) = &mut self.trace {
                        trace.step(group, instance, step);
                    }
                }
                Event::Overdue(overdue) => overdue::warn(&overdue),
                Event::Violation { peer, what } => tracing::debug!(?peer, what, "refused"),
            }
        }
        worked
    }

    /// Applies the wake rule; returns the tokens of the wake-up. Does not wait if work is unfinished or polling pays
    /// off.
    fn sleep(&mut self, phase: Phase, turn: Turn) -> Result<Vec<Token>, Errno> {
        let attached = self.ranks.attached().next().is_some();
        let looks = self.looking.goes_on(turn.at, (turn.found, attached), || self.processor.delay());
        self.processor.take_turns(if looks { Turns::Usual } else { Turns::Short });
        if looks && !turn.found {
            // Another thread that is ready gets this processor before the next poll.
            std::thread::yield_now();
        }
        self.fabric_calls = self.outbox.fabric().arm() == Armed::Busy;
        let busy = turn.unfinished || looks || self.fabric_calls;
        let sleeps = !busy && self.mailbox.prepare_sleep() && self.ranks.prepare_sleep();
        // This check follows the raising of the flags.
        let limit = match sleeps && !self.engine.backlog().has_news() {
            true => self.limit(phase, turn.at),
            false => Some(Duration::ZERO),
        };
        self.statistics.datapath.sleeps += u64::from(limit != Some(Duration::ZERO));
        let since = self.trace.as_ref().filter(|_| limit != Some(Duration::ZERO)).map(|_| Trace::now());
        self.offload.iter_mut().filter(|_| limit != Some(Duration::ZERO)).for_each(Offload::note_sleep);
        let slept = Instant::now();
        self.stopwatch.lap_at(Part::Rest, slept);
        self.note_stall();
        self.stopwatch.end();
        let woken = self.poller.sleep(limit);
        let now = Instant::now();
        let late = limit.map_or(Duration::ZERO, |limit| (now - slept).saturating_sub(limit));
        self.stopwatch.begin(now, late);
        if let (Some(trace), Some(since)) = (&mut self.trace, since) {
            trace.did("wait", since, Value::Null);
        }
        self.mailbox.stay_awake();
        self.ranks.stay_awake();
        woken
    }

    fn limit(&self, phase: Phase, now: Instant) -> Option<Duration> {
        let timer = self.engine.next_call(self.outbox.has_room()).map(|at| at.since(self.engine.now()));
        let due = [self.datapath.as_ref().and_then(|datapath| datapath.due(now)), self.given_up()];
        let due = due.into_iter().flatten().map(|at| at.saturating_duration_since(now));
        let timer = timer.into_iter().chain(self.engine.backlog().timer()).chain(due).min();
        match phase {
            Phase::Draining { until } | Phase::Parting { until } => {
                let drain = until.saturating_duration_since(Instant::now());
                Some(timer.map_or(drain, |timer| timer.min(drain)))
            }
            Phase::Serving => {
                let due = self.ranks.due().map(|at| at.saturating_duration_since(now));
                let others = [self.lifetime.limit(self.ranks.attached_once), due];
                timer.into_iter().chain(others.into_iter().flatten()).min()
            }
            Phase::Ended => timer,
        }
    }

    fn wake(&mut self, token: Token, phase: &mut Phase, stopped: &mut impl FnMut() -> bool) {
        match token {
            Token::Fabric => self.fabric_calls = true,
            // The next turn polls the rings.
            Token::Doorbell(_) => {}
            Token::Mailbox => self.mailbox.silence(),
            Token::Datapath => self.datapath.iter_mut().for_each(Datapath::woken),
            Token::Engine => self.take_offloaded(),
            Token::Stop => {
                if stopped() {
                    *phase = match *phase {
                        Phase::Serving => Phase::Draining {
                            until: Instant::now() + Duration::from_secs(self.host.settings.drain.into()),
                        },
                        Phase::Draining { .. } if self.ranks.calls_in_flight() > 0 => self.part(),
                        Phase::Draining { .. } | Phase::Parting { .. } | Phase::Ended => Phase::Ended,
                    };
                    tracing::info!(calls = self.ranks.calls_in_flight(), "told to end");
                }
            }
            Token::Attach => self.accept(*phase),
            Token::Statistics => self.report(),
            Token::Channel(id) => self.desk().serve(id),
            Token::Process(id) => self.ranks.remove(id, &self.poller, &mut self.engine),
        }
    }

    fn accept(&mut self, phase: Phase) {
        for _ in 0..CONNECTIONS {
            match self.attach.accept() {
                Ok(None) => return,
                Ok(Some(connection)) => {
                    let channel = AttachChannel::from(connection);
                    if phase == Phase::Serving {
                        if let Err(errno) = self.ranks.greet(channel, &self.poller) {
                            limited!(warn, %errno, "cannot watch a new connection");
                        }
                        continue;
                    }
                    self.ranks.refused += 1;
                    let why = "the service process of this host was told to end and takes no more ranks; attach when \
                               it is back";
                    tell(&channel, Status::NoService, why.to_owned());
                }
                Err(errno) => {
                    limited!(error, %errno, "a rank is turned away; raise the limit on descriptors");
                    self.ranks.refused += 1;
                    return self
                        .attach
                        .turn_away(|connection| REFUSAL_CLOSER.submit(move || refuse(connection.into(), errno)));
                }
            }
        }
    }

    fn report(&mut self) {
        let Some(socket) = &mut self.statistics_socket else { return };
        let connection = match socket.accept() {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(errno) => {
                limited!(warn, %errno, "cannot answer for statistics");
                return socket.turn_away(drop);
            }
        };
        let present = self.ranks.present(&self.host.topology);
        self.statistics.datapath.frames_sent = self.outbox.frames_sent;
        self.statistics.datapath.refused = self.ranks.refused;
        self.statistics.datapath.connections_refused = self.outbox.fabric().refused();
        self.statistics.datapath.looks = self.looking.looks;
        self.statistics.datapath.copies = self.engine.copies();
        self.statistics.datapath.offloaded = self.offload.as_ref().map(|offload| offload.counts).unwrap_or_default();
        self.statistics.datapath.bytes_landed = self.engine.bytes_landed();
        self.statistics.turns = self.stopwatch.lengths;
        let seat = |group, rank| Some(self.ranks.seat(group, rank)?.to_string());
        let (machine, in_flight) = (self.engine.machine(), self.engine.in_flight());
        let report =
            self.statistics.report((machine.id(), machine.peers()), &machine.counters(), present, in_flight, &seat);
        answer(&connection, &report);
    }

    /// Leaves all groups and notifies the other service processes, within bounds.
    fn farewell(&mut self) {
        let connections: Vec<_> = self.ranks.connections.keys().copied().collect();
        for id in connections {
            self.ranks.remove(id, &self.poller, &mut self.engine);
        }
        let until = Instant::now() + FAREWELL;
        loop {
            self.fabric_calls = true;
            if !self.turn().unfinished && self.outbox.is_empty() {
                return;
            }
            if Instant::now() >= until {
                tracing::info!("other service processes did not take the farewell in time");
                return;
            }
        }
    }
}

fn refuse(channel: AttachChannel, errno: Errno) {
    let text = format!("the service process of this host cannot take another rank: {errno}{MORE_DESCRIPTORS}");
    tell(&channel, Status::Resource, text);
}

pub fn tell(channel: &AttachChannel, status: Status, text: String) {
    if let Err(error) = channel.send(0, &AttachReply::Error { status, text }, &[]) {
        tracing::debug!(%error, "a process does not hear why it is turned away");
    }
}

/// Reports to a process of another user why it cannot attach. A thread beside this one sends the reply: before it, the
/// kernel wakes all waiters at the other end, and there may be millions.
pub fn dismiss(channel: AttachChannel, text: String) {
    REFUSAL_CLOSER.submit(move || tell(&channel, Status::NoService, text));
}

fn received((Datagram { from, bytes }, payload): (Datagram<'_>, PayloadHash)) -> ReceivedDatagram<'_> {
    let (header, bytes) = split(bytes);
    let payload_len = u32::try_from(bytes.len()).expect("datagrams have at most 64 KiB");
    ReceivedDatagram { header, payload_len, payload, from }
}
