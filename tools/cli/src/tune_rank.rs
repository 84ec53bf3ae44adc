//! One rank of `outboard tune`: times calls of many sizes, and gathers the times of all ranks.
//!
//! The time of a call is the slowest rank's time. A sample is the median of that time over the repetitions. Ranks begin
//! each call behind a barrier, so that no rank waits for the start of another.

use std::path::Path;
use std::time::Instant;

use outboard::{Context, Group};
use outboard_plan::selection::{Case, Collective, Duration, Links, Rate, Tuning, UnknownCollective};
use outboard_plan::{Element, Operator, Reduction};
use outboard_plan_tools::CostSample;
use serde::{Deserialize, Serialize};

use crate::algorithm::chosen;
use crate::error::CliError;

/// Bytes of a host's name in the exchange of names; longer names are cut.
const NAME_BYTES: usize = 64;
/// The collectives that are measured.
const PROBED: [Collective; 3] = [Collective::Broadcast, Collective::Allgather, Collective::Allreduce];
/// Calls of each kind and size that are not timed, because the first calls register memory and connect to peers.
const WARMING: u32 = 2;

/// A sample in the file that rank 0 writes for `outboard tune`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SampleRow {
    collective: String,
    algorithm: String,
    ranks: u32,
    hosts: u32,
    bytes: u64,
    nanoseconds: u64,
}

impl From<&CostSample> for SampleRow {
    fn from(sample: &CostSample) -> Self {
        let Case { collective, ranks, hosts, bytes, .. } = sample.case;
        let (collective, algorithm) = (collective.to_string(), sample.choice.to_string());
        SampleRow { collective, algorithm, ranks, hosts, bytes, nanoseconds: sample.took.in_nanoseconds() }
    }
}

impl SampleRow {
    /// The sample, or an error that names the unknown word.
    pub(crate) fn sample(&self) -> Result<CostSample, String> {
        let collective: Collective = self.collective.parse().map_err(|e: UnknownCollective| e.to_string())?;
        let choice = collective.read(&self.algorithm)?;
        let case = Case {
            collective,
            ranks: self.ranks,
            hosts: self.hosts,
            bytes: self.bytes,
            multicast: choice.multicasts(),
            links: Links::default(),
        };
        Ok(CostSample { case, choice, took: Duration::nanoseconds(self.nanoseconds) })
    }
}

/// The calls that the ranks make.
#[derive(Debug, Clone)]
pub(crate) struct Probing<'a> {
    pub(crate) sizes: &'a [u64],
    pub(crate) repetitions: u32,
    /// The tuning of the daemons, from the same file.
    pub(crate) tuning: Option<&'a Tuning>,
    pub(crate) multicast: bool,
}

fn failed(what: &str) -> impl FnOnce(outboard::Error) -> CliError {
    let what = what.to_owned();
    move |error| CliError::Failed(format!("{what}: {error}"))
}

/// Makes the calls. Returns whether this rank is rank 0, and the samples of all ranks. Every rank returns equal
/// samples.
pub(crate) fn probe(probing: &Probing<'_>) -> Result<(bool, Vec<CostSample>), CliError> {
    let (context, world) = Context::init().map_err(failed("joining the other ranks"))?;
    check_tuning(&context, probing)?;
    let rank = world.rank().map_err(failed("this rank"))?;
    let ranks = world.size().map_err(failed("the ranks"))?;
    let hosts = hosts_of(&world, ranks)?;
    let links = Links::between(hosts, slowest_link(&context, &world)?);
    let mut samples = Vec::new();
    let sum = Reduction::new(Operator::Sum, Element::F32).expect("numbers have a sum");
    for (collective, bytes) in PROBED.into_iter().flat_map(|c| probing.sizes.iter().map(move |bytes| (c, *bytes))) {
        let bytes = bytes.next_multiple_of(sum.element().bytes());
        let case = Case { collective, ranks, hosts, bytes, multicast: probing.multicast || hosts == 1, links };
        let took = median_of(&world, sum, &case, probing.repetitions)?;
        samples.push(CostSample { case, choice: chosen(probing.tuning, &case, false).0, took });
    }
    world.destroy().map_err(failed("leaving the other ranks"))?;
    context.detach().map_err(failed("leaving the daemon"))?;
    Ok((rank == 0, samples))
}

/// Refuses to go on if the daemons choose by another tuning, since samples would be attributed to wrong algorithms.
fn check_tuning(context: &Context, probing: &Probing<'_>) -> Result<(), CliError> {
    let theirs = context.config_digest().map_err(failed("the daemon's configuration"))? as u32;
    let ours = probing.tuning.map_or(0, Tuning::digest);
    if theirs == ours {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "the daemon of this host chooses by a tuning of digest {theirs:08x}, this rank was told {ours:08x} (0: none): start \
         both with the same OUTBOARD_TUNING"
    )))
}

/// The number of hosts of the ranks, by their names.
fn hosts_of(world: &Group, ranks: u32) -> Result<u32, CliError> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_bytes();
    let mut own = [0; NAME_BYTES];
    let length = name.len().min(NAME_BYTES);
    own[..length].copy_from_slice(&name[..length]);
    let mut all = vec![0; NAME_BYTES * ranks as usize];
    world.allgather(&own, &mut all).map_err(failed("exchanging the hosts' names"))?;
    let names: std::collections::BTreeSet<&[u8]> = all.chunks_exact(NAME_BYTES).collect();
    Ok(names.len() as u32)
}

/// The rate of the slowest host's link, on which the group bases its choices.
fn slowest_link(context: &Context, world: &Group) -> Result<Rate, CliError> {
    let least = Reduction::new(Operator::Minimum, Element::U64).expect("numbers have a least one");
    let own = context.link_rate().map_err(failed("the rate of the link"))?;
    let mut slowest = [0; size_of::<u64>()];
    world.allreduce(least, &own.to_ne_bytes(), &mut slowest).map_err(failed("comparing the links"))?;
    Ok(Rate::bits_per_second(u64::from_ne_bytes(slowest)))
}

/// The median of the slowest ranks' times.
fn median_of(world: &Group, sum: Reduction, case: &Case, repetitions: u32) -> Result<Duration, CliError> {
    let ranks = case.ranks;
    let bytes =
        usize::try_from(case.bytes).map_err(|_| CliError::Failed(format!("{} bytes are too many", case.bytes)))?;
    let send = vec![0; bytes];
    let mut receive = vec![0; if case.collective == Collective::Allgather { bytes * ranks as usize } else { bytes }];
    let mut own = Vec::new();
    for repetition in 0..WARMING + repetitions {
        world.barrier().map_err(failed("starting together"))?;
        let begun = Instant::now();
        let called = match case.collective {
            Collective::Broadcast => world.broadcast(0, &mut receive),
            Collective::Allreduce => world.allreduce(sum, &send, &mut receive),
            _ => world.allgather(&send, &mut receive),
        };
        called.map_err(failed(case.collective.name()))?;
        if repetition >= WARMING {
            own.extend_from_slice(&(begun.elapsed().as_nanos() as u64).to_le_bytes());
        }
    }
    let mut all = vec![0; own.len() * ranks as usize];
    world.allgather(&own, &mut all).map_err(failed("exchanging times"))?;
    let time = |rank: usize, repetition: usize| {
        let at = rank * own.len() + repetition * 8;
        all[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    };
    let slowest = |repetition| (0..ranks as usize).map(|rank| time(rank, repetition)).max().unwrap_or(0);
    let mut slowest: Vec<u64> = (0..own.len() / 8).map(slowest).collect();
    slowest.sort_unstable();
    Ok(Duration::nanoseconds(slowest.get(slowest.len() / 2).copied().unwrap_or(0)))
}

/// Writes the samples to the file that `outboard tune` reads.
pub(crate) fn write_samples(path: &Path, samples: &[CostSample]) -> Result<(), CliError> {
    let rows: Vec<SampleRow> = samples.iter().map(SampleRow::from).collect();
    let text = serde_json::to_string_pretty(&rows).expect("rows are plain data");
    std::fs::write(path, text + "\n").map_err(CliError::system(format!("write {}", path.display())))
}

/// The samples of a file.
pub(crate) fn read_samples(path: &Path) -> Result<Vec<CostSample>, CliError> {
    let wrong = |why: String| CliError::Failed(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(CliError::system(format!("read {}", path.display())))?;
    let rows: Vec<SampleRow> = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    rows.iter().map(|row| row.sample().map_err(wrong)).collect()
}
