//! The UCX kind passes the conformance suite; a killed peer is reported; an idle process sleeps.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outboard_fabric::{
    Armed, Fabric, FabricEvent, FabricLimits, MAX_PAYLOAD, PeerId, PeerLoss, SendError, SendPayload, Ucx, UcxError,
    UcxSettings, UcxTransport, conformance,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

const HERE: PeerId = PeerId(1);
const THERE: PeerId = PeerId(2);
/// Time without an event after which a test fails, and longest life of a peer process.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// Set for a process that plays the peer of a test.
const PEER_PROCESS: &str = "OUTBOARD_TEST_UCX_PEER";

/// UCX over the loopback device.
fn settings() -> UcxSettings {
    let (transport, devices) = (UcxTransport::Tcp, Some("lo".to_owned()));
    UcxSettings { transport, devices, ..UcxSettings::default() }
}

#[test]
#[ignore = "needs libucx0: make test"]
fn ucx_conforms() {
    let settings = settings();
    conformance::all(&mut |number, limits| {
        Box::new(Ucx::new(PeerId(number + 1), &UcxSettings { limits, ..settings.clone() }).expect("UCX starts on lo"))
    });
}

/// Sleeps until the fabric has work; false if nothing happened.
fn sleep(fabric: &mut Ucx) -> bool {
    if fabric.arm() == Armed::Busy {
        return true;
    }
    let fd = fabric.event_fd();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&PATIENCE)).expect("poll works") > 0
}

fn until<T>(fabric: &mut Ucx, what: &str, mut found: impl FnMut(FabricEvent<'_>) -> Option<T>) -> T {
    loop {
        let mut result = None;
        let moved = fabric.progress(&mut |event| result = result.take().or_else(|| found(event)));
        if let Some(result) = result {
            return result;
        }
        assert!(moved > 0 || sleep(fabric), "nothing happens while waiting for {what}");
    }
}

fn loss(fabric: &mut Ucx) -> PeerLoss {
    until(fabric, "the loss of the peer", |event| match event {
        FabricEvent::PeerLost { peer: THERE, why } => Some(why),
        _ => None,
    })
}

/// Body of the peer process that [`PeerProcess::greet`] starts. Greets the address that it reads on standard input,
/// then receives messages until killed.
#[test]
fn peer_process() {
    if std::env::var_os(PEER_PROCESS).is_none() {
        return;
    }
    let handlers = signal_handlers();
    let mut fabric = Ucx::new(THERE, &settings()).expect("UCX starts on lo");
    assert_eq!(signal_handlers(), handlers, "UCX left signal handlers behind");
    println!("\naddress {}", hex(fabric.local_address()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("an address");
    fabric.connect(HERE, &unhex(line.trim())).expect("the address is good");
    fabric.send(HERE, b"hello", SendPayload::Empty).expect("a fresh path has room");
    loop {
        if fabric.progress(&mut |_| ()) == 0 && !sleep(&mut fabric) {
            return;
        }
    }
}

/// The signals that this process handles, as the kernel's mask.
fn signal_handlers() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("a process of its own");
    status.lines().find(|line| line.starts_with("SigCgt")).expect("Linux tells").to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex digits")).collect()
}

/// A process that runs `peer_process`; killed when dropped.
struct PeerProcess {
    child: Child,
    address: Vec<u8>,
}

impl PeerProcess {
    /// Starts the process, connects both ways and receives its greeting.
    fn greet(fabric: &mut Ucx) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "peer_process", "--nocapture"])
            .env(PEER_PROCESS, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test starts again");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("address ").map(unhex));
        let peer = Self { address: address.expect("the peer tells its address"), child };
        let mut input = peer.child.stdin.as_ref().expect("piped");
        writeln!(input, "{}", hex(fabric.local_address())).expect("the peer reads");
        fabric.connect(THERE, &peer.address).expect("the address is good");
        until(fabric, "the peer's greeting", |event| match event {
            FabricEvent::Message { from: THERE, header: b"hello", payload: b"" } => Some(()),
            _ => None,
        });
        peer
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("our own child");
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The kill fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A killed peer is found by the reset of its connection, whether or not a message was ever sent to the peer.
#[test]
#[ignore = "needs libucx0: make test"]
fn a_killed_peer_is_lost() {
    let settings = settings();
    for spoken_to in [false, true] {
        let mut fabric = Ucx::new(HERE, &settings).expect("UCX starts on lo");
        let peer = PeerProcess::greet(&mut fabric);
        if spoken_to {
            fabric.send(THERE, b"hello to you", SendPayload::Empty).expect("an idle path has room");
        }
        while fabric.progress(&mut |_| ()) > 0 || fabric.arm() == Armed::Busy {}
        peer.signal(Signal::KILL);
        let why = loss(&mut fabric);
        assert_eq!(why, PeerLoss::Reset, "spoken to: {spoken_to}");
        assert_eq!(fabric.send(THERE, b"", SendPayload::Empty), Err(SendError::Unknown(THERE)));
    }
}

/// A stopped peer blocks its sender within bounds. Killing it frees all buffers.
#[test]
#[ignore = "needs libucx0: make test"]
fn a_peer_killed_under_load_frees_the_buffers() {
    let settings = settings();
    let limits =
        FabricLimits { pool_bytes: 16 * MAX_PAYLOAD, outstanding_bytes: 64 * MAX_PAYLOAD, ..FabricLimits::default() };
    let mut fabric = Ucx::new(HERE, &UcxSettings { limits, ..settings }).expect("UCX starts on lo");
    let peer = PeerProcess::greet(&mut fabric);
    peer.signal(Signal::STOP);
    // The kernel's socket buffers accept some messages; then nothing moves and the pool stays empty.
    let mut sent = 0;
    loop {
        match fabric.payload_buffer(MAX_PAYLOAD) {
            Some(buffer) => {
                fabric.send(THERE, b"load", SendPayload::Buffer(buffer)).expect("the path has room");
                sent += 1;
            }
            None if fabric.progress(&mut |_| ()) == 0 && fabric.arm() == Armed::Armed => break,
            None => {}
        }
        assert!(sent < 10_000, "a stopped peer takes everything");
    }
    peer.signal(Signal::KILL);
    assert_eq!(loss(&mut fabric), PeerLoss::Reset);
    let buffers: Vec<_> = (0..16).map(|_| fabric.payload_buffer(MAX_PAYLOAD)).collect();
    assert!(buffers.iter().all(Option::is_some), "a lost peer keeps buffers");
}

/// Connecting to the address of an ended process leads to a loss, not to a hang.
#[test]
#[ignore = "needs libucx0: make test"]
fn an_absent_peer_is_lost() {
    let settings = settings();
    let mut fabric = Ucx::new(HERE, &settings).expect("UCX starts on lo");
    let peer = PeerProcess::greet(&mut fabric);
    let address = peer.address.clone();
    drop(peer);
    loss(&mut fabric);
    let gone = fabric.connect(THERE, &address).is_err() || {
        // The refusal may come before or after this send.
        let _ = fabric.send(THERE, b"anyone?", SendPayload::Empty);
        loss(&mut fabric);
        true
    };
    assert!(gone);
}

/// A panic of the sink passes through UCX's frames and leaves the fabric usable.
#[test]
#[ignore = "needs libucx0: make test"]
fn a_panic_of_the_sink_reaches_its_caller() {
    let settings = settings();
    let mut fabric = Ucx::new(HERE, &settings).expect("UCX starts on lo");
    let mut other = Ucx::new(THERE, &settings).expect("UCX starts on lo");
    let address = fabric.local_address().to_vec();
    other.connect(HERE, &address).expect("the address is good");
    other.send(HERE, b"first", SendPayload::Empty).expect("a fresh path has room");
    let step = |_| {
        other.progress(&mut |_| ());
        let step = AssertUnwindSafe(|| fabric.progress(&mut |_| panic!("a sink that fails")));
        catch_unwind(step).err()
    };
    let panic = (0..10_000_000).find_map(step).expect("the message reaches the sink");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a sink that fails"));
    other.send(HERE, b"second", SendPayload::Empty).expect("an idle path has room");
    other.progress(&mut |_| ());
    until(&mut fabric, "a message after the panic", |event| match event {
        FabricEvent::Message { from: THERE, header: b"second", .. } => Some(()),
        _ => None,
    });
}

/// How often any thread of a process was scheduled, and its processor time in clock ticks.
fn activity(pid: u32) -> (u64, u64) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a live process");
    let switches = tasks
        .flat_map(|task| fs::read_to_string(task.expect("a live thread").path().join("status")))
        .map(|status| {
            let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
            counts.map(|(_, count)| count.trim().parse::<u64>().expect("a number")).sum::<u64>()
        })
        .sum();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    (switches, ticks(11) + ticks(12))
}

/// No thread of an armed process runs while nothing arrives, neither Outboard's nor UCX's.
#[test]
#[ignore = "needs libucx0: make test"]
fn an_idle_peer_sleeps() {
    let settings = settings();
    let mut fabric = Ucx::new(HERE, &settings).expect("UCX starts on lo");
    let peer = PeerProcess::greet(&mut fabric);
    let pid = peer.child.id();
    let spell =
        Duration::from_secs(std::env::var("OUTBOARD_IDLE_SECONDS").map_or(2, |text| text.parse().expect("seconds")));
    // The greeting may still be settling during the first intervals.
    let mut before = activity(pid);
    let slept = (0..5).any(|_| {
        std::thread::sleep(spell);
        let after = activity(pid);
        let quiet = after == before;
        if !quiet {
            eprintln!("{before:?} -> {after:?} (switches, ticks)");
        }
        before = after;
        quiet
    });
    assert!(slept, "an idle process keeps running");
}

#[test]
#[ignore = "needs libucx0: make test"]
fn a_missing_device_is_named() {
    let settings = settings();
    let nowhere = UcxSettings { devices: Some("nosuch0".to_owned()), ..settings };
    let refused = Ucx::new(HERE, &nowhere).err().expect("there is no such device").to_string();
    assert!(refused.contains("nosuch0"), "{refused}");
}

/// The transport that service processes use accepts no device without RDMA.
#[test]
#[ignore = "needs libucx0: make test"]
fn rdma_is_not_tcp() {
    let settings = settings();
    let refused = Ucx::new(HERE, &UcxSettings { transport: UcxTransport::Rdma, ..settings }).err();
    assert!(matches!(refused, Some(UcxError::Start { .. })), "{refused:?}");
}
