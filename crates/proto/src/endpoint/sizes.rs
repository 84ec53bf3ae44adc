//! Calls with sizes of their own that were heard of before their sizes were known.

use outboard_plan::Extents;

use super::Node;
use super::groups::Group;
use crate::error::CollectiveError;
use crate::ids::{InstanceId, SpId};
use crate::instance::Unplanned;

impl Group {
    /// The sizes of an instance are known now, by `teller`. An error broke the group.
    pub(super) fn size_instance(
        &mut self,
        node: &mut Node,
        teller: SpId,
        id: InstanceId,
        sizes: Extents,
    ) -> Result<(), CollectiveError> {
        let (mut cx, Some(instance)) = self.parts((&node.config, &mut node.out), id) else { return Ok(()) };
        match instance.set_sizes(&mut cx, sizes) {
            Ok(None) => Ok(()),
            Ok(Some(from)) => {
                let (from, why) = (self.members.sps[from as usize], "a step of a barrier that there is not");
                Err(self.refuse_instance(node, from, Unplanned::Unsound(why)))
            }
            Err(why) => Err(self.refuse_instance(node, teller, why)),
        }
    }

    /// Sizes that were asked for. False when they cannot be.
    pub(super) fn handle_sizes(&mut self, node: &mut Node, id: InstanceId, from: (SpId, u32), sizes: &[u64]) -> bool {
        let (cx, instance) = self.parts((&node.config, &mut node.out), id);
        // A local rank may have called meanwhile, and ended.
        let Some(instance) = instance else { return true };
        match instance.handle_sizes(cx.members.ranks(), from, sizes) {
            Ok(None) => true,
            Ok(Some(sizes)) => {
                let broken = self.size_instance(node, from.0, id, sizes);
                // Told to all; nobody here has called.
                drop(broken);
                true
            }
            Err(_) => false,
        }
    }
}
