//! Descriptors: what a host posts to its port, as little-endian words of 64 bits.
//!
//! The paper gives fields and widths (its Fig. 2, TH-1); the positions are ours, and so are the fields marked so:
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 63-59 | AwaitSeq (ours): the SeqID of the packets that it waits for |
//! | 0 | 58-51, 50-46 | JobID, SeqID of what it sends |
//! | 0 | 45-35, 34-24, 23-0 | SourceVP, DestVP, DestID |
//! | 1 | 63-60 | 0 |
//! | 1 | 59-42 | length of the message in bytes (ours) |
//! | 1 | 41-30 | pulse (ours): counts the pulses of a job, from 0 on again behind 4,095 |
//! | 1 | 29-26, 25-21 | operator and element of a reduction (ours) |
//! | 1 | 20 | the packets are the left operands (ours) |
//! | 1 | 19-16 | FirstSource (ours): where in the table of the task the sources begin, in the order of reading |
//! | 1 | 15, 14, 13, 12 | C, CH, CT, CP |
//! | 1 | 11-6 | CPCount: packets that it waits for, 0 to 16 |
//! | 1 | 5 to 0 | SwapLocalData, SwapLocalVP, SwapRemoteData, SwapRemoteAddr, ReduceFlag, CollEndFlag |
//! | 2 | 29 | the message lies in the descriptor (ours) |
//! | 2 | 28-24, 23-16, 15-8, 7-0 | sources in the table, pieces of operand, result and message (ours); the rest 0 |
//!
//! Behind that lie the table of sources (bits 34-24 port, 23-0 node), in the descriptor with CH alone, the pieces, two
//! words each: address and length, and the bytes of a message that lies in the descriptor. An address with bit 63
//! counts from the start of the pulse's intermediate results in the NIC, all others are the host's.
//!
//! | flag | C | says |
//! |---|---|---|
//! | SwapLocalData | 1 | the data of this descriptor are those of the packet that it waits for |
//! | SwapLocalVP | 1 | its DestVP is the SourceVP of the last packet that it waits for: it answers |
//! | SwapRemoteData | 0 | its message takes the place of the data of the next descriptor there that names a place |
//! | SwapRemoteAddr | 0 | its result is the address of the next message from there |
//! | neither | 0 | it copies within memory |
//!
//! Invariants: what is read has been checked as far as one post tells; each error names the descriptor by its index.
//! Never looks at a task.

use outboard_plan::Reduction;
use thiserror::Error;

use super::settings::MAX_SOURCES;

/// The largest message: its length has 18 bits.
pub const MAX_MESSAGE: u64 = (1 << 18) - 1;
/// Pulses until their numbers repeat.
pub const PULSES: u64 = 1 << 12;
/// The most pieces of one operand, result or message.
pub const MAX_PIECES: usize = 255;
/// The most bytes of a message that lies in its descriptor (ours: the paper names no number).
pub const MAX_INLINE: u64 = 64;

const INTERMEDIATE: u64 = 1 << 63;
const RESERVED: u64 = 0xf << 60;
const RESERVED_COUNTS: u64 = !0x3fff_ffff;
const RESERVED_SOURCE: u64 = !0x7_ffff_ffff;
const COUNT: (u32, u32) = (6, 6);
const INLINE: (u32, u32) = (29, 1);

/// Flags of descriptors from point to point.
const REMOTE: [(Flags, &str); 2] =
    [(Flags::SWAP_REMOTE_DATA, "SwapRemoteData"), (Flags::SWAP_REMOTE_ADDRESS, "SwapRemoteAddr")];
/// Flags of those in sequences.
const SEQUENCED: [(Flags, &str); 6] = [
    (Flags::HEAD, "CH"),
    (Flags::TAIL, "CT"),
    (Flags::SENDS, "CP"),
    (Flags::REDUCE, "ReduceFlag"),
    (Flags::SWAP_LOCAL_DATA, "SwapLocalData"),
    (Flags::SWAP_LOCAL_PORT, "SwapLocalVP"),
];

/// The flags of word 1, at their bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// C: it belongs to a collective.
    pub const COLLECTIVE: Flags = Flags(1 << 15);
    /// CH: it is the first of its sequence.
    pub const HEAD: Flags = Flags(1 << 14);
    /// CT: it is the last of its sequence.
    pub const TAIL: Flags = Flags(1 << 13);
    /// CP: it sends packets, which trigger descriptors at their destination.
    pub const SENDS: Flags = Flags(1 << 12);
    /// SwapLocalData: its data are replaced by those of the packet that it waits for.
    pub const SWAP_LOCAL_DATA: Flags = Flags(1 << 5);
    /// SwapLocalVP: it sends to the port of the last packet that it waits for.
    pub const SWAP_LOCAL_PORT: Flags = Flags(1 << 4);
    /// SwapRemoteData: it sends to the place that the destination names next.
    pub const SWAP_REMOTE_DATA: Flags = Flags(1 << 3);
    /// SwapRemoteAddr: it names a place for the next message of the destination.
    pub const SWAP_REMOTE_ADDRESS: Flags = Flags(1 << 2);
    /// ReduceFlag: the packets are combined with its data.
    pub const REDUCE: Flags = Flags(1 << 1);
    /// CollEndFlag: with it the call of the port has ended.
    pub const ENDS: Flags = Flags(1);
    const ALL: u16 = 0xf03f;

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Memory that a descriptor names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Address {
    /// Of the process that posts.
    Host(u64),
    /// From the start of the pulse's intermediate results.
    Intermediate(u64),
}

/// `len` bytes from an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct Piece {
    pub address: Address,
    pub len: u64,
}

/// Where packets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct Source {
    pub node: u32,
    pub port: u16,
}

/// One descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The flags.
    pub flags: Flags,
    /// The job.
    pub job: u8,
    /// The pulse, in 12 bits.
    pub pulse: u16,
    /// SourceVP: the port that posts.
    pub source_port: u16,
    /// SeqID of what it sends.
    pub seq: u8,
    /// DestVP.
    pub dest_port: u16,
    /// DestID.
    pub dest: u32,
    /// CPCount.
    pub count: u8,
    /// SeqID of the packets that it waits for.
    pub await_seq: u8,
    /// Where their sources begin in the table.
    pub first_source: u8,
    /// Whether packets are the left operands.
    pub packet_left: bool,
    /// What it combines, with ReduceFlag.
    pub reduction: Option<Reduction>,
    /// Bytes of each message that it reads or sends.
    pub length: u32,
    /// The table of the task, with CH.
    pub sources: Vec<Source>,
    /// What packets are combined with, or what is copied.
    pub operand: Vec<Piece>,
    /// Where that goes.
    pub result: Vec<Piece>,
    /// What is sent, unless it is `inline`.
    pub message: Vec<Piece>,
    /// What is sent, in the words of the descriptor: up to [`MAX_INLINE`] bytes.
    pub inline: Vec<u64>,
}

/// What is wrong with a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum Fault {
    #[error("ends within its words")]
    Cut,
    #[error("word {word} has reserved bits {bits:#x}: they are 0")]
    Reserved { word: usize, bits: u64 },
    #[error("CPCount is {count}: a descriptor waits for up to {MAX_SOURCES} packets")]
    Count { count: u8 },
    #[error("{sources} sources: a task has up to {MAX_SOURCES}; choose an algorithm that hears of fewer ranks")]
    Sources { sources: usize },
    #[error("waits for sources {first} to {last} of a table of {sources}")]
    Source { first: usize, last: usize, sources: usize },
    #[error("C is 0 within a sequence: post it before CH or behind CT")]
    DirectWithin,
    #[error("{flag} means nothing where C is {c}: leave it 0")]
    Flag { flag: &'static str, c: u8 },
    #[error("sends a message and names a place for another: let each have a descriptor")]
    Both,
    #[error("C is 0, and AwaitSeq, SeqID, pulse, operand side, FirstSource or CPCount are not")]
    Sequenced,
    #[error("C is 0, and it names memory of the NIC: such messages go from host to host")]
    NotHost,
    #[error("names a place in {pieces} pieces: let each have a descriptor")]
    Place { pieces: usize },
    #[error("has a message of {bytes} B in it: 1 to {MAX_INLINE} B fit, of descriptors that send")]
    Inline { bytes: u64 },
    #[error("takes DestVP from a packet: it has to wait for one, to send, and to leave DestVP 0")]
    Answer,
    #[error("CT without CH: a sequence begins with CH")]
    TailWithoutHead,
    #[error("is of a collective, outside a sequence: a sequence begins with CH")]
    Outside,
    #[error("CH within a sequence: the one before has no CT")]
    HeadWithin,
    #[error("is the last, and its sequence has no CT")]
    NoTail,
    #[error("job, port or pulse is not that of its sequence")]
    Strays,
    #[error("has a table of sources without CH")]
    Table,
    #[error("reduction {code:#06x}: there is none, or ReduceFlag is not set")]
    Reduction { code: u16 },
    #[error("its {what} has {bytes} B, and its length is {length}")]
    Length { what: &'static str, bytes: u64, length: u64 },
    #[error("its {what} has a piece of {bytes} B, which cuts an element of {element} B")]
    Element { what: &'static str, bytes: u64, element: u64 },
    #[error("waits for {count} packets and replaces its data by one: let each go its own way")]
    Swap { count: u8 },
    #[error("names node {node} port {port}, which is not of its job")]
    Stranger { node: u32, port: u16 },
    #[error("needs {bytes} B for intermediate results, of which a pulse has {most}: make pulses shorter")]
    Intermediate { bytes: u64, most: u64 },
}

/// A descriptor that a NIC does not take.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("descriptor {index}: {fault}")]
pub struct DescriptorError {
    /// Counted from 0 in what was posted.
    pub index: usize,
    /// What is wrong.
    pub fault: Fault,
}

/// `value` in `bits` bits from bit `at` on.
fn field(value: u64, (at, bits): (u32, u32)) -> u64 {
    assert!(value < 1 << bits, "{value} in {bits} bits");
    value << at
}

/// What the bits hold; the inverse of [`field`].
const fn get(word: u64, (at, bits): (u32, u32)) -> u64 {
    word >> at & ((1 << bits) - 1)
}

impl Descriptor {
    /// Appends its words.
    ///
    /// # Panics
    /// When a field does not fit its bits: lowerings check what they make.
    pub fn write(&self, words: &mut Vec<u64>) {
        let code = self.reduction.map_or(0, |reduction| u64::from(reduction.code()));
        words.push(
            field(self.await_seq.into(), (59, 5))
                | field(self.job.into(), (51, 8))
                | field(self.seq.into(), (46, 5))
                | field(self.source_port.into(), (35, 11))
                | field(self.dest_port.into(), (24, 11))
                | field(self.dest.into(), (0, 24)),
        );
        words.push(
            field(self.length.into(), (42, 18))
                | field(self.pulse.into(), (30, 12))
                | field(code >> 8, (26, 4))
                | field(code & 0xff, (21, 5))
                | field(self.packet_left.into(), (20, 1))
                | field(self.first_source.into(), (16, 4))
                | field(self.count.into(), COUNT)
                | u64::from(self.flags.0),
        );
        let pieces = [&self.operand, &self.result, &self.message];
        words.push(
            field(u64::from(!self.inline.is_empty()), INLINE)
                | field(self.sources.len() as u64, (24, 5))
                | field(self.operand.len() as u64, (16, 8))
                | field(self.result.len() as u64, (8, 8))
                | field(self.message.len() as u64, (0, 8)),
        );
        words.extend(self.sources.iter().map(|s| field(s.port.into(), (24, 11)) | field(s.node.into(), (0, 24))));
        for piece in pieces.into_iter().flatten() {
            let address = match piece.address {
                Address::Host(at) => field(at, (0, 63)),
                Address::Intermediate(at) => INTERMEDIATE | field(at, (0, 63)),
            };
            words.extend([address, piece.len]);
        }
        words.extend(&self.inline);
    }

    /// The descriptor that `words` begin with, and the words behind it.
    fn read(words: &[u64]) -> Result<(Descriptor, &[u64]), Fault> {
        let [first, second, counts, rest @ ..] = words else { return Err(Fault::Cut) };
        for (word, bits) in [(1, second & RESERVED), (2, counts & RESERVED_COUNTS)] {
            if bits != 0 {
                return Err(Fault::Reserved { word, bits });
            }
        }
        let (table, rest) = rest.split_at_checked(get(*counts, (24, 5)) as usize).ok_or(Fault::Cut)?;
        let mut sources = Vec::with_capacity(table.len());
        for (word, source) in (3..).zip(table) {
            if source & RESERVED_SOURCE != 0 {
                return Err(Fault::Reserved { word, bits: source & RESERVED_SOURCE });
            }
            sources.push(Source { node: get(*source, (0, 24)) as u32, port: get(*source, (24, 11)) as u16 });
        }
        let (operand, rest) = pieces(rest, get(*counts, (16, 8)))?;
        let (result, rest) = pieces(rest, get(*counts, (8, 8)))?;
        let (message, rest) = pieces(rest, get(*counts, (0, 8)))?;
        let flags = Flags(*second as u16 & Flags::ALL);
        let length = get(*second, (42, 18));
        let is_inline = get(*counts, INLINE) == 1;
        if is_inline && !(1..=MAX_INLINE).contains(&length) {
            return Err(Fault::Inline { bytes: length });
        }
        let words = if is_inline { length.div_ceil(8) } else { 0 };
        let (inline, rest) = rest.split_at_checked(words as usize).ok_or(Fault::Cut)?;
        let descriptor = Descriptor {
            flags,
            job: get(*first, (51, 8)) as u8,
            pulse: get(*second, (30, 12)) as u16,
            source_port: get(*first, (35, 11)) as u16,
            seq: get(*first, (46, 5)) as u8,
            dest_port: get(*first, (24, 11)) as u16,
            dest: get(*first, (0, 24)) as u32,
            count: get(*second, COUNT) as u8,
            await_seq: get(*first, (59, 5)) as u8,
            first_source: get(*second, (16, 4)) as u8,
            packet_left: get(*second, (20, 1)) == 1,
            reduction: reduction(*second, flags)?,
            length: length as u32,
            sources,
            operand,
            result,
            message,
            inline: inline.to_vec(),
        };
        descriptor.check()?;
        Ok((descriptor, rest))
    }

    /// What one descriptor tells by itself.
    fn check(&self) -> Result<(), Fault> {
        if usize::from(self.count) > MAX_SOURCES {
            return Err(Fault::Count { count: self.count });
        }
        if self.sources.len() > MAX_SOURCES {
            return Err(Fault::Sources { sources: self.sources.len() });
        }
        if !self.flags.has(Flags::HEAD) && !self.sources.is_empty() {
            return Err(Fault::Table);
        }
        self.check_path()?;
        if self.flags.has(Flags::SWAP_LOCAL_DATA) && (self.count != 1 || self.flags.has(Flags::REDUCE)) {
            return Err(Fault::Swap { count: self.count });
        }
        let length = u64::from(self.length);
        let reads = self.flags.has(Flags::REDUCE) || !self.operand.is_empty();
        let takes = self.flags.has(Flags::SWAP_LOCAL_DATA) || self.flags.has(Flags::SWAP_REMOTE_ADDRESS);
        if !self.inline.is_empty() && !self.sends() {
            return Err(Fault::Inline { bytes: length });
        }
        let sends = self.sends() && self.inline.is_empty();
        let places = [
            ("operand", &self.operand, reads && !takes),
            ("result", &self.result, reads || takes),
            ("message", &self.message, sends),
        ];
        for (what, pieces, wanted) in places {
            let bytes = pieces.iter().fold(0u64, |bytes, piece| bytes.saturating_add(piece.len));
            if bytes != if wanted { length } else { 0 } {
                return Err(Fault::Length { what, bytes, length });
            }
        }
        let Some(element) = self.reduction.map(|reduction| reduction.element().bytes()) else { return Ok(()) };
        let combined = [("operand", &self.operand), ("result", &self.result)];
        let pieces = combined.into_iter().flat_map(|(what, pieces)| pieces.iter().map(move |piece| (what, piece.len)));
        let cut = pieces.into_iter().find(|(_, bytes)| !bytes.is_multiple_of(element));
        cut.map_or(Ok(()), |(what, bytes)| Err(Fault::Element { what, bytes, element }))
    }

    /// Whether it sends bytes.
    pub(super) fn sends(&self) -> bool {
        self.flags.has(Flags::SENDS) || self.flags.has(Flags::SWAP_REMOTE_DATA)
    }

    /// The peer of one that is from point to point and does not only copy.
    pub(super) fn peer(&self) -> Option<Source> {
        let moves = self.flags.has(Flags::SWAP_REMOTE_DATA) || self.flags.has(Flags::SWAP_REMOTE_ADDRESS);
        moves.then_some(Source { node: self.dest, port: self.dest_port })
    }

    /// What its path, that of collectives or from point to point, knows.
    fn check_path(&self) -> Result<(), Fault> {
        let collective = self.flags.has(Flags::COLLECTIVE);
        let others = if collective { &REMOTE[..] } else { &SEQUENCED[..] };
        if let Some((_, flag)) = others.iter().find(|(flag, _)| self.flags.has(*flag)) {
            return Err(Fault::Flag { flag, c: collective.into() });
        }
        if collective {
            let answers = self.flags.has(Flags::SENDS) && self.count > 0 && self.dest_port == 0;
            return if self.flags.has(Flags::SWAP_LOCAL_PORT) && !answers { Err(Fault::Answer) } else { Ok(()) };
        }
        if self.flags.has(Flags::SWAP_REMOTE_DATA.with(Flags::SWAP_REMOTE_ADDRESS)) {
            return Err(Fault::Both);
        }
        if [self.await_seq, self.seq, self.first_source, self.count] != [0; 4] || self.pulse != 0 || self.packet_left {
            return Err(Fault::Sequenced);
        }
        let mut pieces = [&self.operand, &self.result, &self.message].into_iter().flatten();
        if pieces.any(|piece| matches!(piece.address, Address::Intermediate(_))) {
            return Err(Fault::NotHost);
        }
        let pieces = self.result.len();
        let named = self.flags.has(Flags::SWAP_REMOTE_ADDRESS);
        if named && pieces > 1 { Err(Fault::Place { pieces }) } else { Ok(()) }
    }
}

fn reduction(word: u64, flags: Flags) -> Result<Option<Reduction>, Fault> {
    let code = (get(word, (26, 4)) << 8 | get(word, (21, 5))) as u16;
    match (flags.has(Flags::REDUCE), code) {
        (false, 0) => Ok(None),
        (false, code) => Err(Fault::Reduction { code }),
        (true, code) => Reduction::from_code(code).map(Some).map_err(|_| Fault::Reduction { code }),
    }
}

fn pieces(words: &[u64], count: u64) -> Result<(Vec<Piece>, &[u64]), Fault> {
    let (mine, rest) = words.split_at_checked(2 * count as usize).ok_or(Fault::Cut)?;
    let piece = |words: &[u64; 2]| {
        let at = words[0] & !INTERMEDIATE;
        let address = if words[0] == at { Address::Host(at) } else { Address::Intermediate(at) };
        Piece { address, len: words[1] }
    };
    Ok((mine.as_chunks().0.iter().map(piece).collect(), rest))
}

/// A sequence, CH to CT: what one port does in one pulse of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The descriptors, at least one.
    pub descriptors: Vec<Descriptor>,
}

/// What a port is to carry out next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// Part of a collective.
    Sequence(Sequence),
    /// A descriptor from point to point.
    Direct(Descriptor),
}

impl Posted {
    /// What words hold.
    ///
    /// # Errors
    /// The first descriptor that makes no sense.
    pub fn read(mut words: &[u64]) -> Result<Vec<Posted>, DescriptorError> {
        let mut all: Vec<Posted> = Vec::new();
        let mut open = false;
        let mut index = 0;
        while !words.is_empty() {
            let at = |fault| DescriptorError { index, fault };
            let (descriptor, rest) = Descriptor::read(words).map_err(at)?;
            let (head, tail) = (descriptor.flags.has(Flags::HEAD), descriptor.flags.has(Flags::TAIL));
            let collective = descriptor.flags.has(Flags::COLLECTIVE);
            match (collective, open, head, all.last_mut()) {
                (true, false, true, _) => {
                    let mut sequence = Sequence { descriptors: Vec::new() };
                    sequence.append(descriptor).map_err(at)?;
                    all.push(Posted::Sequence(sequence));
                }
                (true, true, false, Some(Posted::Sequence(sequence))) => {
                    sequence.append(descriptor).map_err(at)?;
                }
                (false, false, _, _) => all.push(Posted::Direct(descriptor)),
                (true, true, true, _) => return Err(at(Fault::HeadWithin)),
                (false, true, _, _) => return Err(at(Fault::DirectWithin)),
                (true, false, false, _) if tail => return Err(at(Fault::TailWithoutHead)),
                (true, _, false, _) => return Err(at(Fault::Outside)),
            }
            (open, words, index) = (collective && !tail, rest, index + 1);
        }
        if open { Err(DescriptorError { index: index - 1, fault: Fault::NoTail }) } else { Ok(all) }
    }

    /// Its descriptors, at least one.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor] {
        match self {
            Posted::Sequence(sequence) => &sequence.descriptors,
            Posted::Direct(descriptor) => std::slice::from_ref(descriptor),
        }
    }
}

impl Sequence {
    /// Appends a descriptor that goes with those before it.
    fn append(&mut self, next: Descriptor) -> Result<(), Fault> {
        let head = self.descriptors.first().unwrap_or(&next);
        if (head.job, head.source_port, head.pulse) != (next.job, next.source_port, next.pulse) {
            return Err(Fault::Strays);
        }
        let (first, sources) = (usize::from(next.first_source), head.sources.len());
        let last = first + usize::from(next.count);
        if next.count > 0 && last > sources {
            return Err(Fault::Source { first, last: last - 1, sources });
        }
        self.descriptors.push(next);
        Ok(())
    }

    /// Whether a call ends with it.
    pub(super) fn ends(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.flags.has(Flags::ENDS))
    }

    /// Its first descriptor.
    pub(super) fn head(&self) -> &Descriptor {
        &self.descriptors[0]
    }

    /// Where descriptor `at` sends to, if it does: with SwapLocalVP, to the port of the last packet that it reads.
    pub(super) fn dest(&self, at: usize) -> Option<Source> {
        let descriptor = &self.descriptors[at];
        let answers = descriptor.flags.has(Flags::SWAP_LOCAL_PORT);
        let heard = self.sources_of(at).last().filter(|_| answers);
        let port = heard.map_or(descriptor.dest_port, |source| source.port);
        descriptor.flags.has(Flags::SENDS).then_some(Source { node: descriptor.dest, port })
    }

    /// The sources whose packets descriptor `at` reads, in that order.
    pub(super) fn sources_of(&self, at: usize) -> &[Source] {
        let descriptor = &self.descriptors[at];
        let first = usize::from(descriptor.first_source);
        if descriptor.count == 0 { &[] } else { &self.head().sources[first..first + usize::from(descriptor.count)] }
    }
}
