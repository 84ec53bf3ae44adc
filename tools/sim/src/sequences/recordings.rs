//! Recordings as a script writes them. A rank could have recorded most of them; some no rank could have recorded.

use std::sync::Arc;

use outboard_plan::{Buffer, Element, Op, OpId, Operator, Rank, Reduction, Span};
use outboard_proto::{RecordError, Recording};

use super::{GROUPS, SequencePlay};
use crate::cluster::handle;
use crate::fuzz_input::FuzzInput;
use crate::graph::{GraphMember, RecordedGraph};
use crate::violation::Violation;

/// Most steps of one recording.
const MOST_STEPS: u8 = 12;
/// Bytes of the recorded memory.
const BUFFERS: [u64; 4] = [0, 100, 33_000, 160_000];

/// A recording, and whether a rank may record it.
#[derive(Debug)]
pub(super) struct DrawnRecording {
    pub(super) recording: Recording,
    pub(super) sound: bool,
}

struct RecordingDraft {
    member: GraphMember,
    bytes: u64,
    ranks: u32,
    reductions: Vec<Reduction>,
    sound: bool,
}

/// A size around the limits up to which a message travels with its announcement.
pub(super) fn size(input: &mut FuzzInput<'_>) -> u64 {
    match input.byte() {
        small @ 0..=0x7f => u64::from(small),
        edge @ 0x80..=0xbf => [8 << 10, (8 << 10) + 1, 32 << 10, (32 << 10) + 1][usize::from(edge % 4)],
        large @ 0xc0..=0xdf => u64::from(large) * 129,
        huge => u64::from(huge) * 300,
    }
}

pub(super) fn tag(input: &mut FuzzInput<'_>) -> u32 {
    match input.byte() {
        few @ 0..=0xef => u32::from(few % 3),
        _ => input.number32(),
    }
}

impl RecordingDraft {
    /// Draws a rank, usually of the group.
    fn rank(&mut self, input: &mut FuzzInput<'_>) -> Rank {
        match input.byte() {
            member @ 0..=0xfb => Rank(u32::from(member) % self.ranks),
            _ => {
                let any = input.number32();
                self.sound &= any < self.ranks;
                Rank(any)
            }
        }
    }

    /// Draws a piece of memory, usually within the buffer.
    fn span(&mut self, input: &mut FuzzInput<'_>, most: u64) -> Span {
        if input.byte() >= 0xfc {
            self.sound = false;
            let buffer = [Buffer::Output, Buffer::Input, Buffer::Scratch][usize::from(input.below(3))];
            return Span { buffer, offset: input.number(), len: input.number() };
        }
        let len = size(input).min(most).min(self.bytes);
        self.at(input, len)
    }

    fn at(&self, input: &mut FuzzInput<'_>, len: u64) -> Span {
        let place = u64::from(input.byte()) << 8 | u64::from(input.byte());
        Span::output(place % (self.bytes - len + 1), len)
    }

    /// Draws two pieces of one length, which usually do not overlap.
    fn pair(&mut self, input: &mut FuzzInput<'_>, element: u64) -> [Span; 2] {
        let from = self.span(input, self.bytes / 2);
        if !self.sound {
            return [from, self.span(input, self.bytes)];
        }
        let from = Span { len: from.len / element * element, ..from };
        let into = self.at(input, from.len);
        let apart = from.offset + from.len <= into.offset || into.offset + into.len <= from.offset;
        self.sound &= apart || from.len == 0;
        [from, into]
    }

    /// Notes which spans are read and written, so that nothing races.
    fn touch(&mut self, spans: &[(Span, bool)]) {
        if self.sound {
            self.member.touch(spans);
        }
    }

    fn step(&mut self, input: &mut FuzzInput<'_>) {
        match input.below(13) {
            0..=3 => {
                let (to, tag, span) = (self.rank(input), tag(input), self.span(input, u64::MAX));
                self.touch(&[(span, false)]);
                self.member.builder.send(to, tag, span, &[]);
            }
            4..=7 => {
                let (from, tag, span) = (self.rank(input), tag(input), self.span(input, u64::MAX));
                self.touch(&[(span, true)]);
                self.member.builder.recv(from, tag, span, &[]);
            }
            8 | 9 => self.member.barrier(),
            10 => {
                let [from, to] = self.pair(input, 1);
                self.touch(&[(from, false), (to, true)]);
                self.member.builder.copy(from, to, &[]);
            }
            11 => {
                let known = [
                    (Operator::Sum, Element::I32),
                    (Operator::Sum, Element::F32),
                    (Operator::BitXor, Element::U8),
                    (Operator::Maximum, Element::I16),
                ];
                let (operator, element) = known[usize::from(input.below(4))];
                let [from, into] = self.pair(input, element.bytes());
                self.touch(&[(from, false), (into, true)]);
                self.member.builder.reduce(from, into, input.flip(), &[]);
                self.reductions.push(Reduction::new(operator, element).expect("defined by MPI"));
            }
            _ if input.byte() < 0xe0 => {}
            _ => {
                let span = self.span(input, u64::MAX);
                self.sound = false;
                self.member.builder.push(Op::Multicast { span }, &[]);
            }
        }
    }
}

/// The next recording of a script, if a rank may record it.
pub fn recording(input: &mut FuzzInput<'_>, rank: Rank, ranks: u32) -> Option<Recording> {
    let drawn = draw(input, rank, ranks);
    drawn.sound.then_some(drawn.recording)
}

/// The next recording of a script.
pub(super) fn draw(input: &mut FuzzInput<'_>, rank: Rank, ranks: u32) -> DrawnRecording {
    let bytes = BUFFERS[usize::from(input.below(4))];
    let member = GraphMember::new(rank.0 as usize, ranks as usize, bytes);
    let mut draft = RecordingDraft { member, bytes, ranks, reductions: Vec::new(), sound: true };
    for _ in 0..input.below(MOST_STEPS + 1) {
        draft.step(input);
    }
    let RecordingDraft { member, mut reductions, mut sound, .. } = draft;
    let mut program = member.builder.build();
    // Usually none of the changes below is made.
    match input.byte() {
        0xf0 => program.rank = Rank(input.number32()),
        0xf1 => program.ranks = input.number32(),
        0xf2 => program.input_bytes = input.number(),
        0xf3 => program.scratch_bytes = input.number(),
        0xf4 => program.output_bytes = input.number(),
        0xf5 => drop(reductions.pop()),
        0xf6 => reductions.push(Reduction::new(Operator::Sum, Element::F64).expect("defined by MPI")),
        0xf7..=0xff if !program.steps.is_empty() => {
            let step = usize::from(input.byte()) % program.steps.len();
            program.steps[step].after.push(OpId(input.number32()));
        }
        _ => return DrawnRecording { recording: Recording { program: program.into(), reductions }, sound },
    }
    sound = false;
    DrawnRecording { recording: Recording { program: program.into(), reductions }, sound }
}

impl SequencePlay {
    pub(super) fn record(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let (group, rank) = self.draw_member(input);
        let next = self.groups[group].members[rank].last.wrapping_add(1);
        let number = if input.byte() < 0xe0 { next } else { input.number32() };
        let drawn = draw(input, Rank(rank as u32), GROUPS[group].len() as u32);
        self.record_and_check(group, rank, number, drawn.recording, drawn.sound)
    }

    /// Records, and checks whether acceptance or rejection was right.
    pub(super) fn record_and_check(
        &mut self,
        group: usize,
        rank: usize,
        number: u32,
        recording: Recording,
        sound: bool,
    ) -> Result<(), Violation> {
        let host = self.host(group, rank);
        let recording = Arc::new(recording);
        let result =
            self.cluster.hosts[host].sp.handle_record(handle(group), Rank(rank as u32), number, recording.clone());
        let member = &mut self.groups[group].members[rank];
        let right = match &result {
            Ok(()) => !member.left && number > member.last,
            // Some recordings that were drawn as unsound are sound; calls reveal the sound ones.
            Err(RecordError::Step { .. } | RecordError::Whole(_)) => !sound,
            Err(RecordError::Limit { .. } | RecordError::Size { .. } | RecordError::Quota) => false,
            Err(RecordError::Group) => member.left,
            Err(RecordError::Number { found, last }) => {
                number <= member.last && (*found, *last) == (number, member.last)
            }
        };
        if !right {
            let what = format!("{number} after {}: {result:?}", member.last);
            return Err(Violation::Recorded { group: handle(group), rank: Rank(rank as u32), what });
        }
        if result.is_ok() {
            self.tally.recorded += 1;
            member.last = number;
            member.recordings.insert(number, recording);
        } else {
            self.tally.refused += 1;
        }
        Ok(())
    }

    pub(super) fn graph(&mut self, input: &mut FuzzInput<'_>) -> Result<(), Violation> {
        let group = usize::from(input.below(2));
        let scale = [100, 5000, 60_000][usize::from(input.below(3))];
        let seed = u64::from(input.byte()) << 8 | u64::from(input.byte());
        let graph = RecordedGraph::draw(seed, GROUPS[group].len(), scale);
        let next = self.groups[group].members.iter().map(|member| member.last).max().unwrap_or(0).saturating_add(1);
        for (rank, recording) in graph.recordings.iter().enumerate() {
            self.record_and_check(group, rank, next, Recording::clone(recording), true)?;
        }
        Ok(())
    }
}
