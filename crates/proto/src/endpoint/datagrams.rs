//! The way of a received datagram to its block. Per datagram: two look-ups, a keyed tag, one bit; no allocation.

use outboard_plan::Rank;

use super::Endpoint;
use crate::instance::Instance;
use crate::interface::ReceivedDatagram;
use crate::wire::DatagramHeader;

impl Endpoint {
    pub(super) fn route_datagrams(&mut self, batch: &[ReceivedDatagram<'_>]) {
        for (payload, datagram) in batch.iter().enumerate() {
            if let Err(what) = self.route_datagram(payload as u32, datagram) {
                self.node.out.violation(None, what);
            }
        }
        // Blocks that are whole may let steps go on.
        let groups = batch.iter().filter_map(|datagram| Some(DatagramHeader::parse(datagram.header).ok()?.group));
        let mut last = None;
        for group in groups {
            if last.replace(group) != Some(group) {
                self.groups.get_mut(&group).into_iter().for_each(|g| g.run_steps(&mut self.node));
            }
        }
    }

    fn route_datagram(&mut self, payload: u32, datagram: &ReceivedDatagram<'_>) -> Result<(), &'static str> {
        let header = DatagramHeader::parse(datagram.header).map_err(|_| "a malformed datagram")?;
        let Some(group) = self.groups.get_mut(&header.group) else {
            // Another job on the same address, or a group that has ended.
            self.node.out.counters.datagrams_stale += 1;
            return Ok(());
        };
        let source = Rank(header.source.into());
        if group.members.local(source).is_some() {
            // Our own, come back because siblings on this host listen (SP-8).
            return Ok(());
        }
        DatagramHeader::check(datagram.header, group.members.key).map_err(|_| "a datagram with a wrong tag")?;
        if !group.members.has_rank(source) {
            return Err("a datagram of a rank that is not in the group");
        }
        let instance = group.expand_epoch(header.epoch);
        let (mut cx, found) = group.parts((&self.node.config, &mut self.node.out), instance);
        let Some(collective) = found.and_then(Instance::collective).filter(|c| c.alive()) else {
            cx.out.counters.datagrams_stale += 1;
            return Ok(());
        };
        let known = collective.handle_datagram(&mut cx, source, header.chunk.into(), (payload, datagram.payload_len));
        if known { Ok(()) } else { Err("a datagram that cannot belong to its collective") }
    }
}
