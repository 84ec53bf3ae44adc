//! The environment variables of Outboard, and a warning about names that no program reads.
//!
//! Daemons, ranks and the command share this list. `outboard explain settings` explains each variable, and a test
//! compares the two.

/// The start of every name.
const PREFIX: &str = "OUTBOARD_";

/// The variables that programs of Outboard read, without the prefix `OUTBOARD_`, sorted.
#[rustfmt::skip]
pub const KNOWN: [&str; 83] = [
    "ALGORITHM", "BENCH_RANK", "BENCH_SOCKETS", "BOOTSTRAP", "CHAINS", "CHOICE", "CHOICE_FILE", "CLUSTER_KEY",
    "DAEMON", "DEADLINE", "DIE_WITH_PARENT", "DOCK", "DRAIN", "EAGER_BYTES", "ENCRYPT", "ENGINE", "ERRAND_BYTES",
    "FABRIC", "FAKE_ABSENT", "FAKE_DELAY_US", "FAKE_FAIL", "FAKE_GROUPS", "FAKE_LOG", "FAKE_MIN_BYTES", "FAKE_MOST",
    "FAKE_REDUCES", "GROUP_TIMEOUT", "HEAP", "HEAP_BYTES", "HOME", "IDLE_SECONDS", "INTERFACE", "JOB", "LAUNCHED",
    "LIBRARY", "LINK_RATE", "LOCAL_RANK", "LOCAL_SIZE", "LOG", "MAX_GROUPS", "MAX_PEERS", "MAX_RANKS", "MPI",
    "MPI_REPORT", "MTU", "MULTICAST_AUTH", "MULTICAST_PORT", "OFFLOAD_FROM", "OFI_PROVIDER", "OUTBOARDD",
    "PIN_CORE", "POLL", "RANK", "READY_FD", "RECEIVERS", "RELAY", "RELAY_KEY", "RELAY_MEMORY", "RENDEZVOUS",
    "SCRATCH_QUOTA", "SERVICE_PROCESSES", "SIM_SEEDS", "SOCKET", "STAGING_QUOTA", "STATS", "SUBGROUPS",
    "TABLES_QUOTA", "TEST_BOOTSTRAP", "TEST_CACHE", "TEST_CHANNEL", "TEST_DAEMON_FLAGS", "TEST_JOB", "TEST_RANKS",
    "TEST_SCENARIO", "TEST_SENDER", "TEST_UCX_PEER", "TOKEN", "TOKEN_FILE", "TRACE", "TRACE_FILE", "TUNING",
    "WATCHDOG", "WORLD_SIZE",
];

/// One warning for each unknown variable in the environment of this process.
pub fn unknown() -> Vec<String> {
    let mut names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    names.sort_unstable();
    names.iter().filter_map(|name| warning(name)).collect()
}

/// A sentence about `name`, if it has the prefix and no program reads it.
fn warning(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PREFIX).filter(|rest| KNOWN.binary_search(rest).is_err())?;
    let nearest = KNOWN.iter().map(|known| (distance(&rest.to_ascii_uppercase(), known), *known)).min();
    Some(match nearest.filter(|(changes, known)| *changes <= known.len().max(rest.len()) / 3) {
        Some((_, known)) => format!("{name} has no effect, no program reads it; did you mean {PREFIX}{known}?"),
        None => format!("{name} has no effect, no program reads it; `outboard explain settings` lists all variables"),
    })
}

/// The fewest letters to insert, remove, replace or swap with the next letter, by which `a` becomes `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows.iter_mut().enumerate().for_each(|(row, cells)| cells[0] = row);
    rows[0].iter_mut().enumerate().for_each(|(column, cell)| *cell = column);
    for row in 1..=a.len() {
        for column in 1..=b.len() {
            let replaced = rows[row - 1][column - 1] + usize::from(a[row - 1] != b[column - 1]);
            let mut fewest = replaced.min(rows[row - 1][column] + 1).min(rows[row][column - 1] + 1);
            if row > 1 && column > 1 && a[row - 1] == b[column - 2] && a[row - 2] == b[column - 1] {
                fewest = fewest.min(rows[row - 2][column - 2] + 1);
            }
            rows[row][column] = fewest;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_sorted_and_give_no_warning() {
        assert!(KNOWN.is_sorted());
        for name in KNOWN {
            assert_eq!(warning(&format!("{PREFIX}{name}")), None);
        }
        assert_eq!(warning("PATH"), None);
    }

    #[test]
    fn misspelt_name_is_answered_with_the_nearest() {
        for (wrong, right) in [
            ("CHIOCE", "CHOICE"),
            ("SOCKETS", "SOCKET"),
            ("HEAP_BYTE", "HEAP_BYTES"),
            ("MPIREPORT", "MPI_REPORT"),
            ("choice", "CHOICE"),
        ] {
            let said = warning(&format!("{PREFIX}{wrong}")).expect("unknown");
            assert!(said.contains(wrong) && said.ends_with(&format!("did you mean {PREFIX}{right}?")), "{said}");
        }
        let said = warning(&format!("{PREFIX}SOMETHING_ELSE_ENTIRELY")).expect("unknown");
        assert!(!said.contains("did you mean") && said.contains("explain settings"), "{said}");
    }

    #[test]
    fn distance_counts_changes_of_letters() {
        for (a, b, changes) in [("", "", 0), ("abc", "", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "xbcd", 2)] {
            assert_eq!((distance(a, b), distance(b, a)), (changes, changes), "{a} {b}");
        }
    }
}
