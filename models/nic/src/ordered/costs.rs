//! Costs of an order-triggered NIC: its units combine as they read (TH Sec. 2.2).

use super::descriptor::Descriptor;
use super::{Content, Ordered, Packet};
use crate::costs::{self, Machine, Work};
use crate::engine::{Order, Region};
use crate::profile::{ProfileError, Table};

/// The table `[ordered]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Nanoseconds from the packet that triggers a descriptor to the packet that the descriptor sends.
    pub trigger: f64,
    /// GB/s at which a unit reads packets, and copies or combines them meanwhile.
    pub unit_rate: f64,
}

impl Costs {
    pub(crate) fn read(table: &mut Table<'_, '_>) -> Result<Costs, ProfileError> {
        Ok(Costs { trigger: table.cost("trigger", "ns")?, unit_rate: table.rate("unit_rate", "GB/s")? })
    }
}

impl costs::Costs<Ordered> for Costs {
    fn post(&self, machine: &Machine, _post: &[Descriptor]) -> f64 {
        machine.send
    }

    fn send(&self, packet: &Packet, _contexts: usize) -> Work {
        match packet.content {
            Content::Data { .. } | Content::Direct { .. } => Work { busy: 0.0, lag: self.trigger },
            Content::Places { .. } | Content::Ask { .. } | Content::Grant { .. } | Content::Abort(_) => Work::default(),
        }
    }

    fn order(&self, order: &Order) -> f64 {
        match order {
            Order::Copy { from, .. } | Order::Reduce { from, .. } if from.region == Region::Nic => {
                from.len as f64 / self.unit_rate
            }
            // The bus or the link accounts for this time.
            Order::Deliver { .. } | Order::Write { .. } | Order::Copy { .. } | Order::Reduce { .. } => 0.0,
        }
    }
}
