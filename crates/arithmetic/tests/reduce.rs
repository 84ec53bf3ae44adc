//! Checks every reduction against a reference that computes one element at a time. Also checks that an element's result
//! has equal bits at any position and alignment, on either side, and however the buffers are cut (TH-2).

use half::{bf16, f16};
use outboard_arithmetic::reduce;
use outboard_call::{Element, Operator, Reduction};
use proptest::prelude::*;

/// A number of any type, so that the reference needs one arithmetic for integers and one for floats.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wide {
    Integer(i128),
    Float(f64),
}

/// The leading bytes as an array.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes[..N].try_into().unwrap()
}

/// The scalar type of an element's parts or value, and its size in bytes.
fn scalar(element: Element) -> (Element, usize) {
    match element {
        Element::ComplexF32 | Element::F32Index => (Element::F32, 4),
        Element::ComplexF64 | Element::F64Index => (Element::F64, 8),
        Element::I64Index => (Element::I64, 8),
        Element::I32Index => (Element::I32, 4),
        Element::I16Index => (Element::I16, 2),
        plain => (plain, plain.bytes() as usize),
    }
}

fn get(scalar: Element, b: &[u8]) -> Wide {
    match scalar {
        Element::I8 => Wide::Integer(i8::from_ne_bytes(array(b)).into()),
        Element::I16 => Wide::Integer(i16::from_ne_bytes(array(b)).into()),
        Element::I32 => Wide::Integer(i32::from_ne_bytes(array(b)).into()),
        Element::I64 => Wide::Integer(i64::from_ne_bytes(array(b)).into()),
        Element::U8 => Wide::Integer(u8::from_ne_bytes(array(b)).into()),
        Element::U16 => Wide::Integer(u16::from_ne_bytes(array(b)).into()),
        Element::U32 => Wide::Integer(u32::from_ne_bytes(array(b)).into()),
        Element::U64 => Wide::Integer(u64::from_ne_bytes(array(b)).into()),
        Element::F16 => Wide::Float(f16::from_ne_bytes(array(b)).into()),
        Element::Bf16 => Wide::Float(bf16::from_ne_bytes(array(b)).into()),
        Element::F32 => Wide::Float(f32::from_ne_bytes(array(b)).into()),
        Element::F64 => Wide::Float(f64::from_ne_bytes(array(b))),
        other => panic!("{other} is no scalar"),
    }
}

/// The scalar nearest to a number: integers lose their upper bits, a NaN its sign and payload.
fn put(scalar: Element, wide: Wide) -> Vec<u8> {
    match (scalar, wide) {
        (Element::F16, Wide::Float(x)) if x.is_nan() => 0x7e00u16.to_ne_bytes().to_vec(),
        (Element::Bf16, Wide::Float(x)) if x.is_nan() => 0x7fc0u16.to_ne_bytes().to_vec(),
        (Element::F32, Wide::Float(x)) if x.is_nan() => 0x7fc0_0000u32.to_ne_bytes().to_vec(),
        (Element::F64, Wide::Float(x)) if x.is_nan() => 0x7ff8_0000_0000_0000u64.to_ne_bytes().to_vec(),
        (Element::F16, Wide::Float(x)) => f16::from_f64(x).to_ne_bytes().to_vec(),
        (Element::Bf16, Wide::Float(x)) => bf16::from_f64(x).to_ne_bytes().to_vec(),
        (Element::F32, Wide::Float(x)) => (x as f32).to_ne_bytes().to_vec(),
        (Element::F64, Wide::Float(x)) => x.to_ne_bytes().to_vec(),
        (Element::I8 | Element::U8, Wide::Integer(x)) => (x as u8).to_ne_bytes().to_vec(),
        (Element::I16 | Element::U16, Wide::Integer(x)) => (x as u16).to_ne_bytes().to_vec(),
        (Element::I32 | Element::U32, Wide::Integer(x)) => (x as u32).to_ne_bytes().to_vec(),
        (Element::I64 | Element::U64, Wide::Integer(x)) => (x as u64).to_ne_bytes().to_vec(),
        (other, wide) => panic!("{wide:?} is no {other}"),
    }
}

fn add(scalar: Element, a: &[u8], b: &[u8]) -> Vec<u8> {
    put(
        scalar,
        match (get(scalar, a), get(scalar, b)) {
            (Wide::Integer(a), Wide::Integer(b)) => Wide::Integer(a + b),
            (Wide::Float(a), Wide::Float(b)) => Wide::Float(a + b),
            mixed => panic!("{mixed:?}"),
        },
    )
}

fn multiply(scalar: Element, a: &[u8], b: &[u8]) -> Vec<u8> {
    put(
        scalar,
        match (get(scalar, a), get(scalar, b)) {
            (Wide::Integer(a), Wide::Integer(b)) => Wide::Integer(a.wrapping_mul(b)),
            (Wide::Float(a), Wide::Float(b)) => Wide::Float(a * b),
            mixed => panic!("{mixed:?}"),
        },
    )
}

/// The scalar with its sign inverted.
fn negated(scalar: Element, a: &[u8]) -> Vec<u8> {
    match get(scalar, a) {
        Wide::Float(x) => put(scalar, Wide::Float(-x)),
        integer @ Wide::Integer(_) => panic!("{integer:?} is not negated"),
    }
}

/// Whether the left operand is the smaller (or larger) one; for equal values the indices decide.
fn picks_left(element: Element, largest: bool, a: &[u8], b: &[u8]) -> bool {
    let (scalar, bytes) = scalar(element);
    let index = |x: &[u8]| i32::from_ne_bytes(array(&x[bytes.next_multiple_of(4)..]));
    match (get(scalar, a), get(scalar, b)) {
        (Wide::Float(a), _) if a.is_nan() => true,
        (_, Wide::Float(b)) if b.is_nan() => false,
        (x, y) if x == y => element == scalar || index(a) <= index(b),
        (Wide::Integer(a), Wide::Integer(b)) => (a > b) == largest,
        (Wide::Float(a), Wide::Float(b)) => (a > b) == largest,
        mixed => panic!("{mixed:?}"),
    }
}

/// `a * b` of one element, computed slowly and obviously.
fn expected(reduction: Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    let element = reduction.element();
    let (scalar, n) = scalar(element);
    let complex = matches!(element, Element::ComplexF32 | Element::ComplexF64);
    let truth = |x: &[u8]| x.iter().any(|byte| *byte != 0);
    let logical = |truth: bool| put(scalar, Wide::Integer(truth.into()));
    let bits = |f: fn(u8, u8) -> u8| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
    let pick = |largest| if picks_left(element, largest, a, b) { a.to_vec() } else { b.to_vec() };
    let mul = |a: &[u8], b: &[u8]| multiply(scalar, a, b);
    match reduction.operator() {
        Operator::Sum if complex => [add(scalar, &a[..n], &b[..n]), add(scalar, &a[n..], &b[n..])].concat(),
        Operator::Product if complex => {
            let (re, im) = (a.split_at(n).0, a.split_at(n).1);
            let minus = negated(scalar, &mul(im, &b[n..]));
            let real = add(scalar, &mul(re, &b[..n]), &minus);
            [real, add(scalar, &mul(re, &b[n..]), &mul(im, &b[..n]))].concat()
        }
        Operator::Sum => add(scalar, a, b),
        Operator::Product => mul(a, b),
        Operator::Minimum | Operator::MinimumLocation => pick(false),
        Operator::Maximum | Operator::MaximumLocation => pick(true),
        Operator::BitAnd => bits(|a, b| a & b),
        Operator::BitOr => bits(|a, b| a | b),
        Operator::BitXor => bits(|a, b| a ^ b),
        Operator::LogicalAnd => logical(truth(a) && truth(b)),
        Operator::LogicalOr => logical(truth(a) || truth(b)),
        Operator::LogicalXor => logical(truth(a) != truth(b)),
    }
}

/// Bit patterns at the edges: zeros of both signs, infinities, NaN with sign and payload, the smallest numbers, ones.
fn special(scalar: Element, pick: usize) -> Vec<u8> {
    let of16 = |p: [u16; 10]| p[pick % 10].to_ne_bytes().to_vec();
    match scalar {
        Element::F16 => of16([0, 1 << 15, 0x7c00, 0xfc00, 0x7e01, 0xfc01, 1, 0x83ff, 0x3c00, 0x7bff]),
        Element::Bf16 => of16([0, 1 << 15, 0x7f80, 0xff80, 0x7fc1, 0xff81, 1, 0x807f, 0x3f80, 0x7f7f]),
        Element::F32 => {
            let patterns: [u32; 8] = [0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xff80_0001, 1, 0x3f80_0000];
            patterns[pick % 8].to_ne_bytes().to_vec()
        }
        Element::F64 => {
            let (infinity, one) = (0x7ff0u64 << 48, 0x3ff0u64 << 48);
            let patterns = [0, 1 << 63, infinity, infinity | 1 << 63, infinity | 1, u64::MAX, 1, one];
            patterns[pick % 8].to_ne_bytes().to_vec()
        }
        integer => put(integer, Wide::Integer([0, 1, -1, i128::from(i64::MIN), 7][pick % 5])),
    }
}

/// An element: either random bits, or special patterns in all scalars and a small index.
fn bytes(element: Element) -> impl Strategy<Value = Vec<u8>> {
    let (scalar, n) = scalar(element);
    let len = element.bytes() as usize;
    let specials = (any::<[usize; 2]>(), 0..3u8).prop_map(move |(picks, index)| {
        let mut bytes = special(scalar, picks[0]);
        bytes.resize(len, 0);
        match element {
            Element::ComplexF32 | Element::ComplexF64 => bytes[n..].copy_from_slice(&special(scalar, picks[1])),
            _ if len > n => {
                let at = n.next_multiple_of(4);
                bytes[at..at + 4].copy_from_slice(&i32::from(index).to_ne_bytes());
            }
            _ => {}
        }
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), len), specials]
}

#[derive(Debug, Clone)]
struct Case {
    reduction: Reduction,
    from: Vec<Vec<u8>>,
    into: Vec<Vec<u8>>,
    from_left: bool,
    /// Bytes before the elements, which set their alignment.
    shift: usize,
    /// Elements before a cut.
    cut: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let all: Vec<Reduction> = Reduction::all().collect();
    // Counts near the size of a vector, and near the batch size of 16-bit floats.
    let counts = prop_oneof![4 => 0..40usize, 1 => 250..270usize];
    (prop::sample::select(all), counts, any::<bool>(), 0..9usize, any::<prop::sample::Index>()).prop_flat_map(
        |(reduction, count, from_left, shift, cut)| {
            let vector = || prop::collection::vec(bytes(reduction.element()), count);
            let cut = cut.index(count + 1);
            (vector(), vector()).prop_map(move |(from, into)| Case { reduction, from, into, from_left, shift, cut })
        },
    )
}

impl Case {
    /// Reduces the shifted elements in two parts.
    fn run(&self) -> Vec<u8> {
        let shifted = |elements: &[Vec<u8>]| [vec![0; self.shift], elements.concat()].concat();
        let (from, mut into) = (shifted(&self.from), shifted(&self.into));
        let cut = self.cut * self.reduction.element().bytes() as usize;
        let (from, into) = (&from[self.shift..], &mut into[self.shift..]);
        reduce(self.reduction, &from[..cut], &mut into[..cut], self.from_left);
        reduce(self.reduction, &from[cut..], &mut into[cut..], self.from_left);
        into.to_vec()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_reduction_is_the_reference(case in case()) {
        let pairs = case.from.iter().zip(&case.into);
        let sides = pairs.map(|(from, into)| if case.from_left { (from, into) } else { (into, from) });
        let expected: Vec<Vec<u8>> = sides.map(|(a, b)| expected(case.reduction, a, b)).collect();
        let found = case.run();
        let len = case.reduction.element().bytes() as usize;
        for (i, expected) in expected.iter().enumerate() {
            prop_assert_eq!(&found[i * len..][..len], expected, "{} element {}", case.reduction, i);
        }
        prop_assert_eq!(found.len(), expected.len() * len);
    }

    #[test]
    fn from_left_selects_the_left_operand(mut case in case()) {
        let found = case.run();
        std::mem::swap(&mut case.from, &mut case.into);
        case.from_left = !case.from_left;
        prop_assert_eq!(found, case.run());
    }
}

/// Results computed by hand, so that the reference does not only confirm itself.
#[test]
fn known_results() {
    let run = |operator, element, a: &[u8], b: &[u8]| {
        let mut into = b.to_vec();
        reduce(Reduction::new(operator, element).unwrap(), a, &mut into, true);
        into
    };
    let float = |x: f32| x.to_ne_bytes();
    assert_eq!(run(Operator::Sum, Element::I8, &[127], &[1]), [128]);
    assert_eq!(
        run(Operator::Product, Element::U16, &300u16.to_ne_bytes(), &300u16.to_ne_bytes()),
        24464u16.to_ne_bytes()
    );
    assert_eq!(run(Operator::LogicalXor, Element::U8, &[2, 0, 0, 3], &[4, 0, 9, 0]), [0, 0, 1, 1]);
    assert_eq!(run(Operator::Minimum, Element::F32, &float(0.0), &float(-0.0)), float(0.0));
    assert_eq!(run(Operator::Maximum, Element::F32, &float(1.0), &float(-f32::NAN)), float(-f32::NAN));
    // (1 + 2i) (3 + 4i) = -5 + 10i
    let complex = |re, im| [float(re), float(im)].concat();
    assert_eq!(
        run(Operator::Product, Element::ComplexF32, &complex(1.0, 2.0), &complex(3.0, 4.0)),
        complex(-5.0, 10.0)
    );
    // 2048 + 1 lies in the middle between two numbers of 11 bits, and rounds to the even one.
    let half = |x: f32| f16::from_f32(x).to_ne_bytes();
    assert_eq!(run(Operator::Sum, Element::F16, &half(2048.0), &half(1.0)), half(2048.0));
    assert_eq!(run(Operator::Sum, Element::F16, &half(2050.0), &half(1.0)), half(2052.0));
    let pair = |value: f32, index: i32| [value.to_ne_bytes(), index.to_ne_bytes()].concat();
    let least = |a: &[u8], b: &[u8]| run(Operator::MinimumLocation, Element::F32Index, a, b);
    assert_eq!(least(&pair(1.0, 7), &pair(1.0, 3)), pair(1.0, 3));
    assert_eq!(least(&pair(2.0, 0), &pair(1.0, 3)), pair(1.0, 3));
    assert_eq!(least(&pair(1.0, -1), &pair(1.0, 3)), pair(1.0, -1));
}

#[test]
#[should_panic(expected = "are no whole elements of sum of i32")]
fn part_of_an_element_is_refused() {
    reduce(Reduction::new(Operator::Sum, Element::I32).unwrap(), &[0; 6], &mut [0; 6], true);
}
