//! Routes a received datagram to its block. Per datagram: two look-ups, a keyed tag, one bit; no allocation.
//!
//! The tag of a datagram covers header, instance and payload. No field is trusted before the tag is checked; until then
//! the header only selects the key. Refused datagrams are counted.

use outboard_plan::Rank;

use super::Endpoint;
use crate::ids::GroupHandle;
use crate::interface::ReceivedDatagram;
use crate::wire::DatagramHeader;

impl Endpoint {
    pub(super) fn route_datagrams(&mut self, batch: &[ReceivedDatagram<'_>]) {
        let mut reached = None;
        for (payload, datagram) in batch.iter().enumerate() {
            match self.route_datagram(payload as u32, datagram) {
                Ok(None) => {}
                Ok(Some(group)) if reached == Some(group) => {}
                Ok(Some(group)) => self.run_steps_of(reached.replace(group)),
                Err(what) => {
                    self.node.out.counters.datagrams_refused += 1;
                    self.node.out.violation(None, what);
                }
            }
        }
        self.run_steps_of(reached);
    }

    /// Runs the steps of a group that whole blocks may have enabled.
    fn run_steps_of(&mut self, group: Option<GroupHandle>) {
        if let Some(g) = group.and_then(|group| self.groups.get_mut(&group)) {
            g.run_steps(&mut self.node);
        }
    }

    /// Returns the group whose collective the datagram has reached, if any.
    fn route_datagram(
        &mut self,
        payload: u32,
        datagram: &ReceivedDatagram<'_>,
    ) -> Result<Option<GroupHandle>, &'static str> {
        let header = DatagramHeader::parse(datagram.header).map_err(|_| "a malformed datagram")?;
        let Some(group) = self.groups.get_mut(&header.group) else {
            // The datagram belongs to another job on the same address, or to an ended group.
            self.node.out.counters.datagrams_stale += 1;
            return Ok(None);
        };
        let source = Rank(header.source.into());
        if group.members.local(source).is_some() {
            // Our own datagram has come back because siblings on this host receive the channel (SP-8).
            return Ok(None);
        }
        if !group.members.has_rank(source) {
            return Err("a datagram of a rank that is not in the group");
        }
        if !group.members.may_send_from(source, datagram.from) {
            return Err("a datagram from an address that is not its sender's");
        }
        let instance = group.expand_epoch(header.epoch);
        DatagramHeader::check(datagram.header, &group.members.key, instance, datagram.payload)
            .map_err(|_| "a datagram with a wrong tag")?;
        let ended = group.has_ended(instance);
        let (mut cx, found) = group.parts(&self.node.config, &mut self.node.out, instance);
        if found.as_ref().map_or(ended, |found| !found.is_active()) {
            cx.out.counters.datagrams_stale += 1;
            return Ok(None);
        }
        // No peer passes the barrier before this service process has entered it (MC-4).
        let Some(found) = found.filter(|found| found.has_entered()) else {
            cx.out.counters.datagrams_early += 1;
            return Err("a datagram before the ready barrier");
        };
        found.handle_datagram(&mut cx, source, header.chunk.into(), payload, datagram.payload_len)?;
        Ok(Some(header.group))
    }
}
