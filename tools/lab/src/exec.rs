//! The client of a host's agent. Runs a program inside the host with this process's standard streams, environment
//! (except `TMPDIR`) and directory. Forwards signals, and ends as the program ends.
//!
//! However the client ends, the agent then kills the program's session.

use crate::holder::{EXEC_VERB, SHELL_VERB};
use crate::message::{self, AgentReply, AgentRequest, ExecRequest};
use crate::{Lab, LabError, host};
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Signals that terminals, launchers and people send to programs.
const FORWARDED: [i32; 10] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGABRT,
    libc::SIGTSTP,
    libc::SIGCONT,
];
/// Exit code of ssh when ssh itself fails.
const CLIENT_FAILED: i32 = 255;
/// Options of ssh that take a value and that launchers use.
const SSH_OPTIONS_WITH_VALUE: [&str; 5] = ["-l", "-p", "-o", "-i", "-F"];

/// Runs `argv` inside the host `place`, whose agent listens at `socket`, and waits for the program's end.
pub(crate) fn run(place: &str, socket: &Path, argv: Vec<OsString>) -> Result<ExitStatus, LabError> {
    let gone = |source| LabError::Gone { place: place.to_owned(), source };
    let failed = |what| move |source| LabError::System { what, source };
    let program = argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
    let cwd = std::env::current_dir().map_err(failed("find the current directory"))?;
    let request = ExecRequest { argv, env: std::env::vars_os().collect(), cwd };
    let request = memory_file(&request).map_err(failed("write the request"))?;
    let connection = message::connect(socket).map_err(gone)?;
    // Blocks signals before the program exists, so that no signal is lost in between.
    let signals = host::block_signals(&FORWARDED).map_err(failed("block signals"))?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let fds = [request.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    message::send(&connection, &AgentRequest::Exec, &fds).map_err(gone)?;
    match wait(&connection, &signals).map_err(gone)? {
        AgentReply::Exited(status) => Ok(ExitStatus::from_raw(status)),
        AgentReply::Failed(reason) => Err(LabError::Exec { host: place.to_owned(), program, reason }),
    }
}

fn memory_file(request: &ExecRequest) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("outboard-exec", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(request)?)?;
    file.rewind()?;
    Ok(file)
}

fn wait(connection: &OwnedFd, signals: &OwnedFd) -> io::Result<AgentReply> {
    loop {
        if message::await_some([connection, signals].into_iter())?[0] {
            return message::expect(connection);
        }
        for signal in host::drain(signals) {
            message::send(connection, &AgentRequest::Signal(signal), &[])?;
        }
    }
}

/// Ends this process as `status` says: with the exit code or by the signal.
fn exit_like(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal() {
        // This process writes no core file. If one was wanted, the program has written it.
        let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        // SAFETY: no handler is installed; sigemptyset initialises the set before use.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::signal(signal, libc::SIG_DFL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            libc::raise(signal);
        }
        std::process::exit(128 + signal);
    }
    std::process::exit(status.code().unwrap_or(CLIENT_FAILED))
}

/// `SOCKET PROGRAM ARGS..`
pub(crate) fn client_main(args: &[OsString]) -> ! {
    let [socket, argv @ ..] = args else { usage(EXEC_VERB, "SOCKET PROGRAM ARGS..") };
    let socket = PathBuf::from(socket);
    let place = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    finish(run(&place, &socket, argv.to_vec()))
}

/// `[OPTIONS] [USER@]HOST WORDS..`: joins the words by blanks to a command line for the shell, as ssh does.
pub(crate) fn shell_main(args: &[OsString]) -> ! {
    let mut words = args.iter();
    let mut host = words.next();
    while let Some(option) = host.filter(|word| word.as_encoded_bytes().starts_with(b"-")) {
        let takes_value = option.to_str().is_some_and(|option| SSH_OPTIONS_WITH_VALUE.contains(&option));
        host = words.nth(usize::from(takes_value));
    }
    let words: Vec<&OsStr> = words.map(OsString::as_os_str).collect();
    let Some(host) = host.and_then(|host| host.to_str()).filter(|_| !words.is_empty()) else {
        usage(SHELL_VERB, "[OPTIONS] HOST COMMAND..")
    };
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    let line = words.join(OsStr::new(" "));
    let argv = vec![OsString::from("/bin/sh"), OsString::from("-c"), line];
    // Uses the lab that this process is in or, outside any lab, the default detached lab.
    let agent = Lab::attach(None).and_then(|lab| lab.agent(name));
    finish(agent.and_then(|(place, socket)| run(&place, &socket, argv)))
}

fn finish(outcome: Result<ExitStatus, LabError>) -> ! {
    match outcome {
        Ok(status) => exit_like(status),
        Err(error) => {
            eprintln!("outboard lab: {error}; {}", error.remedy());
            std::process::exit(CLIENT_FAILED)
        }
    }
}

fn usage(verb: &str, args: &str) -> ! {
    eprintln!("outboard lab: usage: {verb} {args}");
    std::process::exit(CLIENT_FAILED)
}
