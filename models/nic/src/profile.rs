//! Cost profiles: the times and rates of a machine and its NIC, each number with its source.
//!
//! A profile is a TOML file with one table for each part. Each number is `{ value, source }`. The source names a paper
//! and the place in it, or begins with `fitted` or `assumed`:
//!
//! ```toml
//! name = "cluster-a"
//! about = "16 blade servers with ConnectX-2"
//!
//! [machine]
//! link_rate = { value = 4.0, source = "assumed: InfiniBand QDR" }
//! ```
//!
//! Every table is optional, but a table that is present has all of its keys and no others. A user of the profile
//! reports a table that an engine needs and the profile lacks. Invariants: rates and counts are positive, everything
//! else is at least 0, and all numbers are finite. Never does IO.

use std::fmt;
use std::sync::LazyLock;

use thiserror::Error;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::costs::Machine;
use crate::{datapath, ordered, triggered};

/// A number of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileNumber {
    pub table: &'static str,
    pub key: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub source: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub name: String,
    pub about: String,
    /// Processors, memory, bus and link.
    pub machine: Option<Machine>,
    pub triggered: Option<triggered::TriggeredCosts>,
    pub ordered: Option<ordered::OrderedCosts>,
    pub datapath: Option<datapath::DatapathCosts>,
    /// All numbers, in the order of their tables and keys.
    pub numbers: Vec<ProfileNumber>,
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

const BUILT_IN: [(&str, &str); 4] = [
    ("bluefield3", include_str!("../profiles/bluefield3.toml")),
    ("cluster-a", include_str!("../profiles/cluster-a.toml")),
    ("cluster-b", include_str!("../profiles/cluster-b.toml")),
    ("tianhe", include_str!("../profiles/tianhe.toml")),
];

impl Profile {
    pub fn built_in() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    pub fn built_in_texts() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(_, text)| *text)
    }

    pub fn named(name: &str) -> Option<&'static Profile> {
        static ALL: LazyLock<Vec<Profile>> = LazyLock::new(|| {
            let one = |(name, text): &(&str, &str)| Profile::read(name, text).expect("built-in profiles are tested");
            BUILT_IN.iter().map(one).collect()
        });
        ALL.iter().find(|profile| profile.name == name)
    }

    /// Reads the profile in `text`, the contents of `file`.
    pub fn read(file: &str, text: &str) -> Result<Profile, ProfileError> {
        let reader = ProfileReader { file, text };
        let root = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            reader.error(at, ProfileFault::Syntax(error.message().to_owned()))
        })?;
        let mut profile = Profile {
            name: String::new(),
            about: String::new(),
            machine: None,
            triggered: None,
            ordered: None,
            datapath: None,
            numbers: Vec::new(),
        };
        let mut entries: Vec<_> = root.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let numbers = &mut profile.numbers;
            match &**key.get_ref() {
                "name" => profile.name = reader.text_of("name", value)?,
                "about" => profile.about = reader.text_of("about", value)?,
                "machine" => profile.machine = Some(reader.table("machine", value, numbers, Machine::read)?),
                "triggered" => {
                    profile.triggered =
                        Some(reader.table("triggered", value, numbers, triggered::TriggeredCosts::read)?);
                }
                "ordered" => {
                    profile.ordered = Some(reader.table("ordered", value, numbers, ordered::OrderedCosts::read)?)
                }
                "datapath" => {
                    profile.datapath = Some(reader.table("datapath", value, numbers, datapath::DatapathCosts::read)?)
                }
                other => {
                    let known = "name, about, [machine], [triggered], [ordered], [datapath]".to_owned();
                    let fault = ProfileFault::Unknown { kind: "table or key", key: other.to_owned(), known };
                    return Err(reader.error(key.span().start, fault));
                }
            }
        }
        Ok(profile)
    }
}

/// The text that is being read.
#[derive(Clone, Copy)]
struct ProfileReader<'a> {
    file: &'a str,
    text: &'a str,
}

type TomlValue<'a> = Spanned<DeValue<'a>>;

impl ProfileReader<'_> {
    fn error(&self, at: usize, fault: ProfileFault) -> ProfileError {
        let before = self.text.as_bytes().iter().take(at);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        ProfileError { file: self.file.to_owned(), line, fault }
    }

    fn value_error(&self, key: &str, value: &TomlValue<'_>, wanted: ExpectedValue) -> ProfileError {
        let shown = self.text.get(value.span()).unwrap_or_default().to_owned();
        self.error(value.span().start, ProfileFault::Value { key: key.to_owned(), value: shown, wanted })
    }

    fn text_of(&self, key: &str, value: &TomlValue<'_>) -> Result<String, ProfileError> {
        let text = value.get_ref().as_str().ok_or_else(|| self.value_error(key, value, ExpectedValue::Text))?;
        Ok(text.to_owned())
    }

    fn table<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../profiles/bluefield3.toml");

    fn refused(text: &str) -> String {
        Profile::read("p.toml", text).expect_err("no profile").to_string()
    }

    #[test]
    fn built_in_profiles_are_called_what_they_are_named() {
        for (name, text) in BUILT_IN {
            assert_eq!(Profile::read(name, text).map(|profile| profile.name), Ok(name.to_owned()));
        }
        assert!(Profile::named("bluefield4").is_none());
    }

    #[test]
    fn invalid_profile_error_names_its_line() {
        let line = GOOD.lines().position(|line| line.starts_with("gigahertz")).expect("a rate") + 1;
        for value in ["0", "-1.8", "inf", "nan", "\"fast\""] {
            let said = refused(&GOOD.replace("value = 1.8,", &format!("value = {value},")));
            assert!(said.starts_with(&format!("p.toml:{line}: `gigahertz` is {value}: it has to be finite")), "{said}");
        }
        let said = refused(&GOOD.replace("gigahertz", "megahertz"));
        assert!(said.contains("[datapath] lacks `gigahertz`, in cycles/ns"), "{said}");
        let said = refused(&format!("{GOOD}caches = {{ value = 1, source = \"ours\" }}\n"));
        let last = GOOD.lines().count() + 1;
        assert!(said.starts_with(&format!("p.toml:{last}: key `caches`: there is cores, ")), "{said}");
        let said = refused(&GOOD.replacen("value = 16,", "value = 0,", 1));
        assert!(said.contains("`cores` is 0: it has to be a whole number"), "{said}");
        assert!(refused("[engine]\n").starts_with("p.toml:1: table or key `engine`: there is name,"));
        assert!(refused("name = \"x\"\nabout").starts_with("p.toml:2: "));
        assert!(
            refused("[datapath]\ncores = { value = 3, source = \" \" }").contains("p.toml:2: `cores` has no source")
        );
        assert!(refused("[datapath]\ncores = 3").contains("p.toml:2: `cores` is 3: it has to be { value"));
    }
}
