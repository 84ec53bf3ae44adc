//! Floating-point numbers of 16 bits, computed in 32 bits.
//!
//! A 32-bit sum or product, rounded once more to 16 bits, is correctly rounded: a 32-bit number has 24 bits of
//! significand, at least twice the operands' 11 (or 8) bits plus two.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use outboard_call::Operator;

use crate::numbers::{Float, Ordered, lane};
use crate::{Lane, Operands, each, undefined};

/// Elements converted at once: few enough for the first-level cache, many enough for vector instructions.
const BATCH: usize = 256;

/// A 16-bit format: binary16 or bfloat16.
pub(crate) trait Half: Lane<2> + Ordered + Default {}

impl Half for f16 {}
impl Half for bf16 {}

lane!(f16, 2, f16::is_nan);
lane!(bf16, 2, bf16::is_nan);

/// Computes `combine(left, right)` in 32 bits for every element and stores it in `into`.
fn widened<H: Half>(operands: Operands<'_>, combine: impl Fn(f32, f32) -> f32)
where
    [H]: HalfFloatSliceExt,
{
    let Operands { from, into, from_left } = operands;
    let mut narrow = [H::default(); BATCH];
    let (mut first, mut second) = ([0f32; BATCH], [0f32; BATCH]);
    for (from, into) in from.chunks(2 * BATCH).zip(into.chunks_mut(2 * BATCH)) {
        let count = into.len() / 2;
        let (narrow, first, second) = (&mut narrow[..count], &mut first[..count], &mut second[..count]);
        widen(from, narrow, first);
        widen(into, narrow, second);
        if from_left {
            first.iter_mut().zip(&*second).for_each(|(a, b)| *a = combine(*a, *b).canonical());
        } else {
            first.iter_mut().zip(&*second).for_each(|(a, b)| *a = combine(*b, *a).canonical());
        }
        narrow.convert_from_f32_slice(first);
        for (into, number) in into.as_chunks_mut().0.iter_mut().zip(narrow) {
            *into = number.put();
        }
    }
}

fn widen<H: Half>(bytes: &[u8], narrow: &mut [H], wide: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    for (number, bytes) in narrow.iter_mut().zip(bytes.as_chunks().0) {
        *number = H::get(*bytes);
    }
    narrow.convert_to_f32_slice(wide);
}

pub(crate) fn reduce<H: Half>(operator: Operator, operands: Operands<'_>)
where
    [H]: HalfFloatSliceExt,
{
    match operator {
        Operator::Sum => widened::<H>(operands, |a, b| a + b),
        Operator::Product => widened::<H>(operands, |a, b| a * b),
        Operator::Minimum => each(operands, H::minimum),
        Operator::Maximum => each(operands, H::maximum),
        other => undefined(other),
    }
}
