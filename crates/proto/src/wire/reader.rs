//! Checked reading of little-endian fields.

/// Why bytes from the wire are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the fields need.
    #[error("truncated")]
    Truncated,
    /// Bytes behind the last field.
    #[error("trailing bytes")]
    Trailing,
    /// Not one of ours, or of another version.
    #[error("another protocol or version")]
    Foreign,
    /// A field has a value that the protocol does not allow.
    #[error("bad value in field {0}")]
    Value(&'static str),
}

/// Takes fields off the front of a byte slice.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value("flag")),
        }
    }
    /// A list of 1 to `most` items behind their number.
    pub(super) fn list<T>(
        &mut self,
        most: usize,
        item: impl Fn(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let n = usize::from(self.u16()?);
        if n == 0 || n > most {
            return Err(DecodeError::Value("number of entries"));
        }
        (0..n).map(|_| item(self)).collect()
    }
    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }
}
