//! Appends fields to a message, little-endian. What it writes [`Reader`](super::reader::Reader) reads.

/// Appends to a message in the making.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Writer { out }
    }

    pub(super) fn u8(&mut self, v: u8) -> &mut Self {
        self.out.push(v);
        self
    }

    pub(super) fn u16(&mut self, v: u16) -> &mut Self {
        self.out.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub(super) fn u32(&mut self, v: u32) -> &mut Self {
        self.out.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, v: u64) -> &mut Self {
        self.out.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// How many there are, at most `most`, and each of them.
    pub(super) fn list<T>(
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
