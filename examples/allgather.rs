//! The smallest program. Every rank contributes one number and receives the numbers of all ranks.
//!
//!     make build && cargo build --release -p outboard-client --example allgather
//!     target/release/outboard run -n 4 -- target/release/examples/allgather

use outboard::{Context, Contribution, Error};

fn main() -> Result<(), Error> {
    let (context, world) = Context::init()?;
    let (rank, ranks) = (world.rank()?, world.size()?);
    let mine = u64::from(rank * rank);
    let mut all = vec![0_u64; ranks as usize];
    // SAFETY: both buffers outlive the request, and nothing touches them before the request has completed.
    let mut request =
        unsafe { world.iallgather(Contribution::At((&raw const mine).cast()), all.as_mut_ptr().cast(), 8)? };
    // The service process gathers; the rank computes here.
    request.wait(None).expect("without a limit a wait ends with the request")?;
    if rank == 0 {
        all.iter().enumerate().for_each(|(from, number)| println!("rank {from} sent {number}"));
    }
    world.destroy()?;
    context.detach()
}
