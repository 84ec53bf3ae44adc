//! Corrupt bytes against service processes that also serve sound ranks. A fuzzer plays these scripts.
//!
//! Service processes 0 and 1 are sound. Service process 2 is a member of the second group and has a bug: the script
//! overwrites bytes of its frames. Service process 3 is a stranger: a member of no group, whose frames the script
//! writes alone. Datagrams may be forged with either group's key.
//!
//! The play demands: nothing panics; references to memory stay within the buffers handed over; queues and staging keep
//! their bounds; the traffic of one script ends; every call of a sound rank ends once, in time. The first group lacks
//! the service processes 2 and 3: its calls succeed, with the right bytes unless datagrams were forged. The results of
//! the second group's calls are not judged.
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

use crate::cluster::{Cluster, ClusterPlan, ScriptPlayer, address_of, group_number, group_spec, handle, sp_id};
use crate::coverage::{Coverage, FaultKind};
use crate::faults::Faults;
use crate::fuzz_input::FuzzInput;
use crate::host::{HostAction, Input};
use crate::network::{NetworkPlan, Train, TransitFrame};
use crate::oracle::CallName;
use crate::pattern::Pattern;
use crate::scenario::CallPlan;
use crate::store::{StoreKind, StoredPayload};
use crate::violation::Violation;

/// The hosts of the ranks of both groups. The first group has sound hosts alone.
const GROUPS: [&[usize]; 2] = [&[0, 1, 0], &[0, 1, 2, 0]];
const BROKEN: usize = 2;
const STRANGER: usize = 3;
/// Most messages from or to service process 2 that are remembered for the stranger to send.
const MOST_SEEN: usize = 64;
const CHUNK: u32 = 1000;
const STAGING: u64 = 64 << 10;
/// More than the calls of one play need, so that no call fails because the other group holds scratch.
const SCRATCH: u64 = 64 << 20;
/// Limits for one service process: groups, instances in the windows of both groups, messages on links.
const MOST_LOAD: (usize, usize, usize) = (2, 2 * 1024, 16_384);
/// Most calls of a rank; further calls would show little more.
const MOST_CALLS: usize = 600;
const FLOOD: usize = 5000;
/// Bytes of the longest script by seed, after the creation of its groups.
const LONGEST: usize = 600;
/// Time after which a silent service process counts as dead, and every call that needs it has failed.
const LONG: Duration = Duration::from_secs(30);

pub mod acts {
    pub const CALL: u8 = 0;
    pub const WAIT: u8 = 1;
    /// The stranger sends a frame: a message of other service processes, or any bytes. Some frames are corrupted.
    pub const FRAME: u8 = 2;
    pub const DATAGRAM: u8 = 3;
    /// Overwrites a byte of the next frame of service process 2.
    pub const OVERWRITE: u8 = 4;
    pub const LEAVE: u8 = 5;
    /// Reports to a sound service process that its connection with service process 2 or 3 has ended.
    pub const LOSE: u8 = 6;
    pub const ACTS: u8 = 7;
}

#[derive(Debug)]
struct ScriptedGroup {
    spec: Rc<GroupSpec>,
    calls: Vec<CallPlan>,
    ranks: Vec<MemberProgress>,
}

#[derive(Debug, Clone, Copy, Default)]
struct MemberProgress {
    made: bool,
    left: bool,
    calls: usize,
}

#[derive(Debug)]
struct HostilePlay {
    cluster: Cluster<u64>,
    groups: Vec<ScriptedGroup>,
    /// By frame of service process 2: the position of the overwritten byte, and its new value.
    overwrites: VecDeque<(u8, u8)>,
    /// Messages, and how many payload bytes came with each.
    seen: VecDeque<(Vec<u8>, u32)>,
    /// For hosts 0 and 1: the number of the stranger's next message, and the number that the stranger could
    /// acknowledge.
    next: [u32; 2],
    received: [u32; 2],
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
pub struct HostileOutcome {
    /// Calls that ended well.
    pub well: u64,
    pub coverage: Coverage,
}

/// A script by seed. Both groups are made, by ring or by multicast, and each group carries out a call. Any acts follow.
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

pub fn play(script: &[u8]) -> Result<HostileOutcome, Violation> {
    let mut input = FuzzInput::new(script);
    let plan = ClusterPlan {
        configs: vec![config(input.flip()); 3],
        missing: 1,
        network: &NetworkPlan::default(),
        faults: &Faults::none(),
        store: StoreKind::Bytes,
        sabotage: None,
        trace: false,
    };
    let group = |(number, hosts): (usize, &&[usize])| ScriptedGroup {
        spec: group_spec(number, [number as u64, 5], hosts.iter().copied(), (1, 0)),
        calls: Vec::new(),
        ranks: vec![MemberProgress::default(); hosts.len()],
    };
    let mut play = HostilePlay {
        cluster: Cluster::new(plan, 1),
        groups: GROUPS.iter().enumerate().map(group).collect(),
        overwrites: VecDeque::new(),
        seen: VecDeque::new(),
        next: [0; 2],
        received: [0; 2],
        silenced: false,
        forged: false,
        calls: 0,
        well: 0,
        open: BTreeMap::new(),
    };
    play.cluster.hijacked = Some(BROKEN);
    play.cluster.hosts.iter_mut().for_each(|host| host.expects_violations = true);
    play.request_groups()?;
    while !input.ended() {
        play.act(&mut input)?;
        play.check_load()?;
    }
    play.end()?;
    Ok(HostileOutcome { well: play.well, coverage: play.cluster.dice.coverage.clone() })
}

/// Draws a number of payload bytes.
fn payload(input: &mut FuzzInput<'_>) -> u32 {
    match input.below(8) {
        0..=2 => 0,
        3 => 1000,
        4 => 2500,
        5 => 4000,
        6 => 500,
        // The fabric bounds payloads.
        _ => input.number32() % (1 << 20),
    }
}

/// Writes a number over one to eight bytes.
fn corrupt(input: &mut FuzzInput<'_>, bytes: &mut [u8]) {
    let at = usize::from(input.byte()) % bytes.len().max(1);
    let (count, number) = (1 << input.below(4), input.number().to_le_bytes());
    bytes[at..].iter_mut().zip(&number[..count]).for_each(|(byte, new)| *byte = *new);
}

impl ScriptPlayer for HostilePlay {
    fn cluster(&mut self) -> &mut Cluster<u64> {
        &mut self.cluster
    }

    fn handle_action(&mut self, _: usize, action: HostAction) -> Result<(), Violation> {
        match action {
            HostAction::GroupReady { group, rank, result } => {
                let number = group_number(group).ok_or(Violation::UnaskedReady { group, rank })?;
                let seat = &mut self.groups[number].ranks[rank.0 as usize];
                if std::mem::replace(&mut seat.made, result.is_ok()) {
                    return Err(Violation::UnaskedReady { group, rank });
                }
            }
            HostAction::Completed { call, result, output } => {
                let name = self.open.remove(&call).ok_or(Violation::CompletedTwice(call))?;
                let CallName { group, member, instance } = name;
                self.well += u64::from(result.is_ok());
                let plan = &self.groups[group].calls[instance as usize - 1];
                let judged = match result {
                    Ok(()) if group == 0 && !self.forged => plan.describe_wrong_bytes(name, GROUPS[0].len(), &output),
                    Err(error) if group == 0 => Some(error.to_string()),
                    _ => None,
                };
                let (group, rank, instance) = (handle(group), Rank(member as u32), InstanceId(instance));
                return judged.map_or(Ok(()), |reason| Err(Violation::FalseError { group, rank, instance, reason }));
            }
            _ => {}
        }
        Ok(())
    }

    fn intercept_frame(&mut self, frame: &Rc<TransitFrame>) -> Result<(), Violation> {
        let Ok((header, body)) = FrameHeader::decode(&frame.header, frame.payload_len) else { return Ok(()) };
        if frame.to == STRANGER {
            self.received[frame.from] = self.received[frame.from].max(header.seq.wrapping_add(1));
            return Ok(());
        }
        if header.kind == FrameKind::Message {
            self.seen.truncate(MOST_SEEN - 1);
            self.seen.push_front((body.to_vec(), frame.payload_len));
        }
        if frame.from == BROKEN { self.overwritten(frame) } else { self.handle(BROKEN, Input::Frame(Rc::clone(frame))) }
    }
}

impl HostilePlay {
    /// All ranks request their groups.
    fn request_groups(&mut self) -> Result<(), Violation> {
        for (group, hosts) in GROUPS.iter().enumerate() {
            let spec = Rc::clone(&self.groups[group].spec);
            self.cluster.offer(&spec);
            for (host, rank) in hosts.iter().zip((0..).map(Rank)) {
                self.handle(*host, Input::CreateGroup { spec: Rc::clone(&spec), rank })?;
            }
        }
        Ok(())
    }

    fn act(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        match input.byte() % acts::ACTS {
            acts::CALL => {
                let (group, rank) = (input.below(2), input.byte());
                self.call(group.into(), rank.into(), input)
            }
            acts::WAIT => {
                let wait = [1_000, 100_000, 600_000, 5_000_000, 30_000_000, 500_000_000, 4_000_000_000];
                self.run_for(Duration::from_nanos(wait[usize::from(input.byte()) % wait.len()]))
            }
            acts::FRAME => self.frame(input),
            acts::DATAGRAM => self.datagram(input),
            acts::OVERWRITE => {
                self.overwrites.push_back((input.byte(), input.byte()));
                Ok(())
            }
            acts::LEAVE => {
                let rank = usize::from(input.byte()) % GROUPS[1].len();
                self.leave(1, rank)
            }
            _ => {
                let (at, lost) = (input.below(2), if input.flip() { BROKEN } else { STRANGER });
                self.handle(at.into(), Input::PeerLost(sp_id(lost)))
            }
        }
    }

    fn reach(&mut self, kind: FaultKind) {
        self.cluster.dice.coverage.fault(kind, 1);
    }

    /// The rank makes its next call. The first caller decides what the call is.
    fn call(&mut self, group: usize, rank: usize, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let rank = rank % GROUPS[group].len();
        let ScriptedGroup { calls, ranks, .. } = &mut self.groups[group];
        let seat = ranks[rank];
        if !seat.made || seat.left || seat.calls >= MOST_CALLS {
            return Ok(());
        }
        if seat.calls == calls.len() {
            let bytes = [0, 1, 999, 1000, 2500, 9000, 33_000][usize::from(input.below(7))];
            let sum = Reduction::new(Operator::Sum, Element::U8).expect("defined by MPI");
            let all = Pattern::all(usize::from(input.below(ranks.len() as u8)), 3, sum);
            calls.push(CallPlan::of(all[usize::from(input.byte()) % all.len()], bytes));
        }
        self.call_next(group, rank)
    }

    fn call_next(&mut self, group: usize, member: usize) -> Result<(), Violation> {
        let (host, ScriptedGroup { calls, ranks, .. }) = (GROUPS[group][member], &mut self.groups[group]);
        let plan = &calls[ranks[member].calls];
        ranks[member].calls += 1;
        self.calls += 1;
        let (id, instance) = (CallId(self.calls), ranks[member].calls as u64);
        let name = CallName { group, member, instance };
        let call = plan.make(&mut self.cluster.hosts[host].memory, id, name, ranks.len());
        self.open.insert(id, name);
        self.handle(host, Input::Call(Box::new(call)))
    }

    fn leave(&mut self, group: usize, rank: usize) -> Result<(), Violation> {
        if std::mem::replace(&mut self.groups[group].ranks[rank].left, true) {
            return Ok(());
        }
        self.handle(GROUPS[group][rank], Input::Leave { group: handle(group), rank: Rank(rank as u32) })
    }

    /// The header that the link of host `to` would accept next from the stranger.
    fn header(&self, to: usize, payload_len: u32) -> FrameHeader {
        let (seq, ack, clock) = (self.next[to], self.received[to], (self.cluster.now().0 / 1000) as u32);
        let (kind, ack_now, echo, echo_age) = (FrameKind::Message, true, clock, 1);
        FrameHeader { kind, ack_now, link: 1, to: 0, seq, ack, payload_len, clock, echo, echo_age }
    }

    fn frame(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let to = usize::from(input.below(2));
        let times = if input.byte() == 0xff { FLOOD } else { 1 };
        let (mut body, mut payload_len) = match self.seen.get(usize::from(input.byte())) {
            Some(seen) => seen.clone(),
            None => {
                let count = input.byte();
                (input.bytes(count.into()).to_vec(), payload(input))
            }
        };
        if input.below(4) == 0 {
            payload_len = payload(input);
        }
        (0..input.below(3)).for_each(|_| corrupt(input, &mut body));
        let spoils_header = input.below(4) == 0;
        self.reach(FaultKind::FrameForged);
        for _ in 0..times {
            let mut header = Vec::new();
            self.header(to, payload_len).encode(&mut header);
            header.extend(&body);
            if spoils_header {
                corrupt(input, &mut header);
            }
            self.next[to] += 1;
            let payload = StoredPayload::Bytes(vec![0x5a; payload_len as usize]);
            self.input_frame(STRANGER, to, header, (payload, payload_len))?;
        }
        Ok(())
    }

    fn input_frame(
        &mut self,
        from: usize,
        to: usize,
        header: Vec<u8>,
        (payload, payload_len): (StoredPayload, u32),
    ) -> Result<(), Violation> {
        let frame = TransitFrame { from, to, header: header.into(), payload, payload_len, wire_bytes: 0 };
        self.handle(to, Input::Frame(Rc::new(frame)))
    }

    /// A datagram with any fields, by the key of a group or by no key. Its source is the address of the rank in its
    /// header.
    fn datagram(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        self.forged = true;
        self.reach(FaultKind::DatagramForged);
        let to = usize::from(input.below(2));
        let key = [self.groups[0].spec.key, self.groups[1].spec.key, [0, 0]][usize::from(input.below(3))];
        let key = MulticastKey::new(key, true);
        let group = if input.below(8) == 0 { GroupHandle(input.number32()) } else { handle(input.below(2).into()) };
        let (epoch, source, chunk) = (input.number() as u16, input.number() as u16, input.number32());
        // Everyone with the key can compute a valid hash, so any hash serves.
        let hash = PayloadHash::default();
        let instance = InstanceId(epoch.into());
        let mut header = DatagramHeader { group, epoch, source, chunk }.encode(&key, instance, hash);
        if input.below(8) == 0 {
            corrupt(input, &mut header);
        }
        let len = payload(input);
        let train = Train {
            from: STRANGER,
            channel: MulticastChannel(0),
            headers: vec![header],
            hashes: vec![hash],
            key,
            instance,
            address: sender(&header),
            payload: StoredPayload::Bytes(vec![0x5a; len as usize]),
            payload_len: len.into(),
            chunk_bytes: len.max(1),
            overhead: 0,
            ready: Instant(0),
        };
        self.handle(to, Input::Datagrams(Rc::new(train), 1))
    }

    /// A frame of service process 2 arrives with the byte that the script overwrites, if any.
    fn overwritten(&mut self, frame: &TransitFrame) -> Result<(), Violation> {
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

    /// Service process 2 falls silent, and the sound service processes finish: every call ends, and nothing is left.
    fn end(&mut self) -> Result<(), Violation> {
        self.run_for(LONG)?;
        let waiting = self.groups[0].ranks.iter().filter(|seat| !seat.made).count();
        if waiting > 0 {
            return Err(Violation::NotLive { open: waiting, after: LONG });
        }
        self.silenced = true;
        let seats = || (0..GROUPS.len()).flat_map(|group| (0..GROUPS[group].len()).map(move |rank| (group, rank)));
        // The ranks make the calls that other ranks of their group have made.
        for (group, rank) in seats().filter(|(group, rank)| GROUPS[*group][*rank] != BROKEN) {
            let last = self.groups[group].calls.len();
            while let MemberProgress { made: true, left: false, calls } = self.groups[group].ranks[rank]
                && calls < last
            {
                self.call_next(group, rank)?;
            }
        }
        self.run_for(LONG)?;
        let sound = |name: &&CallName| GROUPS[name.group][name.member] != BROKEN;
        let open = self.open.values().filter(sound).count();
        if open > 0 {
            return Err(Violation::NotLive { open, after: LONG });
        }
        (0..BROKEN).try_for_each(|host| self.handle(host, Input::PeerLost(sp_id(BROKEN))))?;
        seats().try_for_each(|(group, rank)| self.leave(group, rank))?;
        self.run_for(LONG)?;
        let left = self.cluster.hosts[..BROKEN].iter().find_map(|host| Some((host.sp.id(), host.left_over(false)?)));
        left.map_or(Ok(()), |(sp, what)| Err(Violation::LeftOver { sp, what }))
    }

    fn check_load(&self) -> Result<(), Violation> {
        let exceeds = |(groups, collectives, messages)| {
            groups > MOST_LOAD.0 || collectives > MOST_LOAD.1 || messages > MOST_LOAD.2
        };
        match self.cluster.hosts[..BROKEN].iter().find(|host| exceeds(host.sp.load())) {
            Some(host) => Err(Violation::Backlog { sp: host.sp.id(), messages: host.sp.load().2, bound: MOST_LOAD.2 }),
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
