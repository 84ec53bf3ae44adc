//! The loopback kind passes the conformance suite.

use outboard_fabric::{LoopbackHub, conformance};

#[test]
fn loopback_conforms() {
    let hub = LoopbackHub::new();
    conformance::all(&mut |id, limits| {
        // Each check uses the same ids; those of the checks before are dropped by then.
        Box::new(hub.endpoint(id, limits).expect("a free id"))
    });
}
