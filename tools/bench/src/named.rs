//! Enums whose values have names in options and reports.

/// Declares an enum whose values have names. A text that names none of them is an
/// [`OptionError::Text`](crate::OptionError::Text), which says that the text is not `$wanted`.
macro_rules! named {
    ($wanted:literal, $(#[$about:meta])* $Type:ident { $($(#[$doc:meta])* $Value:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Type {
            $($(#[$doc])* $Value),+
        }

        impl $Type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$Value),+];

            /// Name in options and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name),+
                }
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $Type {
            type Err = crate::OptionError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|value| value.name() == text);
                found.ok_or_else(|| crate::OptionError::Text { text: text.to_owned(), wanted: $wanted })
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::{BenchProgram, Collective, Layout, OptionError, Peer};
    use std::str::FromStr;

    fn go_by_name<T: FromStr<Err = OptionError> + ToString + PartialEq + Copy + std::fmt::Debug>(all: &[T]) {
        for value in all {
            assert_eq!(value.to_string().parse(), Ok(*value));
        }
        let error = "gossip".parse::<T>().expect_err("there is none");
        assert!(error.to_string().starts_with("'gossip' is not "), "{error}");
    }

    #[test]
    fn values_go_by_name() {
        go_by_name(Collective::ALL);
        go_by_name(Layout::ALL);
        go_by_name(Peer::ALL);
        go_by_name(BenchProgram::ALL);
    }
}
