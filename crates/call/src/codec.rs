//! Little-endian fields of messages: one reader and one writer for all protocols.
//!
//! A [`Reader`] reads back the fields that a [`Writer`] has written. A reader never panics on input, and never
//! allocates more than the input's own size allows.

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("truncated")]
    Truncated,
    #[error("trailing bytes")]
    Trailing,
    #[error("another protocol or version")]
    Foreign,
    #[error("bad value in field {0}")]
    Value(&'static str),
}

/// Takes fields off the front of a byte slice.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the front.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer bytes are left. All other methods that read fields return this error, too.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// A text of at most `most` bytes, preceded by its length of 16 bits.
    ///
    /// # Errors
    /// The errors of [`Self::bytes`]; [`DecodeError::Value`] when the text is longer or not UTF-8.
    pub fn text(&mut self, most: usize) -> Result<&'a str, DecodeError> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(DecodeError::Value("length of a text"));
        }
        std::str::from_utf8(self.bytes(length)?).map_err(|_| DecodeError::Value("text"))
    }

    /// A boolean of 8 bits.
    ///
    /// # Errors
    /// The errors of [`Self::bytes`]; [`DecodeError::Value`] when the number is neither 0 nor 1.
    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value("flag")),
        }
    }

    /// A list of 1 to `most` items, preceded by their number of 16 bits.
    ///
    /// # Errors
    /// The errors of the items; [`DecodeError::Value`] when the number of items is 0 or exceeds `most`.
    pub fn list<T, All: FromIterator<T>>(
        &mut self,
        most: usize,
        item: impl Fn(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<All, DecodeError> {
        let n = usize::from(self.u16()?);
        if n == 0 || n > most {
            return Err(DecodeError::Value("number of entries"));
        }
        (0..n).map(|_| item(self)).collect()
    }

    /// Succeeds if no bytes are left.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// Reader and writer methods for numbers of each width.
macro_rules! numbers {
    ($($number:ident: $bits:literal),+) => {
        impl Reader<'_> {
            $(#[doc = concat!("A number of ", $bits, " bits.")]
            pub fn $number(&mut self) -> Result<$number, DecodeError> {
                Ok($number::from_le_bytes(self.array()?))
            })+
        }

        impl Writer<'_> {
            $(#[doc = concat!("A number of ", $bits, " bits.")]
            pub fn $number(&mut self, value: $number) -> &mut Self {
                self.bytes(&value.to_le_bytes())
            })+
        }
    };
}

numbers!(u8: "8", u16: "16", u32: "32", u64: "64");

/// Appends fields to a message.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Writer { out }
    }

    /// Appends the bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// Appends as much of the text as `most` bytes hold, in whole characters, preceded by its length of 16 bits.
    pub fn text(&mut self, text: &str, most: usize) -> &mut Self {
        let longest = text.len().min(most).min(usize::from(u16::MAX));
        let end = (0..=longest).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.u16(end as u16).bytes(&text.as_bytes()[..end])
    }

    /// Appends the number of items, then each item.
    ///
    /// # Panics
    /// When there are more than `most` items: the caller splits long lists.
    pub fn list<T>(
        &mut self,
        items: &[T],
        most: usize,
        each: impl for<'w> Fn(&'w mut Self, &T) -> &'w mut Self,
    ) -> &mut Self {
        assert!(items.len() <= most, "caller splits long lists");
        self.u16(items.len() as u16);
        for item in items {
            each(self, item);
        }
        self
    }
}
