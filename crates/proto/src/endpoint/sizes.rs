//! Calls with sizes of their own that were heard of before their sizes were known become collectives.

use outboard_plan::Extents;

use super::Node;
use super::groups::Group;
use crate::error::CollectiveError;
use crate::ids::{InstanceId, SpId};
use crate::instance::Instance;
use crate::instance::{Collective, Layout};

impl Group {
    /// The sizes of an instance are known now. Nothing is to be done where they were before. An error broke the group.
    pub(super) fn size_instance(
        &mut self,
        node: &mut Node,
        id: InstanceId,
        sizes: Extents,
    ) -> Result<(), CollectiveError> {
        let (mut cx, Some(instance)) = self.parts((&node.config, &mut node.out), id) else { return Ok(()) };
        let Instance::Unsized(call) = instance else { return Ok(()) };
        if !call.alive() {
            return Ok(());
        }
        let (signer, signature) = call.signature();
        let layout = Layout::choose(signature, cx.members, cx.config);
        let collective = Collective::new(&mut cx, id, (signer, signature), (sizes, layout));
        let mut collective = match collective {
            Ok(collective) => Box::new(collective),
            Err(what) => {
                node.out.violation(None, what);
                let error = CollectiveError::Protocol(node.id);
                self.break_up(node, error.clone(), true);
                return Err(error);
            }
        };
        let heard = call.take_heard();
        let mut known = true;
        for (from, step) in heard.readies {
            collective.heard_of(&mut cx, heard.since);
            known &= collective.handle_ready(&mut cx, from, step);
        }
        *instance = Instance::Collective(collective);
        if !known {
            node.out.violation(None, "a step of a barrier that cannot be");
        }
        Ok(())
    }

    /// Sizes that were asked for. False when they cannot be.
    pub(super) fn handle_sizes(&mut self, node: &mut Node, id: InstanceId, from: (SpId, u32), sizes: &[u64]) -> bool {
        let (cx, instance) = self.parts((&node.config, &mut node.out), id);
        // A local rank may have called meanwhile, and ended.
        let Some(call) = instance.and_then(Instance::unsized_call).filter(|call| call.alive()) else { return true };
        match call.handle_sizes(cx.members, from, sizes) {
            Ok(None) => true,
            Ok(Some(sizes)) => {
                let broken = self.size_instance(node, id, sizes);
                // Told to all; nobody here has called.
                drop(broken);
                true
            }
            Err(_) => false,
        }
    }
}
