//! Programs inside a host: starts each in a separate session, and ends sessions.

use crate::host::TEMPORARY_DIR;
use crate::message::ExecRequest;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Rounds of killing after which a session that forks faster than it dies is abandoned.
const KILL_ROUNDS: usize = 100;

/// Starts a program as leader of a new session with these standard streams and this host's temporary directory.
pub(crate) fn start(request: &ExecRequest, streams: [OwnedFd; 3]) -> Result<Pid, String> {
    let (program, args) = request.argv.split_first().ok_or("no program was named")?;
    if !request.cwd.is_dir() {
        return Err(format!("the directory {} does not exist there", request.cwd.display()));
    }
    let [stdin, stdout, stderr] = streams.map(Stdio::from);
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(request.env.iter().map(|(k, v)| (k, v))).current_dir(&request.cwd);
    command.env("TMPDIR", TEMPORARY_DIR);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    // SAFETY: the closure only makes system calls, and touches no memory except its own stack.
    unsafe { command.pre_exec(become_session_leader) };
    let child = command.spawn().map_err(|e| e.to_string())?;
    Ok(Pid::from_child(&child))
}

fn become_session_leader() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: an all-zero sigset_t is a valid object, and sigemptyset fills it before use; both calls are
    // async-signal-safe.
    let result = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Kills every process of the session that `leader` leads.
///
/// A process that has created a session of its own (a daemon) lives on, as after an ssh connection, until its host
/// ends.
pub(crate) fn kill(leader: Pid) {
    for _ in 0..KILL_ROUNDS {
        let members = living_members(leader);
        if members.is_empty() {
            return;
        }
        for member in members {
            // The kill fails if the process has ended already.
            let _ = rustix::process::kill_process(member, Signal::KILL);
        }
    }
    tracing::warn!(session = leader.as_raw_nonzero(), "processes of a session survive");
}

fn living_members(session: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| is_living_member(*pid, session))
        .filter_map(Pid::from_raw)
        .collect()
}

fn is_living_member(pid: i32, session: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may contain anything; state, parent, process group and session follow it.
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let mut fields = fields.split(' ');
    let state = fields.next();
    state != Some("Z") && fields.nth(2) == Some(&session.as_raw_nonzero().to_string())
}
