//! The tuning of a cluster as a file that people read and edit: what things cost, and algorithms that are set by hand.
//!
//! ```toml
//! [cost]
//! latency = "60 us"
//! message = "10 us"
//! control = "90 us"
//! bandwidth = "940 mbit"
//! multicast = "none"
//! copy = "40 gbit"
//! reduce = "16 gbit"
//!
//! [[choice.allreduce]]
//! up-to = "64 KiB"
//! ranks = 16
//! algorithm = "recursive-doubling"
//! ```
//!
//! What `[cost]` leaves out is as in [`Cost::default`]. Of the choices of a collective the first counts whose bounds hold:
//! `up-to` for the bytes of the call ([`Collective`] says which), `ranks` for the most ranks of the group; where none does, the
//! cost model chooses. Invariant: [`Tuning::digest`] tells tunings apart by what they mean, not by how they are written, and
//! what is shown is read back as an equal tuning. Never opens files.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use serde::Deserialize;
use siphasher::sip::SipHasher13;
use thiserror::Error;
use toml::Spanned;

use super::choice::Choice;
use super::collective::{Collective, UnknownCollective};
use super::cost::Cost;
use outboard_units::{Size, UnitError};

/// `multicast` of a cluster without.
const NO_MULTICAST: &str = "none";

/// What a group agrees on about the choice of algorithms.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tuning {
    /// What things take.
    pub cost: Cost,
    /// What people have set, by collective; the first that applies counts.
    pub rules: BTreeMap<Collective, Vec<Rule>>,
}

/// An algorithm that is set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Most bytes for which it applies; any by default.
    pub up_to: Option<Size>,
    /// Most ranks; any by default.
    pub ranks: Option<u32>,
    /// What is done.
    pub choice: Choice,
}

impl Rule {
    /// Whether it is for a call of `bytes` bytes among `ranks` ranks.
    #[must_use]
    pub fn applies(&self, ranks: u32, bytes: u64) -> bool {
        self.up_to.is_none_or(|most| bytes <= most.0) && self.ranks.is_none_or(|most| ranks <= most)
    }

    /// Whether it leaves nothing to `later`.
    fn covers(&self, later: &Rule) -> bool {
        let bytes = self.up_to.is_none_or(|most| later.up_to.is_some_and(|other| other <= most));
        bytes && self.ranks.is_none_or(|most| later.ranks.is_some_and(|other| other <= most))
    }
}

/// Why a text is no tuning.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct TuningError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: Reason,
}

/// What is wrong in a line of a tuning file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// No TOML, an unknown key, or a value of another type.
    #[error("{0}")]
    Syntax(String),
    /// No quantity.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A collective that nobody chooses an algorithm for.
    #[error(transparent)]
    Collective(#[from] UnknownCollective),
    /// An algorithm that the collective does not have.
    #[error("{0}")]
    Algorithm(String),
    /// A choice that is never made.
    #[error("this choice is never reached: an earlier one of {0} has bounds as wide; put the narrow ones first")]
    Unreachable(Collective),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    cost: CostTable,
    #[serde(default)]
    choice: BTreeMap<Spanned<String>, Vec<Spanned<ChoiceTable>>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct CostTable {
    latency: Option<Spanned<String>>,
    message: Option<Spanned<String>>,
    control: Option<Spanned<String>>,
    bandwidth: Option<Spanned<String>>,
    multicast: Option<Spanned<String>>,
    copy: Option<Spanned<String>>,
    reduce: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ChoiceTable {
    up_to: Option<Spanned<String>>,
    ranks: Option<u32>,
    algorithm: Spanned<String>,
}

/// The text that is read, for the lines of errors.
#[derive(Clone, Copy)]
struct Source<'a>(&'a str);

impl Source<'_> {
    fn error(self, at: usize, reason: Reason) -> TuningError {
        let before = &self.0.as_bytes()[..at.min(self.0.len())];
        TuningError { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), reason }
    }

    /// `value` where it is given.
    fn read<T: FromStr<Err = UnitError>>(
        self,
        value: Option<Spanned<String>>,
        into: &mut T,
    ) -> Result<(), TuningError> {
        if let Some(text) = value {
            *into = text.get_ref().parse().map_err(|e: UnitError| self.error(text.span().start, e.into()))?;
        }
        Ok(())
    }

    fn cost(self, table: CostTable) -> Result<Cost, TuningError> {
        let mut cost = Cost::default();
        self.read(table.latency, &mut cost.latency)?;
        self.read(table.message, &mut cost.message)?;
        self.read(table.control, &mut cost.control)?;
        self.read(table.bandwidth, &mut cost.bandwidth)?;
        self.read(table.copy, &mut cost.copy)?;
        self.read(table.reduce, &mut cost.reduce)?;
        match table.multicast {
            Some(text) if text.get_ref() == NO_MULTICAST => cost.multicast = None,
            given => {
                let mut rate = cost.bandwidth;
                let is_given = given.is_some();
                self.read(given, &mut rate)?;
                cost.multicast = if is_given { Some(rate) } else { cost.multicast };
            }
        }
        Ok(cost)
    }

    fn rules(self, collective: Collective, choices: Vec<Spanned<ChoiceTable>>) -> Result<Vec<Rule>, TuningError> {
        let mut rules: Vec<Rule> = Vec::new();
        for choice in choices {
            let at = choice.span().start;
            let ChoiceTable { up_to, ranks, algorithm } = choice.into_inner();
            let choice = collective.read(algorithm.get_ref());
            let choice = choice.map_err(|why| self.error(algorithm.span().start, Reason::Algorithm(why)))?;
            let bounded = up_to.is_some();
            let mut most = Size(u64::MAX);
            self.read(up_to, &mut most)?;
            let rule = Rule { up_to: bounded.then_some(most), ranks, choice };
            if rules.iter().any(|earlier| earlier.covers(&rule)) {
                return Err(self.error(at, Reason::Unreachable(collective)));
            }
            rules.push(rule);
        }
        Ok(rules)
    }
}

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let source = Source(text);
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(text.len(), |span| span.start);
            source.error(at, Reason::Syntax(error.message().to_owned()))
        })?;
        let mut rules = BTreeMap::new();
        for (name, choices) in file.choice {
            let found = name.get_ref().parse();
            let collective: Collective =
                found.map_err(|e: UnknownCollective| source.error(name.span().start, e.into()))?;
            rules.insert(collective, source.rules(collective, choices)?);
        }
        rules.retain(|_, rules| !rules.is_empty());
        Ok(Tuning { cost: source.cost(file.cost)?, rules })
    }
}

/// As a file that is read back as an equal tuning.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { latency, message, control, bandwidth, multicast, copy, reduce } = self.cost;
        let multicast = multicast.map_or_else(|| NO_MULTICAST.to_owned(), |rate| rate.to_string());
        writeln!(f, "[cost]\nlatency = \"{latency}\"\nmessage = \"{message}\"\ncontrol = \"{control}\"")?;
        writeln!(
            f,
            "bandwidth = \"{bandwidth}\"\nmulticast = \"{multicast}\"\ncopy = \"{copy}\"\nreduce = \"{reduce}\""
        )?;
        for (collective, rule) in self.rules.iter().flat_map(|(c, rules)| rules.iter().map(move |rule| (c, rule))) {
            writeln!(f, "\n[[choice.{}]]", collective.name())?;
            if let Some(up_to) = rule.up_to {
                writeln!(f, "up-to = \"{up_to}\"")?;
            }
            if let Some(ranks) = rule.ranks {
                writeln!(f, "ranks = {ranks}")?;
            }
            writeln!(f, "algorithm = \"{}\"", rule.choice)?;
        }
        Ok(())
    }
}

impl Tuning {
    /// Equal for tunings that mean the same; never 0.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(0x7475_6e69, 0x6e67_0001);
        hasher.write(self.to_string().as_bytes());
        (hasher.finish() as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_units::{Duration, Rate};

    const TEXT: &str = r#"
# Measured on a Tuesday.
[cost]
latency = "55.5 us"
bandwidth = "1 gbit"
multicast = "none"

[[choice.allreduce]]
up-to = "64 KiB"
ranks = 16
algorithm = "recursive-doubling"

[[choice.allreduce]]
algorithm = "ring"
"#;

    #[test]
    fn a_file_is_read_and_the_first_choice_that_applies_is_found() {
        let tuning: Tuning = TEXT.parse().unwrap();
        assert_eq!(tuning.cost.latency, Duration::nanoseconds(55_500));
        assert_eq!(tuning.cost.bandwidth, Rate::bits_per_second(1_000_000_000));
        assert_eq!(tuning.cost.multicast, None);
        assert_eq!(tuning.cost.copy, Cost::default().copy);
        let rules = &tuning.rules[&Collective::Allreduce];
        assert!(rules[0].applies(16, 65_536) && !rules[0].applies(17, 1) && !rules[0].applies(16, 65_537));
        assert!(rules[1].applies(u32::MAX, u64::MAX));
    }

    #[test]
    fn the_digest_tells_meanings_not_spellings() {
        let tuning: Tuning = TEXT.parse().unwrap();
        let shown: Tuning = tuning.to_string().parse().unwrap();
        assert_eq!(shown, tuning);
        assert_eq!(shown.digest(), tuning.digest());
        let spelt: Tuning = TEXT.replace("64 KiB", "65536B").replace("Tuesday", "Friday").parse().unwrap();
        assert_eq!(spelt.digest(), tuning.digest());
        let other: Tuning = TEXT.replace("64 KiB", "65 KiB").parse().unwrap();
        assert_ne!(other.digest(), tuning.digest());
        assert_eq!("".parse(), Ok(Tuning::default()));
    }

    #[test]
    fn errors_name_line_and_reason() {
        let cases = [
            ("[cost]\nlatency = \"5 parsecs\"\n", 2, "no duration"),
            ("[cost]\nlatency = 5\n", 2, "string"),
            ("[cost]\n\nlatncy = \"5 us\"\n", 3, "unknown field `latncy`"),
            ("\n[cost\n", 2, ""),
            ("[[choice.allreduce]]\nup-to = \"1 KiB\"\n", 1, "missing field `algorithm`"),
            ("[[choice.allreduce]]\nalgorithm = \"magic\"\n", 2, "recursive-doubling"),
            ("[[choice.allreduce]]\nalgorithm = \"binomial\"\n", 2, "no allreduce algorithm is called `binomial`"),
            ("[[choice.allgasp]]\nalgorithm = \"ring\"\n", 1, "allgather"),
            ("[[choice.allreduce]]\nup-to = \"1 km\"\nalgorithm = \"ring\"\n", 2, "no size"),
            (
                "[[choice.allgather]]\nalgorithm = \"ring\"\n[[choice.allgather]]\nranks = 3\nalgorithm = \"ring\"\n",
                3,
                "never reached",
            ),
        ];
        for (text, line, reason) in cases {
            let error = text.parse::<Tuning>().unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.to_string().contains(reason), "{text}: {error}");
        }
    }
}
