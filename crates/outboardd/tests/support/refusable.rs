//! A daemon inside the test program, for which the test can order that the kernel refuses system calls.
//!
//! The daemon reads orders, lines `Calls errno`, and answers `@refused` once a seccomp filter holds for all its
//! threads.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::fd::AsFd;

use clap::Parser;
use outboard_service::Settings;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::scenarios::print_line;

/// Name of the scenario that runs a daemon instead of a rank.
pub(crate) const NAME: &str = "refusable-daemon";
/// Environment variable with the daemon's flags, separated by spaces.
pub(crate) const FLAGS: &str = "OUTBOARD_TEST_DAEMON_FLAGS";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    CrossMemory,
    /// System calls that use the memory descriptor.
    Descriptor,
    /// System calls that receive multicast. `Sends` are the system calls that send multicast.
    Receives,
    Sends,
}

impl Calls {
    const ALL: [Calls; 4] = [Calls::CrossMemory, Calls::Descriptor, Calls::Receives, Calls::Sends];

    fn numbers(self) -> Vec<i64> {
        match self {
            Calls::CrossMemory => vec![libc::SYS_process_vm_readv, libc::SYS_process_vm_writev],
            Calls::Descriptor => vec![libc::SYS_pread64, libc::SYS_pwrite64],
            Calls::Receives => vec![libc::SYS_recvmmsg],
            Calls::Sends => vec![libc::SYS_sendmmsg],
        }
    }

    /// Filter rules that select among calls with these numbers; an empty list selects all.
    fn rules(self) -> Vec<SeccompRule> {
        match self {
            Calls::CrossMemory | Calls::Receives | Calls::Sends => Vec::new(),
            // These system calls also read other files, but at offsets below a program's addresses.
            Calls::Descriptor => {
                let far = SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Ge, 1 << 32);
                vec![SeccompRule::new(vec![far.expect("an argument")]).expect("a condition")]
            }
        }
    }

    fn refuse(self, errno: u32) {
        let rules: BTreeMap<_, _> = self.numbers().into_iter().map(|number| (number, self.rules())).collect();
        let here = TargetArch::try_from(std::env::consts::ARCH).expect("a known processor");
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), here);
        let program = BpfProgram::try_from(filter.expect("a filter")).expect("a program");
        seccompiler::apply_filter_all_threads(&program).expect("the kernel takes the filter");
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Settings,
}

/// Runs the daemon until the test ends the process or closes its input.
pub(crate) fn serve() {
    let flags = std::env::var(FLAGS).expect("set by the test");
    let line = Line::parse_from(std::iter::once("outboardd").chain(flags.split_whitespace()));
    let (stop, stopped) = rustix::pipe::pipe().expect("a pipe");
    let ready = || {
        std::thread::spawn(move || {
            for order in std::io::stdin().lock().lines() {
                let order = order.expect("text");
                let (calls, errno) = order.split_once(' ').expect("two words");
                let calls = Calls::ALL.into_iter().find(|known| format!("{known:?}") == calls);
                calls.expect("known calls").refuse(errno.parse().expect("a number"));
                print_line("refused");
            }
            drop(stopped);
        });
        print_line("ready");
    };
    let (settings, stop) = (&line.settings, stop.as_fd());
    let attach = outboard_service::attach_socket(settings, None).expect("a socket");
    let served = match settings.relay {
        Some(service) => outboard_relay::serve(settings, attach, service, stop, || true, ready),
        None => outboard_service::run(
            settings,
            attach,
            stop,
            || true,
            |_| {
                ready();
                Ok(())
            },
        ),
    };
    served.expect("it serves");
}
