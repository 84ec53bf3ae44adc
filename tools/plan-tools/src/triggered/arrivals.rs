//! The places of bytes of a plan's buffers that have arrived but are not in their final place yet.
//!
//! Invariant: inserted spans do not overlap.

use std::collections::BTreeMap;

use outboard_nic::triggered::list::TemplatePlace;
use outboard_plan::Span;

#[derive(Debug, Clone, Copy)]
pub(super) enum ArrivalPlace {
    /// In eager buffers from `first` on, of `buffer` bytes each.
    Buffers { first: u32, buffer: u64 },
    /// In the shared region, from `offset` on.
    Shared { offset: u64 },
}

#[derive(Debug, Default, Clone)]
pub(super) struct ArrivedSpans {
    /// By buffer and start of a span: the span's end, and the place of its bytes.
    spans: [BTreeMap<u64, (u64, ArrivalPlace)>; 3],
}

impl ArrivedSpans {
    pub(super) fn insert(&mut self, span: Span, lies: ArrivalPlace) {
        if !span.is_empty() {
            self.spans[span.buffer as usize].insert(span.offset, (span.offset + span.len, lies));
        }
    }

    /// The places of the bytes of a span, in order.
    pub(super) fn pieces(&self, span: Span) -> Vec<TemplatePlace> {
        let spans = &self.spans[span.buffer as usize];
        let (mut pieces, mut at, end) = (Vec::new(), span.offset, span.offset + span.len);
        while at < end {
            let under = spans.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
            let piece = match under {
                Some((start, (arrived_end, ArrivalPlace::Buffers { first, buffer }))) => {
                    let (slot, offset) = ((at - start) / buffer, (at - start) % buffer);
                    let len = (buffer - offset).min(arrived_end - at).min(end - at);
                    TemplatePlace::Arrived { slot: first + slot as u32, offset, len }
                }
                Some((start, (arrived_end, ArrivalPlace::Shared { offset }))) => {
                    TemplatePlace::Shared { offset: offset + at - start, len: (*arrived_end).min(end) - at }
                }
                None => {
                    let next = spans.range(at..).next().map_or(end, |(start, _)| *start).min(end);
                    TemplatePlace::Memory(Span { buffer: span.buffer, offset: at, len: next - at })
                }
            };
            let len = piece.bytes().expect("a piece of a span has a length");
            at += len;
            match (pieces.last_mut(), piece) {
                (Some(TemplatePlace::Shared { offset, len: before }), TemplatePlace::Shared { offset: next, len })
                    if *offset + *before == next =>
                {
                    *before += len;
                }
                _ => pieces.push(piece),
            }
        }
        pieces
    }
}
