//! Plans that processes progress themselves ([`outboard_nic::host`]): the unchanged programs.

use std::sync::Arc;

use outboard_plan::selection::Choice;
use outboard_plan::{Arguments, Op, OpId, PlanError, Program, Rank, program};
use thiserror::Error;

use crate::verify::StepLocation;

/// The reason why processes do not carry out a call themselves.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostLowerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{at}: processes send to one another; choose an algorithm without multicast")]
    Multicast { at: Box<StepLocation> },
}

/// The programs of all ranks, in rank order.
pub fn lower(choice: Choice, arguments: &Arguments<'_>) -> Result<Vec<Arc<Program>>, HostLowerError> {
    let one = |rank| {
        let program = program(choice, arguments, rank)?;
        let multicasts = |op: Op| matches!(op, Op::Multicast { .. } | Op::MulticastRecv { .. });
        match program.steps.iter().position(|step| multicasts(step.op)) {
            Some(step) => Err(HostLowerError::Multicast { at: StepLocation::new(&program, OpId(step as u32)).boxed() }),
            None => Ok(Arc::new(program)),
        }
    };
    (0..arguments.topology.ranks()).map(Rank).map(one).collect()
}
