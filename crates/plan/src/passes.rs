//! Passes: programs into programs that do the same in another way.
//!
//! Each pass looks at one rank's program and agrees by itself with what it makes of the peers' programs, so a group
//! that applies the same passes in the same order needs no words about it. What a program promises holds behind a pass
//! as before it; the verifier shows it.
//!
//! | pass | makes |
//! |---|---|
//! | [`fuse_copies`] | one copy of copies that adjoin |
//! | [`ports()`] | sends wait until less than so many are on their way |

mod fuse;

pub use fuse::fuse_copies;

use std::collections::VecDeque;

use crate::program::{Op, OpId, Program};

/// The same with at most `ports`, at least 1, messages of data on their way at a time: a send, or multicast, follows the one that is
/// `ports` before it in the program (the k ports of CD-2; the bounded batches of GP-8).
///
/// Sends then leave in the order of the program. So there must be an order of all messages of the group that every
/// program keeps and in which what a send follows comes before it; rounds are such an order, and all programs of this
/// crate list sends by rounds. Elsewhere ranks may come to wait for each other, which the verifier finds.
#[must_use]
pub fn ports(mut program: Program, ports: u32) -> Program {
    let ports = ports.max(1) as usize;
    let mut on_their_way: VecDeque<OpId> = VecDeque::new();
    for (id, step) in (0..).map(OpId).zip(&mut program.steps) {
        match step.op {
            Op::Send { span, .. } | Op::Multicast { span } if !span.is_empty() => {}
            Op::Send { .. }
            | Op::Multicast { .. }
            | Op::Recv { .. }
            | Op::MulticastRecv { .. }
            | Op::Copy { .. }
            | Op::Reduce { .. } => continue,
        }
        if on_their_way.len() == ports {
            let earlier = on_their_way.pop_front().expect("there is a port");
            if !step.after.contains(&earlier) {
                step.after.push(earlier);
            }
        }
        on_their_way.push_back(id);
    }
    program
}
