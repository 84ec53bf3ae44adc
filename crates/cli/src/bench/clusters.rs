//! How benches that compare a library natively and below the shim go through clusters. What was found so far is in the
//! files after every run.

use std::path::Path;

use outboard_bench::{Choosing, Place, Report};
use serde::Serialize;

use crate::error::CliError;

/// The clusters, what the shim learns on them, and where reports go.
pub(super) struct Clusters<'a> {
    pub(super) labs: &'a [Place],
    pub(super) choosing: Choosing,
    /// Runs for learning before each that counts.
    pub(super) learn: u32,
    pub(super) json: Option<&'a Path>,
    pub(super) markdown: Option<&'a Path>,
}

impl Clusters<'_> {
    /// The rows of every run on every cluster: what `measure` finds in each of `runs`.
    pub(super) fn go_through<W, R: Serialize>(
        &self,
        runs: impl Fn(&Place) -> Result<Vec<W>, CliError>,
        measure: impl Fn(&Place, &Choosing, &W) -> Result<Vec<R>, CliError>,
        markdown: impl Fn(&Report<R>) -> String,
    ) -> Result<Report<R>, CliError> {
        if self.learn > 0 && !self.choosing.learns() {
            let why = "--learn is of use with OUTBOARD_CHOICE=adaptive or learn alone";
            return Err(CliError::Failed(why.to_owned()));
        }
        // The shim takes no file out of a folder that others may write to.
        let learnt = tempfile::tempdir().map_err(CliError::system("make a directory"))?;
        let mut report = Report { rows: Vec::new() };
        for place in self.labs {
            let choosing = self.choosing.clone().on(place, learnt.path());
            for run in runs(place)? {
                report.rows.extend(measure(place, &choosing, &run)?);
                self.write(&report, &markdown)?;
            }
        }
        Ok(report)
    }

    fn write<R: Serialize>(&self, report: &Report<R>, markdown: impl Fn(&Report<R>) -> String) -> Result<(), CliError> {
        if let Some(path) = self.json {
            report.write_json(path)?;
        }
        let Some(path) = self.markdown else { return Ok(()) };
        std::fs::write(path, markdown(report)).map_err(CliError::system(format!("write {}", path.display())))
    }
}
