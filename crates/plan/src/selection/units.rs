//! Durations, rates and sizes as people write them: `12.5 us`, `940 mbit`, `64 KiB`.
//!
//! Numbers are whole nanoseconds, bits per second and bytes; decimals are accepted where they come out whole. What is
//! shown can be read back as the same value.

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

/// Why a text is no such quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// No number, or no unit that is known.
    #[error("`{text}` is no {what}; write for instance `{example}`")]
    Form {
        /// What was given.
        text: String,
        /// What was expected.
        what: &'static str,
        /// One that is right.
        example: &'static str,
    },
    /// Less than one of the smallest unit, or more than 64 bits of it.
    #[error("`{text}` is no whole number of {smallest} below 2^64")]
    Range {
        /// What was given.
        text: String,
        /// The unit in which it is kept.
        smallest: &'static str,
    },
    /// A rate of nothing.
    #[error("a rate of 0 carries nothing; give what was measured")]
    Nothing,
}

/// Units by size, the largest first; the last has factor 1.
struct Units {
    what: &'static str,
    example: &'static str,
    smallest: &'static str,
    names: &'static [(&'static str, u64)],
    /// Decimals that are shown behind a unit; powers of two have none.
    decimals: bool,
}

const DURATIONS: Units = Units {
    what: "duration",
    example: "12.5 us",
    smallest: "nanoseconds",
    names: &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)],
    decimals: true,
};
const RATES: Units = Units {
    what: "rate",
    example: "940 mbit",
    smallest: "bits per second",
    names: &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)],
    decimals: true,
};
const SIZES: Units = Units {
    what: "size",
    example: "64 KiB",
    smallest: "bytes",
    names: &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
    decimals: false,
};

impl Units {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let form = || UnitError::Form { text: text.to_owned(), what: self.what, example: self.example };
        let range = || UnitError::Range { text: text.to_owned(), smallest: self.smallest };
        let trimmed = text.trim();
        let unit_at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(form)?;
        let (number, unit) = trimmed.split_at(unit_at);
        let known = self.names.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
        let factor = u128::from(known.ok_or_else(form)?.1);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || (fraction.is_empty() && number.contains('.')) || fraction.contains('.') {
            return Err(form());
        }
        let fraction = fraction.trim_end_matches('0');
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9).ok_or_else(range)?;
        let whole: u128 = whole.parse::<u64>().map_err(|_| range())?.into();
        let fraction: u128 = if places == 0 { 0 } else { fraction.parse::<u64>().map_err(|_| form())?.into() };
        let scale = 10u128.pow(places);
        let scaled = (whole * scale + fraction) * factor;
        if !scaled.is_multiple_of(scale) {
            return Err(range());
        }
        u64::try_from(scaled / scale).map_err(|_| range())
    }

    /// In the largest unit in which it is at least 1 and, for powers of two, whole.
    fn show(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| value >= factor && (self.decimals || value.is_multiple_of(factor));
        let smallest = self.names[self.names.len() - 1];
        let (name, factor) = self.names.iter().copied().find(|(_, factor)| fits(*factor)).unwrap_or(smallest);
        let (whole, rest) = (value / factor, value % factor);
        let text = if rest == 0 {
            format!("{whole} {name}")
        } else {
            let places = factor.ilog10() as usize;
            let decimals = format!("{rest:0places$}");
            format!("{whole}.{} {name}", decimals.trim_end_matches('0'))
        };
        f.pad(&text)
    }
}

impl Duration {
    /// Of so many nanoseconds.
    #[must_use]
    pub const fn nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// How many nanoseconds.
    #[must_use]
    pub const fn in_nanoseconds(self) -> u64 {
        self.0
    }
}

impl Rate {
    /// Of so many bits per second; 0 counts as 1.
    #[must_use]
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// How many bits per second.
    #[must_use]
    pub const fn in_bits_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for Duration {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        DURATIONS.parse(text).map(Duration)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match RATES.parse(text)? {
            0 => Err(UnitError::Nothing),
            bits => Ok(Rate(bits)),
        }
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        SIZES.parse(text).map(Size)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DURATIONS.show(self.0, f)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RATES.show(self.0, f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SIZES.show(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!("12.5 us".parse(), Ok(Duration(12_500)));
        assert_eq!("3ms".parse(), Ok(Duration(3_000_000)));
        assert_eq!("0 ns".parse(), Ok(Duration(0)));
        assert_eq!("940 mbit".parse(), Ok(Rate(940_000_000)));
        assert_eq!("2.5gbit".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("64 KiB".parse(), Ok(Size(65_536)));
        assert_eq!("1.5 MiB".parse(), Ok(Size(1_572_864)));
        assert_eq!("7 B".parse(), Ok(Size(7)));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_an_example() {
        for text in ["", "64", "KiB", "-1 KiB", "1. KiB", ".5 KiB", "1.2.3 KiB", "1 kb", "1e3 B"] {
            let refused = text.parse::<Size>().unwrap_err();
            assert!(matches!(refused, UnitError::Form { .. }), "{text}: {refused}");
            assert!(refused.to_string().contains("64 KiB"), "{refused}");
        }
        for text in ["0.3 B", "18446744073709551616 B", "17179869184 GiB", "1.0000000001 GiB"] {
            assert!(matches!(text.parse::<Size>(), Err(UnitError::Range { .. })), "{text}");
        }
        assert_eq!("0 gbit".parse::<Rate>(), Err(UnitError::Nothing));
    }

    proptest::proptest! {
        #[test]
        fn what_is_shown_is_read_back(value: u64) {
            proptest::prop_assert_eq!(Duration(value).to_string().parse(), Ok(Duration(value)));
            proptest::prop_assert_eq!(Rate(value.max(1)).to_string().parse(), Ok(Rate(value.max(1))));
            proptest::prop_assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
        }
    }
}
