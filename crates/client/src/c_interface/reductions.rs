//! The functions of `outboard.h` that post reductions, and the operators that they use.

use super::{contribution, enter, list, place, store};
use crate::error::Error;
use crate::group::{Group, ReductionOutcome};
use crate::lock::lock;
use crate::operator::{ReductionOperator, UserOperator};
use crate::request::Request;
use outboard_call::Reduction;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

/// The number of the first operator of the program: the operators of the header fit a byte.
const FIRST_USER_OPERATOR: c_int = 256;

/// The operators of the program by their numbers. Numbers are never reused.
static USER_OPERATORS: Mutex<UserOperators> =
    Mutex::new(UserOperators { last: FIRST_USER_OPERATOR - 1, by_number: BTreeMap::new() });

struct UserOperators {
    last: c_int,
    by_number: BTreeMap<c_int, UserOperator>,
}

impl UserOperators {
    fn get(&self, op: c_int) -> Result<&UserOperator, Error> {
        let problem = || format!("is {op}, which no operator has, or none any more: outboard_op_create gives numbers");
        self.by_number.get(&op).ok_or_else(|| Error::argument("op", problem()))
    }
}

/// `outboard_op_function`: left operands, right operands and results, how many, `context`.
type OpFunction = unsafe extern "C" fn(*const c_void, *mut c_void, usize, *mut c_void);

/// A C function and its `context` pointer.
struct Callback {
    function: OpFunction,
    context: *mut c_void,
    element_bytes: usize,
}

// SAFETY: the header requires a function that several threads may call at a time.
unsafe impl Send for Callback {}
// SAFETY: the header requires a function that several threads may call at a time.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, left: &[u8], right: &mut [u8]) {
        let count = right.len() / self.element_bytes;
        // SAFETY: two vectors of `count` elements, as the header promises the function. Only this call uses the second.
        unsafe { (self.function)(left.as_ptr().cast(), right.as_mut_ptr().cast(), count, self.context) }
    }
}

functions! {
    extern "C" fn outboard_op_create(
        function: Option<OpFunction>, element_bytes: usize, context: *mut c_void, op: *mut c_int
    ) {
        place(op, "op")?;
        let function = function.ok_or_else(|| super::null("function"))?;
        let callback = Callback { function, context, element_bytes };
        let operator = UserOperator::new(element_bytes, move |left, right| callback.call(left, right))?;
        let mut own = lock(&USER_OPERATORS);
        let exhausted = || Error::Resource("this process has made more operators than there are numbers".to_owned());
        own.last = own.last.checked_add(1).ok_or_else(exhausted)?;
        let number = own.last;
        own.by_number.insert(number, operator);
        store(op, number, "op")
    }
}

#[unsafe(no_mangle)]
extern "C" fn outboard_op_free(op: c_int) -> c_int {
    enter(|| {
        let mut own = lock(&USER_OPERATORS);
        // All holders but the table itself are requests.
        let count = own.get(op)?.holders() - 1;
        if count > 0 {
            let what = "requests with it have not ended; test or wait for them first";
            return Err(Error::Busy { action: "free the operator", count, what });
        }
        own.by_number.remove(&op);
        Ok(())
    })
}

/// The reduction by an operator and an element of the header.
pub(super) fn reduction(op: c_int, element: c_int) -> Result<Reduction, Error> {
    let code = |number: c_int, argument| {
        u8::try_from(number).map_err(|_| Error::argument(argument, format!("is {number}, which stands for nothing")))
    };
    if op >= FIRST_USER_OPERATOR {
        let problem = format!("is {op}, an operator of the program's own, which the service process cannot call");
        return Err(Error::argument("op", problem));
    }
    let code = u16::from_be_bytes([code(op, "op")?, code(element, "element")?]);
    Reduction::from_code(code).map_err(|problem| Error::argument("op", format!("does not fit: {problem}")))
}

/// The reduction by an operator of the header or of the program.
fn combination(op: c_int, element: c_int) -> Result<ReductionOperator, Error> {
    if op < FIRST_USER_OPERATOR {
        return reduction(op, element).map(ReductionOperator::BuiltIn);
    }
    if element != 0 {
        let problem = format!("is {element}; an operator of the program's own knows its elements, so give 0");
        return Err(Error::argument("element", problem));
    }
    Ok(ReductionOperator::from(lock(&USER_OPERATORS).get(op)?))
}

/// Posts a reduction.
///
/// # Safety
/// The buffers are as the header requires.
unsafe fn reduce(
    group: &Group,
    outcome: ReductionOutcome<'_>,
    op: c_int,
    element: c_int,
    send: *const c_void,
    receive: *mut c_void,
) -> Result<Request, Error> {
    // SAFETY: the caller's promise.
    unsafe { group.ireduction(outcome, combination(op, element)?, contribution(send), receive.cast()) }
}

/// Defines functions of reductions to which all ranks contribute `count` elements.
macro_rules! of_vectors {
    ($(extern $abi:literal fn $name:ident($count:ident $(, $root:ident: $type:ty)?) => $outcome:expr;)+) => {
        posts! {
            $(extern $abi fn $name(
                send: *const c_void, receive: *mut c_void, $count: u64, op: c_int, element: c_int $(, $root: $type)?
            ) => |group| reduce(group, $outcome, op, element, send, receive);)+
        }
    };
}

of_vectors! {
    extern "C" fn outboard_ireduce(count, root: u32) => ReductionOutcome::Reduce { root, count };
    extern "C" fn outboard_iallreduce(count) => ReductionOutcome::Allreduce { count };
    extern "C" fn outboard_ireduce_scatter_block(count) => ReductionOutcome::ReduceScatterBlock { count };
    extern "C" fn outboard_iscan(count) => ReductionOutcome::Scan { count, inclusive: true };
    extern "C" fn outboard_iexscan(count) => ReductionOutcome::Scan { count, inclusive: false };
}

posts! {
    extern "C" fn outboard_ireduce_scatter(
        send: *const c_void, receive: *mut c_void, counts: *const u64, op: c_int, element: c_int
    ) => |group| {
        let counts = list(counts, group.size()?, "counts")?;
        reduce(group, ReductionOutcome::ReduceScatter { counts }, op, element, send, receive)
    };
}
