//! Descriptors, which a host posts to its port.
//!
//! Fields and widths follow the paper (its Fig. 2, TH-1), except the ones marked as ours. The NIC's behaviour
//! does not depend on the bit layout, so descriptors here are not packed.
//!
//! | flag | C | meaning |
//! |---|---|---|
//! | SwapLocalData | 1 | the descriptor's data are replaced by the data of the awaited packet |
//! | SwapLocalVP | 1 | DestVP is the SourceVP of the last packet that the descriptor waits for: the message answers |
//! | SwapRemoteData | 0 | the message goes to the place that the next descriptor at the destination names |
//! | SwapRemoteAddr | 0 | the descriptor's result is the address for the next message from the destination |
//! | neither | 0 | the descriptor copies within memory |
//!
//! Never accesses a task.

use outboard_plan::Reduction;

/// The largest message: its length has 18 bits (ours).
pub const MAX_MESSAGE: u64 = (1 << 18) - 1;
/// The number of pulses after which pulse numbers repeat.
pub const PULSES: u64 = 1 << 12;
/// The most pieces of one operand, result or message.
pub const MAX_PIECES: usize = 255;
/// The most bytes of a message carried inside its descriptor (ours: the paper names no number).
pub const MAX_INLINE: u64 = 64;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// C: the descriptor belongs to a collective.
    pub const COLLECTIVE: Flags = Flags(1 << 15);
    /// CH: the descriptor is the first of its sequence.
    pub const HEAD: Flags = Flags(1 << 14);
    /// CT: the descriptor is the last of its sequence.
    pub const TAIL: Flags = Flags(1 << 13);
    /// CP: the descriptor sends packets, which trigger descriptors at their destination.
    pub const SENDS: Flags = Flags(1 << 12);
    /// SwapLocalData: the descriptor's data are replaced by the data of the awaited packet.
    pub const SWAP_LOCAL_DATA: Flags = Flags(1 << 5);
    /// SwapLocalVP: the message goes to the port of the last packet that the descriptor waits for.
    pub const SWAP_LOCAL_PORT: Flags = Flags(1 << 4);
    /// SwapRemoteData: the message goes to the place that the destination names next.
    pub const SWAP_REMOTE_DATA: Flags = Flags(1 << 3);
    /// SwapRemoteAddr: the descriptor names a place for the next message of the destination.
    pub const SWAP_REMOTE_ADDRESS: Flags = Flags(1 << 2);
    /// ReduceFlag: the packets are combined with the descriptor's data.
    pub const REDUCE: Flags = Flags(1 << 1);
    /// CollEndFlag: the call of the port ends with this descriptor.
    pub const ENDS: Flags = Flags(1);

    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DescriptorAddress {
    /// Address in the memory of the process that posts.
    Host(u64),
    /// Offset from the start of the pulse's intermediate results.
    Intermediate(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DescriptorPiece {
    pub address: DescriptorAddress,
    pub len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortAddress {
    pub node: u32,
    pub port: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub flags: Flags,
    /// JobID, in 8 bits.
    pub job: u8,
    /// The pulse, in 12 bits: counts the pulses of a job, and starts again from 0 after 4,095 (ours).
    pub pulse: u16,
    /// SourceVP, in 11 bits: the port that posts.
    pub source_port: u16,
    /// SeqID of the message that the descriptor sends, in 5 bits.
    pub seq: u8,
    /// DestVP, in 11 bits.
    pub dest_port: u16,
    /// DestID, in 24 bits.
    pub dest: u32,
    /// CPCount, in 6 bits: the number of packets that the descriptor waits for, 0 to 16.
    pub count: u8,
    /// SeqID of the awaited packets (ours).
    pub await_seq: u8,
    /// Index of the first awaited source in the table, in 4 bits; packets are read in the table's order (ours).
    pub first_source: u8,
    /// Whether packets are the left operands (ours).
    pub packet_left: bool,
    /// The operation of a descriptor with ReduceFlag (ours).
    pub reduction: Option<Reduction>,
    /// Bytes of each message that the descriptor reads or sends (ours).
    pub length: u32,
    /// The table of the task's sources, with CH.
    pub sources: Vec<PortAddress>,
    /// The data that packets are combined with, or that are copied.
    pub operand: Vec<DescriptorPiece>,
    /// The destination of the combined or copied data.
    pub result: Vec<DescriptorPiece>,
    /// The pieces of the message, unless it is `inline`.
    pub message: Vec<DescriptorPiece>,
    /// The message, carried in the words of the descriptor: up to [`MAX_INLINE`] bytes.
    pub inline: Vec<u64>,
}

impl Descriptor {
    pub(super) fn sends(&self) -> bool {
        self.flags.has(Flags::SENDS) || self.flags.has(Flags::SWAP_REMOTE_DATA)
    }

    /// The peer of a point-to-point descriptor; `None` for a mere copy.
    pub(super) fn peer(&self) -> Option<PortAddress> {
        let moves = self.flags.has(Flags::SWAP_REMOTE_DATA) || self.flags.has(Flags::SWAP_REMOTE_ADDRESS);
        moves.then_some(PortAddress { node: self.dest, port: self.dest_port })
    }
}

/// A sequence, CH to CT: the work of one port in one pulse of a collective.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The descriptors, at least one.
    pub(super) descriptors: Vec<Descriptor>,
}

impl Sequence {
    /// Splits the first sequence off `posted`.
    ///
    /// # Panics
    /// When the sequence has no CH or no CT: lowerings post whole sequences.
    pub(super) fn first_of(posted: &[Descriptor]) -> (Sequence, &[Descriptor]) {
        assert!(posted[0].flags.has(Flags::HEAD), "a sequence begins with CH: {}", posted[0]);
        let tail = posted.iter().position(|descriptor| descriptor.flags.has(Flags::TAIL));
        let (descriptors, behind) = posted.split_at(tail.expect("a sequence ends with CT") + 1);
        (Sequence { descriptors: descriptors.to_vec() }, behind)
    }

    pub(super) fn ends(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.flags.has(Flags::ENDS))
    }

    pub(super) fn head(&self) -> &Descriptor {
        &self.descriptors[0]
    }

    /// The destination of descriptor `at`, if it sends; with SwapLocalVP, the port of the last packet that it reads.
    pub(super) fn dest(&self, at: usize) -> Option<PortAddress> {
        let descriptor = &self.descriptors[at];
        let answers = descriptor.flags.has(Flags::SWAP_LOCAL_PORT);
        let last_read = self.sources_of(at).last().filter(|_| answers);
        let port = last_read.map_or(descriptor.dest_port, |source| source.port);
        descriptor.flags.has(Flags::SENDS).then_some(PortAddress { node: descriptor.dest, port })
    }

    /// The sources whose packets descriptor `at` reads, in the order of reading.
    pub(super) fn sources_of(&self, at: usize) -> &[PortAddress] {
        let descriptor = &self.descriptors[at];
        let first = usize::from(descriptor.first_source);
        if descriptor.count == 0 { &[] } else { &self.head().sources[first..first + usize::from(descriptor.count)] }
    }
}
