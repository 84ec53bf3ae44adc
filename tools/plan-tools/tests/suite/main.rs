//! All tests of plans and their tools, in one program.

mod alltoall;
mod costs;
mod damage;
mod goal;
mod proofs;
mod random_plans;
mod selection;
mod support;
mod text;
mod triggered;
mod verify;
mod verify_reduction;
