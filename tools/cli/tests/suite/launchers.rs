//! Programs under launchers that do not support Outboard: the tests give no address, no daemon and no variable of ours.
//!
//! Ranks find one another by PMIx or by the launcher's variables, and the first rank starts the job's daemon. For
//! `srun` a Slurm of one node, with all its daemons, runs on the loopback interface. That test is ignored
//! unless requested, since it needs root and Slurm (`apt-get install slurm-wlm`).

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use outboard_bench::LoggedProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::program;

/// How long a daemon may take to start, and the job's own daemon to end.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(20);
/// Ranks of each job.
const RANKS: u32 = 4;

/// The path of a program, as root's shell finds it.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    folders.map(|folder| folder.join(program)).find(|place| place.is_file())
}

/// A Slurm with its daemons. Dropping the value ends the daemons, the last started first.
struct Slurm {
    daemons: Vec<LoggedProcess>,
    directory: tempfile::TempDir,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        while self.daemons.pop().is_some() {}
    }
}

impl Slurm {
    fn start() -> Slurm {
        let mut slurm = Slurm { daemons: Vec::new(), directory: tempfile::tempdir().expect("a directory") };
        let [controller, node] = [(); 2].map(|()| outboard_lab::free_port().expect("a port"));
        fs::write(slurm.configuration(), slurm.settings(controller, node)).expect("written");
        for name in ["state", "spool", "temporary"] {
            fs::create_dir(slurm.path(name)).expect("fresh");
        }
        let key = slurm.path("munge.key");
        fs::write(&key, std::array::from_fn::<u8, 128, _>(|at| at as u8)).expect("written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");
        let option = |name: &str, file: &str| format!("--{name}={}", slurm.path(file).display());
        let files = [("key-file", "munge.key"), ("socket", "munge.socket"), ("pid-file", "munge.pid")];
        let files = [&files[..], &[("log-file", "munge.log"), ("seed-file", "munge.seed")]].concat();
        let mut munged = slurm.command("munged");
        munged.args(["--foreground", "--force"]).args(files.iter().map(|(name, file)| option(name, file)));
        slurm.launch("munged", munged);
        slurm.until("munged listens", |slurm| slurm.path("munge.socket").exists());
        let mut slurmctld = slurm.command("slurmctld");
        slurmctld.args(["-D", "-i"]);
        slurm.launch("slurmctld", slurmctld);
        slurm.until("slurmctld listens", |_| TcpStream::connect(("127.0.0.1", controller)).is_ok());
        let mut slurmd = slurm.command("slurmd");
        slurmd.args(["-D", "-N", "localhost"]);
        slurm.launch("slurmd", slurmd);
        slurm.until("the node is idle", |slurm| {
            let shown = slurm.command("scontrol").args(["show", "node", "localhost"]).output().expect("starts");
            String::from_utf8_lossy(&shown.stdout).contains("State=IDLE ")
        });
        slurm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configuration(&self) -> PathBuf {
        self.path("slurm.conf")
    }

    /// The settings give the node as many processors as the test needs, whatever the machine has.
    fn settings(&self, controller: u16, node: u16) -> String {
        let home = self.directory.path().display();
        let mut text = String::new();
        let fixed = [
            "ClusterName=outboard",
            "SlurmctldHost=localhost(127.0.0.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "NodeName=localhost NodeAddr=127.0.0.1 CPUs=4",
            "PartitionName=all Nodes=localhost Default=YES State=UP",
        ];
        fixed.iter().for_each(|line| writeln!(text, "{line}").expect("a string"));
        writeln!(text, "SlurmctldPort={controller}\nSlurmdPort={node}").expect("a string");
        for (setting, file) in [
            ("AuthInfo=socket=", "munge.socket"),
            ("StateSaveLocation=", "state"),
            ("SlurmdSpoolDir=", "spool"),
            ("SlurmctldPidFile=", "slurmctld.pid"),
            ("SlurmdPidFile=", "slurmd.pid"),
        ] {
            writeln!(text, "{setting}{home}/{file}").expect("a string");
        }
        text
    }

    /// A command of this Slurm.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program).expect("Slurm: apt-get install slurm-wlm"));
        command.env("SLURM_CONF", self.configuration());
        command
    }

    fn launch(&mut self, name: &str, command: Command) {
        let process = LoggedProcess::start(name, command, self.directory.path()).expect("starts");
        self.daemons.push(process);
    }

    /// Slurm's daemons do not report when they are ready; polls until they are, or until one ends.
    fn until(&mut self, what: &str, ready: impl Fn(&Slurm) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !ready(self) {
            let mut ends: Vec<_> =
                self.daemons.iter().map(|daemon| PollFd::from_borrowed_fd(daemon.ended_fd(), PollFlags::IN)).collect();
            let pause = Timespec::try_from(PAUSE).expect("short");
            let ended = poll(&mut ends, Some(&pause)).expect("waits");
            let said: Vec<_> = self.daemons.iter().map(LoggedProcess::output_end).collect();
            assert!(ended == 0 && Instant::now() < deadline, "{what}: {said:#?}");
        }
    }

    /// `srun` with its own options, and with variables of ours.
    fn srun(&self, options: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = self.command("srun");
        command.args(["--overcommit", "--time=2", "-n", &RANKS.to_string()]).args(options);
        command.envs(environment.iter().copied());
        command
    }
}

/// Runs the ranks' program under `launcher`.
fn run(mut launcher: Command, temporary: &Path) -> Output {
    for name in ["OUTBOARD_SOCKET", "OUTBOARD_RENDEZVOUS", "OUTBOARD_RANK", "OUTBOARD_WORLD_SIZE", "OUTBOARD_JOB"] {
        launcher.env_remove(name);
    }
    launcher.env("LD_LIBRARY_PATH", program::home()).env("TMPDIR", temporary);
    launcher.arg(program::ranks_program()).arg("verify").output().expect("the launcher starts")
}

fn assert_verifies(launcher: Command, temporary: &Path) {
    let what = format!("{launcher:?}");
    let output = run(launcher, temporary);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what}: {output:?}");
    for rank in 0..RANKS {
        assert!(said.contains(&format!("@verified rank {rank} of {RANKS}")), "{what}: {output:?}");
    }
    assert_nothing_left(temporary);
}

/// The job's own daemon ends after its last rank, and removes all its files.
fn assert_nothing_left(temporary: &Path) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left: Vec<_> = fs::read_dir(temporary).expect("there").flatten().map(|entry| entry.file_name()).collect();
        let ours: Vec<_> = left.iter().filter(|name| name.to_string_lossy().starts_with("outboard-")).collect();
        if ours.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{ours:?} stayed");
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn programs_run_under_mpirun() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut mpirun = Command::new(find("mpirun").expect("Open MPI; `make deps` installs it"));
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", &RANKS.to_string()]);
    assert_verifies(mpirun, temporary.path());
}

#[test]
#[ignore = "needs root and slurm-wlm: make test"]
fn programs_run_under_srun() {
    let slurm = Slurm::start();
    let temporary = slurm.path("temporary");
    // Ranks find one another by PMIx, by Slurm's own variables, or by PMI's variables in addition.
    for options in [&["--mpi=pmix"][..], &[], &["--mpi=pmi2"]] {
        assert_verifies(slurm.srun(options, &[]), &temporary);
    }
    assert_verifies(slurm.srun(&["--mpi=pmix"], &[("OUTBOARD_BOOTSTRAP", "tcp")]), &temporary);
    let refused = run(slurm.srun(&[], &[("OUTBOARD_DAEMON", "off")]), &temporary);
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(said.contains("no service process answers") && said.contains("OUTBOARD_SOCKET"), "{refused:?}");
}
