//! The embedded default: ranks that find no daemon start exactly one daemon for their job, and nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use outboard::bootstrap::tcp_server::TOKEN_VARIABLE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::support::{
    DAEMON, Daemon, Rank, SCENARIO, SECRET, activated, again, expect_line_from_all, last_words, let_go, listening,
};

/// Waits for the end of `daemon`, which must end.
fn await_end(daemon: Pid) {
    // A process that cannot be opened has ended.
    if let Ok(pidfd) = pidfd_open(daemon, PidfdFlags::empty()) {
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).expect("waits");
        assert_eq!(ended, 1, "daemon {daemon:?} ends");
    }
}

/// A job whose ranks are not configured with a daemon.
struct Job {
    /// Directory for temporary files.
    directory: tempfile::TempDir,
    /// Runtime directory, in which the user's daemon would have its socket.
    runtime: tempfile::TempDir,
    rendezvous: String,
}

impl Job {
    fn new() -> Job {
        let port = outboard_lab::free_port().expect("a port");
        let directory = || tempfile::tempdir().expect("a directory");
        Job { directory: directory(), runtime: directory(), rendezvous: format!("127.0.0.1:{port}") }
    }

    fn command(&self, scenario: &str, rank: usize, ranks: usize) -> Command {
        let mut command = again();
        command
            .env(SCENARIO, scenario)
            .env("TMPDIR", self.directory.path())
            .env("XDG_RUNTIME_DIR", self.runtime.path())
            .env("OUTBOARD_OUTBOARDD", DAEMON)
            .env("OUTBOARD_RENDEZVOUS", &self.rendezvous)
            .env(TOKEN_VARIABLE, SECRET)
            .env("OUTBOARD_RANK", rank.to_string())
            .env("OUTBOARD_WORLD_SIZE", ranks.to_string())
            .env_remove("OUTBOARD_SOCKET");
        command
    }

    fn ranks(&self, scenario: &str, ranks: usize) -> Vec<Rank> {
        (0..ranks).map(|rank| Rank::spawn(&mut self.command(scenario, rank, ranks))).collect()
    }

    /// Starts a rank that has attached. When the rank continues, it makes a group on its own.
    fn alone(&self, rank: usize, ranks: usize) -> Rank {
        let mut rank = Rank::spawn(&mut self.command("alone", rank, ranks));
        assert_eq!(rank.line(), "ready");
        rank
    }

    /// Directory of the job's daemon, which must be running.
    fn home(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(self.directory.path()).expect("there");
        entries.next().expect("a daemon's directory").expect("readable").path()
    }

    /// Running daemons of this job.
    fn daemons(&self) -> Vec<Pid> {
        let path = self.directory.path().to_str().expect("UTF-8").as_bytes();
        let ours = |process: &std::fs::DirEntry| {
            let said = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let has = |word: &[u8]| said.windows(word.len()).any(|window| window == word);
            has(path) && has(b"--ready-fd")
        };
        let processes = std::fs::read_dir("/proc").expect("there").flatten().filter(ours);
        let number = |process: std::fs::DirEntry| process.file_name().to_str()?.parse().ok();
        processes.filter_map(number).filter_map(Pid::from_raw).collect()
    }

    fn daemon(&self) -> Pid {
        match self.daemons()[..] {
            [daemon] => daemon,
            ref others => panic!("exactly one daemon, and not {others:?}"),
        }
    }

    /// The daemon that serves now: `before` or its successor. If there is a successor, `before` has no ranks, and its
    /// end is awaited.
    fn daemon_after(&self, before: Option<Pid>) -> Pid {
        if self.daemons().len() > 1 {
            before.into_iter().for_each(await_end);
        }
        self.daemon()
    }

    /// Waits for the daemon's end and checks that nothing was left behind.
    fn assert_ends(self, daemon: Pid) {
        await_end(daemon);
        self.assert_clean();
    }

    fn assert_clean(self) {
        let left: Vec<_> = std::fs::read_dir(self.directory.path()).expect("there").flatten().collect();
        assert!(left.is_empty(), "{left:?} stayed");
    }
}

#[test]
fn eight_ranks_at_once_start_one_daemon_that_ends_with_them_however_they_end() {
    for killed in [false, true] {
        let job = Job::new();
        let mut ranks = job.ranks("attached", 8);
        expect_line_from_all(&mut ranks, "ready");
        let daemon = job.daemon();
        if killed {
            ranks.iter_mut().for_each(Rank::kill)
        } else {
            let_go(ranks)
        }
        job.assert_ends(daemon);
    }
}

/// Starts a daemon of the user, which the socket at the default path activates.
fn of_the_user(job: &Job) -> Daemon {
    let directory = job.runtime.path().join("outboard");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).expect("fresh");
    let mut command = activated(listening(&directory.join("outboardd.sock")));
    command.arg(DAEMON);
    Daemon::start_by(command, &[])
}

#[test]
fn ranks_attach_to_the_user_s_daemon_where_the_job_has_none() {
    let job = Job::new();
    let daemon = of_the_user(&job);
    let mut ranks = job.ranks("attached", 2);
    expect_line_from_all(&mut ranks, "ready");
    assert_eq!((daemon.statistics()["ranks"].as_u64(), job.daemons()), (Some(2), Vec::new()));
    let_go(ranks);
    job.assert_clean();
}

#[test]
fn ranks_attach_to_the_job_s_daemon_before_the_user_s() {
    let job = Job::new();
    let first = job.alone(0, 2);
    let own = job.daemon();
    let daemon = of_the_user(&job);
    let second = job.alone(1, 2);
    assert_eq!(daemon.statistics()["ranks"], 0);
    [first, second].into_iter().for_each(Rank::let_go);
    job.assert_ends(own);
}

/// SP-8, GP-3: one daemon for each remainder of the local rank, each daemon in a separate directory.
#[test]
fn ranks_of_a_job_start_several_daemons_where_asked() {
    let job = Job::new();
    let spawn = |rank: usize| {
        let mut command = job.command("allgather", rank, 5);
        command.env("OUTBOARD_SERVICE_PROCESSES", "2").env("OUTBOARD_LOCAL_RANK", rank.to_string());
        Rank::spawn(&mut command)
    };
    let mut ranks: Vec<Rank> = (0..5).map(spawn).collect();
    expect_line_from_all(&mut ranks, "done");
    let daemons = job.daemons();
    assert_eq!(daemons.len(), 2, "{daemons:?}");
    let_go(ranks);
    daemons.into_iter().for_each(await_end);
    job.assert_clean();
}

#[test]
fn the_daemon_outlives_the_rank_that_started_it() {
    let job = Job::new();
    let mut starter = job.alone(0, 2);
    let daemon = job.daemon();
    let other = job.alone(1, 2);
    starter.kill();
    assert_eq!(job.daemon(), daemon);
    other.let_go();
    job.assert_ends(daemon);
}

/// One rank cannot have a daemon, and the others need not wait for it: all name the rank and its host.
#[test]
fn all_ranks_name_the_one_rank_that_finds_no_daemon() {
    let job = Job::new();
    let spawn = |rank: usize| {
        let mut command = job.command("no-init", rank, 3);
        if rank == 2 {
            command.env("OUTBOARD_DAEMON", "off");
        }
        Rank::spawn(&mut command)
    };
    let said: Vec<String> = (0..3).map(spawn).collect::<Vec<_>>().into_iter().map(last_words).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let missing = format!(" on host {host}: No such file or directory");
    assert!(said[2].starts_with("no service process answers at ") && said[2].contains(&missing), "{said:?}");
    for sentence in &said[..2] {
        assert!(sentence.starts_with("rank 2 cannot attach: no service process answers at "), "{said:?}");
        assert!(sentence.contains(&missing), "{said:?}");
    }
    job.daemons().into_iter().for_each(await_end);
}

#[test]
fn a_missing_interface_is_named_with_its_host_and_variable() {
    let job = Job::new();
    let said = last_words(Rank::spawn(job.command("refused", 0, 1).env("OUTBOARD_INTERFACE", "nonexistent0")));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let expected =
        format!("host {host} has no network interface nonexistent0; set OUTBOARD_INTERFACE to one of `ip link`");
    assert_eq!(said, expected);
    job.daemons().into_iter().for_each(await_end);
}

/// One warning in a job: rank 0 gives it, unless `outboard run` has.
#[test]
fn an_unknown_variable_is_reported_by_the_first_rank_alone() {
    let job = Job::new();
    let warnings = |launched: bool| -> Vec<usize> {
        let run = |rank: usize| {
            let mut command = job.command("refused", rank, 2);
            command.env("OUTBOARD_DAEMON", "off").env("OUTBOARD_SOCKETT", "x");
            if launched {
                command.env("OUTBOARD_LAUNCHED", "1");
            }
            let errors = String::from_utf8(command.output().expect("it runs").stderr).expect("text");
            let expected = "OUTBOARD_SOCKETT has no effect, no program reads it; did you mean OUTBOARD_SOCKET?";
            errors.matches(expected).count()
        };
        vec![run(0), run(1)]
    };
    assert_eq!((warnings(false), warnings(true)), (vec![1, 0], vec![0, 0]));
}

#[test]
fn the_job_s_daemon_answers_at_its_statistics_socket_and_removes_it() {
    let job = Job::new();
    let rank = job.alone(0, 1);
    let daemon = job.daemon();
    let mut answer = String::new();
    let mut stream = UnixStream::connect(job.home().join("stats")).expect("it listens");
    stream.read_to_string(&mut answer).expect("text");
    let statistics: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(statistics["pid"].as_i64(), Some(daemon.as_raw_nonzero().get().into()));
    assert!(answer.starts_with("{\"host\":"), "{answer}");
    rank.let_go();
    job.assert_ends(daemon);
}

/// Nobody cleans up after a killed daemon: its log stays, and the error names the log. The next rank still finds a
/// daemon.
#[test]
fn a_killed_daemon_s_log_is_named_and_the_next_takes_its_place() {
    let job = Job::new();
    let mut rank = Rank::spawn(&mut job.command("outlives", 0, 1));
    assert_eq!(rank.line(), "ready");
    let daemon = job.daemon();
    kill_process(daemon, Signal::KILL).expect("it lives");
    await_end(daemon);
    rank.go_on();
    let sentence = rank.line();
    let log = job.home().join("log");
    assert!(sentence.contains(log.to_str().expect("UTF-8")), "{sentence}");
    rank.finish();
    let next = job.alone(0, 1);
    let daemon = job.daemon();
    next.let_go();
    job.assert_ends(daemon);
}

/// Writes a program for `OUTBOARD_OUTBOARDD`.
fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
    path
}

fn fifo(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    path
}

/// A rank dies while it starts the daemon. The next rank starts another daemon, and one of the two daemons stays.
#[test]
fn the_death_of_a_rank_that_is_starting_the_daemon_stops_nobody() {
    let (job, scratch) = (Job::new(), tempfile::tempdir().expect("a directory"));
    let (starting, release) = (fifo(scratch.path(), "starting"), fifo(scratch.path(), "release"));
    let (starting, release) = (starting.display(), release.display());
    let text = format!("echo x > {starting}\nread x < {release}\n{DAEMON} \"$@\"\necho $? > {starting}");
    let slow = script(scratch.path(), "slow", &text);
    let mut first = Rank::spawn(job.command("alone", 0, 2).env("OUTBOARD_OUTBOARDD", slow));
    let told = |path: &str| {
        let mut line = String::new();
        BufReader::new(std::fs::File::open(path).expect("there")).read_line(&mut line).expect("text");
        line.trim().to_owned()
    };
    assert_eq!(told(&starting.to_string()), "x");
    first.kill();
    let second = job.alone(1, 2);
    let daemon = job.daemon();
    std::fs::write(release.to_string(), "x\n").expect("somebody reads");
    assert_eq!(told(&starting.to_string()), "1", "the late daemon finds the socket taken");
    assert_eq!(job.daemon(), daemon);
    second.let_go();
    job.assert_ends(daemon);
}

/// Many ranks start at once, repeatedly. They find no daemon, a daemon that serves other ranks, or a daemon that is
/// ending.
#[test]
fn ranks_that_start_at_once_again_and_again_have_one_daemon_and_leave_none() {
    let job = Job::new();
    let mut last = None;
    for _ in 0..6 {
        let mut ranks = job.ranks("attached", 12);
        expect_line_from_all(&mut ranks, "ready");
        let daemon = job.daemon_after(last);
        let mut late = job.ranks("attached", 4);
        // Ranks that start meanwhile find this daemon or the next one, even while other ranks leave.
        let_go(ranks);
        expect_line_from_all(&mut late, "ready");
        last = Some(job.daemon_after(Some(daemon)));
        let_go(late);
    }
    job.assert_ends(last.expect("there were rounds"));
}

#[test]
fn what_hinders_the_daemon_is_named_with_its_log() {
    let (job, scratch) = (Job::new(), tempfile::tempdir().expect("a directory"));
    let refused =
        |variable: &str, value: &str| last_words(Rank::spawn(job.command("refused", 0, 1).env(variable, value)));
    let missing = refused("OUTBOARD_OUTBOARDD", "/no/such/daemon");
    assert!(missing.contains("/no/such/daemon") && missing.contains("OUTBOARD_OUTBOARDD"), "{missing}");
    let broken = script(scratch.path(), "broken", "echo no network today >&2; exit 3");
    let broken = refused("OUTBOARD_OUTBOARDD", broken.to_str().expect("UTF-8"));
    let log = job.home().join("log");
    assert!(broken.contains("no network today") && broken.contains(log.to_str().expect("UTF-8")), "{broken}");
    let unusable = refused("OUTBOARD_INTERFACE", "nonexistent0");
    assert!(unusable.contains("nonexistent0"), "the daemon's own sentence: {unusable}");
    let homeless = refused("OUTBOARD_SERVICE_PROCESSES", "2");
    assert!(homeless.contains("OUTBOARD_LOCAL_RANK"), "{homeless}");
    let off = refused("OUTBOARD_DAEMON", "off");
    assert!(off.contains("/outboard/outboardd.sock"), "{off}");
    let wrong = refused("OUTBOARD_DAEMON", "perhaps");
    assert!(wrong.contains("OUTBOARD_DAEMON") && wrong.contains("auto or off"), "{wrong}");
    let named = refused("OUTBOARD_SOCKET", "/no/such/socket");
    assert!(named.contains("/no/such/socket"), "a named socket is never replaced: {named}");
    assert_eq!(job.daemons(), []);
}

/// Starts a rank after `fill` has run. The rank's directory for temporary files has the size that `options` give, and
/// its /dev/shm is tiny.
fn where_room_is_short(job: &Job, options: &str, fill: &str) -> (String, String) {
    let temporary = job.directory.path().display();
    let inner = job.command("full", 0, 1);
    let script = format!(
        "mount -t tmpfs -o size=4k none /dev/shm && mount -t tmpfs -o {options} none {temporary} && {fill} && exec \"$0\" \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut rank = Rank::spawn(&mut command);
    let outcome = (rank.line(), rank.line());
    rank.finish();
    outcome
}

/// In each round there is room for one more file: at first the directory cannot be made, then the lock, the log, the
/// socket.
#[test]
fn a_full_disk_is_named_and_what_was_begun_is_cleared_away() {
    let mut outcomes = Vec::new();
    for files in 1..=6 {
        let job = Job::new();
        let (said, left) = where_room_is_short(&job, &format!("size=1m,nr_inodes={files}"), "true");
        if said != "attached" {
            assert!(said.contains("No space left on device") && said.contains("set TMPDIR"), "{files} files: {said}");
            // The log of a daemon that could report the reason stays.
            assert!(left.is_empty() || said.contains("says:"), "{files} files: {said}: {left} stayed");
        }
        outcomes.push(said == "attached");
        job.daemons().into_iter().for_each(await_end);
    }
    assert!(outcomes.is_sorted() && !outcomes[0] && outcomes[5], "{outcomes:?}");
}

/// No byte of the log can be written, and the job still runs.
#[test]
fn a_job_s_daemon_needs_no_room_for_its_log() {
    let job = Job::new();
    let fill = format!("{{ cat /dev/zero > {}/fill || true; }} 2> /dev/null", job.directory.path().display());
    let (said, _) = where_room_is_short(&job, "size=64k,nr_inodes=64", &fill);
    assert_eq!(said, "attached");
    job.daemons().into_iter().for_each(await_end);
}

/// Another user has guessed the directory's name and listens there, or the directory was left open to all users.
#[test]
fn a_directory_that_is_not_this_user_s_alone_is_named_and_nobody_there_is_spoken_to() {
    let job = Job::new();
    let mut first = job.ranks("attached", 1);
    expect_line_from_all(&mut first, "ready");
    let (home, daemon) = (job.home(), job.daemon());
    let_go(first);
    await_end(daemon);
    std::fs::create_dir(&home).expect("the daemon took it away");
    let listener = listening(&home.join("socket"));
    let refused = || {
        let said = last_words(Rank::spawn(&mut job.command("refused", 0, 1)));
        assert!(said.contains(home.to_str().expect("UTF-8")) && said.contains("TMPDIR"), "{said}");
        let nobody = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&Timespec::default())).expect("looks");
        assert_eq!(nobody, 0, "a stranger is spoken to");
        said
    };
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).expect("ours");
    assert!(refused().contains("open to other users"));
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).expect("ours");
    // Only root can change a directory's owner.
    if std::os::unix::fs::chown(&home, Some(12_345), None).is_ok() {
        assert!(refused().contains("not a directory of this user"));
    }
}
