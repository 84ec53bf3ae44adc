//! The tuning of a cluster as a file that users read and edit: costs, and algorithms set by hand.
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
//! Parameters that `[cost]` leaves out have the values of [`Cost::default`]. The first choice of a collective whose
//! bounds hold applies: `up-to` for the bytes of the call (as in [`Collective`]), `ranks` for the most ranks of the
//! group. If none applies, the cost model chooses. Invariants: [`Tuning::digest`] depends on what tunings mean, not on
//! how they are written. The shown form is read back as an equal tuning. Never opens files.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use siphasher::sip::SipHasher13;
use thiserror::Error;
use toml::Spanned;

use super::choice::Choice;
use super::collective::{Collective, UnknownCollective};
use super::cost::Cost;
use outboard_units::{Rate, Size, UnitError};

/// The value of `multicast` on a cluster without multicast.
const NO_MULTICAST: &str = "none";

/// The tuning on which a group agrees to choose algorithms.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tuning {
    pub cost: Cost,
    /// The rules that users have set, by collective; the first that applies wins.
    pub rules: BTreeMap<Collective, Vec<Rule>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The most bytes for which the rule applies; unlimited by default.
    pub up_to: Option<Size>,
    /// The most ranks for which the rule applies; unlimited by default.
    pub ranks: Option<u32>,
    pub choice: Choice,
}

impl Rule {
    /// Whether the rule applies to a call of `bytes` bytes among `ranks` ranks.
    pub fn applies(&self, ranks: u32, bytes: u64) -> bool {
        self.up_to.is_none_or(|most| bytes <= most.0) && self.ranks.is_none_or(|most| ranks <= most)
    }

    /// Whether the rule always precedes `later`, also if there is no multicast.
    fn covers(&self, later: &Rule) -> bool {
        if self.choice.multicasts() {
            return false;
        }
        let bytes = self.up_to.is_none_or(|most| later.up_to.is_some_and(|other| other <= most));
        bytes && self.ranks.is_none_or(|most| later.ranks.is_some_and(|other| other <= most))
    }
}

/// The line of a text, counted from 1, at which the text is no valid tuning, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct TuningError {
    pub line: usize,
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    cost: Cost,
    #[serde(default)]
    choice: BTreeMap<Spanned<String>, Vec<Spanned<ChoiceTable>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ChoiceTable {
    #[serde(default, deserialize_with = "some_quantity")]
    up_to: Option<Size>,
    ranks: Option<u32>,
    algorithm: Spanned<String>,
}

/// Reads a quantity in the notation of `outboard-units`.
pub(super) fn quantity<'de, D: Deserializer<'de>, T: FromStr<Err = UnitError>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn some_quantity<'de, D: Deserializer<'de>, T: FromStr<Err = UnitError>>(from: D) -> Result<Option<T>, D::Error> {
    quantity(from).map(Some)
}

/// Reads the rate of multicasts, or `none`.
pub(super) fn multicast<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    match String::deserialize(from)?.as_str() {
        NO_MULTICAST => Ok(None),
        rate => rate.parse().map(Some).map_err(D::Error::custom),
    }
}

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Self, TuningError> {
        let wrong = |at: usize, reason: String| {
            let before = &text.as_bytes()[..at.min(text.len())];
            TuningError { line: 1 + before.iter().filter(|byte| **byte == b'\n').count(), reason }
        };
        let file: File = toml::from_str(text)
            .map_err(|error| wrong(error.span().map_or(text.len(), |span| span.start), error.message().to_owned()))?;
        let mut tuning = Tuning { cost: file.cost, rules: BTreeMap::new() };
        for (name, choices) in file.choice {
            let found = name.get_ref().parse();
            let collective: Collective =
                found.map_err(|why: UnknownCollective| wrong(name.span().start, why.to_string()))?;
            for choice in choices {
                let at = choice.span().start;
                let ChoiceTable { up_to, ranks, algorithm } = choice.into_inner();
                let choice = collective.read(algorithm.get_ref()).map_err(|why| wrong(algorithm.span().start, why))?;
                let rule = Rule { up_to, ranks, choice };
                let rules = tuning.rules.entry(collective).or_default();
                if rules.iter().any(|earlier| earlier.covers(&rule)) {
                    let why = format!(
                        "this choice is never reached: an earlier one of {collective} has bounds as wide; put the narrow \
                         ones first"
                    );
                    return Err(wrong(at, why));
                }
                rules.push(rule);
            }
        }
        Ok(tuning)
    }
}

/// Writes a file that is read back as an equal tuning.
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
    /// A digest that is equal for tunings with the same meaning; never 0.
    pub fn digest(&self) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(0x7475_6e69, 0x6e67_0001);
        hasher.write(self.to_string().as_bytes());
        (hasher.finish() as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_units::Duration;

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
    fn digest_depends_on_the_meaning_of_a_tuning_alone() {
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
