//! MPI's pairs of a value and an index, in the layout of C's `struct { value; int index; }`.

use outboard_call::Operator;

use crate::numbers::Ordered;
use crate::{Lane, Operands, each, undefined};

/// A pair of `M` bytes: the value in the first `N`, then the index at the next multiple of 4.
#[derive(Clone, Copy)]
struct Pair<const N: usize, const M: usize>([u8; M]);

impl<const N: usize, const M: usize> Lane<M> for Pair<N, M> {
    fn get(bytes: [u8; M]) -> Self {
        Self(bytes)
    }

    fn put(self) -> [u8; M] {
        self.0
    }
}

impl<const N: usize, const M: usize> Pair<N, M> {
    const INDEX: usize = N.div_ceil(4);

    fn value<T: Lane<N>>(self) -> T {
        T::get(self.0.as_chunks::<N>().0[0])
    }

    fn index(self) -> i32 {
        i32::from_ne_bytes(self.0.as_chunks::<4>().0[Self::INDEX])
    }
}

/// Stores the pair whose value wins by `before`. If values are equal, the smaller index wins. A NaN wins over numbers.
fn first<T: Lane<N> + Ordered, const N: usize, const M: usize>(
    operands: Operands<'_>,
    before: impl Fn(&T, &T) -> bool,
) {
    each::<Pair<N, M>, M>(operands, |a, b| {
        let (x, y): (T, T) = (a.value(), b.value());
        let left = if x == y { a.index() <= b.index() } else { before(&x, &y) || x.is_nan() };
        if left { a } else { b }
    });
}

pub(crate) fn reduce<T: Lane<N> + Ordered, const N: usize, const M: usize>(operator: Operator, operands: Operands<'_>) {
    match operator {
        Operator::MinimumLocation => first::<T, N, M>(operands, T::lt),
        Operator::MaximumLocation => first::<T, N, M>(operands, T::gt),
        other => undefined(other),
    }
}
