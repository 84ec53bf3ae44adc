//! `outboard choice` and `outboard explain choice --report`: show what the MPI shim has learnt about each cluster, and
//! what it chose in a run, native or offloaded (bindings/mpi/README.md has both formats). Never chooses anything.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use outboard_bench::cache_dir;
use serde::Deserialize;

use crate::error::CliError;

/// The words that begin each file of the shim: format name and version (bindings/mpi/src/tuning_cache.c).
const FORMAT: [&str; 2] = ["outboard-choice", "3"];

/// The results of earlier runs that the MPI shim keeps.
#[derive(Debug, Subcommand)]
pub(crate) enum ChoiceCommand {
    /// List the clusters, and which classes of calls are faster natively or offloaded there
    List,
    /// Remove learnt results
    Forget {
        /// The cluster, by its name in `outboard choice list`
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        cluster: Option<String>,
        /// Remove the results of all clusters
        #[arg(long)]
        all: bool,
    },
}

/// One class of calls in the report of a run.
#[derive(Debug, Deserialize)]
struct ReportedChoice {
    collective: String,
    form: String,
    size_class: Option<u32>,
    hosts: u32,
    ranks_per_host: u32,
    calls_native: u64,
    calls_offloaded: u64,
    median_native_us: f64,
    median_offloaded_us: f64,
    way: String,
    why: String,
}

/// The fields of a report of `OUTBOARD_MPI_REPORT` that are used here.
#[derive(Debug, Deserialize)]
struct ShimReport {
    choice: String,
    saved_s: f64,
    in_collectives_s: f64,
    choices: Vec<ReportedChoice>,
}

pub(crate) fn choice(command: &ChoiceCommand) -> Result<ExitCode, CliError> {
    let folder = folder()?;
    match command {
        ChoiceCommand::List => list(&folder)?,
        ChoiceCommand::Forget { cluster, .. } => forget(&folder, cluster.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory of the shim's files.
fn folder() -> Result<PathBuf, CliError> {
    let missing = "neither XDG_CACHE_HOME nor HOME is an absolute path: what is remembered has no place";
    cache_dir().map(|cache| cache.join("choice")).ok_or_else(|| CliError::Failed(missing.to_owned()))
}

/// The files of all clusters, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(CliError::system(folder.display().to_string())(error)),
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "tsv"));
    files.sort();
    Ok(files)
}

fn list(folder: &Path) -> Result<(), CliError> {
    let files = files(folder)?;
    if files.is_empty() {
        println!("nothing is remembered in {}", folder.display());
    }
    for path in files {
        let text = std::fs::read_to_string(&path).map_err(CliError::system(path.display().to_string()))?;
        match table(&text) {
            Some(table) => print!("{table}"),
            None => println!("{} is not of this version, or damaged: the shim does not use it", path.display()),
        }
    }
    Ok(())
}

/// The content of a file as text; `None` if it is not a file of the shim.
fn table(text: &str) -> Option<String> {
    let mut lines = text.lines();
    let [name, version, cluster, hosts, names] = fields(lines.next()?)?;
    if [name, version] != FORMAT {
        return None;
    }
    let mut table = format!("{cluster}: {hosts} hosts, {names}\n");
    for line in lines {
        let [collective, form, size, hosts, ranks, native, offloaded, launches, unfinished, calls] = fields(line)?;
        let (of_native, of_offloaded): (f64, f64) = (native.parse().ok()?, offloaded.parse().ok()?);
        let faster = match (launches, of_native <= of_offloaded) {
            ("0", _) => "unknown",
            (_, true) => "natively",
            (_, false) => "offloaded",
        };
        let size = sizes(if size == "-" { None } else { Some(size.parse().ok()?) });
        table += &format!(
            "  {collective:<21} {form:<11} {size:<20} {hosts:>3} x {ranks:<3} {faster:<9} native {native:>10} us, offloaded \
             {offloaded:>10} us, tried by {launches} runs, begun by {unfinished} later ones, {calls} calls\n"
        );
    }
    Some(table)
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.split('\t').collect::<Vec<_>>().try_into().ok()
}

/// The smallest size in a class. The number of a class is the bit length of its sizes.
fn sizes(class: Option<u32>) -> String {
    match class {
        None => "any size".to_owned(),
        Some(0) => "0 B".to_owned(),
        Some(bits) => format!("from {}", outboard_units::Size(1 << (bits - 1).min(63))),
    }
}

fn forget(folder: &Path, cluster: Option<&str>) -> Result<(), CliError> {
    let all = files(folder)?;
    let named = |path: &&PathBuf| cluster.is_none_or(|name| path.file_stem().is_some_and(|stem| stem == name));
    let gone: Vec<&PathBuf> = all.iter().filter(named).collect();
    if let (Some(name), true) = (cluster, gone.is_empty()) {
        let text = format!("nothing is remembered of {name}; `outboard choice list` names the clusters");
        return Err(CliError::Failed(text));
    }
    for path in &gone {
        std::fs::remove_file(path).map_err(CliError::system(format!("remove {}", path.display())))?;
    }
    println!("forgot {} clusters", gone.len());
    Ok(())
}

/// Prints the reason for the choice of each class of calls in a run.
pub(crate) fn explain(path: &Path) -> Result<ExitCode, CliError> {
    let text = std::fs::read_to_string(path).map_err(CliError::system(path.display().to_string()))?;
    let report: ShimReport = serde_json::from_str(&text).map_err(|error| {
        CliError::Failed(format!("{}: {error}; name a file that OUTBOARD_MPI_REPORT has asked for", path.display()))
    })?;
    print!("{}", reasons(&report));
    Ok(ExitCode::SUCCESS)
}

fn reasons(report: &ShimReport) -> String {
    let ShimReport { choice, saved_s, in_collectives_s, choices } = report;
    let mut text = format!("OUTBOARD_CHOICE={choice}: {saved_s:.3} s of {in_collectives_s:.3} s in MPI saved\n");
    for row in choices {
        let because = match row.why.as_str() {
            "start" => "everything is offloaded that may be".to_owned(),
            "remembered" => "an earlier run on this cluster found it faster".to_owned(),
            "tried" => {
                format!("natively it took {:.1} us, offloaded {:.1} us", row.median_native_us, row.median_offloaded_us)
            }
            _ => "the built-in rule says so, and too few calls were made to try".to_owned(),
        };
        text += &format!(
            "{} {}, {}, {} hosts x {}: {} ({} native, {} offloaded), since {because}\n",
            row.form,
            row.collective,
            sizes(row.size_class),
            row.hosts,
            row.ranks_per_host,
            row.way,
            row.calls_native,
            row.calls_offloaded
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_writes_what_is_read_here() {
        let shim = include_str!("../../../bindings/mpi/src/tuning_cache.c");
        assert!(shim.contains(&format!("#define FORMAT \"{}\"", FORMAT.join("\\t"))), "{FORMAT:?}");
        assert!(shim.contains("#define FIELDS 10\n"), "as `table` takes a line apart");
    }

    #[test]
    fn shim_file_is_listed_and_foreign_file_is_reported() {
        let head = "outboard-choice\t3\t00112233aabbccdd\t2\th1,h2\n";
        let line = "bcast\tblocking\t21\t2\t1\t26000.000\t10000.000\t3\t1\t120\n";
        let listed = table(&format!("{head}{line}")).expect("as the shim writes it");
        assert!(listed.starts_with("00112233aabbccdd: 2 hosts, h1,h2\n"), "{listed}");
        assert!(listed.contains("from 1 MiB") && listed.contains("offloaded native  26000.000 us"), "{listed}");
        assert!(listed.ends_with("tried by 3 runs, begun by 1 later ones, 120 calls\n"), "{listed}");
        for damaged in ["", "outboard-choice\t2\tx\t2\th1\n", "bcast\n"] {
            assert_eq!(table(damaged), None, "{damaged:?}");
        }
        let unfinished = "bcast\tblocking\t21\t2\t1\t0.000\t0.000\t0\t4\t120\n";
        assert!(table(&format!("{head}{unfinished}")).expect("no trial has ended").contains("unknown"));
        assert_eq!(table(&format!("{head}bcast\tblocking\n")), None);
    }
}
