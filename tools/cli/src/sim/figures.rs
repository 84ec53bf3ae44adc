//! `outboard sim figures`: the experiments of the papers by profile, beside their measurements, with the error of each
//! number.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use indicatif::ProgressBar;
use outboard_nic::profile::Profile;
use outboard_sim::nics::figures::FigureError;
use outboard_sim::nics::figures::core_direct::{AllgatherFigures, PaperCluster, allgather, costs_of};
use outboard_sim::nics::figures::tianhe::{PaperOperation, SpeedComparison, compare};

use crate::error::CliError;
use crate::explain;

/// The papers whose experiments are modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// Allgathers by CORE-Direct, by the profiles cluster-a and cluster-b
    CoreDirect,
    /// Broadcasts and reductions by Tianhe NICs, by the profile tianhe
    Tianhe,
    /// Multicast received by a datapath accelerator, by the profile bluefield3
    Multicast,
}

pub(super) fn show(paper: Paper) -> Result<ExitCode, CliError> {
    explain::print(&match paper {
        Paper::CoreDirect => core_direct().map_err(CliError::failed)?,
        Paper::Tianhe => tianhe().map_err(CliError::failed)?,
        Paper::Multicast => explain::datapath::show(),
    })
}

fn built_in(name: &str) -> &'static Profile {
    Profile::named(name).expect("it is built in")
}

/// Writes a number beside the paper's.
fn beside(text: &mut String, what: &str, model: f64, paper: f64) {
    let error = (model / paper - 1.0) * 100.0;
    let _ = writeln!(text, "  {what:<58} {model:>7.2}  paper {paper:>7.2}  error {error:>+6.1} %");
}

const SIZES: [(&str, u64); 5] =
    [("1 KiB", 1 << 10), ("8 KiB", 8 << 10), ("64 KiB", 64 << 10), ("256 KiB", 256 << 10), ("1 MiB", 1 << 20)];

/// A line of latencies and overlaps by size.
fn by_size(
    text: &mut String,
    (profile, cluster): (&str, PaperCluster),
    algorithm: &str,
) -> Result<Vec<AllgatherFigures>, FigureError> {
    let one = |(_, bytes): &(&str, u64)| allgather(built_in(profile), cluster, algorithm, *bytes);
    let all = SIZES.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    let _ = write!(text, "  {algorithm:<52}");
    for allgather in &all {
        let _ = write!(text, "{:>10.0} {:>4.0} %", allgather.latency / 1e3, allgather.overlap * 100.0);
    }
    text.push('\n');
    Ok(all)
}

fn heading(text: &mut String, title: &str) {
    let _ = write!(text, "\n{title}\n  {:<52}", "us and overlap by size of a block");
    SIZES.iter().for_each(|(name, _)| _ = write!(text, "{name:>17}"));
    text.push('\n');
}

fn core_direct() -> Result<String, FigureError> {
    let mut text = "CORE-Direct: fitted on cluster A; cluster B takes its NIC from there and fits nothing\n".to_owned();
    let a = ("cluster-a", PaperCluster::A);
    heading(&mut text, "cluster A, 128 ranks, flat; the paper: near 100 % from 16 KiB, lower by Bruck's rotation");
    for algorithm in ["standard-exchange", "rotated-bruck", "ring"] {
        by_size(&mut text, a, algorithm)?;
    }
    because(
        &mut text,
        "below 16 KiB ranks copy blocks out of their buffers in the end, which costs the paper overlap, too",
    );
    heading(&mut text, "cluster A, hierarchical; the paper: around 50 % for large messages");
    for between in ["standard-exchange", "bruck", "ring"] {
        by_size(&mut text, a, &format!("hierarchical:leaders=1,between={between}"))?;
    }
    heading(&mut text, "cluster A, 2 and 4 groups, 2 and 4 leaders; the paper: the more, the slower");
    for name in ["hierarchical", "multi-leader"] {
        for leaders in [2, 4] {
            by_size(&mut text, a, &format!("{name}:leaders={leaders},between=standard-exchange"))?;
        }
    }
    heading(&mut text, "cluster B, 16 ranks, 1 port and 3");
    let mut gains = Vec::new();
    for algorithm in ["standard-exchange", "hierarchical:leaders=1,between=standard-exchange"] {
        let one = by_size(&mut text, ("cluster-b", PaperCluster::B), algorithm)?;
        let separator = if algorithm.contains(':') { "," } else { ":" };
        let three =
            by_size(&mut text, ("cluster-b", PaperCluster::B_3_PORTS), &format!("{algorithm}{separator}ports=3"))?;
        gains.push(
            one.iter().zip(&three).map(|(one, three)| (1.0 - three.latency / one.latency) * 100.0).collect::<Vec<_>>(),
        );
    }
    let most = |gains: &[f64]| gains.iter().copied().fold(f64::MIN, f64::max);
    text.push_str("\nbeside the paper (CD Sec. VI-E, VI-F)\n");
    beside(&mut text, "3 ports, flat, above 16 KiB: at most so many % faster", most(&gains[0][2..]), 49.0);
    because(
        &mut text,
        "a single queue pair fills the bus here: the slowest rank ends at the same time, others later, all with it",
    );
    beside(&mut text, "3 ports, hierarchical: at most so many % faster", most(&gains[1]), 16.0);
    let (_, costs) = costs_of(built_in("cluster-a"))?;
    for (algorithm, name, paper) in [
        ("standard-exchange", "Standard Exchange (fitted)", 105.0),
        ("ring", "Ring (fitted)", 60.0),
        ("rotated-bruck", "Bruck", 160.0),
    ] {
        let pairs = allgather(built_in("cluster-a"), PaperCluster::A, algorithm, 64)?.queue_pairs;
        let memory = costs.resident + costs.resident_pair * pairs as f64;
        beside(&mut text, &format!("MB of a process with {pairs} queue pairs, {name}"), memory, paper);
    }
    Ok(text)
}

/// Writes why a figure deviates.
fn because(text: &mut String, why: &str) {
    let _ = writeln!(text, "    ({why})");
}

/// The sizes of the paper.
const TIANHE_SIZES: [u64; 13] = [
    256,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    48 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    384 << 10,
    512 << 10,
    768 << 10,
    1 << 20,
];
const TASKS: [usize; 3] = [1, 8, 32];
/// TH Table 1, in percent, by size and tasks.
const TABLE_1: [[f64; 3]; 13] = [
    [0.01, 0.09, 0.39],
    [0.12, 1.13, 4.31],
    [0.49, 2.82, 10.10],
    [1.61, 5.79, 19.97],
    [1.85, 6.37, 23.52],
    [2.27, 10.70, 36.20],
    [2.60, 19.10, 49.17],
    [4.71, 29.16, 72.36],
    [7.16, 45.11, 81.47],
    [10.23, 70.15, 89.55],
    [13.79, 85.92, 93.69],
    [17.36, 98.20, 101.24],
    [23.69, 100.92, 103.47],
];

/// Comparisons by size, then by tasks.
type ComparisonTable = Vec<Vec<SpeedComparison>>;

fn table(operation: PaperOperation, bar: &ProgressBar) -> Result<ComparisonTable, FigureError> {
    let one = |bytes: &u64| {
        let by_tasks = TASKS.iter().map(|tasks| compare(built_in("tianhe"), operation, *tasks, *bytes)).collect();
        bar.inc(1);
        by_tasks
    };
    TIANHE_SIZES.iter().map(one).collect()
}

fn tianhe() -> Result<String, FigureError> {
    let operations = [PaperOperation::Broadcast, PaperOperation::Reduce, PaperOperation::Allreduce];
    // Each operation has some ten million packets, and runs on a processor of its own.
    let bar = &ProgressBar::new((operations.len() * TIANHE_SIZES.len()) as u64);
    let tables = std::thread::scope(|scope| {
        let threads = operations.map(|operation| scope.spawn(move || table(operation, bar)));
        threads.map(|thread| thread.join().expect("figures do not panic"))
    });
    bar.finish_and_clear();
    let [broadcast, reduce, allreduce] = tables;
    let tables = [broadcast?, reduce?, allreduce?];
    let mut text = "Tianhe, 32 nodes: how many times as fast by NIC as by hosts\n\n        bytes".to_owned();
    for operation in operations {
        TASKS.iter().for_each(|tasks| _ = write!(text, "{:>14}", format!("{operation:?} {tasks}")));
    }
    text.push('\n');
    for (at, bytes) in TIANHE_SIZES.iter().enumerate() {
        let _ = write!(text, "  {bytes:>11}");
        tables.iter().flat_map(|table| &table[at]).for_each(|one| _ = write!(text, "{:>14.2}", one.speed_up()));
        text.push('\n');
    }
    let [broadcast, reduce, allreduce] = &tables;
    text.push_str("\nbeside the paper (TH Sec. 2.2)\n");
    beside(&mut text, "Broadcast, 1 task, 256 B (fitted)", broadcast[0][0].speed_up(), 2.11);
    beside(&mut text, "Broadcast, 32 tasks, 1 MB", broadcast[12][2].speed_up(), 1.3);
    beside(&mut text, "Reduce, 1 task, 256 B (fitted)", reduce[0][0].speed_up(), 1.46);
    let most = reduce.iter().flatten().map(SpeedComparison::speed_up).fold(0.0, f64::max);
    beside(&mut text, "Reduce, the most of all", most, 2.42);
    because(&mut text, "what large vectors gain follows from how fast a host copies and combines, which is assumed");
    text.push_str(
        "\nTable 1: % of the root's hash buffers that an allreduce uses, model / paper (first column: fitted)\n",
    );
    text.push_str("        bytes");
    TASKS.iter().for_each(|tasks| _ = write!(text, "{:>18}", format!("{tasks} tasks")));
    text.push('\n');
    for ((bytes, model), paper) in TIANHE_SIZES.iter().zip(allreduce).zip(TABLE_1) {
        let _ = write!(text, "  {bytes:>11}");
        for (model, paper) in model.iter().zip(paper) {
            let _ = write!(text, "{:>18}", format!("{:.2} / {paper:.2}", model.used * 100.0));
        }
        text.push('\n');
    }
    because(
        &mut text,
        "a task has one unit here, and all that it is sent passes the buffers, results of any size, too",
    );
    Ok(text)
}
