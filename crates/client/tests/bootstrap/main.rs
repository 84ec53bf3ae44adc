//! One suite for all bootstraps: every implementation, with every launcher's variables, in real processes.
//!
//! A rank is this test program, started again. PMIx needs Open MPI's mpirun (`make deps` installs it).

use outboard::bootstrap::tcp_server::{self, JobToken, MAX_BLOB_BYTES, TOKEN_VARIABLE};
use outboard::bootstrap::{self, Bootstrap, BootstrapError};
use outboard::{Error, Status};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Variable, set in ranks: the implementation that the ranks should find.
const EXPECTED: &str = "OUTBOARD_TEST_BOOTSTRAP";
/// The job's token.
const SECRET: &str = "known to the tests alone";
/// Variable, set in ranks: the number of ranks.
const RANKS: &str = "OUTBOARD_TEST_RANKS";

/// The contribution of `rank` to exchange `round`. Contributions differ in length: some are empty, some of the most
/// bytes.
fn blob(rank: u32, round: u32) -> Vec<u8> {
    let length = match (rank + round) % 4 {
        0 => 0,
        1 => 1000 + rank,
        2 => MAX_BLOB_BYTES,
        _ => 1,
    };
    (0..length).map(|at| (at + rank * 7 + round * 13) as u8).collect()
}

fn exchange(job: &mut dyn Bootstrap, round: u32) {
    let blobs = job.exchange(&blob(job.rank(), round)).unwrap();
    assert_eq!(blobs.len(), job.ranks() as usize);
    for (rank, found) in (0..).zip(&blobs) {
        assert!(*found == blob(rank, round), "blob of rank {rank} in exchange {round}");
    }
}

/// The suite, in every rank.
fn conforms() {
    let expected = std::env::var(EXPECTED).unwrap();
    let ranks: u32 = std::env::var(RANKS).unwrap().parse().unwrap();
    let mut round = 0;
    for _ in 0..2 {
        let mut job = bootstrap::from_environment().unwrap();
        assert!(format!("{job:?}").starts_with(&expected), "{job:?} instead of {expected}");
        assert_eq!(job.ranks(), ranks);
        for _ in 0..4 {
            exchange(&mut *job, round);
            round += 1;
        }
        // Each rank rejects the blob by itself, so the next exchange still works.
        let long = job.exchange(&vec![0; MAX_BLOB_BYTES as usize + 1]).unwrap_err();
        assert_eq!(long.status(), Status::Argument, "{long}");
        exchange(&mut *job, round);
        round += 1;
    }
    println!("@conforms {expected}");
}

#[test]
fn rank_process() {
    if std::env::var_os(EXPECTED).is_some() {
        conforms();
    }
}

/// Variables of launchers, which ranks must not inherit from the process that runs the tests.
const FOREIGN: [&str; 10] = [
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "OUTBOARD_RANK",
    "OUTBOARD_WORLD_SIZE",
    "OUTBOARD_RENDEZVOUS",
    "OUTBOARD_BOOTSTRAP",
];

/// The arguments that make this program a rank.
const AGAIN: [&str; 5] = ["--exact", "rank_process", "--nocapture", "--test-threads", "1"];

/// Runs `program`, which is a rank or starts ranks, with these expectations.
fn starting(program: impl AsRef<OsStr>, expected: &str, ranks: u32) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.env(TOKEN_VARIABLE, SECRET).env(EXPECTED, expected).env(RANKS, ranks.to_string()).stdout(Stdio::piped());
    command
}

/// Starts ranks with the variables of `environment`, in which {rank}, {ranks}, {host} and {port} are filled in.
fn start(expected: &str, ranks: u32, port: u16, environment: &str) -> Vec<Child> {
    let one = |rank: u32| {
        let mut command = starting(std::env::current_exe().unwrap(), expected, ranks);
        for (name, value) in environment.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            let value = value.replace("{ranks}", &ranks.to_string()).replace("{rank}", &rank.to_string());
            command.env(name, value.replace("{host}", "127.0.0.1").replace("{port}", &port.to_string()));
        }
        command.args(AGAIN).spawn().unwrap()
    };
    (0..ranks).map(one).collect()
}

/// Waits until all have ended well, and `ranks` ranks have reported success.
fn assert_conform(children: Vec<Child>, expected: &str, ranks: usize) {
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let printed = outputs.iter().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).collect::<String>();
    assert_eq!(printed.matches(&format!("@conforms {expected}")).count(), ranks, "{printed}");
}

fn free_port() -> u16 {
    outboard_lab::free_port().unwrap()
}

const OWN: &str = "OUTBOARD_RANK={rank} OUTBOARD_WORLD_SIZE={ranks} OUTBOARD_RENDEZVOUS={host}:{port}";

#[test]
fn rank_0_serves_if_no_server_runs() {
    assert_conform(start("Tcp", 5, free_port(), OWN), "Tcp", 5);
}

#[test]
fn all_ranks_connect_to_a_running_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread serves until the test program ends.
    std::thread::spawn(move || {
        tcp_server::serve_repeatedly(&listener, 3, &JobToken::new(SECRET.as_bytes(), ""), Duration::from_secs(60))
    });
    assert_conform(start("Tcp", 3, port, OWN), "Tcp", 3);
}

#[test]
fn variables_of_each_launcher_suffice() {
    let slurm =
        "SLURM_PROCID={rank} SLURM_NTASKS={ranks} SLURM_STEP_NODELIST=localhost SLURM_JOB_ID={port} SLURM_STEP_ID=0";
    let mpi = "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={ranks} OUTBOARD_RENDEZVOUS={host}:{port}";
    let pmi = "PMI_RANK={rank} PMI_SIZE={ranks} OUTBOARD_RENDEZVOUS={host}:{port}";
    for environment in [slurm, mpi, pmi] {
        assert_conform(start("Tcp", 3, free_port(), environment), "Tcp", 3);
    }
    let torch = "RANK={rank} WORLD_SIZE={ranks} MASTER_ADDR={host} MASTER_PORT={port}";
    assert_conform(start("Tcp", 3, free_port() - 1, torch), "Tcp", 3);
}

#[test]
fn a_world_of_one_needs_no_address() {
    assert_conform(start("SingleRank", 1, 0, "OUTBOARD_RANK=0 OUTBOARD_WORLD_SIZE=1"), "SingleRank", 1);
    assert_conform(start("Tcp", 1, free_port(), OWN), "Tcp", 1);
}

#[test]
fn mpirun_selects_pmix() {
    let mpirun = || {
        let mut command = starting("mpirun", "Pmix", 4);
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]);
        command.arg(std::env::current_exe().unwrap()).args(AGAIN);
        command
    };
    let started = mpirun().spawn().expect("mpirun; `make deps` installs it");
    assert_conform(vec![started], "Pmix", 4);
}

/// PMIx without a server reports an error.
#[test]
fn missing_pmix_server_is_reported() {
    let error =
        bootstrap::PmixBootstrap::new().map_err(BootstrapError::from).map_err(Error::from).unwrap_err().to_string();
    assert!(error.contains("OUTBOARD_RENDEZVOUS") && error.contains("mpirun"), "{error}");
}

/// A process without the job's token cannot take a rank's place, whatever else it knows, and gets an error at once.
#[test]
fn ranks_of_two_jobs_at_one_address_do_not_mix() {
    let [own, other] = ["ours", "theirs"].map(|secret| JobToken::new(secret.as_bytes(), "job"));
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| bootstrap::TcpBootstrap::new(0, 2, &address, own).unwrap().exchange(b"a"));
        let stranger = scope.spawn(|| bootstrap::TcpBootstrap::new(1, 2, &address, other).unwrap().exchange(b"b"));
        let refused = stranger.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("another job") && refused.contains("OUTBOARD_RENDEZVOUS"), "{refused}");
        let met = bootstrap::TcpBootstrap::new(1, 2, &address, own).unwrap().exchange(b"c");
        assert_eq!(met.unwrap(), [b"a", b"c"]);
        assert_eq!(serving.join().unwrap().unwrap(), [b"a", b"c"]);
    });
    // A process that another test starts meanwhile holds the port open until its exec.
    assert!((0..10_000).any(|_| TcpStream::connect(&address).is_err()), "the port is given back");
}

/// A process holds the port when rank 0 comes, and frees the port later.
#[test]
fn rank_0_serves_once_the_port_is_free() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let own = JobToken::new(b"ours", "job");
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| bootstrap::TcpBootstrap::new(0, 2, &address, own).unwrap().exchange(b"a"));
        drop(holder.accept().unwrap());
        drop(holder);
        let met = bootstrap::TcpBootstrap::new(1, 2, &address, own).unwrap().exchange(b"b");
        assert_eq!(met.unwrap(), [b"a", b"b"]);
        assert_eq!(serving.join().unwrap().unwrap(), [b"a", b"b"]);
    });
}

/// A process that listens at the meeting point before rank 0 does learns nothing and is rejected.
#[test]
fn server_without_the_token_is_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let own = JobToken::new(b"ours", "job");
    std::thread::scope(|scope| {
        let secret = b"what only the job may know";
        let rank = scope.spawn(|| bootstrap::TcpBootstrap::new(1, 2, &address, own).unwrap().exchange(secret));
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = [0; 64];
        stream.read_exact(&mut received).unwrap();
        // Without the token, a server can send no better answer than any other 48 bytes.
        stream.write_all(&2_u32.to_le_bytes()).unwrap();
        stream.write_all(&received[16..]).unwrap();
        let refused = rank.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("does not know this job's token") && refused.contains(TOKEN_VARIABLE), "{refused}");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty(), "{} bytes are told to a stranger", rest.len());
    });
}
