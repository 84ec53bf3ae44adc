//! All tests of plans and what is done with them: one program, since each more is built for seconds.

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
