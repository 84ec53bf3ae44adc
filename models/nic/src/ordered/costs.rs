//! Costs of an order-triggered NIC: its units combine as they read (TH Sec. 2.2).

use super::descriptor::Descriptor;
use super::{OrderedContent, OrderedEngine, OrderedPacket};
use crate::costs::{self, Machine, WorkTime};
use crate::engine::{AddressSpace, NicOrder};
use crate::profile_table::{ProfileError, ProfileTable};

/// The table `[ordered]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderedCosts {
    /// Nanoseconds from the packet that triggers a descriptor to the packet that the descriptor sends.
    pub trigger: f64,
    /// GB/s at which a unit reads packets, and copies or combines them meanwhile.
    pub unit_rate: f64,
}

impl OrderedCosts {
    pub(crate) fn read(table: &mut ProfileTable<'_, '_>) -> Result<OrderedCosts, ProfileError> {
        Ok(OrderedCosts { trigger: table.cost("trigger", "ns")?, unit_rate: table.rate("unit_rate", "GB/s")? })
    }
}

impl costs::EngineCosts<OrderedEngine> for OrderedCosts {
    fn post(&self, machine: &Machine, _post: &[Descriptor]) -> f64 {
        machine.send
    }

    fn send(&self, packet: &OrderedPacket, _contexts: usize) -> WorkTime {
        match packet.content {
            OrderedContent::Data { .. } | OrderedContent::Direct { .. } => WorkTime { busy: 0.0, lag: self.trigger },
            OrderedContent::Places { .. }
            | OrderedContent::RequestRoom { .. }
            | OrderedContent::Grant { .. }
            | OrderedContent::Abort(_) => WorkTime::default(),
        }
    }

    fn order(&self, order: &NicOrder) -> f64 {
        match order {
            NicOrder::Copy { from, .. } | NicOrder::Reduce { from, .. } if from.region == AddressSpace::Nic => {
                from.len as f64 / self.unit_rate
            }
            // The bus or the link accounts for this time.
            NicOrder::Deliver { .. } | NicOrder::Write { .. } | NicOrder::Copy { .. } | NicOrder::Reduce { .. } => 0.0,
        }
    }
}
