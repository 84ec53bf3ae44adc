//! Arrivals of the unicast fabric: frames go to the machine, payloads to the memory that the machine names.

use outboard_fabric::{FabricEvent, MessageReceiver, PeerId, PeerLoss};
use outboard_proto::SpId;
use outboard_shm::memory::ScatterList;
use serde_json::json;

use crate::conductor::engine::Engine;
use crate::telemetry::statistics::Statistics;
use crate::telemetry::trace::Trace;

pub(super) struct Arrivals<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) statistics: &'a mut Statistics,
    pub(super) trace: &'a mut Option<Trace>,
    pub(super) lost: Vec<(SpId, PeerLoss)>,
}

impl Arrivals<'_> {
    fn frame(&mut self, from: SpId, length: usize, handle: impl FnOnce(&mut Engine)) {
        self.statistics.datapath.frames_received += 1;
        let since = self.trace.as_ref().filter(|_| length > 0).map(|_| Trace::now());
        handle(self.engine);
        if let (Some(trace), Some(since)) = (self.trace.as_mut(), since) {
            trace.did("receive unicast", since, json!({ "from": from.to_string(), "bytes": length }));
        }
    }
}

impl MessageReceiver for Arrivals<'_> {
    fn event(&mut self, event: FabricEvent<'_>) {
        match event {
            FabricEvent::Message { from, header, payload } => {
                let from = SpId(from.0);
                self.frame(from, payload.len(), |engine| engine.frame(from, header, payload));
            }
            FabricEvent::PeerLost { peer, why } => {
                tracing::info!(%peer, %why, "a service process is lost");
                self.lost.push((SpId(peer.0), why));
            }
            // Each turn tries waiting frames again.
            FabricEvent::Room => {}
        }
    }

    fn placement(&mut self, from: PeerId, header: &[u8], length: usize) -> Option<ScatterList> {
        self.engine.landing(SpId(from.0), header, length)
    }

    fn handle_placed(&mut self, from: PeerId, header: &[u8], length: usize) {
        let from = SpId(from.0);
        self.frame(from, length, |engine| engine.landed(from, header, length));
    }
}
