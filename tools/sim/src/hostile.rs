//! Corrupt bytes against service processes that also serve sound ranks. A fuzzer plays these scripts.
//!
//! Service processes 0 and 1 are sound. Service process 2 is a member of the second group and has a bug: the script
//! overwrites bytes of its frames. Service process 3 is a stranger: a member of no group, whose frames the script
//! writes alone. Datagrams may be forged with either group's key.
//!
//! The play demands: nothing panics; references to memory stay within the buffers handed over; queues and staging keep
//! their bounds; the traffic of one script ends; every call of a sound rank ends once, in time. The first group has
//! neither 2 nor 3: its calls succeed, with the right bytes unless datagrams were forged. The results of the second
//! group's calls are not judged.
//!
//! Invariant: every string of bytes is a script, and determines the whole play.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use outboard_plan::{Element, Operator, Rank, Reduction};
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader, FrameHeader, FrameKind, MulticastKey, PayloadHash};
use outboard_proto::{CallId, Config, GroupHandle, GroupSpec, InstanceId, Instant, MulticastChannel};

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

/// The hosts of the ranks of both groups. The first group has sound hosts alone.
const GROUPS: [&[usize]; 2] = [&[0, 1, 0], &[0, 1, 2, 0]];
const BROKEN: usize = 2;
const STRANGER: usize = 3;
/// Most messages from or to 2 that are remembered for the stranger to send.
const MOST_SEEN: usize = 64;
const CHUNK: u32 = 1000;
const STAGING: u64 = 64 << 10;
/// More than the calls of one play need, so that no call fails because the other group holds scratch.
const SCRATCH: u64 = 64 << 20;
/// Limits for one service process: groups, instances in the windows of both, messages on links.
const MOST_LOAD: (usize, usize, usize) = (2, 2 * 1024, 16_384);
/// More calls of a rank would show little more.
const MOST_CALLS: usize = 600;
const FLOOD: usize = 5000;
/// Bytes of the longest script by seed, after the creation of its groups.
const LONGEST: usize = 600;
/// By then a silent service process counts as dead, and every call that needs it has failed.
const LONG: Duration = Duration::from_secs(30);

pub mod acts {
    pub const CALL: u8 = 0;
    pub const WAIT: u8 = 1;
    /// A frame of 3: a message of others, or any bytes, some of them spoiled.
    pub const FRAME: u8 = 2;
    pub const DATAGRAM: u8 = 3;
    /// Overwrites a byte of the next frame of 2.
    pub const OVERWRITE: u8 = 4;
    pub const LEAVE: u8 = 5;
    /// Reports to a sound service process that its connection with 2 or 3 has ended.
    pub const LOSE: u8 = 6;
    pub const ACTS: u8 = 7;
}

#[derive(Debug)]
struct Group {
    spec: Rc<GroupSpec>,
    calls: Vec<CallPlan>,
    ranks: Vec<Seat>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    made: bool,
    left: bool,
    calls: usize,
}

#[derive(Debug)]
struct Play {
    cluster: Cluster<u64>,
    groups: Vec<Group>,
    /// By frame of service process 2: the position of the overwritten byte, and its new value.
    overwrites: VecDeque<(u8, u8)>,
    /// Messages, and how many payload bytes came with each.
    seen: VecDeque<(Vec<u8>, u32)>,
    /// By host 0 and 1: the number of the stranger's next message, and the number that it could acknowledge.
    next: [u32; 2],
    heard: [u32; 2],
    silenced: bool,
    forged: bool,
    calls: u64,
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

#[derive(Debug)]
pub struct Played {
    /// Calls that ended well.
    pub well: u64,
    pub coverage: Coverage,
}

/// A script by seed: both groups are made, by ring or by multicast, and each carries out a call. Then anything follows.
pub fn script(seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut script: Vec<u8> = vec![seed as u8, acts::WAIT, 4];
    for group in 0..2 {
        // The first caller decides what the call is.
        script.extend([acts::CALL, group, 0, 5, 1, seed as u8]);
        script.extend((1..4).flat_map(|rank| [acts::CALL, group, rank]));
    }
    script.extend([acts::WAIT, 4]);
    let len = rng.random_range(0..LONGEST);
    script.extend((0..len).map(|_| rng.random::<u8>()));
    script
}

pub fn play(script: &[u8]) -> Result<Played, Breach> {
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
    let group = |(number, hosts): (usize, &&[usize])| Group {
        spec: group_spec(number, [number as u64, 5], hosts.iter().copied(), (1, 0)),
        calls: Vec::new(),
        ranks: vec![Seat::default(); hosts.len()],
    };
    let mut play = Play {
        cluster: Cluster::new(plan, 1),
        groups: GROUPS.iter().enumerate().map(group).collect(),
        overwrites: VecDeque::new(),
        seen: VecDeque::new(),
        next: [0; 2],
        heard: [0; 2],
        silenced: false,
        forged: false,
        calls: 0,
        well: 0,
        open: BTreeMap::new(),
    };
    play.cluster.hijacked = Some(BROKEN);
    play.cluster.hosts.iter_mut().for_each(|host| host.expects_violations = true);
    play.ask()?;
    while !tape.ended() {
        play.act(&mut tape)?;
        play.check_load()?;
    }
    play.end()?;
    Ok(Played { well: play.well, coverage: play.cluster.dice.coverage.clone() })
}

/// Draws a number of payload bytes.
fn payload(tape: &mut Tape<'_>) -> u32 {
    match tape.below(8) {
        0..=2 => 0,
        3 => 1000,
        4 => 2500,
        5 => 4000,
        6 => 500,
        // The fabric bounds payloads.
        _ => tape.number32() % (1 << 20),
    }
}

/// Writes a number over one to eight bytes.
fn spoil(tape: &mut Tape<'_>, bytes: &mut [u8]) {
    let at = usize::from(tape.byte()) % bytes.len().max(1);
    let (count, number) = (1 << tape.below(4), tape.number().to_le_bytes());
    bytes[at..].iter_mut().zip(&number[..count]).for_each(|(byte, new)| *byte = *new);
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
                if std::mem::replace(&mut seat.made, result.is_ok()) {
                    return Err(Breach::UnaskedReady { group, rank });
                }
            }
            Action::Completed { call, result, output } => {
                let name = self.open.remove(&call).ok_or(Breach::CompletedTwice(call))?;
                let CallName { group, member, instance } = name;
                self.well += u64::from(result.is_ok());
                let plan = &self.groups[group].calls[instance as usize - 1];
                let judged = match result {
                    Ok(()) if group == 0 && !self.forged => plan.misreceived(name, GROUPS[0].len(), &output),
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
        let Ok((header, body)) = FrameHeader::decode(&frame.header, frame.payload_len) else { return Ok(()) };
        if frame.to == STRANGER {
            self.heard[frame.from] = self.heard[frame.from].max(header.seq.wrapping_add(1));
            return Ok(());
        }
        if header.kind == FrameKind::Message {
            self.seen.truncate(MOST_SEEN - 1);
            self.seen.push_front((body.to_vec(), frame.payload_len));
        }
        if frame.from == BROKEN { self.overwritten(frame) } else { self.handle(BROKEN, Input::Frame(Rc::clone(frame))) }
    }
}

impl Play {
    /// All ranks request their groups.
    fn ask(&mut self) -> Result<(), Breach> {
        for (group, hosts) in GROUPS.iter().enumerate() {
            let spec = Rc::clone(&self.groups[group].spec);
            self.cluster.offer(&spec);
            for (host, rank) in hosts.iter().zip((0..).map(Rank)) {
                self.handle(*host, Input::CreateGroup { spec: Rc::clone(&spec), rank })?;
            }
        }
        Ok(())
    }

    fn act(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        match tape.byte() % acts::ACTS {
            acts::CALL => {
                let (group, rank) = (tape.below(2), tape.byte());
                self.call(group.into(), rank.into(), tape)
            }
            acts::WAIT => {
                let wait = [1_000, 100_000, 600_000, 5_000_000, 30_000_000, 500_000_000, 4_000_000_000];
                self.run_for(Duration::from_nanos(wait[usize::from(tape.byte()) % wait.len()]))
            }
            acts::FRAME => self.frame(tape),
            acts::DATAGRAM => self.datagram(tape),
            acts::OVERWRITE => {
                self.overwrites.push_back((tape.byte(), tape.byte()));
                Ok(())
            }
            acts::LEAVE => {
                let rank = usize::from(tape.byte()) % GROUPS[1].len();
                self.leave(1, rank)
            }
            _ => {
                let (at, lost) = (tape.below(2), if tape.flip() { BROKEN } else { STRANGER });
                self.handle(at.into(), Input::PeerLost(sp_id(lost)))
            }
        }
    }

    fn reach(&mut self, kind: FaultKind) {
        self.cluster.dice.coverage.fault(kind, 1);
    }

    /// The rank makes its next call. The first caller decides what the call is.
    fn call(&mut self, group: usize, rank: usize, tape: &mut Tape<'_>) -> Result<(), Breach> {
        let rank = rank % GROUPS[group].len();
        let Group { calls, ranks, .. } = &mut self.groups[group];
        let seat = ranks[rank];
        if !seat.made || seat.left || seat.calls >= MOST_CALLS {
            return Ok(());
        }
        if seat.calls == calls.len() {
            let bytes = [0, 1, 999, 1000, 2500, 9000, 33_000][usize::from(tape.below(7))];
            let sum = Reduction::new(Operator::Sum, Element::U8).expect("defined by MPI");
            let all = Pattern::all(usize::from(tape.below(ranks.len() as u8)), 3, sum);
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
        if std::mem::replace(&mut self.groups[group].ranks[rank].left, true) {
            return Ok(());
        }
        self.handle(GROUPS[group][rank], Input::Leave { group: handle(group), rank: Rank(rank as u32) })
    }

    /// The header that the link of host `to` would accept next from the stranger.
    fn header(&self, to: usize, payload_len: u32) -> FrameHeader {
        let (seq, ack, clock) = (self.next[to], self.heard[to], (self.cluster.now().0 / 1000) as u32);
        let (kind, ack_now, echo, echo_age) = (FrameKind::Message, true, clock, 1);
        FrameHeader { kind, ack_now, link: 1, to: 0, seq, ack, payload_len, clock, echo, echo_age }
    }

    fn frame(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        let to = usize::from(tape.below(2));
        let times = if tape.byte() == 0xff { FLOOD } else { 1 };
        let (mut body, mut payload_len) = match self.seen.get(usize::from(tape.byte())) {
            Some(seen) => seen.clone(),
            None => {
                let count = tape.byte();
                (tape.bytes(count.into()).to_vec(), payload(tape))
            }
        };
        if tape.below(4) == 0 {
            payload_len = payload(tape);
        }
        (0..tape.below(3)).for_each(|_| spoil(tape, &mut body));
        let spoils_header = tape.below(4) == 0;
        self.reach(FaultKind::FrameForged);
        for _ in 0..times {
            let mut header = Vec::new();
            self.header(to, payload_len).encode(&mut header);
            header.extend(&body);
            if spoils_header {
                spoil(tape, &mut header);
            }
            self.next[to] += 1;
            let payload = Payload::Bytes(vec![0x5a; payload_len as usize]);
            self.input_frame(STRANGER, to, header, (payload, payload_len))?;
        }
        Ok(())
    }

    fn input_frame(
        &mut self,
        from: usize,
        to: usize,
        header: Vec<u8>,
        (payload, payload_len): (Payload, u32),
    ) -> Result<(), Breach> {
        let frame = Frame { from, to, header: header.into(), payload, payload_len, wire_bytes: 0 };
        self.handle(to, Input::Frame(Rc::new(frame)))
    }

    /// A datagram by the key of a group or by none, with any fields, from the address of the rank in its header.
    fn datagram(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        self.forged = true;
        self.reach(FaultKind::DatagramForged);
        let to = usize::from(tape.below(2));
        let key = [self.groups[0].spec.key, self.groups[1].spec.key, [0, 0]][usize::from(tape.below(3))];
        let key = MulticastKey::new(key, true);
        let group = if tape.below(8) == 0 { GroupHandle(tape.number32()) } else { handle(tape.below(2).into()) };
        let (epoch, source, chunk) = (tape.number() as u16, tape.number() as u16, tape.number32());
        // Everyone with the key can hash, so any hash serves.
        let hash = PayloadHash::default();
        let instance = InstanceId(epoch.into());
        let mut header = DatagramHeader { group, epoch, source, chunk }.encode(&key, instance, hash);
        if tape.below(8) == 0 {
            spoil(tape, &mut header);
        }
        let len = payload(tape);
        let train = Train {
            from: STRANGER,
            channel: MulticastChannel(0),
            headers: vec![header],
            hashes: vec![hash],
            key,
            instance,
            address: sender(&header),
            payload: Payload::Bytes(vec![0x5a; len as usize]),
            payload_len: len.into(),
            chunk_bytes: len.max(1),
            overhead: 0,
            ready: Instant(0),
        };
        self.handle(to, Input::Datagrams(Rc::new(train), 1))
    }

    /// A frame of service process 2 arrives as the script wants it.
    fn overwritten(&mut self, frame: &Frame) -> Result<(), Breach> {
        if self.silenced || frame.to >= BROKEN {
            return Ok(());
        }
        let mut header = frame.header.to_vec();
        if let Some((at, with)) = self.overwrites.pop_front() {
            self.reach(FaultKind::FrameOverwritten);
            let at = usize::from(at) % header.len();
            header[at] = with;
        }
        self.input_frame(BROKEN, frame.to, header, (frame.payload.clone(), frame.payload_len))
    }

    /// Service process 2 falls silent and the sound ones finish: every call ends, and nothing is left.
    fn end(&mut self) -> Result<(), Breach> {
        self.run_for(LONG)?;
        let waiting = self.groups[0].ranks.iter().filter(|seat| !seat.made).count();
        if waiting > 0 {
            return Err(Breach::NotLive { open: waiting, after: LONG });
        }
        self.silenced = true;
        let seats = || (0..GROUPS.len()).flat_map(|group| (0..GROUPS[group].len()).map(move |rank| (group, rank)));
        // The ranks make the calls that other ranks of their group have made.
        for (group, rank) in seats().filter(|(group, rank)| GROUPS[*group][*rank] != BROKEN) {
            let last = self.groups[group].calls.len();
            while let Seat { made: true, left: false, calls } = self.groups[group].ranks[rank]
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
fn sender(header: &[u8; DATAGRAM_HEADER_BYTES]) -> Ipv4Addr {
    let named = DatagramHeader::parse(header).ok();
    let host = named.and_then(|named| GROUPS.get(group_number(named.group)?)?.get(usize::from(named.source)));
    host.map_or(Ipv4Addr::LOCALHOST, |host| address_of(*host))
}
