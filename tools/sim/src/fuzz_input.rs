//! The fuzzer's bytes, read as decisions. After its last byte an input yields zeros, so each prefix of an input is an
//! input, too.

#[derive(Debug, Clone)]
pub struct FuzzInput<'a>(&'a [u8]);

impl<'a> FuzzInput<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        FuzzInput(bytes)
    }

    pub fn ended(&self) -> bool {
        self.0.is_empty()
    }

    /// At most `count` bytes, unchanged.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub fn flip(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// A number as a hostile program would choose it: mostly small, sometimes at an edge, sometimes arbitrary.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=0xbf => u64::from(small % 12),
            0xc0..=0xcf => u64::from(self.byte()) << 8 | u64::from(self.byte()),
            0xd0..=0xd7 => u64::MAX - u64::from(self.below(3)),
            0xd8..=0xdf => u64::from(u32::MAX) - u64::from(self.below(3)),
            0xe0..=0xe7 => i64::MAX as u64 - u64::from(self.below(3)),
            0xe8..=0xef => u64::from(u16::MAX) + u64::from(self.below(3)),
            _ => self.word(),
        }
    }

    pub fn number32(&mut self) -> u32 {
        self.number() as u32
    }
}
