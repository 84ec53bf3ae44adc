//! The number of service processes on a host (SP-8), and the one that serves a rank (GP-3).
//!
//! Pure functions, and the environment variables that they depend on. All ranks of a host must find the same number. So
//! the number depends only on values that are equal in all ranks of the host: the number of these ranks and the host's
//! processors, whatever processors a rank is bound to.

use crate::bootstrap::environment::{self, Lookup};
use crate::error::Error;
use outboard_shm::attach::SOCKET_VARIABLE;
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Variable: how many service processes a job starts on each host, a number or `auto`.
const NUMBER_VARIABLE: &str = "OUTBOARD_SERVICE_PROCESSES";
/// Separates the sockets of a list.
const SEPARATOR: char = ':';
/// Ranks for which a service process is worth a core: 4 per 32 ranks were best on the paper's machine.
const RANKS_PER_PROCESS: u32 = 8;
/// The upper limit: each service process has its own threads, sockets and receive buffers.
const MAX_PROCESSES: u32 = 64;

/// Arguments for service processes on a single host, which need a network all the same.
pub const SINGLE_HOST: [&str; 4] = ["--interface", "lo", "--algorithm", "ring"];

/// The number of service processes on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceProcesses {
    /// The number that [`default_count`] returns.
    Auto,
    /// This many, 1 to 64.
    Number(NonZeroU32),
}

impl ServiceProcesses {
    /// The number on a host with `ranks` ranks of the job and `cores` processors.
    pub fn count(self, ranks: u32, cores: u32) -> u32 {
        match self {
            ServiceProcesses::Auto => default_count(ranks, cores),
            ServiceProcesses::Number(number) => number.get(),
        }
    }
}

impl Default for ServiceProcesses {
    fn default() -> Self {
        ServiceProcesses::Number(NonZeroU32::MIN)
    }
}

impl FromStr for ServiceProcesses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(ServiceProcesses::Auto);
        }
        let number = text.parse().ok().filter(|number: &NonZeroU32| number.get() <= MAX_PROCESSES);
        number
            .map(ServiceProcesses::Number)
            .ok_or_else(|| format!("`{text}` is neither auto nor a number from 1 to {MAX_PROCESSES}"))
    }
}

impl fmt::Display for ServiceProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceProcesses::Auto => f.write_str("auto"),
            ServiceProcesses::Number(number) => number.fmt(f),
        }
    }
}

/// Service processes for `ranks` ranks on `cores` processors of one host: 4 for every 32 ranks (SP-8), but no more than
/// the processors without a rank, and at least one.
pub fn default_count(ranks: u32, cores: u32) -> u32 {
    let spare = cores.saturating_sub(ranks);
    ranks.div_ceil(RANKS_PER_PROCESS).min(spare).clamp(1, MAX_PROCESSES)
}

/// The service process of `number` that serves rank `local` of the host, counted from 0 (GP-3).
pub fn process_of_rank(local: u32, number: u32) -> u32 {
    local % number.max(1)
}

/// Processors of this host, whatever processors this process is bound to.
pub fn cores() -> u32 {
    // SAFETY: the call only returns a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online).unwrap_or(1).max(1)
}

/// The socket of a list to which this rank attaches; with one socket the rank's index is not needed.
pub(crate) fn choose_socket(list: &Path) -> Result<PathBuf, Error> {
    choose_by(list, &environment::process)
}

fn choose_by(list: &Path, lookup: Lookup<'_>) -> Result<PathBuf, Error> {
    // `outboard` cannot have written a name that is not UTF-8 into a list.
    let Some(sockets) = list.to_str().filter(|list| list.contains(SEPARATOR)) else { return Ok(list.to_owned()) };
    let sockets: Vec<&str> = sockets.split(SEPARATOR).collect();
    if sockets.iter().any(|socket| socket.is_empty()) {
        let problem = format!("is `{}`, a list with an empty name; separate sockets by one colon", list.display());
        return Err(Error::Environment { variable: SOCKET_VARIABLE.to_owned(), problem });
    }
    let number = sockets.len() as u32;
    let local = environment::local_rank(lookup, number)?;
    Ok(sockets[process_of_rank(local, number) as usize].into())
}

/// This rank's number among the job's service processes on this host, and their count.
pub(crate) fn index_and_count() -> Result<(u32, u32), Error> {
    index_and_count_by(&environment::process, cores())
}

fn index_and_count_by(lookup: Lookup<'_>, cores: u32) -> Result<(u32, u32), Error> {
    let Some(wanted) = lookup(NUMBER_VARIABLE) else { return Ok((0, 1)) };
    let wrong = |problem| Error::Environment { variable: NUMBER_VARIABLE.to_owned(), problem };
    let number = match wanted.parse().map_err(|problem| wrong(format!("is wrong: {problem}")))? {
        ServiceProcesses::Auto => default_count(environment::local_ranks(lookup)?, cores),
        ServiceProcesses::Number(number) => number.get(),
    };
    let local = if number > 1 { environment::local_rank(lookup, number)? } else { 0 };
    Ok((process_of_rank(local, number), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(environment: &[(&str, &str)], body: impl FnOnce(Lookup<'_>) -> T) -> T {
        body(&|name| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn sp_8_default_is_four_per_32_ranks_within_spare_cores() {
        let cases =
            [(32, 64, 4), (8, 16, 1), (9, 16, 2), (128, 256, 16), (32, 34, 2), (32, 32, 1), (64, 8, 1), (1, 1, 1)];
        for (ranks, cores, expected) in cases {
            assert_eq!(default_count(ranks, cores), expected, "{ranks} ranks on {cores} cores");
        }
        assert_eq!(default_count(0, 0), 1);
        assert_eq!(default_count(u32::MAX / 2, u32::MAX), MAX_PROCESSES);
        assert_eq!("3".parse::<ServiceProcesses>().map(|n| n.count(1, 1)), Ok(3), "who gives a number gets it");
        for wrong in ["", "0", "-1", "65", "many"] {
            assert!(wrong.parse::<ServiceProcesses>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn gp_3_local_ranks_choose_sockets_round_robin() {
        assert_eq!((0..6).map(|local| process_of_rank(local, 4)).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1]);
        let chosen = |list: &str, environment: &[(&str, &str)]| {
            with(environment, |lookup| choose_by(list.as_ref(), lookup)).map_err(|error| error.to_string())
        };
        assert_eq!(chosen("/a", &[]), Ok("/a".into()));
        assert_eq!(chosen("/a:/b", &[("OUTBOARD_LOCAL_RANK", "3")]), Ok("/b".into()));
        assert_eq!(
            chosen(
                "/a:/b:/c",
                &[("OMPI_COMM_WORLD_RANK", "9"), ("OMPI_COMM_WORLD_SIZE", "12"), ("OMPI_COMM_WORLD_LOCAL_RANK", "3")]
            ),
            Ok("/a".into())
        );
        let unknown = chosen("/a:/b", &[]).unwrap_err();
        assert!(unknown.contains("OUTBOARD_LOCAL_RANK") && unknown.contains("2 service processes"), "{unknown}");
        assert!(chosen("/a::/b", &[]).unwrap_err().contains("OUTBOARD_SOCKET"));
    }

    #[test]
    fn job_daemon_index_and_count_follow_the_variable() {
        let own = |environment: &[(&str, &str)], cores| {
            with(environment, |lookup| index_and_count_by(lookup, cores)).map_err(|e| e.to_string())
        };
        let local = [("OUTBOARD_LOCAL_RANK", "5"), ("OUTBOARD_LOCAL_SIZE", "16")];
        assert_eq!(own(&[], 8), Ok((0, 1)));
        assert_eq!(own(&[("OUTBOARD_SERVICE_PROCESSES", "1")], 8), Ok((0, 1)), "nothing else is needed");
        assert_eq!(own(&[local[0], ("OUTBOARD_SERVICE_PROCESSES", "3")], 8), Ok((2, 3)));
        assert_eq!(own(&[local[0], local[1], ("OUTBOARD_SERVICE_PROCESSES", "auto")], 64), Ok((1, 2)));
        assert!(
            own(&[local[0], ("OUTBOARD_SERVICE_PROCESSES", "auto")], 64).unwrap_err().contains("OUTBOARD_LOCAL_SIZE")
        );
        assert!(own(&[("OUTBOARD_SERVICE_PROCESSES", "x")], 8).unwrap_err().contains("`x`"));
    }
}
