//! All tests of simulated groups, in one program.

mod allgather;
mod allgatherv;
mod alltoall;
mod barrier;
mod broadcast;
mod choices;
mod datapath;
mod exhaustive;
mod fairness;
mod figures;
mod hostile;
mod mixed;
mod nics;
mod oracles;
mod overdue;
mod partitions;
mod recorded;
mod reduction;
mod sequences;
mod small;
mod triggered;
