//! `outboard bench readme`: writes the figures of reports into the tables of a page of docs and into one JSON file.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::{chart, excerpt, fill_tables, read_tables, write_tables};

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct ReadmeArgs {
    /// JSON files of benches of nonblocking collectives, programs, grids and verdicts; the last file with a figure
    /// counts
    reports: Vec<PathBuf>,
    /// The page with the tables
    #[arg(long, default_value = "docs/performance/collectives.md", value_parser = crate::output::file())]
    readme: PathBuf,
    /// Write the rows of all tables to this JSON file
    #[arg(long, default_value = "docs/figures.json", value_parser = crate::output::file())]
    json: PathBuf,
    /// A page that shows some rows of these tables
    #[arg(long, value_parser = crate::output::file())]
    excerpt: Option<PathBuf>,
    /// Write a chart of the excerpt's first table to this SVG file
    #[arg(long, requires = "excerpt", value_parser = crate::output::file())]
    chart: Option<PathBuf>,
}

pub(super) fn readme(args: &ReadmeArgs) -> Result<ExitCode, CliError> {
    let path = &args.readme;
    let read = |path: &PathBuf| fs::read_to_string(path).map_err(CliError::system(format!("read {}", path.display())));
    let text = read(path)?;
    let mut tables = read_tables(&text)?;
    for row in fill_tables(&mut tables, &args.reports)? {
        eprintln!("outboard: {row}: not measured, left as it was");
    }
    let write =
        |path: &PathBuf, text| fs::write(path, text).map_err(CliError::system(format!("write {}", path.display())));
    write(path, write_tables(&text, &tables)?)?;
    let json = serde_json::to_string_pretty(&tables).expect("tables are plain data");
    write(&args.json, json + "\n")?;
    if let Some(page) = &args.excerpt {
        let text = read(page)?;
        let mut some = read_tables(&text)?;
        excerpt(&mut some, &tables)?;
        write(page, write_tables(&text, &some)?)?;
        if let (Some(path), Some(table)) = (&args.chart, some.first()) {
            write(path, chart(table))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
