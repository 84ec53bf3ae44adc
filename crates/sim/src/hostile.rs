//! Hostile bytes from the network against service processes that also serve sound ranks: what a fuzzer plays.
//!
//! Service processes 0 and 1 are sound. Service process 2 is a member of the second group. It runs the real machine, so
//! that the protocol gets deep, but the script overwrites bytes of what 2 sends and sends spoiled messages beside.
//! Service process 3 is a stranger: a member of nothing, whose frames the script alone writes. Datagrams may be forged
//! with either group's key.
//!
//! The play demands: nothing panics; references to memory stay within what was handed over; queues and staging keep
//! their bounds; the traffic of one script ends; every call of a sound rank is answered once, in time. In the first
//! group, in which neither 2 nor 3 is, calls succeed, with the right bytes unless datagrams were forged. What the
//! second group's calls come to is not judged: a member that lies harms its own job.
//!
//! Invariant: every string of bytes is a script, and decides everything.

mod forge;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use outboard_plan::{Element, Operator, Rank, Reduction};
use outboard_proto::wire::{DatagramHeader, FrameHeader, FrameKind, MulticastKey, PayloadHash};
use outboard_proto::{CallId, Channel, Config, GroupSpec, InstanceId, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::breach::Breach;
use crate::cluster::{Cluster, ClusterPlan, Player, address_of, group_number, group_spec, handle, sp_id};
use crate::coverage::{Coverage, FaultKind};
use crate::faults::Faults;
use crate::host::{Action, Input};
use crate::network::{Frame, NetworkPlan, Train};
use crate::oracle::CallName;
use crate::pattern::Pattern;
use crate::scenario::CallPlan;
use crate::store::{Payload, StoreKind};
use crate::tape::Tape;

/// The hosts of the ranks of both groups: the first has sound ones alone.
const GROUPS: [&[usize]; 2] = [&[0, 1, 0], &[0, 1, 2, 0]];
const BROKEN: usize = 2;
const STRANGER: usize = 3;
/// Messages of 2, or for it, that are remembered to be spoiled.
const MOST_SEEN: usize = 64;
const CHUNK: u32 = 1000;
const STAGING: u64 = 64 << 10;
/// More than the calls of one play need, so that none fails for what the other group holds.
const SCRATCH: u64 = 64 << 20;
/// Groups, instances in the windows of both, and messages on the links of one service process.
const MOST_LOAD: (usize, usize, usize) = (2, 2 * 1024, 16_384);
/// A rank that may go on for ever says little more than one that stops.
const MOST_CALLS: usize = 600;
/// Bytes of the longest script by seed behind the making of its groups.
const LONGEST: usize = 600;
/// By then a silent service process has been declared dead and everything that needs it has failed.
const LONG: Duration = Duration::from_secs(30);

/// The acts of a script.
pub mod acts {
    #![allow(missing_docs, reason = "the names are the documentation")]
    pub const CALL: u8 = 0;
    pub const WAIT: u8 = 1;
    pub const ASK: u8 = 2;
    pub const MESSAGE: u8 = 3;
    pub const FRAME: u8 = 4;
    pub const BYTES: u8 = 5;
    pub const DATAGRAM: u8 = 6;
    pub const RAW_DATAGRAM: u8 = 7;
    pub const TAMPER: u8 = 8;
    pub const LEAVE: u8 = 9;
    pub const LOSE: u8 = 10;
    pub const END: u8 = 11;
}

#[derive(Debug)]
struct Group {
    spec: Rc<GroupSpec>,
    calls: Vec<CallPlan>,
    ranks: Vec<Seat>,
}

/// A rank of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    asked: bool,
    made: bool,
    left: bool,
    calls: usize,
}

/// A script that is being played.
#[derive(Debug)]
struct Play {
    cluster: Cluster<u64>,
    groups: Vec<Group>,
    /// By frame of the broken service process: which of its bytes is overwritten, and with what.
    overwrites: VecDeque<(u8, u8)>,
    /// Messages with how many bytes came along.
    seen: VecDeque<(Vec<u8>, u32)>,
    /// The number of the next message to host 0 or 1 as the stranger and the broken one would send it, and what they
    /// could acknowledge.
    next: [[u32; 2]; 2],
    heard: [[u32; 2]; 2],
    silenced: bool,
    forged: bool,
    calls: u64,
    /// How many of them have ended well.
    well: u64,
    open: BTreeMap<CallId, CallName>,
}

fn config(ring: bool) -> Config {
    Config {
        chunk_bytes: CHUNK,
        staging_quota: STAGING,
        scratch_quota: SCRATCH,
        fragment_bytes: 4000,
        eager_bytes: if ring { 16 << 10 } else { 0 },
        multicast: !ring,
        ..Config::default()
    }
}

fn spec(group: usize) -> Rc<GroupSpec> {
    group_spec(group, [group as u64, 5], GROUPS[group].iter().copied(), (1, 0))
}

fn sum() -> Reduction {
    Reduction::new(Operator::Sum, Element::U8).expect("defined by MPI")
}

/// What a script came to.
#[derive(Debug)]
pub struct Played {
    /// Calls that have ended well.
    pub well: u64,
    /// What the script has done.
    pub coverage: Coverage,
}

/// A script by seed: both groups made, by a ring or by multicast, and a call of each carried out; then anything.
#[must_use]
pub fn script(seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let asks = (0..2).flat_map(|group| (0..4).flat_map(move |rank| [acts::ASK, group, rank]));
    let mut script: Vec<u8> = [seed as u8].into_iter().chain(asks).chain([acts::WAIT, 4]).collect();
    for group in 0..2 {
        // The first to call says what.
        script.extend([acts::CALL, group, 0, 5, 1, seed as u8]);
        script.extend((1..4).flat_map(|rank| [acts::CALL, group, rank]));
    }
    script.extend([acts::WAIT, 4]);
    let len = rng.random_range(0..LONGEST);
    // The act that ends a script is left out, so that most are played whole.
    script.extend((0..len).map(|_| rng.random::<u8>()).map(|byte| if byte == acts::END { acts::CALL } else { byte }));
    script
}

/// Plays a script.
///
/// # Errors
/// What the script has broken.
pub fn play(script: &[u8]) -> Result<Played, Breach> {
    forge::decode(script);
    let mut tape = Tape::new(script);
    let plan = ClusterPlan {
        configs: vec![config(tape.flip()); 3],
        missing: 1,
        network: &NetworkPlan::default(),
        faults: &Faults::none(),
        store: StoreKind::Bytes,
        sabotage: None,
        trace: false,
    };
    let group = |group: usize| Group {
        spec: spec(group),
        calls: Vec::new(),
        ranks: vec![Seat::default(); GROUPS[group].len()],
    };
    let mut play = Play {
        cluster: Cluster::new(plan, 1),
        groups: (0..GROUPS.len()).map(group).collect(),
        overwrites: VecDeque::new(),
        seen: VecDeque::new(),
        next: [[0; 2]; 2],
        heard: [[0; 2]; 2],
        silenced: false,
        forged: false,
        calls: 0,
        well: 0,
        open: BTreeMap::new(),
    };
    play.cluster.hijacked = Some(BROKEN);
    play.cluster.hosts.iter_mut().for_each(|host| host.expects_violations = true);
    (0..GROUPS.len()).for_each(|group| play.cluster.offer(&spec(group)));
    while !tape.ended() && play.act(&mut tape)? {
        play.check_load()?;
    }
    play.end()?;
    Ok(Played { well: play.well, coverage: play.cluster.dice.coverage.clone() })
}

impl Player for Play {
    fn cluster(&mut self) -> &mut Cluster<u64> {
        &mut self.cluster
    }

    fn told(&mut self, _: usize, action: Action) -> Result<(), Breach> {
        match action {
            Action::GroupReady { group, rank, result } => {
                let number = group_number(group).ok_or(Breach::UnaskedReady { group, rank })?;
                let seat = &mut self.groups[number].ranks[rank.0 as usize];
                if std::mem::replace(&mut seat.made, result.is_ok()) || !seat.asked {
                    return Err(Breach::UnaskedReady { group, rank });
                }
            }
            Action::Completed { call, result, mut output } => {
                let name = self.open.remove(&call).ok_or(Breach::CompletedTwice(call))?;
                let CallName { group, member, instance } = name;
                self.well += u64::from(result.is_ok());
                let plan = &self.groups[group].calls[instance as usize - 1];
                let judged = match result {
                    Ok(()) if group == 0 && !self.forged => plan.misreceived(name, GROUPS[0].len(), &mut output),
                    Err(error) if group == 0 => Some(error.to_string()),
                    _ => None,
                };
                let (group, rank, instance) = (handle(group), Rank(member as u32), InstanceId(instance));
                return judged.map_or(Ok(()), |reason| Err(Breach::FalseError { group, rank, instance, reason }));
            }
            _ => {}
        }
        Ok(())
    }

    fn shown(&mut self, frame: &Rc<Frame>) -> Result<(), Breach> {
        self.see(frame);
        if frame.from == BROKEN {
            return self.overwritten(frame);
        }
        if let Ok((header, _)) = FrameHeader::decode(&frame.header, frame.payload_len) {
            let heard = &mut self.heard[usize::from(frame.to == BROKEN)][frame.from];
            *heard = (*heard).max(header.seq.wrapping_add(1));
        }
        if frame.to == BROKEN { self.handle(BROKEN, Input::Frame(Rc::clone(frame))) } else { Ok(()) }
    }
}

impl Play {
    /// One act of the script; false for the last.
    fn act(&mut self, tape: &mut Tape<'_>) -> Result<bool, Breach> {
        match tape.byte() % (acts::END + 1) {
            acts::CALL => {
                let (group, rank) = (tape.below(2), tape.byte());
                self.call(group.into(), rank.into(), tape)?;
            }
            acts::WAIT => {
                let wait = [1_000, 100_000, 600_000, 5_000_000, 30_000_000, 500_000_000, 4_000_000_000];
                self.run_for(Duration::from_nanos(wait[usize::from(tape.byte()) % wait.len()]))?;
            }
            acts::ASK => {
                let (group, rank) = (tape.below(2), tape.byte());
                self.ask(group.into(), rank.into())?;
            }
            acts::MESSAGE => {
                let (from, to) = (tape.flip(), tape.below(2).into());
                let times = match tape.byte() {
                    0xff => 5000,
                    0xf0.. => 40,
                    _ => 1,
                };
                let (body, payload) = self.message(tape);
                self.reach(FaultKind::MessageForged);
                for _ in 0..times {
                    self.inject(from, to, &body, payload)?;
                }
            }
            acts::FRAME => {
                let (from, to) = (tape.flip(), usize::from(tape.below(2)));
                let honest = self.header(from, to);
                self.reach(FaultKind::FrameForged);
                let (header, payload) = forge::header(tape, honest);
                let mut bytes = Vec::new();
                header.encode(&mut bytes);
                let body = tape.byte();
                bytes.extend_from_slice(tape.bytes(body.into()));
                self.frame(from, to, bytes, payload)?;
            }
            acts::BYTES => {
                let (from, to, count) = (tape.flip(), tape.below(2).into(), tape.byte());
                let bytes = tape.bytes(count.into()).to_vec();
                self.reach(FaultKind::FrameTruncated);
                let payload = forge::payload(tape);
                self.frame(from, to, bytes, payload)?;
            }
            acts::DATAGRAM | acts::RAW_DATAGRAM => self.datagrams(tape)?,
            acts::TAMPER => self.overwrites.push_back((tape.byte(), tape.byte())),
            acts::LEAVE => {
                let rank = usize::from(tape.byte()) % self.groups[1].ranks.len();
                self.leave(1, rank)?;
            }
            acts::LOSE => {
                let at = usize::from(tape.below(2));
                let lost = sp_id(if tape.flip() { BROKEN } else { STRANGER });
                self.handle(at, Input::PeerLost(lost))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn reach(&mut self, kind: FaultKind) {
        self.cluster.dice.coverage.fault(kind, 1);
    }

    fn ask(&mut self, group: usize, rank: usize) -> Result<(), Breach> {
        let rank = rank % GROUPS[group].len();
        let Group { spec, ranks, .. } = &mut self.groups[group];
        if std::mem::replace(&mut ranks[rank].asked, true) {
            return Ok(());
        }
        let input = Input::CreateGroup { spec: Rc::clone(spec), rank: Rank(rank as u32) };
        self.handle(GROUPS[group][rank], input)
    }

    /// The rank makes its next call. What it is, the first to come says.
    fn call(&mut self, group: usize, rank: usize, tape: &mut Tape<'_>) -> Result<(), Breach> {
        let rank = rank % GROUPS[group].len();
        let Group { calls, ranks, .. } = &mut self.groups[group];
        let seat = ranks[rank];
        if !seat.made || seat.left || seat.calls >= MOST_CALLS {
            return Ok(());
        }
        if seat.calls == calls.len() {
            let bytes = [0, 1, 999, 1000, 2500, 9000, 33_000][usize::from(tape.below(7))];
            let all = Pattern::all(usize::from(tape.below(ranks.len() as u8)), 3, sum());
            calls.push(CallPlan::of(all[usize::from(tape.byte()) % all.len()], bytes));
        }
        self.call_next(group, rank)
    }

    fn call_next(&mut self, group: usize, member: usize) -> Result<(), Breach> {
        let (host, Group { calls, ranks, .. }) = (GROUPS[group][member], &mut self.groups[group]);
        let plan = &calls[ranks[member].calls];
        ranks[member].calls += 1;
        self.calls += 1;
        let (id, instance) = (CallId(self.calls), ranks[member].calls as u64);
        let name = CallName { group, member, instance };
        let call = plan.make(&mut self.cluster.hosts[host].memory, id, name, ranks.len());
        self.open.insert(id, name);
        self.handle(host, Input::Call(Box::new(call)))
    }

    fn leave(&mut self, group: usize, rank: usize) -> Result<(), Breach> {
        let seat = &mut self.groups[group].ranks[rank];
        if !seat.asked || std::mem::replace(&mut seat.left, true) {
            return Ok(());
        }
        self.handle(GROUPS[group][rank], Input::Leave { group: handle(group), rank: Rank(rank as u32) })
    }

    /// The header that the link of an honest host would take next from the broken one or the stranger.
    fn header(&self, from: bool, to: usize) -> FrameHeader {
        let (seq, ack) = (self.next[usize::from(from)][to], self.heard[usize::from(from)][to]);
        let clock = (self.cluster.now().0 / 1000) as u32;
        let (kind, ack_now, payload_len, echo, echo_age) = (FrameKind::Message, true, 0, clock, 1);
        FrameHeader { kind, ack_now, link: 1, to: 0, seq, ack, payload_len, clock, echo, echo_age }
    }

    /// A message from rank to rank put together from the tape, or one that was sent before, spoiled.
    fn message(&self, tape: &mut Tape<'_>) -> (Vec<u8>, u32) {
        if tape.below(4) == 0 || self.seen.is_empty() {
            let (message, payload) = forge::transfer(tape);
            let mut body = Vec::new();
            message.encode(&mut body);
            return (body, payload);
        }
        let (mut body, payload) = self.seen[usize::from(tape.byte()) % self.seen.len()].clone();
        (0..tape.below(4)).for_each(|_| forge::spoil(tape, &mut body));
        (body, if tape.flip() { payload } else { forge::payload(tape) })
    }

    fn see(&mut self, frame: &Frame) {
        let Ok((header, body)) = FrameHeader::decode(&frame.header, frame.payload_len) else { return };
        if header.kind == FrameKind::Message {
            self.seen.truncate(MOST_SEEN - 1);
            self.seen.push_front((body.to_vec(), frame.payload_len));
        }
    }

    fn inject(&mut self, from: bool, to: usize, body: &[u8], payload: u32) -> Result<(), Breach> {
        let mut bytes = Vec::new();
        FrameHeader { payload_len: payload, ..self.header(from, to) }.encode(&mut bytes);
        bytes.extend_from_slice(body);
        self.next[usize::from(from)][to] += 1;
        self.frame(from, to, bytes, payload)
    }

    fn frame(&mut self, from: bool, to: usize, header: Vec<u8>, payload_len: u32) -> Result<(), Breach> {
        let payload = Payload::Bytes(vec![0x5a; payload_len as usize]);
        let from = if from { BROKEN } else { STRANGER };
        let frame = Frame { from, to, header: header.into(), payload, payload_len, wire_bytes: 0 };
        self.handle(to, Input::Frame(Rc::new(frame)))
    }

    fn datagrams(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        self.forged = true;
        self.reach(FaultKind::DatagramForged);
        let to = usize::from(tape.below(2));
        let keys = [self.groups[0].spec.key, self.groups[1].spec.key, [0, 0]];
        for _ in 0..=tape.below(4) {
            // Whoever has the key can hash, so any hash serves.
            let hash = PayloadHash::default();
            let (header, len) = (forge::datagram(tape, keys, hash), forge::payload(tape));
            let train = Train {
                from: STRANGER,
                channel: Channel(0),
                headers: vec![header],
                hashes: vec![hash],
                key: MulticastKey::new(keys[0], true),
                instance: InstanceId(1),
                address: sender(&header),
                payload: Payload::Bytes(vec![0x5a; len as usize]),
                payload_len: len.into(),
                chunk_bytes: len.max(1),
                overhead: 0,
                ready: Instant(0),
            };
            self.handle(to, Input::Datagrams(Rc::new(train), 1))?;
        }
        Ok(())
    }

    /// What the broken one sends arrives as the script wants it.
    fn overwritten(&mut self, frame: &Rc<Frame>) -> Result<(), Breach> {
        let to = frame.to;
        if self.silenced || to >= BROKEN {
            return Ok(());
        }
        if let Ok((carried, _)) = FrameHeader::decode(&frame.header, frame.payload_len)
            && carried.kind == FrameKind::Message
        {
            self.next[1][to] = self.next[1][to].max(carried.seq.wrapping_add(1));
        }
        let Some((at, with)) = self.overwrites.pop_front() else {
            return self.handle(to, Input::Frame(Rc::clone(frame)));
        };
        self.reach(FaultKind::FrameOverwritten);
        let mut header = frame.header.to_vec();
        let at = usize::from(at) % header.len();
        header[at] = with;
        let (payload_len, payload) = (frame.payload_len, frame.payload.clone());
        let frame = Frame { from: BROKEN, to, header: header.into(), payload, payload_len, wire_bytes: 0 };
        self.handle(to, Input::Frame(Rc::new(frame)))
    }

    /// The broken one falls silent, the sound ones finish: everything is answered, and nothing is left.
    fn end(&mut self) -> Result<(), Breach> {
        (0..GROUPS[0].len()).try_for_each(|rank| self.ask(0, rank))?;
        self.run_for(LONG)?;
        let waiting = self.groups[0].ranks.iter().filter(|seat| !seat.made).count();
        if waiting > 0 {
            return Err(Breach::NotLive { open: waiting, after: LONG });
        }
        self.silenced = true;
        let seats = || (0..GROUPS.len()).flat_map(|group| (0..GROUPS[group].len()).map(move |rank| (group, rank)));
        // The ranks make the calls that others of their group have made.
        for (group, rank) in seats().filter(|(group, rank)| GROUPS[*group][*rank] != BROKEN) {
            let last = self.groups[group].calls.len();
            while let Seat { made: true, left: false, calls, .. } = self.groups[group].ranks[rank]
                && calls < last
            {
                self.call_next(group, rank)?;
            }
        }
        self.run_for(LONG)?;
        let sound = |name: &&CallName| GROUPS[name.group][name.member] != BROKEN;
        let open = self.open.values().filter(sound).count();
        if open > 0 {
            return Err(Breach::NotLive { open, after: LONG });
        }
        (0..BROKEN).try_for_each(|host| self.handle(host, Input::PeerLost(sp_id(BROKEN))))?;
        seats().try_for_each(|(group, rank)| self.leave(group, rank))?;
        self.run_for(LONG)?;
        let left = self.cluster.hosts[..BROKEN].iter().find_map(|host| Some((host.sp.id(), host.left_over(false)?)));
        left.map_or(Ok(()), |(sp, what)| Err(Breach::LeftOver { sp, what }))
    }

    fn check_load(&self) -> Result<(), Breach> {
        let exceeds = |(groups, collectives, messages)| {
            groups > MOST_LOAD.0 || collectives > MOST_LOAD.1 || messages > MOST_LOAD.2
        };
        match self.cluster.hosts[..BROKEN].iter().find(|host| exceeds(host.sp.load())) {
            Some(host) => Err(Breach::Backlog { sp: host.sp.id(), messages: host.sp.load().2, bound: MOST_LOAD.2 }),
            None => Ok(()),
        }
    }
}

/// The address of the rank that a datagram names.
fn sender(header: &[u8]) -> Ipv4Addr {
    let named = DatagramHeader::parse(header).ok();
    let host = named.and_then(|named| GROUPS.get(group_number(named.group)?)?.get(usize::from(named.source)));
    host.map_or(Ipv4Addr::LOCALHOST, |host| address_of(*host))
}
