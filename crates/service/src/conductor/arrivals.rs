//! Arrivals of the unicast fabric: frames go to the protocol machine, payloads to the memory that the machine names.

use outboard_fabric::{FabricEvent, MessageReceiver, PeerId, PeerLoss};
use outboard_proto::SpId;
use outboard_shm::memory::ScatterList;
use serde_json::json;

use crate::driver::EndpointDriver;
use crate::telemetry::statistics::Statistics;
use crate::telemetry::trace::TimelineFile;

pub(super) struct FabricArrivals<'a> {
    pub(super) driver: &'a mut EndpointDriver,
    pub(super) statistics: &'a mut Statistics,
    pub(super) trace: &'a mut Option<TimelineFile>,
    pub(super) lost: Vec<(SpId, PeerLoss)>,
}

impl FabricArrivals<'_> {
    fn frame(&mut self, from: SpId, length: usize, handle: impl FnOnce(&mut EndpointDriver)) {
        self.statistics.datapath.frames_received += 1;
        let since = self.trace.as_ref().filter(|_| length > 0).map(|_| TimelineFile::now());
        handle(self.driver);
        if let (Some(trace), Some(since)) = (self.trace.as_mut(), since) {
            trace.did("receive unicast", since, json!({ "from": from.to_string(), "bytes": length }));
        }
    }
}

impl MessageReceiver for FabricArrivals<'_> {
    fn event(&mut self, event: FabricEvent<'_>) {
        match event {
            FabricEvent::Message { from, header, payload } => {
                let from = SpId(from.0);
                self.frame(from, payload.len(), |driver| driver.frame(from, header, payload));
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
        self.driver.direct_placement(SpId(from.0), header, length)
    }

    fn handle_placed(&mut self, from: PeerId, header: &[u8], length: usize) {
        let from = SpId(from.0);
        self.frame(from, length, |driver| driver.placed_frame(from, header, length));
    }
}
