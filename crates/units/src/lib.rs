//! Durations, rates, sizes and fractions as people write them: `12.5 us`, `940 mbit`, `64 KiB` or `64K`, `5%` or
//! `0.05`.
//!
//! Every command reads its quantities here, so that all commands accept the same forms and reject others with the same
//! sentence.
//!
//! Numbers are whole nanoseconds, bits per second, bytes and billionths; decimals are accepted if the result is whole.
//! Units may be in capitals or small letters, with or without a blank before the unit. Without a unit a rate counts in
//! bits per second and a size in bytes; a duration needs a unit unless the caller names the default. A displayed value
//! parses to the same value. The alternate form (`{:#}`) is the short form for tables and command lines.

#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A duration in whole nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

/// A rate in bits per second, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// A part of a whole, from 0 to 1, in billionths; for instance the chance that a packet is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fraction(u64);

/// Reasons for which a text is rejected as a quantity.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    #[error("`{text}` is no {quantity}; write {forms}{}", default_hint(*default_unit))]
    Syntax { text: String, quantity: &'static str, forms: &'static str, default_unit: Option<&'static str> },
    #[error("`{text}` is no whole number of {smallest} below 2^64")]
    Range { text: String, smallest: &'static str },
    #[error("`{text}` is too large; give less than 4 GiB")]
    Large { text: String },
    #[error("a rate of 0 bit/s carries nothing; give that of the slowest link")]
    ZeroRate,
}

/// The end of the sentence that rejects a text, if a number needs no unit.
fn default_hint(unit: Option<&'static str>) -> String {
    unit.map_or_else(String::new, |unit| format!("; without a unit it counts in {unit}"))
}

struct UnitTable {
    quantity: &'static str,
    /// The accepted forms, with an example.
    forms: &'static str,
    smallest: &'static str,
    /// Name, short name and factor, the largest first; the last has factor 1.
    names: &'static [(&'static str, &'static str, u64)],
    /// Longer units that are read, and never written.
    read_only: &'static [(&'static str, u64)],
    default_unit: Option<&'static str>,
    zero_allowed: bool,
    /// Whether values are shown with decimals. Sizes in powers of two are shown without decimals.
    decimals: bool,
}

const DURATIONS: UnitTable = UnitTable {
    quantity: "duration",
    forms: "a number with h, min, s, ms, us or ns, such as `12.5 us` or `30s`",
    smallest: "nanoseconds",
    names: &[("s", "s", 1_000_000_000), ("ms", "ms", 1_000_000), ("us", "us", 1_000), ("ns", "ns", 1)],
    read_only: &[("min", 60_000_000_000), ("h", 3_600_000_000_000)],
    default_unit: None,
    zero_allowed: true,
    decimals: true,
};
const RATES: UnitTable = UnitTable {
    quantity: "rate",
    forms: "a number with gbit, mbit, kbit or bit, such as `2.5gbit` or `940 mbit`",
    smallest: "bits per second",
    names: &[("gbit", "gbit", 1_000_000_000), ("mbit", "mbit", 1_000_000), ("kbit", "kbit", 1_000), ("bit", "bit", 1)],
    read_only: &[],
    default_unit: Some("bit"),
    zero_allowed: false,
    decimals: true,
};
const SIZES: UnitTable = UnitTable {
    quantity: "size",
    forms: "a number with G, M or K (GiB, MiB, KiB; powers of 1024), such as `64K` or `1.5 MiB`",
    smallest: "bytes",
    names: &[("GiB", "G", 1 << 30), ("MiB", "M", 1 << 20), ("KiB", "K", 1 << 10), ("B", "", 1)],
    read_only: &[],
    default_unit: Some("B"),
    zero_allowed: true,
    decimals: false,
};

/// The smallest part of a percentage is a billionth of the whole.
const PERCENTAGES: UnitTable = UnitTable {
    quantity: "fraction",
    forms: "a percentage such as `5%`, or a number from 0 to 1 such as `0.05`",
    smallest: "billionths",
    names: &[("%", "%", BILLIONTHS / 100)],
    read_only: &[],
    default_unit: Some("%"),
    zero_allowed: true,
    decimals: true,
};
/// Parts of the whole.
const BILLIONTHS: u64 = 1_000_000_000;

impl UnitTable {
    fn factor(&self, unit: &str) -> Option<u64> {
        let unit = if unit.is_empty() { self.default_unit? } else { unit };
        let known = |name: &str| name.eq_ignore_ascii_case(unit);
        let written =
            self.names.iter().find(|(name, short, _)| known(name) || known(short)).map(|(.., factor)| *factor);
        written.or_else(|| self.read_only.iter().find(|(name, _)| known(name)).map(|(_, factor)| *factor))
    }

    fn rejected(&self, text: &str) -> UnitError {
        let UnitTable { quantity, forms, default_unit, .. } = *self;
        UnitError::Syntax { text: text.to_owned(), quantity, forms, default_unit }
    }

    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let form = || self.rejected(text);
        let range = || UnitError::Range { text: text.to_owned(), smallest: self.smallest };
        let trimmed = text.trim();
        let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(unit_at);
        let factor = u128::from(self.factor(unit.trim()).ok_or_else(form)?);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(form());
        }
        let fraction = fraction.trim_end_matches('0');
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9).ok_or_else(range)?;
        // Both texts have digits only. An empty text counts as 0, so `parse` fails only for numbers that are too large.
        let digits = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>().map(u128::from) };
        let (whole, fraction) = (digits(whole).map_err(|_| range())?, digits(fraction).map_err(|_| range())?);
        let scale = 10u128.pow(places);
        let scaled = (whole * scale + fraction) * factor;
        if !scaled.is_multiple_of(scale) {
            return Err(range());
        }
        match u64::try_from(scaled / scale).map_err(|_| range())? {
            0 if !self.zero_allowed => Err(UnitError::ZeroRate),
            value => Ok(value),
        }
    }

    /// Writes `value` in the largest unit in which it is at least 1 and, for powers of two, whole.
    fn show(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| value >= factor && (self.decimals || value.is_multiple_of(factor));
        let smallest = self.names[self.names.len() - 1];
        let (name, short, factor) = self.names.iter().copied().find(|(.., factor)| fits(*factor)).unwrap_or(smallest);
        let (whole, rest) = (value / factor, value % factor);
        let places = factor.ilog10() as usize;
        let decimals = if rest == 0 { String::new() } else { format!(".{rest:0places$}") };
        let number = format!("{whole}{}", decimals.trim_end_matches('0'));
        f.pad(&if f.alternate() { format!("{number}{short}") } else { format!("{number} {name}") })
    }
}

impl Duration {
    /// A duration of this many nanoseconds.
    pub const fn nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    fn in_unit(text: &str, unit: &'static str) -> Result<std::time::Duration, UnitError> {
        let nanoseconds = UnitTable { default_unit: Some(unit), ..DURATIONS }.parse(text)?;
        Ok(std::time::Duration::from_nanos(nanoseconds))
    }

    /// Reads a duration; a number without a unit counts in seconds.
    pub fn seconds(text: &str) -> Result<std::time::Duration, UnitError> {
        Self::in_unit(text, "s")
    }

    /// Reads a duration; a number without a unit counts in minutes.
    pub fn minutes(text: &str) -> Result<std::time::Duration, UnitError> {
        Self::in_unit(text, "min")
    }

    /// Reads a duration; a number without a unit counts in nanoseconds.
    pub fn default_nanoseconds(text: &str) -> Result<std::time::Duration, UnitError> {
        Self::in_unit(text, "ns")
    }

    /// Reads a duration; a number without a unit counts in milliseconds.
    pub fn milliseconds(text: &str) -> Result<std::time::Duration, UnitError> {
        Self::in_unit(text, "ms")
    }

    /// The duration in nanoseconds.
    pub const fn in_nanoseconds(self) -> u64 {
        self.0
    }
}

impl Size {
    /// Reads a size of less than 4 GiB, in bytes.
    pub fn below_4g(text: &str) -> Result<u32, UnitError> {
        let Self(bytes) = text.parse()?;
        u32::try_from(bytes).map_err(|_| UnitError::Large { text: text.to_owned() })
    }
}

impl Rate {
    /// A rate of this many bits per second; 0 counts as 1.
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// The rate in bits per second.
    pub const fn in_bits_per_second(self) -> u64 {
        self.0
    }
}

impl Fraction {
    /// A fraction of this many billionths; more than the whole counts as the whole.
    pub const fn billionths(parts: u64) -> Self {
        Self(if parts > BILLIONTHS { BILLIONTHS } else { parts })
    }

    /// The fraction in billionths.
    pub const fn in_billionths(self) -> u64 {
        self.0
    }

    /// The fraction as a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / BILLIONTHS as f64
    }
}

impl FromStr for Fraction {
    type Err = UnitError;

    /// Reads a percentage, or a number from 0 to 1. A number above 1 without a sign counts as a percentage, as labs
    /// have always read it; 1 without a sign could be either, and is rejected.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let rejected = || UnitError::Syntax {
            text: text.to_owned(),
            quantity: PERCENTAGES.quantity,
            forms: PERCENTAGES.forms,
            default_unit: None,
        };
        let percentage = PERCENTAGES.parse(text).map_err(|error| match error {
            UnitError::Syntax { .. } => rejected(),
            other => other,
        })?;
        let parts = match (text.trim().ends_with('%'), percentage.cmp(&(BILLIONTHS / 100))) {
            (true, _) | (false, Ordering::Greater) => percentage,
            (false, Ordering::Less) => percentage * 100,
            (false, Ordering::Equal) => return Err(rejected()),
        };
        if parts > BILLIONTHS { Err(rejected()) } else { Ok(Self(parts)) }
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PERCENTAGES.show(self.0, f)
    }
}

macro_rules! text_forms {
    ($($quantity:ident by $units:ident),*) => {$(
        impl FromStr for $quantity {
            type Err = UnitError;

            fn from_str(text: &str) -> Result<Self, UnitError> {
                $units.parse(text).map(Self)
            }
        }

        impl fmt::Display for $quantity {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $units.show(self.0, f)
            }
        }
    )*};
}

text_forms!(Duration by DURATIONS, Rate by RATES, Size by SIZES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_in_all_spellings() {
        assert_eq!("12.5 us".parse(), Ok(Duration(12_500)));
        assert_eq!("3ms".parse(), Ok(Duration(3_000_000)));
        assert_eq!("0 ns".parse(), Ok(Duration(0)));
        assert_eq!("940 mbit".parse(), Ok(Rate(940_000_000)));
        assert_eq!("2.5gbit".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("64 KiB".parse(), Ok(Size(65_536)));
        assert_eq!("1.5 MiB".parse(), Ok(Size(1_572_864)));
        assert_eq!("7 B".parse(), Ok(Size(7)));
        for (text, bytes) in
            [("77", 77), ("64k", 65_536), ("512M", 512 << 20), ("1g", 1 << 30), (".5K", 512), ("9b", 9)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for (text, bits) in [("1gbit", 1_000_000_000), ("250MBIT", 250_000_000), ("64000", 64_000), ("9bit", 9)] {
            assert_eq!(text.parse(), Ok(Rate(bits)), "{text}");
        }
        let milliseconds = std::time::Duration::from_millis;
        assert_eq!(
            (Duration::seconds("0.5"), Duration::seconds("30s")),
            (Ok(milliseconds(500)), Ok(milliseconds(30_000)))
        );
        assert_eq!(
            (Duration::milliseconds("50"), Duration::milliseconds("2 s")),
            (Ok(milliseconds(50)), Ok(milliseconds(2_000)))
        );
    }

    #[test]
    fn invalid_quantity_is_rejected_with_an_example() {
        for text in ["", ".", "KiB", "-1 KiB", "+1", ". KiB", "1.2.3 KiB", "1 kb", "1T", "1e3 B"] {
            let refused = text.parse::<Size>().unwrap_err();
            assert!(matches!(refused, UnitError::Syntax { .. }), "{text}: {refused}");
            assert!(refused.to_string().contains("64K"), "{refused}");
        }
        for text in ["0.3 B", "18446744073709551616 B", "17179869184 GiB", "1.0000000001 GiB"] {
            assert!(matches!(text.parse::<Size>(), Err(UnitError::Range { .. })), "{text}");
        }
        assert_eq!("0 gbit".parse::<Rate>(), Err(UnitError::ZeroRate));
        assert!("12".parse::<Duration>().is_err(), "nobody says of what");
        for text in ["", "-1", "soon", "nan", "1e300"] {
            assert!(Duration::seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn minutes_and_hours_are_read_and_seconds_are_written() {
        let seconds = |text| Duration::minutes(text).map(|read| read.as_secs_f64());
        assert_eq!(seconds("0.5"), Ok(30.0));
        assert_eq!((seconds("90s"), seconds("2 min"), seconds("1h")), (Ok(90.0), Ok(120.0), Ok(3600.0)));
        assert_eq!("1 min".parse::<Duration>().map(|read| read.to_string()), Ok("60 s".to_owned()));
        let nanoseconds = |text| Duration::default_nanoseconds(text).map(|read| read.as_nanos());
        assert_eq!((nanoseconds("1000"), nanoseconds("1us")), (Ok(1000), Ok(1000)));
    }

    /// A number above 1 was a percentage of labs, one below 1 a chance of the simulator.
    #[test]
    fn percentage_and_number_to_one_are_the_same_fraction() {
        for (text, billionths) in [
            ("5%", 50_000_000),
            ("5 %", 50_000_000),
            ("0.05", 50_000_000),
            ("0.1%", 1_000_000),
            ("0.1", 100_000_000),
            ("30", 300_000_000),
            ("1%", 10_000_000),
            ("100%", 1_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Fraction(billionths)), "{text}");
        }
        assert_eq!("0.05".parse().map(Fraction::as_f64), Ok(0.05));
        assert_eq!(format!("{} {:#}", Fraction(50_000_000), Fraction(1_000_000)), "5 % 0.1%");
    }

    #[test]
    fn rejected_text_is_answered_with_the_accepted_forms() {
        for text in ["-1%", "101%", "101", "five", "", "%", "NaN", "1", "1.0"] {
            let refused = text.parse::<Fraction>().expect_err(text).to_string();
            assert!(refused.contains("`5%`") && refused.contains("`0.05`"), "{refused}");
        }
        let refused = Duration::seconds("soon").expect_err("no number").to_string();
        assert_eq!(
            refused,
            "`soon` is no duration; write a number with h, min, s, ms, us or ns, such as `12.5 us` or `30s`; without a \
             unit it counts in s"
        );
        assert!("4gb".parse::<Rate>().expect_err("no unit").to_string().contains("gbit, mbit, kbit or bit"));
    }

    #[test]
    fn short_form_has_no_blank() {
        assert_eq!(
            format!("{:#} {:#} {:#} {:#}", Size(0), Size(1448), Size(65_536), Rate(2_500_000_000)),
            "0 1448 64K 2.5gbit"
        );
        assert_eq!(format!("{} {:>8}", Size(65_536), Rate(1_000)), "64 KiB   1 kbit");
    }

    proptest::proptest! {
        #[test]
        fn displayed_quantity_parses_to_the_same_value(value: u64) {
            proptest::prop_assert_eq!(Duration(value).to_string().parse(), Ok(Duration(value)));
            proptest::prop_assert_eq!(Rate(value.max(1)).to_string().parse(), Ok(Rate(value.max(1))));
            proptest::prop_assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
            let fraction = Fraction::billionths(value % (BILLIONTHS + 1));
            proptest::prop_assert_eq!(fraction.to_string().parse(), Ok(fraction));
            proptest::prop_assert_eq!(format!("{:#}", Size(value)).parse(), Ok(Size(value)));
        }
    }
}
