//! `outboard explain profile`: shows every number of a cost profile with its source.

use std::fmt::Write as _;

use crate::error::CliError;
use crate::profiles;

pub(super) fn show(name: &str) -> Result<String, CliError> {
    let profile = profiles::named(name)?;
    let mut text = format!("{}: {}\n", profile.name, profile.about);
    let wide = profile.numbers.iter().map(|number| number.key.len()).max().unwrap_or(0);
    for table in profile.numbers.chunk_by(|a, b| a.table == b.table) {
        let _ = writeln!(text, "\n[{}]", table[0].table);
        for number in table {
            let value = (number.value * 1e4).round() / 1e4;
            let _ = writeln!(text, "{:<wide$}  {value:>8} {:<10}  {}", number.key, number.unit, number.source);
        }
    }
    Ok(text)
}
