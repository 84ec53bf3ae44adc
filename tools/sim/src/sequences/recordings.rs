//! Recordings as a script writes them: most of them a rank could have recorded, some no rank could.

use std::sync::Arc;

use outboard_plan::{Buffer, Element, Op, OpId, Operator, Rank, Reduction, Span};
use outboard_proto::{RecordError, Recording};

use super::{GROUPS, Play};
use crate::breach::Breach;
use crate::cluster::handle;
use crate::graph::{Graph, Member};
use crate::tape::Tape;

/// Most steps of one recording.
const MOST_STEPS: u8 = 12;
/// Bytes of the recorded memory.
const BUFFERS: [u64; 4] = [0, 100, 33_000, 160_000];

/// A recording, and whether a rank may record it.
#[derive(Debug)]
pub(super) struct Drawn {
    pub(super) recording: Recording,
    pub(super) sound: bool,
}

struct Draft {
    member: Member,
    bytes: u64,
    ranks: u32,
    reductions: Vec<Reduction>,
    sound: bool,
}

/// A size around the limits up to which a message travels with its announcement.
pub(super) fn size(tape: &mut Tape<'_>) -> u64 {
    match tape.byte() {
        small @ 0..=0x7f => u64::from(small),
        edge @ 0x80..=0xbf => [8 << 10, (8 << 10) + 1, 32 << 10, (32 << 10) + 1][usize::from(edge % 4)],
        large @ 0xc0..=0xdf => u64::from(large) * 129,
        huge => u64::from(huge) * 300,
    }
}

pub(super) fn tag(tape: &mut Tape<'_>) -> u32 {
    match tape.byte() {
        few @ 0..=0xef => u32::from(few % 3),
        _ => tape.number32(),
    }
}

impl Draft {
    /// Usually a rank of the group.
    fn rank(&mut self, tape: &mut Tape<'_>) -> Rank {
        match tape.byte() {
            member @ 0..=0xfb => Rank(u32::from(member) % self.ranks),
            _ => {
                let any = tape.number32();
                self.sound &= any < self.ranks;
                Rank(any)
            }
        }
    }

    /// Usually a piece of the memory.
    fn span(&mut self, tape: &mut Tape<'_>, most: u64) -> Span {
        if tape.byte() >= 0xfc {
            self.sound = false;
            let buffer = [Buffer::Output, Buffer::Input, Buffer::Scratch][usize::from(tape.below(3))];
            return Span { buffer, offset: tape.number(), len: tape.number() };
        }
        let len = size(tape).min(most).min(self.bytes);
        self.at(tape, len)
    }

    fn at(&self, tape: &mut Tape<'_>, len: u64) -> Span {
        let place = u64::from(tape.byte()) << 8 | u64::from(tape.byte());
        Span::output(place % (self.bytes - len + 1), len)
    }

    /// Usually two pieces of one length that do not overlap.
    fn pair(&mut self, tape: &mut Tape<'_>, element: u64) -> [Span; 2] {
        let from = self.span(tape, self.bytes / 2);
        if !self.sound {
            return [from, self.span(tape, self.bytes)];
        }
        let from = Span { len: from.len / element * element, ..from };
        let into = self.at(tape, from.len);
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

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.below(13) {
            0..=3 => {
                let (to, tag, span) = (self.rank(tape), tag(tape), self.span(tape, u64::MAX));
                self.touch(&[(span, false)]);
                self.member.builder.send(to, tag, span, &[]);
            }
            4..=7 => {
                let (from, tag, span) = (self.rank(tape), tag(tape), self.span(tape, u64::MAX));
                self.touch(&[(span, true)]);
                self.member.builder.recv(from, tag, span, &[]);
            }
            8 | 9 => self.member.barrier(),
            10 => {
                let [from, to] = self.pair(tape, 1);
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
                let (operator, element) = known[usize::from(tape.below(4))];
                let [from, into] = self.pair(tape, element.bytes());
                self.touch(&[(from, false), (into, true)]);
                self.member.builder.reduce(from, into, tape.flip(), &[]);
                self.reductions.push(Reduction::new(operator, element).expect("defined by MPI"));
            }
            _ if tape.byte() < 0xe0 => {}
            _ => {
                let span = self.span(tape, u64::MAX);
                self.sound = false;
                self.member.builder.push(Op::Multicast { span }, &[]);
            }
        }
    }
}

/// The next recording of a script, if a rank may record it.
pub fn recording(tape: &mut Tape<'_>, rank: Rank, ranks: u32) -> Option<Recording> {
    let drawn = draw(tape, rank, ranks);
    drawn.sound.then_some(drawn.recording)
}

/// The next recording of a script.
pub(super) fn draw(tape: &mut Tape<'_>, rank: Rank, ranks: u32) -> Drawn {
    let bytes = BUFFERS[usize::from(tape.below(4))];
    let member = Member::new(rank.0 as usize, ranks as usize, bytes);
    let mut draft = Draft { member, bytes, ranks, reductions: Vec::new(), sound: true };
    for _ in 0..tape.below(MOST_STEPS + 1) {
        draft.step(tape);
    }
    let Draft { member, mut reductions, mut sound, .. } = draft;
    let mut program = member.builder.build();
    // Usually none of these changes is made.
    match tape.byte() {
        0xf0 => program.rank = Rank(tape.number32()),
        0xf1 => program.ranks = tape.number32(),
        0xf2 => program.input_bytes = tape.number(),
        0xf3 => program.scratch_bytes = tape.number(),
        0xf4 => program.output_bytes = tape.number(),
        0xf5 => drop(reductions.pop()),
        0xf6 => reductions.push(Reduction::new(Operator::Sum, Element::F64).expect("defined by MPI")),
        0xf7..=0xff if !program.steps.is_empty() => {
            let step = usize::from(tape.byte()) % program.steps.len();
            program.steps[step].after.push(OpId(tape.number32()));
        }
        _ => return Drawn { recording: Recording { program: program.into(), reductions }, sound },
    }
    sound = false;
    Drawn { recording: Recording { program: program.into(), reductions }, sound }
}

impl Play {
    pub(super) fn record(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        let (group, rank) = self.seat(tape);
        let next = self.teams[group].seats[rank].last.wrapping_add(1);
        let number = if tape.byte() < 0xe0 { next } else { tape.number32() };
        let drawn = draw(tape, Rank(rank as u32), GROUPS[group].len() as u32);
        self.hand_over(group, rank, number, drawn.recording, drawn.sound)
    }

    /// Records, and checks whether acceptance or rejection was right.
    pub(super) fn hand_over(
        &mut self,
        group: usize,
        rank: usize,
        number: u32,
        recording: Recording,
        sound: bool,
    ) -> Result<(), Breach> {
        let host = self.host(group, rank);
        let recording = Arc::new(recording);
        let result =
            self.cluster.hosts[host].sp.handle_record(handle(group), Rank(rank as u32), number, recording.clone());
        let seat = &mut self.teams[group].seats[rank];
        let right = match &result {
            Ok(()) => !seat.left && number > seat.last,
            // Not every recording drawn as unsound is unsound; calls reveal the sound ones.
            Err(RecordError::Step { .. } | RecordError::Whole(_)) => !sound,
            Err(RecordError::Limit { .. } | RecordError::Size { .. } | RecordError::Quota) => false,
            Err(RecordError::Group) => seat.left,
            Err(RecordError::Number { found, last }) => number <= seat.last && (*found, *last) == (number, seat.last),
        };
        if !right {
            let what = format!("{number} after {}: {result:?}", seat.last);
            return Err(Breach::Recorded { group: handle(group), rank: Rank(rank as u32), what });
        }
        if result.is_ok() {
            self.tally.recorded += 1;
            seat.last = number;
            seat.recordings.insert(number, recording);
        } else {
            self.tally.refused += 1;
        }
        Ok(())
    }

    pub(super) fn graph(&mut self, tape: &mut Tape<'_>) -> Result<(), Breach> {
        let group = usize::from(tape.below(2));
        let scale = [100, 5000, 60_000][usize::from(tape.below(3))];
        let seed = u64::from(tape.byte()) << 8 | u64::from(tape.byte());
        let graph = Graph::draw(seed, GROUPS[group].len(), scale);
        let next = self.teams[group].seats.iter().map(|seat| seat.last).max().unwrap_or(0).saturating_add(1);
        for (rank, recording) in graph.recordings.iter().enumerate() {
            self.hand_over(group, rank, next, Recording::clone(recording), true)?;
        }
        Ok(())
    }
}
