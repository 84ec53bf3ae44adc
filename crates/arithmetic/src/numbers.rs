//! Integers, floating-point numbers and complex numbers.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Sub};

use outboard_call::Operator;

use crate::{Lane, Operands, each, undefined};

/// An integer of `N` bytes.
pub(crate) trait Integer<const N: usize>:
    Lane<N> + Ord + Default + From<bool> + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    fn sum(self, right: Self) -> Self;
    fn product(self, right: Self) -> Self;
}

/// A value with an order, for minima and maxima; NaN wins every comparison.
pub(crate) trait Ordered: Copy + PartialOrd {
    fn is_nan(self) -> bool;

    /// The smaller value. Of equal values, `self`. A NaN wins; of two NaNs, `self`.
    fn minimum(self, right: Self) -> Self {
        if self <= right || self.is_nan() { self } else { right }
    }

    /// The larger value. Of equal values, `self`. A NaN wins; of two NaNs, `self`.
    fn maximum(self, right: Self) -> Self {
        if self >= right || self.is_nan() { self } else { right }
    }
}

/// A floating-point number of `N` bytes that the machine supports.
pub(crate) trait Float<const N: usize>:
    Lane<N> + Ordered + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Replaces every NaN by one fixed NaN. Sign and payload of computed NaNs differ between machines, even within one
    /// loop.
    fn canonical(self) -> Self;
}

/// Implements the traits for a number of `$bytes` bytes; `$is_nan` tests for NaN.
macro_rules! lane {
    ($type:ty, $bytes:literal, $is_nan:expr) => {
        impl crate::Lane<$bytes> for $type {
            fn get(bytes: [u8; $bytes]) -> Self {
                <$type>::from_ne_bytes(bytes)
            }

            fn put(self) -> [u8; $bytes] {
                self.to_ne_bytes()
            }
        }

        impl crate::numbers::Ordered for $type {
            fn is_nan(self) -> bool {
                $is_nan(self)
            }
        }
    };
}
pub(crate) use lane;

macro_rules! integer {
    ($type:ty, $bytes:literal) => {
        lane!($type, $bytes, |_| false);

        impl Integer<$bytes> for $type {
            fn sum(self, right: Self) -> Self {
                self.wrapping_add(right)
            }

            fn product(self, right: Self) -> Self {
                self.wrapping_mul(right)
            }
        }
    };
}

integer!(i8, 1);
integer!(i16, 2);
integer!(i32, 4);
integer!(i64, 8);
integer!(u8, 1);
integer!(u16, 2);
integer!(u32, 4);
integer!(u64, 8);

macro_rules! float {
    ($type:ident, $bytes:literal, $nan:literal) => {
        lane!($type, $bytes, $type::is_nan);

        impl Float<$bytes> for $type {
            fn canonical(self) -> Self {
                if self.is_nan() { $type::from_bits($nan) } else { self }
            }
        }
    };
}

float!(f32, 4, 0x7fc0_0000);
float!(f64, 8, 0x7ff8_0000_0000_0000);

pub(crate) fn floats<T: Float<N>, const N: usize>(operator: Operator, operands: Operands<'_>) {
    match operator {
        Operator::Sum => each(operands, |a: T, b: T| (a + b).canonical()),
        Operator::Product => each(operands, |a: T, b: T| (a * b).canonical()),
        Operator::Minimum => each(operands, T::minimum),
        Operator::Maximum => each(operands, T::maximum),
        other => undefined(other),
    }
}

/// A complex number of `M = 2 * N` bytes.
#[derive(Clone, Copy)]
struct Complex<T, const N: usize> {
    re: T,
    im: T,
}

impl<T: Float<N>, const N: usize, const M: usize> Lane<M> for Complex<T, N> {
    fn get(bytes: [u8; M]) -> Self {
        let part = |i: usize| T::get(bytes.as_chunks::<N>().0[i]);
        Self { re: part(0), im: part(1) }
    }

    fn put(self) -> [u8; M] {
        let mut bytes = [0; M];
        let parts = bytes.as_chunks_mut::<N>().0;
        parts[0] = self.re.put();
        parts[1] = self.im.put();
        bytes
    }
}

pub(crate) fn complexes<T: Float<N>, const N: usize, const M: usize>(operator: Operator, operands: Operands<'_>) {
    const { assert!(M == 2 * N) };
    let complex = |re: T, im: T| Complex { re: re.canonical(), im: im.canonical() };
    let sum = |a: Complex<T, N>, b: Complex<T, N>| complex(a.re + b.re, a.im + b.im);
    let product = |a: Complex<T, N>, b: Complex<T, N>| complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
    match operator {
        Operator::Sum => each::<_, M>(operands, sum),
        Operator::Product => each::<_, M>(operands, product),
        other => undefined(other),
    }
}
