//! The links of a group with its members: which messages may be lost with a link ([`super::reconnect`]).
//!
//! Never decides that a link is lost.

use std::collections::BTreeSet;

use crate::ids::SpId;

#[derive(Debug)]
pub(super) struct MemberLinks {
    /// Members that were lost with their links: the group does not continue over later links.
    lost: BTreeSet<SpId>,
    /// Members whose silence was forgiven once.
    excused: BTreeSet<SpId>,
    /// Members that learn of the group over another link: messages over the former link may be lost.
    renewed: BTreeSet<SpId>,
    /// By service process: whether a message of a call has come from it.
    has_sent_call: Vec<bool>,
}

impl MemberLinks {
    pub(super) fn new(members: usize) -> Self {
        let [lost, excused, renewed] = [const { BTreeSet::new() }; 3];
        MemberLinks { lost, excused, renewed, has_sent_call: vec![false; members] }
    }

    /// A message of a call has come from the member with this index.
    pub(super) fn note_call(&mut self, at: u32) {
        self.has_sent_call[at as usize] = true;
    }

    /// Whether the group may continue with this member over another link.
    pub(super) fn may_continue(&self, sp: SpId, at: u32) -> bool {
        !self.has_sent_call[at as usize] && !self.is_lost(sp)
    }

    /// The member is lost with its link.
    pub(super) fn lose(&mut self, sp: SpId) {
        self.lost.insert(sp);
    }

    pub(super) fn is_lost(&self, sp: SpId) -> bool {
        self.lost.contains(&sp)
    }

    /// Forgives the member's silence.
    pub(super) fn excuse(&mut self, sp: SpId) {
        self.excused.insert(sp);
    }

    /// Whether the member's silence was forgiven before.
    pub(super) fn is_excused(&self, sp: SpId) -> bool {
        self.excused.contains(&sp)
    }

    /// The group continues with the member over another link.
    pub(super) fn note_renewed(&mut self, sp: SpId) {
        self.renewed.insert(sp);
    }

    pub(super) fn is_renewed(&self, sp: SpId) -> bool {
        self.renewed.contains(&sp)
    }
}
