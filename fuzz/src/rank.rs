//! A whole daemon in this process, two honest ranks, and a hostile one at its socket and in its shared memory.
//!
//! The hostile rank sends whole and broken messages with any descriptors, posts entries, scribbles over its control
//! region, rings the doorbell, and connects again and again. In between it behaves, so that it gets somewhere. The
//! daemon reaches the rank's memory by registered memfds alone: both share a process, and the rank must not be given
//! the daemon's memory.
//!
//! Demands: the daemon never panics. The honest ranks' allgathers bring their bytes at any time. A call to which the
//! hostile rank owes its part ends at the latest when the hostile rank's connection ends. At the end the daemon leaves
//! no descriptor behind.

mod honest;
mod hostile;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::{Args, Command, FromArgMatches};
use outboard_service::{Settings, StartError, attach_socket};
use outboard_shm::attach::{AttachReply, AttachRequest, OFFER_BYTES};
use outboard_shm::region::seal_bytes;
use outboard_sim::FuzzInput;
use rustix::event::{EventfdFlags, eventfd};

use honest::HonestRank;
use hostile::HostileRank;

/// The acts of a script.
pub mod acts {
    #![allow(missing_docs, reason = "the names are the documentation")]
    pub const HONEST: u8 = 0;
    pub const SHARED_GROUP: u8 = 1;
    pub const OWED: u8 = 2;
    pub const PAID: u8 = 3;
    pub const REQUEST: u8 = 4;
    pub const BYTES: u8 = 5;
    pub const ENTRY: u8 = 6;
    pub const SCRIBBLE: u8 = 7;
    pub const RING: u8 = 8;
    pub const CONNECT: u8 = 9;
    pub const READ: u8 = 10;
    pub const RECORD: u8 = 11;
    pub const END: u8 = 12;
}

/// Longer than any machine takes to close the descriptors of a daemon that has ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(15);

/// A daemon on a thread of its own.
struct FuzzDaemon {
    directory: tempfile::TempDir,
    stop: Arc<OwnedFd>,
    thread: JoinHandle<Result<(), StartError>>,
}

fn settings() -> Settings {
    static DEFAULTS: OnceLock<Settings> = OnceLock::new();
    let parse = || {
        let command = Settings::augment_args(Command::new("outboardd"));
        let flags = ["outboardd", "--fabric", "loopback", "--offload-from", "1", "--staging-quota", "1M"];
        let matches = command.try_get_matches_from(flags).expect("flags that exist");
        Settings::from_arg_matches(&matches).expect("flags that fit")
    };
    DEFAULTS.get_or_init(parse).clone()
}

impl FuzzDaemon {
    fn start() -> FuzzDaemon {
        let directory = tempfile::tempdir().expect("a directory");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
        let settings = Settings { socket: Some(directory.path().join("socket")), ..settings() };
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let stopped = || rustix::io::read(&stop, &mut [0; 8]).is_ok();
                let attach = attach_socket(&settings, None)?;
                outboard_service::run(&settings, attach, stop.as_fd(), stopped, |_| {
                    ready.send(()).expect("somebody waits");
                    Ok(())
                })
            }
        });
        started.recv().expect("the daemon starts");
        FuzzDaemon { directory, stop, thread }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn end(self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).expect("an eventfd takes 1");
        self.thread.join().expect("the daemon does not panic").expect("the daemon ends in good order");
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("there").count()
}

/// Plays a script.
pub fn play(script: &[u8]) {
    let before = descriptors();
    let daemon = FuzzDaemon::start();
    let mut input = FuzzInput::new(script);
    let mut pair = [HonestRank::attach(&daemon.socket()), HonestRank::attach(&daemon.socket())];
    let alone = make_group(&mut pair);
    let mut hostile = HostileRank::connect(&daemon.socket());
    let mut shared = None;
    // The number of acts is bounded, because each act of the honest ranks takes time.
    for _ in 0..64 {
        if input.ended() {
            break;
        }
        match input.byte() % (acts::END + 1) {
            acts::HONEST => gather(&mut pair, alone),
            acts::SHARED_GROUP if shared.is_none() && hostile.behaves() => {
                shared = hostile.group_with(&mut pair[0]);
            }
            acts::OWED => {
                if let Some((group, _)) = shared {
                    pair[0].owe(group);
                }
            }
            acts::PAID => {
                if let Some((_, group)) = shared {
                    hostile.pay(group);
                }
            }
            acts::REQUEST => hostile.request(&mut input),
            acts::BYTES => hostile.bytes(&mut input),
            acts::ENTRY => hostile.entry(&mut input),
            acts::SCRIBBLE => hostile.scribble(&mut input),
            acts::RING => hostile.ring(&mut input),
            acts::CONNECT => {
                drop(hostile);
                hostile = HostileRank::connect(&daemon.socket());
                if input.flip() {
                    hostile.attach();
                }
            }
            acts::READ => hostile.read(),
            acts::RECORD => hostile.record(shared.map(|(_, group)| group), &mut input),
            acts::END => break,
            _ => {}
        }
    }
    drop(hostile);
    pair[0].await_owed_call();
    gather(&mut pair, alone);
    let [one, other] = pair;
    one.detach();
    drop(other);
    daemon.end();
    // Threads that outlive the daemon close the last descriptors.
    let started = Instant::now();
    while descriptors() > before && started.elapsed() < CLOSED_WITHIN {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(descriptors(), before, "descriptors stay behind");
}

/// Makes a group of the two honest ranks. Each rank has its own identifier of the group.
fn make_group(pair: &mut [HonestRank; 2]) -> [u64; 2] {
    let mut offers = Vec::with_capacity(2 * OFFER_BYTES);
    for rank in pair.iter_mut() {
        let AttachReply::Offer(offer) = rank.request(&AttachRequest::Offer, &[]) else {
            panic!("an honest rank gets its offer")
        };
        offers.extend_from_slice(&offer[..]);
    }
    let offers = seal_bytes("offers", &offers).expect("memory");
    for (rank, me) in pair.iter_mut().zip(0..) {
        rank.send(&AttachRequest::CreateGroup { ranks: 2, rank: me }, &[offers.as_fd()]);
    }
    pair.each_mut().map(|rank| match rank.receive() {
        AttachReply::GroupReady(ready) => ready.group,
        other => panic!("an honest group is made, not {other:?}"),
    })
}

/// Plays an allgather of the two honest ranks.
fn gather(pair: &mut [HonestRank; 2], groups: [u64; 2]) {
    let round = pair[0].rounds;
    for ((rank, group), me) in pair.iter_mut().zip(groups).zip(0..) {
        rank.gather(group, me);
    }
    pair.iter_mut().for_each(|rank| rank.check_gather(round));
}
