//! What daemons report: asked for at their statistics sockets, and the words for it (SP-9).
//!
//! Never changes anything in a daemon.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use outboard_service::statistics::{Lateness, Report, Tiers};

/// A daemon answers at once, or is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the daemon behind a statistics socket says.
pub(crate) fn ask(socket: &Path) -> io::Result<Report> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(io::Error::other)
}

pub(crate) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// `part` of `whole`, 0 of nothing.
pub(crate) fn mean(sum: u64, count: u64) -> u64 {
    sum.checked_div(count).unwrap_or(0)
}

/// How and how often a rank was late.
pub(crate) fn lateness(late: &Lateness) -> String {
    format!(
        "rank {} of group {:08x}: late for {} {}, by {:.1} ms in the mean, {:.1} ms at most",
        late.rank,
        late.group,
        late.calls,
        plural(late.calls, &late.kind),
        milliseconds(mean(late.total_ns, late.calls)),
        milliseconds(late.most_ns)
    )
}

fn plural(count: u64, name: &str) -> String {
    if count == 1 { name.to_owned() } else { format!("{name}s") }
}

/// Ranks by the way their memory is reached.
pub(crate) fn tiers(tiers: Tiers) -> String {
    let Tiers { memfd, cross_memory_attach, memory_descriptor, staging } = tiers;
    format!(
        "memfd {memfd}, cross-memory attach {cross_memory_attach}, memory descriptor {memory_descriptor}, staging {staging}"
    )
}
