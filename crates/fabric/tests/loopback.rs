//! The loopback kind passes the conformance suite.

use outboard_fabric::{LoopbackHub, PeerId, conformance};

#[test]
fn loopback_conforms() {
    let hub = LoopbackHub::new();
    conformance::all(&mut |number, limits| {
        // Each check uses the same ids; those of the checks before are dropped by then.
        Box::new(hub.endpoint(PeerId(number + 1), limits).expect("a free id"))
    });
}
