//! The tables of a profile: each number is `{ value, source }`, and an error names the line at fault.
//!
//! Invariants: rates and counts are positive, everything else is at least 0, and all numbers are finite. A table has
//! all of its keys and no others. Never does IO.

use std::fmt;

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A number of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileNumber {
    pub table: &'static str,
    pub key: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub source: String,
}

/// The place at which a text is not a valid profile, and the fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {fault}")]
pub struct ProfileError {
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    pub fault: ProfileFault,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProfileFault {
    #[error("{0}")]
    Syntax(String),
    #[error("{kind} `{key}`: there is {known}")]
    Unknown { kind: &'static str, key: String, known: String },
    #[error("[{table}] lacks `{key}`, in {unit}: a table has all of its keys")]
    Missing { table: &'static str, key: &'static str, unit: &'static str },
    #[error("`{key}` is {value}: it has to be {wanted}")]
    Value { key: String, value: String, wanted: ExpectedValue },
    #[error("`{key}` has no source: name the paper and the place, or begin with fitted or assumed")]
    Source { key: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedValue {
    /// The text of `name` or `about`.
    Text,
    /// A table at the top level.
    Table,
    /// `{ value = NUMBER, source = "..." }`.
    Sourced,
    /// A number above 0.
    Rate,
    /// A number of at least 0.
    Cost,
    /// A whole number of at least 1.
    Count,
}

impl fmt::Display for ExpectedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExpectedValue::Text => "a text",
            ExpectedValue::Table => "a table",
            ExpectedValue::Sourced => "{ value = NUMBER, source = TEXT }",
            ExpectedValue::Rate => "finite and above 0",
            ExpectedValue::Cost => "finite and at least 0",
            ExpectedValue::Count => "a whole number from 1 to 4294967295",
        })
    }
}

/// The text that is being read.
#[derive(Clone, Copy)]
pub(crate) struct ProfileReader<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

type TomlValue<'a> = Spanned<DeValue<'a>>;

impl ProfileReader<'_> {
    pub(crate) fn error(&self, at: usize, fault: ProfileFault) -> ProfileError {
        let before = self.text.as_bytes().iter().take(at);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        ProfileError { file: self.file.to_owned(), line, fault }
    }

    fn value_error(&self, key: &str, value: &TomlValue<'_>, wanted: ExpectedValue) -> ProfileError {
        let shown = self.text.get(value.span()).unwrap_or_default().to_owned();
        self.error(value.span().start, ProfileFault::Value { key: key.to_owned(), value: shown, wanted })
    }

    pub(crate) fn text_of(&self, key: &str, value: &TomlValue<'_>) -> Result<String, ProfileError> {
        let text = value.get_ref().as_str().ok_or_else(|| self.value_error(key, value, ExpectedValue::Text))?;
        Ok(text.to_owned())
    }

    pub(crate) fn table<T>(
        &self,
        name: &'static str,
        value: &TomlValue<'_>,
        numbers: &mut Vec<ProfileNumber>,
        read: impl FnOnce(&mut ProfileTable<'_, '_>) -> Result<T, ProfileError>,
    ) -> Result<T, ProfileError> {
        let entries = value.get_ref().as_table().ok_or_else(|| self.value_error(name, value, ExpectedValue::Table))?;
        let mut table = ProfileTable { reader: *self, name, at: value.span().start, entries, numbers: Vec::new() };
        let read = read(&mut table)?;
        let keys: Vec<&str> = table.numbers.iter().map(|number| number.key).collect();
        if let Some((key, _)) = entries.iter().find(|(key, _)| !keys.contains(&&**key.get_ref())) {
            let (at, key) = (key.span().start, key.get_ref().to_string());
            return Err(self.error(at, ProfileFault::Unknown { kind: "key", key, known: keys.join(", ") }));
        }
        numbers.append(&mut table.numbers);
        Ok(read)
    }
}

/// Reads the table `name` of a valid profile.
pub(crate) fn read_table<T>(
    text: &str,
    name: &'static str,
    read: impl FnOnce(&mut ProfileTable<'_, '_>) -> Result<T, ProfileError>,
) -> Option<T> {
    let root = DeTable::parse(text).ok()?;
    ProfileReader { file: name, text }.table(name, root.get_ref().get(name)?, &mut Vec::new(), read).ok()
}

/// A table whose keys are read one by one.
pub(crate) struct ProfileTable<'a, 'b> {
    reader: ProfileReader<'a>,
    name: &'static str,
    at: usize,
    entries: &'a DeTable<'b>,
    numbers: Vec<ProfileNumber>,
}

impl ProfileTable<'_, '_> {
    /// Reads a number that has to be positive.
    pub(crate) fn rate(&mut self, key: &'static str, unit: &'static str) -> Result<f64, ProfileError> {
        self.number(key, unit, ExpectedValue::Rate, |value| value > 0.0)
    }

    /// Reads a number that may be 0.
    pub(crate) fn cost(&mut self, key: &'static str, unit: &'static str) -> Result<f64, ProfileError> {
        self.number(key, unit, ExpectedValue::Cost, |value| value >= 0.0)
    }

    pub(crate) fn count(&mut self, key: &'static str, unit: &'static str) -> Result<u32, ProfileError> {
        let whole = |value: f64| (1.0..=f64::from(u32::MAX)).contains(&value) && value.fract() == 0.0;
        Ok(self.number(key, unit, ExpectedValue::Count, whole)? as u32)
    }

    fn number(
        &mut self,
        key: &'static str,
        unit: &'static str,
        wanted: ExpectedValue,
        is: impl Fn(f64) -> bool,
    ) -> Result<f64, ProfileError> {
        let (reader, table) = (self.reader, self.name);
        let missing = || reader.error(self.at, ProfileFault::Missing { table, key, unit });
        let entry = self.entries.get(key).ok_or_else(missing)?;
        let sourced =
            entry.get_ref().as_table().ok_or_else(|| reader.value_error(key, entry, ExpectedValue::Sourced))?;
        if let Some((other, _)) = sourced.iter().find(|(other, _)| !matches!(&**other.get_ref(), "value" | "source")) {
            let (at, key, known) = (other.span().start, other.get_ref().to_string(), "value, source".to_owned());
            return Err(reader.error(at, ProfileFault::Unknown { kind: "key", key, known }));
        }
        let written = sourced.get("value").ok_or_else(|| reader.value_error(key, entry, ExpectedValue::Sourced))?;
        let value = float(written.get_ref()).filter(|value| value.is_finite() && is(*value));
        let value = value.ok_or_else(|| reader.value_error(key, written, wanted))?;
        let source = sourced.get("source").and_then(|source| source.get_ref().as_str()).unwrap_or_default().trim();
        if source.is_empty() {
            return Err(reader.error(entry.span().start, ProfileFault::Source { key: key.to_owned() }));
        }
        self.numbers.push(ProfileNumber { table, key, value, unit, source: source.to_owned() });
        Ok(value)
    }
}

fn float(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(|value| value as f64)
        }
        _ => None,
    }
}
