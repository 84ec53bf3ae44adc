//! Plans as datapath accelerators carry them out ([`outboard_nic::datapath`]): the programs, where something is
//! multicast.

use std::sync::Arc;

use outboard_nic::datapath::{Refusal, Settings};
use outboard_plan::selection::Choice;
use outboard_plan::{Arguments, PlanError, Program, Rank, program};
use thiserror::Error;

/// Why a call is not carried out by datapath accelerators.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LowerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The programs of all ranks, in rank order.
pub fn lower(choice: Choice, arguments: &Arguments<'_>, settings: &Settings) -> Result<Vec<Arc<Program>>, LowerError> {
    let one = |rank| {
        let program = program(choice, arguments, rank)?;
        settings.admit(&program)?;
        Ok(Arc::new(program))
    };
    (0..arguments.topology.ranks()).map(Rank).map(one).collect()
}
