//! Reads rank, number of ranks, meeting point and job from the variables of launchers.
//!
//! Outboard's own variables come first, then the variables of the launcher that is nearest to the rank. If Slurm
//! started that launcher, Slurm's variables are set, too, but describe the launcher and not the rank.
//!
//! Never touches the network; reads variables through a [`Lookup`], so that tests supply their own.

/// A needed variable is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {variable} {problem}")]
pub struct EnvironmentError {
    /// The variable's name.
    pub variable: String,
    /// The rest of the sentence, with the remedy.
    pub problem: String,
}

/// Reads one variable; an empty value counts as unset.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) const RANK: &str = "OUTBOARD_RANK";
pub(super) const WORLD_SIZE: &str = "OUTBOARD_WORLD_SIZE";
pub(super) const RENDEZVOUS: &str = "OUTBOARD_RENDEZVOUS";
const LOCAL_RANK: &str = "OUTBOARD_LOCAL_RANK";
const LOCAL_SIZE: &str = "OUTBOARD_LOCAL_SIZE";
/// The rank's number of launchers that have a PMIx server.
const PMIX_RANK: &str = "PMIX_RANK";
/// Variable: the job's number, which the job's service processes use, too.
pub(crate) const JOB: &str = "OUTBOARD_JOB";

/// The variables of one launcher for rank and size, in the world and on the host.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    /// `None` if the launcher has no variable with a plain number.
    local_ranks: Option<&'static str>,
    /// The launcher counts as absent unless these variables are set too.
    required: &'static [&'static str],
}

impl Launcher {
    fn variables(&self) -> impl Iterator<Item = &'static str> {
        [self.rank, self.ranks].into_iter().chain(self.required.iter().copied())
    }
}

/// The launcher nearest to the rank comes first.
const LAUNCHERS: [Launcher; 4] = [
    // `RANK` alone would be too common a name to prove a launcher.
    Launcher {
        name: "PyTorch",
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_ranks: Some("LOCAL_WORLD_SIZE"),
        required: &["MASTER_ADDR", "MASTER_PORT"],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        required: &[],
    },
    Launcher {
        name: "PMI",
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_ranks: Some("MPI_LOCALNRANKS"),
        required: &[],
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: None,
        required: &[],
    },
];

/// Ports at which ranks of a Slurm step meet: below Linux's ephemeral ports (from 32768).
const SLURM_PORTS: std::ops::Range<u64> = 16_384..32_768;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorldRank {
    pub(super) rank: u32,
    pub(super) ranks: u32,
}

pub(crate) fn process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn wrong(variable: &str, problem: impl Into<String>) -> EnvironmentError {
    EnvironmentError { variable: variable.to_owned(), problem: problem.into() }
}

pub(super) fn world_rank(lookup: Lookup<'_>) -> Result<WorldRank, EnvironmentError> {
    let (rank_name, ranks_name) = if lookup(RANK).is_some() || lookup(WORLD_SIZE).is_some() {
        (RANK, WORLD_SIZE)
    } else {
        let launcher = nearest_launcher(lookup).ok_or_else(no_launcher)?;
        (launcher.rank, launcher.ranks)
    };
    let number = |name: &str, what: &str| {
        let value = lookup(name).ok_or_else(|| wrong(name, format!("is not set; set it to {what}")))?;
        value.trim().parse::<u32>().map_err(|_| wrong(name, format!("is `{value}`; set it to {what}")))
    };
    let rank = number(rank_name, "the number of this rank, from 0")?;
    let ranks = number(ranks_name, "the number of ranks")?;
    if rank >= ranks {
        return Err(wrong(rank_name, format!("is {rank}, but {ranks_name} is {ranks}; ranks count from 0")));
    }
    Ok(WorldRank { rank, ranks })
}

/// Whether the variables of launchers describe no rank, or the first one.
pub(crate) fn is_first_rank(lookup: Lookup<'_>) -> bool {
    match (world_rank(lookup), lookup(PMIX_RANK)) {
        (Ok(WorldRank { rank, .. }), _) => rank == 0,
        (Err(_), Some(rank)) => rank.trim() == "0",
        (Err(_), None) => true,
    }
}

/// The nearest launcher whose variables describe this rank.
fn nearest_launcher(lookup: Lookup<'_>) -> Option<&'static Launcher> {
    LAUNCHERS.iter().find(|launcher| launcher.variables().all(|name| lookup(name).is_some()))
}

/// This rank's index on its host, by which `sharing` service processes of the host share the ranks (GP-3).
pub(crate) fn local_rank(lookup: Lookup<'_>, sharing: u32) -> Result<u32, EnvironmentError> {
    let name = match nearest_launcher(lookup) {
        Some(launcher) if lookup(LOCAL_RANK).is_none() && lookup(launcher.local_rank).is_some() => launcher.local_rank,
        Some(_) | None => LOCAL_RANK,
    };
    let remedy = "set it to the number of this rank among those on its host, from 0";
    let unset =
        || wrong(name, format!("is not set, and {sharing} service processes share this host's ranks by it; {remedy}"));
    let value = lookup(name).ok_or_else(unset)?;
    value.trim().parse().map_err(|_| wrong(name, format!("is `{value}`; {remedy}")))
}

pub(crate) fn local_ranks(lookup: Lookup<'_>) -> Result<u32, EnvironmentError> {
    let of_launcher = || lookup(nearest_launcher(lookup)?.local_ranks?);
    let remedy = format!("set {LOCAL_SIZE} to the number of ranks on this host");
    let value = lookup(LOCAL_SIZE).or_else(of_launcher).or_else(|| slurm_tasks_here(lookup));
    let value =
        value.ok_or_else(|| wrong(LOCAL_SIZE, format!("is not set, nor what a launcher calls it; {remedy}")))?;
    value.trim().parse().map_err(|_| wrong(LOCAL_SIZE, format!("or what a launcher calls it is `{value}`; {remedy}")))
}

/// Tasks of a Slurm step on this node: `2(x3),1` means two on each of the first three nodes, one on the fourth.
fn slurm_tasks_here(lookup: Lookup<'_>) -> Option<String> {
    let mut node: u32 = lookup("SLURM_NODEID")?.parse().ok()?;
    for part in lookup("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < nodes {
            return Some(tasks.to_owned());
        }
        node -= nodes;
    }
    None
}

fn no_launcher() -> EnvironmentError {
    let known: Vec<_> = LAUNCHERS.iter().map(|launcher| format!("{} ({})", launcher.rank, launcher.name)).collect();
    let known = known.join(", ");
    let remedy = format!(
        "start the program by `outboard run`, srun or mpirun, or set {RANK}, {WORLD_SIZE} and {RENDEZVOUS}=HOST:PORT of \
         rank 0"
    );
    wrong(RANK, format!("is not set, and neither is that of a launcher: {known}; {remedy}"))
}

/// Host and port at which the ranks meet, and the launcher's name for the job, which may be empty.
pub(super) fn server_address(lookup: Lookup<'_>, world_rank: WorldRank) -> Result<(String, String), EnvironmentError> {
    if let Some(address) = lookup(RENDEZVOUS) {
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        return match port {
            Some(Ok(1..)) => Ok((address, String::new())),
            _ => Err(wrong(RENDEZVOUS, format!("is `{address}`; set it to HOST:PORT, a free port of rank 0's host"))),
        };
    }
    if let (Some(host), Some(port), Some(_)) = (lookup("MASTER_ADDR"), lookup("MASTER_PORT"), lookup("RANK")) {
        // PyTorch's own store uses MASTER_PORT itself.
        let ours = port.parse::<u16>().ok().and_then(|port| port.checked_add(1));
        let ours = ours.ok_or_else(|| wrong("MASTER_PORT", format!("is `{port}`, no port with one above it")))?;
        return Ok((join(&host, ours), String::new()));
    }
    if let Some(server_address) = slurm_server_address(lookup, world_rank) {
        return Ok(server_address);
    }
    Err(wrong(
        RENDEZVOUS,
        "is not set, and the launcher does not say where ranks meet; set it to HOST:PORT, a free port of rank 0's host",
    ))
}

fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The first host of the Slurm step, at a port derived from the step, if this rank is a task of the step itself.
fn slurm_server_address(lookup: Lookup<'_>, world_rank: WorldRank) -> Option<(String, String)> {
    let is = |name, number: u32| lookup(name).and_then(|value| value.parse().ok()) == Some(number);
    if !is("SLURM_PROCID", world_rank.rank) || !is("SLURM_NTASKS", world_rank.ranks) {
        return None;
    }
    let nodes = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"))?;
    let step = slurm_step(lookup)?;
    let port = SLURM_PORTS.start + hash(&step) % (SLURM_PORTS.end - SLURM_PORTS.start);
    Some((join(&first_node(&nodes)?, u16::try_from(port).ok()?), step))
}

fn slurm_step(lookup: Lookup<'_>) -> Option<String> {
    Some(format!("slurm {}.{}", lookup("SLURM_JOB_ID")?, lookup("SLURM_STEP_ID")?))
}

/// The first host of Slurm's list: `node[07-12,20],other` begins with `node07`.
fn first_node(list: &str) -> Option<String> {
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else { return (!prefix.is_empty()).then(|| prefix.to_owned()) };
    let (ranges, rest) = ranges.split_once(']')?;
    let number = ranges.split(['-', ',']).next()?;
    let suffix = rest.split(',').next()?;
    // A second list in one name is rare, so the user has to give an address instead.
    (!suffix.contains('[')).then(|| format!("{prefix}{number}{suffix}"))
}

/// A number of the job, equal in all ranks of the job on one host. The number comes from `OUTBOARD_JOB`, else from the
/// meeting point and the launcher's name for the job, else from the parent process.
pub(crate) fn job(lookup: Lookup<'_>) -> Result<u64, EnvironmentError> {
    if let Some(number) = lookup(JOB) {
        return number.parse().map_err(|_| wrong(JOB, format!("is `{number}`; set it to a number, or leave it unset")));
    }
    let torch = || Some(format!("torch {}:{}", lookup("MASTER_ADDR")?, lookup("MASTER_PORT")?));
    let named = lookup(RENDEZVOUS).or_else(|| lookup("PMIX_NAMESPACE")).or_else(torch).or_else(|| slurm_step(lookup));
    let parent = || rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    Ok(hash(&named.unwrap_or_else(|| format!("parent {}", parent()))))
}

/// FNV-1a: equal on every host, whatever library the host has.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `body` on an environment written as `A=1 B=2`.
    fn with_environment<T>(environment: &str, body: impl FnOnce(Lookup<'_>) -> T) -> T {
        let lookup = |name: &str| {
            let pairs = environment.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        body(&lookup)
    }

    fn rank_in(environment: &str) -> Result<(u32, u32), String> {
        with_environment(environment, world_rank)
            .map(|world_rank| (world_rank.rank, world_rank.ranks))
            .map_err(|error| error.to_string())
    }

    fn address_in(environment: &str) -> Result<String, String> {
        let found = with_environment(environment, |lookup| server_address(lookup, world_rank(lookup)?));
        found.map(|(address, _)| address).map_err(|error| error.to_string())
    }

    #[test]
    fn rank_and_size_come_from_the_nearest_launcher() {
        let slurm = "SLURM_PROCID=0 SLURM_NTASKS=1";
        let mpi = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4";
        assert_eq!(rank_in("SLURM_PROCID=3 SLURM_NTASKS=8"), Ok((3, 8)));
        assert_eq!(rank_in(&format!("{slurm} {mpi}")), Ok((2, 4)));
        assert_eq!(rank_in("PMI_RANK=1 PMI_SIZE=2"), Ok((1, 2)));
        assert_eq!(rank_in("RANK=1 WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1"), Ok((1, 3)));
        assert_eq!(rank_in(&format!("RANK=1 WORLD_SIZE=3 {mpi}")), Ok((2, 4)), "half of PyTorch's variables");
        assert_eq!(rank_in(&format!("OUTBOARD_RANK=0 OUTBOARD_WORLD_SIZE=9 {mpi}")), Ok((0, 9)));
    }

    #[test]
    fn local_rank_and_size_come_from_the_nearest_launcher() {
        let local = |environment: &str| {
            with_environment(environment, |lookup| local_rank(lookup, 2)).map_err(|e| e.to_string())
        };
        let locals = |environment: &str| with_environment(environment, local_ranks).map_err(|e| e.to_string());
        let mpi =
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
        let slurm = "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2),3";
        assert_eq!((local(mpi), locals(mpi)), (Ok(1), Ok(2)));
        assert_eq!((local(slurm), locals(slurm)), (Ok(0), Ok(3)));
        assert_eq!(local(&format!("{slurm} {mpi}")), Ok(1), "the nearest is believed");
        let hydra = "PMI_RANK=3 PMI_SIZE=8 MPI_LOCALRANKID=3 MPI_LOCALNRANKS=4";
        assert_eq!((local(hydra), locals(hydra)), (Ok(3), Ok(4)));
        assert_eq!(local(&format!("OUTBOARD_LOCAL_RANK=7 {mpi}")), Ok(7));
        assert!(local("OUTBOARD_LOCAL_RANK=x").unwrap_err().contains("`x`"));
        assert!(locals("SLURM_NODEID=4 SLURM_STEP_TASKS_PER_NODE=2(x2").unwrap_err().contains("OUTBOARD_LOCAL_SIZE"));
    }

    #[test]
    fn missing_or_invalid_variable_is_named_with_its_remedy() {
        let sentence = |environment: &str, words: &[&str]| {
            let error_text = address_in(environment).unwrap_err();
            words.iter().for_each(|word| assert!(error_text.contains(word), "`{word}` in: {error_text}"));
        };
        sentence("", &["OUTBOARD_RANK", "SLURM_PROCID", "mpirun", "OUTBOARD_RENDEZVOUS=HOST:PORT"]);
        sentence("OUTBOARD_RANK=0", &["OUTBOARD_WORLD_SIZE", "not set", "number of ranks"]);
        sentence("OUTBOARD_WORLD_SIZE=2", &["OUTBOARD_RANK", "not set"]);
        sentence("OUTBOARD_RANK=x OUTBOARD_WORLD_SIZE=2", &["OUTBOARD_RANK", "`x`", "from 0"]);
        sentence("OUTBOARD_RANK=2 OUTBOARD_WORLD_SIZE=2", &["OUTBOARD_RANK", "is 2", "OUTBOARD_WORLD_SIZE"]);
        sentence("SLURM_PROCID=-1 SLURM_NTASKS=2", &["SLURM_PROCID", "`-1`"]);
        sentence("OUTBOARD_RANK=0 OUTBOARD_WORLD_SIZE=2", &["OUTBOARD_RENDEZVOUS", "HOST:PORT"]);
        for address in ["here", "here:", ":7", "here:0", "here:70000"] {
            let environment = format!("OUTBOARD_RANK=0 OUTBOARD_WORLD_SIZE=2 OUTBOARD_RENDEZVOUS={address}");
            sentence(&environment, &["OUTBOARD_RENDEZVOUS", address, "HOST:PORT"]);
        }
        let torch = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT";
        sentence(&format!("{torch}=65535"), &["MASTER_PORT", "65535"]);
    }

    #[test]
    fn server_address_comes_from_own_variable_or_launcher() {
        let ours = "OUTBOARD_RENDEZVOUS=h:7";
        assert_eq!(address_in(&format!("{ours} PMI_RANK=1 PMI_SIZE=2")), Ok("h:7".to_owned()));
        assert_eq!(address_in("RANK=1 WORLD_SIZE=3 MASTER_ADDR=::1 MASTER_PORT=29500"), Ok("[::1]:29501".to_owned()));
        let step = "SLURM_JOB_ID=4 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=n[07-09]x,m";
        let address = address_in(&format!("SLURM_PROCID=1 SLURM_NTASKS=2 {step}")).unwrap();
        assert_eq!(address_in(&format!("SLURM_PROCID=0 SLURM_NTASKS=2 {step}")), Ok(address.clone()));
        let port: u64 = address.strip_prefix("n07x:").unwrap().parse().unwrap();
        assert!(SLURM_PORTS.contains(&port), "{port}");
        let inside = format!("SLURM_PROCID=0 SLURM_NTASKS=1 {step} OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
        assert!(
            address_in(&inside).unwrap_err().contains("OUTBOARD_RENDEZVOUS"),
            "the step is mpirun's, not its ranks'"
        );
    }

    #[test]
    fn first_node_of_a_slurm_list_is_parsed() {
        for (list, first) in [("a", "a"), ("a,b", "a"), ("n[3,5]", "n3"), ("n[01-4]-ib,z", "n01-ib")] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        for list in ["", "n[1-2]r[3-4]", "n[1"] {
            assert_eq!(first_node(list), None, "{list}");
        }
    }

    #[test]
    fn job_number_is_equal_in_all_ranks_and_differs_between_jobs() {
        let number = |environment| with_environment(environment, job).map_err(|error| error.to_string());
        assert_eq!(number("OUTBOARD_JOB=7 PMIX_NAMESPACE=a"), Ok(7));
        assert!(number("OUTBOARD_JOB=x").unwrap_err().contains("OUTBOARD_JOB"));
        assert_eq!(number("PMIX_NAMESPACE=a PMIX_RANK=1"), number("PMIX_NAMESPACE=a PMIX_RANK=2"));
        assert_ne!(number("PMIX_NAMESPACE=a"), number("PMIX_NAMESPACE=b"));
        assert_ne!(number("SLURM_JOB_ID=1 SLURM_STEP_ID=1"), number("SLURM_JOB_ID=1 SLURM_STEP_ID=2"));
        assert_eq!(number(""), number("PATH=x"), "two ranks of one parent");
    }
}
