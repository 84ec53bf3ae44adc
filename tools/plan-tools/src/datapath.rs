//! Plans for datapath accelerators ([`outboard_nic::datapath`]): the unchanged programs of calls that multicast.

use std::sync::Arc;

use outboard_nic::datapath::{DatapathError, DatapathSettings};
use outboard_plan::selection::Choice;
use outboard_plan::{Arguments, PlanError, Program, Rank, program};
use thiserror::Error;

/// The reason why datapath accelerators do not carry out a call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DatapathLowerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Refused(#[from] DatapathError),
}

/// The programs of all ranks, in rank order.
pub fn lower(
    choice: Choice,
    arguments: &Arguments<'_>,
    settings: &DatapathSettings,
) -> Result<Vec<Arc<Program>>, DatapathLowerError> {
    let one = |rank| {
        let program = program(choice, arguments, rank)?;
        settings.admit(&program)?;
        Ok(Arc::new(program))
    };
    (0..arguments.topology.ranks()).map(Rank).map(one).collect()
}
