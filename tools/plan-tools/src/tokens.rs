//! A scanner that cuts text into tokens with places, for the parsers of [`mod@crate::text`] and [`mod@crate::goal`].
//!
//! Invariants: a place counts lines and columns (in characters) from 1. Scanning ends for every text, and
//! [`TextToken::End`] repeats at its end. The scanner never judges the meaning of tokens.

use std::fmt;

use thiserror::Error;

/// Most characters of a word that an error repeats.
const SHOWN: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// Counted from 1.
    pub line: usize,
    /// Counted in characters from 1.
    pub column: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A difference between a text and its grammar.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SyntaxError {
    #[error("expected {expected}, found {found}")]
    Expected { expected: String, found: String },
    #[error("{number} is too large: at most {most}")]
    TooLarge { number: String, most: u64 },
    #[error("the comment that begins here has no end")]
    Comment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comments {
    /// `#` to the end of the line.
    Hash,
    /// `//` to the end of the line, and `/*` to `*/`.
    Slashes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextToken<'a> {
    /// A letter, followed by letters, digits and underscores.
    Word(&'a str),
    Number(&'a str),
    /// Any other character that is not a space.
    Symbol(char),
    Newline,
    End,
}

impl fmt::Display for TextToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextToken::Word(text) | TextToken::Number(text) => write!(f, "`{}`", shortened(text)),
            TextToken::Symbol(symbol) => write!(f, "`{}`", symbol.escape_default()),
            TextToken::Newline => f.write_str("the end of the line"),
            TextToken::End => f.write_str("the end of the text"),
        }
    }
}

/// The beginning of a text, short enough for an error.
pub(crate) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

/// An error of scanning, with its place.
pub(crate) type SyntaxErrorAt = (TextPosition, SyntaxError);

/// The reason why a text is rejected, with its place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{at}: {reason}")]
pub struct ReadError<R> {
    pub at: TextPosition,
    pub reason: R,
}

impl<R: From<SyntaxError>> From<SyntaxErrorAt> for ReadError<R> {
    fn from((at, reason): SyntaxErrorAt) -> Self {
        ReadError { at, reason: reason.into() }
    }
}

pub(crate) fn error_at<R>(at: TextPosition, reason: R) -> ReadError<R> {
    ReadError { at, reason }
}

/// A text and the current position in it.
#[derive(Debug, Clone)]
pub(crate) struct Scanner<'a> {
    rest: &'a str,
    place: TextPosition,
    comments: Comments,
    /// Whether the end of a line is a token; otherwise it is a space.
    newlines: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of a text; `newlines` makes ends of lines tokens.
    pub(crate) fn new(text: &'a str, comments: Comments, newlines: bool) -> Self {
        Self { rest: text, place: TextPosition { line: 1, column: 1 }, comments, newlines }
    }

    /// The next token and its place, without consuming it.
    pub(crate) fn peek(&mut self) -> Result<(TextPosition, TextToken<'a>), SyntaxErrorAt> {
        self.skip()?;
        let Some(first) = self.rest.chars().next() else {
            return Ok((self.place, TextToken::End));
        };
        let upto = |rest: &'a str, belongs: fn(char) -> bool| {
            let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
            &rest[..end]
        };
        let token = match first {
            '\n' => TextToken::Newline,
            '0'..='9' => TextToken::Number(upto(self.rest, |c| c.is_ascii_digit())),
            'a'..='z' | 'A'..='Z' => TextToken::Word(upto(self.rest, |c| c.is_ascii_alphanumeric() || c == '_')),
            symbol => TextToken::Symbol(symbol),
        };
        Ok((self.place, token))
    }

    pub(crate) fn next(&mut self) -> Result<(TextPosition, TextToken<'a>), SyntaxErrorAt> {
        let (place, token) = self.peek()?;
        match token {
            TextToken::Word(text) | TextToken::Number(text) => self.advance(text.len()),
            TextToken::Symbol(symbol) => self.advance(symbol.len_utf8()),
            TextToken::Newline => self.advance(1),
            TextToken::End => {}
        }
        Ok((place, token))
    }

    /// Consumes `token`, or fails with the text of `expected`.
    pub(crate) fn expect(
        &mut self,
        token: TextToken<'_>,
        expected: impl fmt::Display,
    ) -> Result<TextPosition, SyntaxErrorAt> {
        match self.peek()? {
            (_, found) if found == token => Ok(self.next()?.0),
            found => Err(unexpected(found, expected)),
        }
    }

    /// Consumes the words and symbols of `phrase`, which are separated by single spaces.
    pub(crate) fn phrase(&mut self, phrase: &str) -> Result<(), SyntaxErrorAt> {
        for part in phrase.split(' ') {
            let symbol = part.chars().next().filter(|c| !c.is_ascii_alphanumeric());
            let token = symbol.map_or(TextToken::Word(part), TextToken::Symbol);
            self.expect(token, format_args!("`{part}`"))?;
        }
        Ok(())
    }

    /// Consumes `token` if it comes next; returns whether it came next.
    pub(crate) fn skip_if(&mut self, token: TextToken<'_>) -> Result<bool, SyntaxErrorAt> {
        let next = self.peek()?.1 == token;
        if next {
            self.next()?;
        }
        Ok(next)
    }

    /// Consumes a number of at most `most`; `what` names the counted thing in errors.
    pub(crate) fn number<N: TryFrom<u128>>(&mut self, what: &str, most: N) -> Result<N, SyntaxErrorAt>
    where
        u64: TryFrom<N>,
    {
        let (place, digits) = match self.peek()? {
            (place, TextToken::Number(digits)) => (place, digits),
            found => return Err(unexpected(found, what)),
        };
        self.next()?;
        let value = digits.parse::<u128>().ok().and_then(|value| N::try_from(value).ok());
        value.ok_or_else(|| {
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            (place, SyntaxError::TooLarge { number: shortened(digits), most })
        })
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        match passed.rfind('\n') {
            Some(last) => {
                self.place.line += passed.matches('\n').count();
                self.place.column = 1 + passed[last + 1..].chars().count();
            }
            None => self.place.column += passed.chars().count(),
        }
    }

    /// Skips spaces and comments.
    fn skip(&mut self) -> Result<(), SyntaxErrorAt> {
        loop {
            let newlines = self.newlines;
            let space = |c: char| matches!(c, ' ' | '\t' | '\r') || (c == '\n' && !newlines);
            let spaces = self.rest.len() - self.rest.trim_start_matches(space).len();
            self.advance(spaces);
            let line = match self.comments {
                Comments::Hash => "#",
                Comments::Slashes => "//",
            };
            if self.rest.starts_with(line) {
                self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.comments == Comments::Slashes && self.rest.starts_with("/*") {
                let Some(end) = self.rest[2..].find("*/") else {
                    return Err((self.place, SyntaxError::Comment));
                };
                self.advance(end + 4);
            } else {
                return Ok(());
            }
        }
    }
}

/// An error for `found` in a place where something else was `expected`.
pub(crate) fn unexpected((place, found): (TextPosition, TextToken<'_>), expected: impl fmt::Display) -> SyntaxErrorAt {
    (place, SyntaxError::Expected { expected: expected.to_string(), found: found.to_string() })
}
