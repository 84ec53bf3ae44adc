//! Operators and elements of reductions.
//!
//! A [`Reduction`] is part of the signature of a call, so operators and elements have codes that never change meaning.
//! Plans use both orders of the operands: floating-point results depend on the order of contributions, and that order
//! must depend on the plan alone. This module never computes anything.

use std::fmt;

use thiserror::Error;

/// An enum whose variants have numbers and names.
macro_rules! numbered {
    (
        $(#[$doc:meta])*
        pub enum $name:ident { $($(#[$about:meta])* $variant:ident = $code:literal, $text:literal;)+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$about])* $variant = $code,)+
        }

        impl $name {
            const ALL: &[$name] = &[$($name::$variant),+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $text,)+
                })
            }
        }
    };
}

numbered! {
    /// Combines two elements into one. All operators are associative and commutative, except for the rounding of
    /// floating-point numbers.
    pub enum Operator {
        /// `a + b`; integers wrap, and every NaN result becomes the positive quiet NaN without payload.
        Sum = 1, "sum";
        /// `a * b`; integers wrap, and NaN results become the same NaN as in [`Self::Sum`].
        Product = 2, "product";
        /// The smaller value. A floating-point NaN wins; of two NaNs, the left one wins.
        Minimum = 3, "minimum";
        /// The larger value. A floating-point NaN wins; of two NaNs, the left one wins.
        Maximum = 4, "maximum";
        /// The pair with the smaller value. If the values are equal, the smaller index wins. A NaN wins as in
        /// [`Self::Minimum`].
        MinimumLocation = 5, "minimum with location";
        /// The pair with the larger value. If the values are equal, the smaller index wins. A NaN wins as in
        /// [`Self::Maximum`].
        MaximumLocation = 6, "maximum with location";
        /// `a & b`.
        BitAnd = 7, "bitwise and";
        /// `a | b`.
        BitOr = 8, "bitwise or";
        /// `a ^ b`.
        BitXor = 9, "bitwise exclusive or";
        /// 1 if both operands are not 0, else 0.
        LogicalAnd = 10, "logical and";
        /// 1 if at least one operand is not 0, else 0.
        LogicalOr = 11, "logical or";
        /// 1 if exactly one operand is not 0, else 0.
        LogicalXor = 12, "logical exclusive or";
    }
}

numbered! {
    /// The element type of a buffer, in the byte order of the machine.
    pub enum Element {
        I8 = 1, "i8";
        I16 = 2, "i16";
        I32 = 3, "i32";
        I64 = 4, "i64";
        U8 = 5, "u8";
        U16 = 6, "u16";
        U32 = 7, "u32";
        U64 = 8, "u64";
        /// IEEE 754 binary16.
        F16 = 9, "f16";
        /// The upper half of a binary32.
        Bf16 = 10, "bf16";
        /// IEEE 754 binary32.
        F32 = 11, "f32";
        /// IEEE 754 binary64.
        F64 = 12, "f64";
        /// Two [`Element::F32`]: real and imaginary part.
        ComplexF32 = 13, "complex f32";
        /// Two [`Element::F64`]: real and imaginary part.
        ComplexF64 = 14, "complex f64";
        /// `struct { float value; int index; }` (`MPI_FLOAT_INT`).
        F32Index = 15, "(f32, i32)";
        /// `struct { double value; int index; }` (`MPI_DOUBLE_INT`), 4 bytes of padding behind.
        F64Index = 16, "(f64, i32)";
        /// `struct { long value; int index; }` (`MPI_LONG_INT`), 4 bytes of padding behind.
        I64Index = 17, "(i64, i32)";
        /// `struct { int value; int index; }` (`MPI_2INT`).
        I32Index = 18, "(i32, i32)";
        /// `struct { short value; int index; }` (`MPI_SHORT_INT`), 2 bytes of padding between.
        I16Index = 19, "(i16, i32)";
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reduction {
    operator: Operator,
    element: Element,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReductionError {
    #[error("no {operator} of {element}: MPI defines it for other types")]
    Undefined { operator: Operator, element: Element },
    #[error("no reduction has code {code:#06x}")]
    Code { code: u16 },
}

/// The kinds of elements for which MPI's operators are defined (MPI 4.1, section 6.9.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum ElementClass {
    Integer,
    Float,
    Complex,
    Pair,
}

impl Element {
    /// Distance between two elements of an array in bytes, padding included.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64
            | Element::U64
            | Element::F64
            | Element::ComplexF32
            | Element::F32Index
            | Element::I32Index
            | Element::I16Index => 8,
            Element::ComplexF64 | Element::F64Index | Element::I64Index => 16,
        }
    }

    const fn class(self) -> ElementClass {
        match self {
            Element::I8
            | Element::I16
            | Element::I32
            | Element::I64
            | Element::U8
            | Element::U16
            | Element::U32
            | Element::U64 => ElementClass::Integer,
            Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => ElementClass::Float,
            Element::ComplexF32 | Element::ComplexF64 => ElementClass::Complex,
            Element::F32Index | Element::F64Index | Element::I64Index | Element::I32Index | Element::I16Index => {
                ElementClass::Pair
            }
        }
    }
}

impl Reduction {
    /// `operator` over `element`.
    ///
    /// # Errors
    /// When MPI does not define the operator for the element.
    pub fn new(operator: Operator, element: Element) -> Result<Self, ReductionError> {
        let class = element.class();
        let defined = match operator {
            Operator::Sum | Operator::Product => class != ElementClass::Pair,
            Operator::Minimum | Operator::Maximum => matches!(class, ElementClass::Integer | ElementClass::Float),
            Operator::MinimumLocation | Operator::MaximumLocation => class == ElementClass::Pair,
            Operator::BitAnd
            | Operator::BitOr
            | Operator::BitXor
            | Operator::LogicalAnd
            | Operator::LogicalOr
            | Operator::LogicalXor => class == ElementClass::Integer,
        };
        if defined { Ok(Self { operator, element }) } else { Err(ReductionError::Undefined { operator, element }) }
    }

    #[must_use]
    pub const fn operator(self) -> Operator {
        self.operator
    }

    #[must_use]
    pub const fn element(self) -> Element {
        self.element
    }

    /// The code in messages and in shared memory: the operator in the upper byte, the element in the lower.
    #[must_use]
    pub const fn code(self) -> u16 {
        (self.operator as u16) << 8 | self.element as u16
    }

    /// The reduction with this code; the inverse of [`Self::code`].
    pub fn from_code(code: u16) -> Result<Self, ReductionError> {
        let operator = Operator::ALL.iter().copied().find(|o| *o as u16 == code >> 8);
        let element = Element::ALL.iter().copied().find(|e| *e as u16 == code & 0xff);
        match (operator, element) {
            (Some(operator), Some(element)) => Self::new(operator, element),
            _ => Err(ReductionError::Code { code }),
        }
    }

    pub fn all() -> impl Iterator<Item = Reduction> {
        let of = |operator: &Operator| {
            let operator = *operator;
            Element::ALL.iter().map(move |element| Self::new(operator, *element))
        };
        Operator::ALL.iter().flat_map(of).flatten()
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.operator, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reduction_code_decodes_and_no_other_does() {
        let known: Vec<u16> = Reduction::all().map(Reduction::code).collect();
        for code in 0..=u16::MAX {
            match Reduction::from_code(code) {
                Ok(reduction) => assert_eq!(reduction.code(), code),
                Err(_) => assert!(!known.contains(&code)),
            }
        }
        // 2 operators for 14 numbers, 2 for 12 ordered numbers, 2 for 5 pairs, 6 for 8 integers.
        assert_eq!(known.len(), 2 * 14 + 2 * 12 + 2 * 5 + 6 * 8);
    }

    #[test]
    fn undefined_reduction_is_rejected_by_name() {
        let refused = Reduction::new(Operator::BitAnd, Element::F32).unwrap_err();
        assert_eq!(refused.to_string(), "no bitwise and of f32: MPI defines it for other types");
    }
}
