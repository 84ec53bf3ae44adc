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
//! Every table is optional (`profile_table.rs` reads it). A user of the profile reports a table that an engine
//! needs and the profile lacks. Never does IO.

use std::sync::LazyLock;

use toml::de::DeTable;

use crate::costs::Machine;
use crate::datapath::DatapathCosts;
use crate::ordered::OrderedCosts;
use crate::profile_table::ProfileReader;
pub use crate::profile_table::{ExpectedValue, ProfileError, ProfileFault, ProfileNumber};
use crate::triggered::TriggeredCosts;

#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub name: String,
    pub about: String,
    /// Processors, memory, bus and link.
    pub machine: Option<Machine>,
    pub triggered: Option<TriggeredCosts>,
    pub ordered: Option<OrderedCosts>,
    pub datapath: Option<DatapathCosts>,
    /// All numbers, in the order of their tables and keys.
    pub numbers: Vec<ProfileNumber>,
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
                    profile.triggered = Some(reader.table("triggered", value, numbers, TriggeredCosts::read)?);
                }
                "ordered" => profile.ordered = Some(reader.table("ordered", value, numbers, OrderedCosts::read)?),
                "datapath" => profile.datapath = Some(reader.table("datapath", value, numbers, DatapathCosts::read)?),
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
