//! The conductor: the one thread that owns the machine, the fabric and the ranks, and sleeps when there is no work.
//!
//! One turn polls each source once: the fabric if it is ready, mailbox, submissions, timers, then the machine's output.
//! Each turn ends with one poll of all descriptors. The wake rule: before that poll the fabric is armed and the
//! sleeping flags are raised, and then the queues are checked again. The poll waits until the machine's next timer, or
//! not at all while work is left. So descriptors wait one turn at most, and an idle conductor takes no processor time.
//! Before sleeping the conductor may poll for a short time ([`adaptive_polling`]). Meanwhile the flags stay down, since
//! the conductor's own turns find the work of ranks and threads.
//!
//! | state | on | goes to |
//! |---|---|---|
//! | serving | the caller's stop | draining |
//! | serving | the last rank leaves, if the settings end the process then | ended |
//! | draining | no call in flight | ended: groups left, sockets removed |
//! | draining | its limit is over, a second stop | parting: calls in flight fail, rank memory is not accessed |
//! | parting | all ranks gone, [`PARTING_LIMIT`] over, another stop | ended |
//!
//! Every part of a turn is bounded: submissions, requests, reports, transmissions and their bytes. So attaching, the
//! death of a rank, requests for statistics and stops wait for one turn at most, under any load.
//!
//! Invariant: a channel is joined before the machine may announce the channel (`Join` precedes `poll_transmit`).

pub(crate) mod adaptive_polling;
mod arrivals;
pub(crate) mod lifetime;
pub(crate) mod offload;
pub(crate) mod processor;
pub(crate) mod send_queue;

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use outboard_fabric::limited;
use outboard_fabric::multicast::Datagram;
use outboard_fabric::{Armed, ConnectError};
use outboard_proto::wire::PayloadHash;
use outboard_proto::{Event, ReceivedDatagram};
use outboard_shm::attach::AttachChannel;
use outboard_shm::closer::REFUSAL_CLOSER;
use outboard_shm::status::Status;
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::conductor::adaptive_polling::AdaptivePolling;
use crate::conductor::arrivals::FabricArrivals;
use crate::conductor::lifetime::Lifetime;
use crate::conductor::offload::OffloadEngine;
use crate::conductor::processor::{Processor, TimeSlice};
use crate::conductor::send_queue::SendQueue;
use crate::datapath::mailbox::Mailbox;
use crate::datapath::{DatagramBatch, Datapath, DatapathReport, split};
use crate::driver::EndpointDriver;
use crate::poller::{Poller, Trigger, WakeToken};
use crate::ranks::Ranks;
use crate::ranks::attach::{HostProperties, MORE_DESCRIPTORS, RequestHandler};
use crate::rejection::send_error;
use crate::socket::NamedSocket;
use crate::telemetry::overdue;
use crate::telemetry::statistics::{Statistics, send_report};
use crate::telemetry::trace::TimelineFile;
use crate::telemetry::turns::{Stopwatch, TurnPart};

/// Datapath reports handled per turn.
const REPORTS: usize = 16;
/// Rounds of events and transmissions per turn.
const ROUNDS: usize = 3;
/// Connections accepted per wake-up.
const CONNECTIONS: usize = 64;
/// Time in which ranks may request the reason why their calls failed at the end of the process.
const PARTING_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for the farewell to other service processes.
const FAREWELL_LIMIT: Duration = Duration::from_millis(200);

pub(crate) struct Conductor {
    pub(crate) driver: EndpointDriver,
    pub(crate) send_queue: SendQueue,
    pub(crate) fabric_calls: bool,
    pub(crate) ranks: Ranks,
    pub(crate) host: HostProperties,
    pub(crate) poller: Poller,
    pub(crate) attach: NamedSocket,
    pub(crate) statistics_socket: Option<NamedSocket>,
    pub(crate) mailbox: Mailbox<DatapathReport>,
    pub(crate) datapath: Option<Datapath>,
    /// Carries out the collectives that the engine supports.
    pub(crate) offload: Option<OffloadEngine>,
    pub(crate) statistics: Statistics,
    pub(crate) trace: Option<TimelineFile>,
    pub(crate) lifetime: Lifetime,
    pub(crate) adaptive_polling: AdaptivePolling,
    pub(crate) processor: Processor,
    pub(crate) stopwatch: Stopwatch,
}

/// Outcome of one turn.
#[derive(Debug, Clone, Copy)]
struct TurnOutcome {
    /// The machine may have more output.
    unfinished: bool,
    /// A rank, another service process or a datapath thread had left work.
    found: bool,
    at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServicePhase {
    Serving,
    Draining { until: Instant },
    Parting { until: Instant },
    Ended,
}

impl Conductor {
    pub(crate) fn watch(&mut self, stop: BorrowedFd<'_>) -> Result<(), Errno> {
        self.poller.watch(stop, WakeToken::Stop, Trigger::Level)?;
        self.poller.watch(self.send_queue.fabric().event_fd(), WakeToken::Fabric, Trigger::Level)?;
        self.poller.watch(self.mailbox.bell(), WakeToken::Mailbox, Trigger::Level)?;
        self.poller.watch(&self.attach, WakeToken::Attach, Trigger::Level)?;
        if let Some(receives) = self.datapath.as_ref().and_then(Datapath::event_fd) {
            self.poller.watch(receives, WakeToken::Datapath, Trigger::Edge)?;
        }
        if let Some(offload) = &self.offload {
            self.poller.watch(offload.event_fd(), WakeToken::Engine, Trigger::Level)?;
        }
        if let Some(socket) = &self.statistics_socket {
            self.poller.watch(socket, WakeToken::Statistics, Trigger::Level)?;
        }
        Ok(())
    }

    /// Serves until `stopped`, which reads the stop descriptor, reports a stop. Fails if the kernel refuses to let the
    /// thread sleep.
    pub(crate) fn run(&mut self, mut stopped: impl FnMut() -> bool) -> Result<(), Errno> {
        let mut phase = ServicePhase::Serving;
        self.stopwatch = Stopwatch::start(Instant::now());
        while phase != ServicePhase::Ended {
            let turn = self.turn();
            // The phase changes after a turn, so a call posted before the stop is in flight by now.
            phase = self.next_phase(phase);
            if phase == ServicePhase::Ended || (phase == ServicePhase::Serving && !turn.unfinished && self.is_unused())
            {
                break;
            }
            for token in self.sleep(phase, turn)? {
                self.wake(token, &mut phase, &mut stopped);
                TurnPart::of(token).into_iter().for_each(|part| self.stopwatch.lap(part));
            }
        }
        self.farewell();
        tracing::info!(longest_turn = %self.stopwatch.lengths.longest, "ended");
        Ok(())
    }

    /// The next phase, from the calls and ranks that are left.
    fn next_phase(&mut self, phase: ServicePhase) -> ServicePhase {
        match phase {
            ServicePhase::Draining { .. } if self.ranks.calls_in_flight() == 0 => ServicePhase::Ended,
            ServicePhase::Draining { until } if Instant::now() >= until => self.begin_parting(),
            ServicePhase::Parting { until } if Instant::now() >= until || self.ranks.connections.is_empty() => {
                ServicePhase::Ended
            }
            ServicePhase::Serving
            | ServicePhase::Draining { .. }
            | ServicePhase::Parting { .. }
            | ServicePhase::Ended => phase,
        }
    }

    /// Fails the calls in flight; their ranks may request the reason.
    fn begin_parting(&mut self) -> ServicePhase {
        let failed = self.ranks.fail_calls_in_flight(&mut self.driver);
        tracing::warn!(failed, "calls in flight did not end in time");
        ServicePhase::Parting { until: Instant::now() + PARTING_LIMIT }
    }

    /// Whether no rank is connected and none is expected ([`Lifetime`]).
    fn is_unused(&mut self) -> bool {
        if !self.ranks.connections.is_empty() || !self.lifetime.over(self.ranks.attached_once) {
            return false;
        }
        // Connections that wait at the socket count.
        self.accept(ServicePhase::Serving);
        self.ranks.connections.is_empty()
    }

    fn turn(&mut self) -> TurnOutcome {
        let received_frames = std::mem::take(&mut self.fabric_calls) && self.progress_fabric();
        let now = Instant::now();
        self.stopwatch.lap_at(TurnPart::Fabric, now);
        if self.next_list_failure().is_some_and(|at| at <= now) {
            self.take_offloaded();
            self.stopwatch.lap(TurnPart::Reports);
        }
        let reported = self.take_reports(now);
        self.lap_if(reported, TurnPart::Reports);
        let submitted = self.ranks.take_submissions(&mut self.driver, self.trace.as_mut());
        self.lap_if(submitted, TurnPart::Submissions);
        let copied = self.driver.poll_rank_copies();
        self.lap_if(copied, TurnPart::RankCopies);
        let requests = !self.ranks.request_queue.is_empty();
        self.request_handler().resume_requests();
        self.lap_if(requests, TurnPart::Requests);
        // The stall is noted before the timers run: the timers would take a stall of this process for silence of its
        // peers.
        self.note_stall();
        let due = self.driver.timeout();
        self.lap_if(due, TurnPart::Timers);
        // Transmissions may end calls, and ended calls may cause transmissions.
        let unfinished = (0..ROUNDS).all(|_| self.run_round());
        self.offload.iter_mut().for_each(OffloadEngine::count_wake);
        self.trace.take_if(|trace| trace.is_over());
        let at = Instant::now();
        self.stopwatch.lap_at(TurnPart::Rest, at);
        let gone = self.ranks.check_memory(at, &self.poller, &mut self.driver);
        self.release_withdrawn_memory();
        self.stopwatch.lap(TurnPart::Memory);
        let unfinished = gone || unfinished || !self.ranks.request_queue.is_empty();
        TurnOutcome { unfinished, found: received_frames || reported || submitted || copied, at }
    }

    /// One round of events and transmissions; returns whether there were any.
    fn run_round(&mut self) -> bool {
        let happened = self.take_events();
        self.lap_if(happened, TurnPart::Events);
        let moved = self.send_queue.send_pending(&mut self.driver, self.datapath.as_mut(), self.trace.as_mut());
        self.lap_if(moved, TurnPart::Transmissions);
        happened | moved
    }

    /// Ends a part of the turn. A part without work does not read the clock.
    fn lap_if(&mut self, worked: bool, part: TurnPart) {
        if worked {
            self.stopwatch.lap(part);
        }
    }

    /// Notes a turn of at least `dead_after`, the silence after which peers count a service process as dead.
    fn note_stall(&mut self) {
        if let Some(turn) = self.stopwatch.stall(self.driver.machine().config().dead_after) {
            self.driver.report_stall(turn);
        }
    }

    fn request_handler(&mut self) -> RequestHandler<'_> {
        let Conductor { driver, ranks, host, poller, trace, .. } = self;
        RequestHandler { ranks, driver, poller, host, trace: trace.as_mut() }
    }

    /// Time at which a failed list of the engine is to be reported.
    fn next_list_failure(&self) -> Option<Instant> {
        self.offload.as_ref().and_then(OffloadEngine::due)
    }

    fn take_offloaded(&mut self) {
        let now = Instant::now();
        for (call, carried_out) in self.offload.iter_mut().flat_map(|offload| offload.take_ended(now)) {
            self.driver.offloaded(call, carried_out);
        }
    }

    /// Handles events of the fabric; returns whether there were any.
    fn progress_fabric(&mut self) -> bool {
        let Conductor { driver, send_queue, statistics, trace, .. } = self;
        let mut arrivals = FabricArrivals { driver, statistics, trace, lost: Vec::new() };
        let done = send_queue.fabric().progress_into(&mut arrivals);
        for (peer, why) in arrivals.lost {
            send_queue.forget(driver, peer);
            driver.lose_peer(peer, &why);
        }
        done > 0
    }

    /// Releases memory that was withdrawn from incoming payloads.
    fn release_withdrawn_memory(&mut self) {
        if self.driver.take_withdrawn() {
            let Conductor { driver, send_queue, statistics, trace, .. } = self;
            send_queue.fabric().recheck_placements(&mut FabricArrivals { driver, statistics, trace, lost: Vec::new() });
        }
    }

    /// Handles reports of the datapath; returns whether there were any.
    fn take_reports(&mut self, now: Instant) -> bool {
        for taken in 0..REPORTS {
            let own = || self.datapath.as_mut()?.report(now);
            let Some(report) = self.mailbox.take().or_else(own) else { return taken > 0 };
            let counts = &mut self.statistics.datapath;
            match report {
                DatapathReport::Sent { token, read, datagrams, bytes, failures } => {
                    counts.datagrams_sent += datagrams;
                    counts.bytes_sent += bytes;
                    counts.send_failures += failures;
                    self.driver.multicast_done(token, read);
                    if let Some(trace) = &mut self.trace {
                        trace.multicast_done(token);
                    }
                }
                DatapathReport::Received { receiver, batch, overflowed } => {
                    counts.overflowed += overflowed;
                    let headers: Vec<_> =
                        batch.datagrams().map(|(datagram, payload)| received(datagram, payload)).collect();
                    counts.datagrams_received += headers.len() as u64;
                    let chunks: Vec<_> = batch.datagrams().map(|(datagram, _)| split(datagram.bytes).1).collect();
                    let since = self.trace.as_ref().map(|_| TimelineFile::now());
                    self.driver.datagrams(&headers, &chunks);
                    if let (Some(trace), Some(since)) = (&mut self.trace, since) {
                        trace.did("receive multicast", since, json!({ "datagrams": headers.len() }));
                    }
                    self.give_back(receiver, batch);
                }
                DatapathReport::Failed { receiver, batch, error } => {
                    counts.receive_failures += 1;
                    limited!(warn, receiver, %error, "multicast cannot be received; unicast repairs it until it can");
                    self.give_back(receiver, batch);
                }
                DatapathReport::Gone { receiver } => {
                    counts.receivers_gone += 1;
                    tracing::error!(receiver, "a multicast receiver is gone; unicast repairs all until a restart");
                }
            }
        }
        true
    }

    fn give_back(&mut self, receiver: usize, batch: DatagramBatch) {
        if let Some(datapath) = &mut self.datapath {
            datapath.give_back(receiver, batch);
        }
    }

    fn take_events(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.driver.poll_event() {
            worked = true;
            match event {
                Event::Connect { peer, address } => {
                    if let Err(error) = self.send_queue.connect(peer, &address) {
                        limited!(warn, %peer, %error, "a service process cannot be reached");
                        match &error {
                            ConnectError::Transport { why, .. } => self.driver.lose_peer(peer, why),
                            _ => self.driver.report_peer_lost(peer),
                        }
                    }
                }
                Event::Disconnect { peer } => self.send_queue.disconnect(&mut self.driver, peer),
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
                    let config = self.driver.machine().config();
                    if let Some(id) = self.ranks.group_ready(group, rank, result, config) {
                        self.ranks.remove(id, &self.poller, &mut self.driver);
                    }
                }
                Event::Offload(offload) => {
                    let call = offload.of;
                    let driver = self.offload.as_mut().expect("asked for where there is one");
                    if !driver.begin(*offload, |memory| self.driver.resident(memory)) {
                        self.driver.offloaded(call, false);
                    }
                }
                Event::Completed { call, result } => {
                    let failed = result.is_err();
                    if let (true, Some(offload)) = (failed, &mut self.offload) {
                        offload.withdraw(call);
                    }
                    if let Some(ended) = self.ranks.completed(call, result, &mut self.driver) {
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

    /// Applies the wake rule; returns the tokens of the wake-up. Does not wait if work is unfinished or if polling is
    /// worthwhile.
    fn sleep(&mut self, phase: ServicePhase, turn: TurnOutcome) -> Result<Vec<WakeToken>, Errno> {
        let attached = self.ranks.attached().next().is_some();
        let polls = self.adaptive_polling.continues(turn.at, turn.found, attached, || self.processor.delay());
        self.processor.request_time_slice(if polls { TimeSlice::Usual } else { TimeSlice::Short });
        if polls && !turn.found {
            // Yields the processor to another ready thread before the next poll.
            std::thread::yield_now();
        }
        self.fabric_calls = self.send_queue.fabric().arm() == Armed::Busy;
        let busy = turn.unfinished || polls || self.fabric_calls;
        let sleeps = !busy && self.mailbox.prepare_sleep() && self.ranks.prepare_sleep();
        // The check follows the raising of the flags, so no report is missed.
        let limit = match sleeps && !self.driver.deferred_ops().has_reports() {
            true => self.limit(phase, turn.at),
            false => Some(Duration::ZERO),
        };
        self.statistics.datapath.sleeps += u64::from(limit != Some(Duration::ZERO));
        let since = self.trace.as_ref().filter(|_| limit != Some(Duration::ZERO)).map(|_| TimelineFile::now());
        self.offload.iter_mut().filter(|_| limit != Some(Duration::ZERO)).for_each(OffloadEngine::note_sleep);
        let slept = Instant::now();
        self.stopwatch.lap_at(TurnPart::Rest, slept);
        self.note_stall();
        self.stopwatch.end();
        let note_readable = self.poller.sleep(limit);
        let now = Instant::now();
        let late = limit.map_or(Duration::ZERO, |limit| (now - slept).saturating_sub(limit));
        self.stopwatch.begin(now, late);
        if let (Some(trace), Some(since)) = (&mut self.trace, since) {
            trace.did("wait", since, Value::Null);
        }
        self.mailbox.stay_awake();
        self.ranks.stay_awake();
        note_readable
    }

    fn limit(&self, phase: ServicePhase, now: Instant) -> Option<Duration> {
        let timer = self.driver.next_call(self.send_queue.has_room()).map(|at| at.since(self.driver.now()));
        let due = [self.datapath.as_ref().and_then(|datapath| datapath.due(now)), self.next_list_failure()];
        let due = due.into_iter().flatten().map(|at| at.saturating_duration_since(now));
        let timer = timer.into_iter().chain(self.driver.deferred_ops().timer()).chain(due).min();
        match phase {
            ServicePhase::Draining { until } | ServicePhase::Parting { until } => {
                let drain = until.saturating_duration_since(Instant::now());
                Some(timer.map_or(drain, |timer| timer.min(drain)))
            }
            ServicePhase::Serving => {
                let due = self.ranks.due().map(|at| at.saturating_duration_since(now));
                let others = [self.lifetime.limit(self.ranks.attached_once), due];
                timer.into_iter().chain(others.into_iter().flatten()).min()
            }
            ServicePhase::Ended => timer,
        }
    }

    fn wake(&mut self, token: WakeToken, phase: &mut ServicePhase, stopped: &mut impl FnMut() -> bool) {
        match token {
            WakeToken::Fabric => self.fabric_calls = true,
            // The next turn polls the rings.
            WakeToken::Doorbell(_) => {}
            WakeToken::Mailbox => self.mailbox.clear_bell(),
            WakeToken::Datapath => self.datapath.iter_mut().for_each(Datapath::note_readable),
            WakeToken::Engine => self.take_offloaded(),
            WakeToken::Stop => {
                if stopped() {
                    *phase = match *phase {
                        ServicePhase::Serving => {
                            ServicePhase::Draining { until: Instant::now() + self.host.settings.drain }
                        }
                        ServicePhase::Draining { .. } if self.ranks.calls_in_flight() > 0 => self.begin_parting(),
                        ServicePhase::Draining { .. } | ServicePhase::Parting { .. } | ServicePhase::Ended => {
                            ServicePhase::Ended
                        }
                    };
                    tracing::info!(calls = self.ranks.calls_in_flight(), "told to end");
                }
            }
            WakeToken::Attach => self.accept(*phase),
            WakeToken::Statistics => self.report(),
            WakeToken::Channel(id) => self.request_handler().serve_connection(id),
            WakeToken::Process(id) => self.ranks.remove(id, &self.poller, &mut self.driver),
        }
    }

    fn accept(&mut self, phase: ServicePhase) {
        for _ in 0..CONNECTIONS {
            match self.attach.accept() {
                Ok(None) => return,
                Ok(Some(connection)) => {
                    let channel = AttachChannel::from(connection);
                    if phase == ServicePhase::Serving {
                        if let Err(errno) = self.ranks.accept_connection(channel, &self.poller) {
                            limited!(warn, %errno, "cannot watch a new connection");
                        }
                        continue;
                    }
                    self.ranks.refused += 1;
                    let why = "the service process of this host was told to end and takes no more ranks; attach when \
                               it is back";
                    send_error(&channel, Status::NoService, why.to_owned());
                }
                Err(errno) => {
                    limited!(error, %errno, "a rank is turned away; raise the limit on descriptors");
                    self.ranks.refused += 1;
                    return self
                        .attach
                        .turn_away(|connection| REFUSAL_CLOSER.submit(move || reject_rank(connection.into(), errno)));
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
        let present = self.ranks.rank_counts(&self.host.topology);
        self.statistics.datapath.frames_sent = self.send_queue.frames_sent;
        self.statistics.datapath.refused = self.ranks.refused;
        self.statistics.datapath.connections_refused = self.send_queue.fabric().refused();
        self.statistics.datapath.looks = self.adaptive_polling.looks;
        self.statistics.datapath.copies = self.driver.copies();
        self.statistics.datapath.offloaded = self.offload.as_ref().map(|offload| offload.counts).unwrap_or_default();
        self.statistics.datapath.bytes_landed = self.driver.bytes_landed();
        self.statistics.turns = self.stopwatch.lengths;
        let seat = |group, rank| Some(self.ranks.seat(group, rank)?.to_string());
        let (machine, in_flight) = (self.driver.machine(), self.driver.in_flight());
        let report =
            self.statistics.report(machine.id(), machine.peers(), &machine.counters(), present, in_flight, &seat);
        send_report(&connection, &report);
    }

    /// Leaves all groups and notifies the other service processes, within bounds.
    fn farewell(&mut self) {
        let connections: Vec<_> = self.ranks.connections.keys().copied().collect();
        for id in connections {
            self.ranks.remove(id, &self.poller, &mut self.driver);
        }
        let until = Instant::now() + FAREWELL_LIMIT;
        loop {
            self.fabric_calls = true;
            if !self.turn().unfinished && self.send_queue.is_empty() {
                return;
            }
            if Instant::now() >= until {
                tracing::info!("other service processes did not take the farewell in time");
                return;
            }
        }
    }
}

fn reject_rank(channel: AttachChannel, errno: Errno) {
    let text = format!("the service process of this host cannot take another rank: {errno}{MORE_DESCRIPTORS}");
    send_error(&channel, Status::Resource, text);
}

fn received(datagram: Datagram<'_>, payload: PayloadHash) -> ReceivedDatagram<'_> {
    let (header, bytes) = split(datagram.bytes);
    let payload_len = u32::try_from(bytes.len()).expect("datagrams have at most 64 KiB");
    ReceivedDatagram { header, payload_len, payload, from: datagram.from }
}
