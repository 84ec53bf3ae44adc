//! Calls with sizes of their own that were heard of before their sizes were known become collectives.

use outboard_plan::Extents;

use super::Endpoint;
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, InstanceId, SpId};
use crate::instance::Instance;
use crate::instance::{Collective, Layout};

impl Endpoint {
    /// The sizes of an instance are known now. Nothing is to be done where they were before. An error broke the group.
    pub(super) fn size_instance(
        &mut self,
        handle: GroupHandle,
        id: InstanceId,
        sizes: Extents,
    ) -> Result<(), CollectiveError> {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        let (mut cx, Some(instance)) = g.parts((&self.config, &mut self.out), id) else { return Ok(()) };
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
                self.out.violation(None, what);
                let error = CollectiveError::Protocol(self.id);
                self.break_group(handle, error.clone(), true);
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
            self.out.violation(None, "a step of a barrier that cannot be");
        }
        Ok(())
    }

    /// Sizes that were asked for. False when they cannot be.
    pub(super) fn handle_sizes(
        &mut self,
        handle: GroupHandle,
        id: InstanceId,
        from: (SpId, u32),
        sizes: &[u64],
    ) -> bool {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        let (cx, instance) = g.parts((&self.config, &mut self.out), id);
        // A local rank may have called meanwhile, and ended.
        let Some(call) = instance.and_then(Instance::unsized_call).filter(|call| call.alive()) else { return true };
        match call.handle_sizes(cx.members, from, sizes) {
            Ok(None) => true,
            Ok(Some(sizes)) => {
                let broken = self.size_instance(handle, id, sizes);
                // Told to all; nobody here has called.
                drop(broken);
                true
            }
            Err(_) => false,
        }
    }
}
