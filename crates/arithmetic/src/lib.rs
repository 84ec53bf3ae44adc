//! The arithmetic of reductions: applies a [`Reduction`] to the bytes of two buffers.
//!
//! | operator | result for operands `a` (left) and `b` (right) |
//! |---|---|
//! | sum, product of integers | modulo two to the power of their bits |
//! | sum, product of floating-point numbers | rounded to nearest, ties to even; NaN: positive, quiet, no payload |
//! | sum, product of complex numbers | by the textbook formulas, each part as a floating-point number |
//! | minimum, maximum | one operand, bit for bit; `a` if the operands are equal; NaN wins; of two NaNs, `a` |
//! | with location | minimum or maximum of the values, then the smaller index; padding goes with the pair |
//! | bitwise | bit by bit |
//! | logical | 1 or 0 of the element's type |
//!
//! Invariants: the result of an element depends on its two operands alone, never on position, alignment, buffer cuts or
//! machine. So a plan, which orders the operands, determines every bit (TH-2). Never allocates, never does IO.

#![forbid(unsafe_code)]

mod halves;
mod numbers;
mod pairs;

use half::{bf16, f16};
use outboard_call::{Element, Operator, Reduction};

use numbers::Integer;

/// Two buffers, and which of them is the left operand.
struct Operands<'a> {
    from: &'a [u8],
    into: &'a mut [u8],
    from_left: bool,
}

/// Combines `from` into `into`, element by element: `into = from * into` if `from_left`, else `into = into * from`.
///
/// The buffers hold elements in the machine's byte order, at any alignment.
///
/// ```
/// use outboard_arithmetic::reduce;
/// use outboard_call::{Element, Operator, Reduction};
///
/// let sum = Reduction::new(Operator::Sum, Element::U8)?;
/// let mut into = [1, 2, 255];
/// reduce(sum, &[1, 1, 1], &mut into, true);
/// assert_eq!(into, [2, 3, 0]);
/// # Ok::<(), outboard_call::ReductionError>(())
/// ```
///
/// # Panics
/// When the buffers differ in length or end inside an element: plans cut between elements.
pub fn reduce(reduction: Reduction, from: &[u8], into: &mut [u8], from_left: bool) {
    assert_eq!(from.len(), into.len(), "both operands of {reduction} have the same length");
    let bytes = reduction.element().bytes();
    assert!((from.len() as u64).is_multiple_of(bytes), "{} B are no whole elements of {reduction}", from.len());
    let operands = Operands { from, into, from_left };
    let operator = reduction.operator();
    match reduction.element() {
        Element::I8 => integers::<i8, 1>(operator, operands),
        Element::I16 => integers::<i16, 2>(operator, operands),
        Element::I32 => integers::<i32, 4>(operator, operands),
        Element::I64 => integers::<i64, 8>(operator, operands),
        Element::U8 => integers::<u8, 1>(operator, operands),
        Element::U16 => integers::<u16, 2>(operator, operands),
        Element::U32 => integers::<u32, 4>(operator, operands),
        Element::U64 => integers::<u64, 8>(operator, operands),
        Element::F16 => halves::reduce::<f16>(operator, operands),
        Element::Bf16 => halves::reduce::<bf16>(operator, operands),
        Element::F32 => numbers::floats::<f32, 4>(operator, operands),
        Element::F64 => numbers::floats::<f64, 8>(operator, operands),
        Element::ComplexF32 => numbers::complexes::<f32, 4, 8>(operator, operands),
        Element::ComplexF64 => numbers::complexes::<f64, 8, 16>(operator, operands),
        Element::F32Index => pairs::reduce::<f32, 4, 8>(operator, operands),
        Element::F64Index => pairs::reduce::<f64, 8, 16>(operator, operands),
        Element::I64Index => pairs::reduce::<i64, 8, 16>(operator, operands),
        Element::I32Index => pairs::reduce::<i32, 4, 8>(operator, operands),
        Element::I16Index => pairs::reduce::<i16, 2, 8>(operator, operands),
    }
}

/// Unreachable: [`Reduction::new`] refuses operators that the class of elements lacks.
fn undefined(operator: Operator) -> ! {
    unreachable!("no reduction is {operator} of such elements")
}

fn integers<T: Integer<N>, const N: usize>(operator: Operator, operands: Operands<'_>) {
    let holds = |x: T| x != T::default();
    match operator {
        Operator::Sum => each(operands, T::sum),
        Operator::Product => each(operands, T::product),
        Operator::Minimum => each(operands, |a: T, b: T| a.min(b)),
        Operator::Maximum => each(operands, |a: T, b: T| a.max(b)),
        Operator::BitAnd => each(operands, |a: T, b: T| a & b),
        Operator::BitOr => each(operands, |a: T, b: T| a | b),
        Operator::BitXor => each(operands, |a: T, b: T| a ^ b),
        Operator::LogicalAnd => each(operands, |a, b| T::from(holds(a) & holds(b))),
        Operator::LogicalOr => each(operands, |a, b| T::from(holds(a) | holds(b))),
        Operator::LogicalXor => each(operands, |a, b| T::from(holds(a) ^ holds(b))),
        other => undefined(other),
    }
}

/// A value stored in `N` bytes of a buffer.
trait Lane<const N: usize>: Copy {
    fn get(bytes: [u8; N]) -> Self;
    fn put(self) -> [u8; N];
}

/// Stores `combine(left, right)` in every element of `into`.
fn each<T: Lane<N>, const N: usize>(operands: Operands<'_>, combine: impl Fn(T, T) -> T) {
    let Operands { from, into, from_left } = operands;
    let pairs = from.as_chunks::<N>().0.iter().zip(into.as_chunks_mut::<N>().0);
    // The branch is outside the loops, so that the compiler can vectorize the loops.
    if from_left {
        pairs.for_each(|(from, into)| *into = combine(T::get(*from), T::get(*into)).put());
    } else {
        pairs.for_each(|(from, into)| *into = combine(T::get(*into), T::get(*from)).put());
    }
}
