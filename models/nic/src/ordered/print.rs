//! Descriptors as text, one line each.

use std::fmt;

use super::descriptor::{Descriptor, DescriptorAddress, DescriptorPiece, Flags};

impl fmt::Display for DescriptorPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, at) = match self.address {
            DescriptorAddress::Host(at) => ("host", at),
            DescriptorAddress::Intermediate(at) => ("nic", at),
        };
        write!(f, "{name}[{at}..{}]", u128::from(at) + u128::from(self.len))
    }
}

/// Writes one line: the awaited packets, the operation, the message.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |pieces: &[DescriptorPiece]| pieces.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let flags = [
            (Flags::HEAD, "CH"),
            (Flags::TAIL, "CT"),
            (Flags::SENDS, "CP"),
            (Flags::SWAP_LOCAL_DATA, "SwapLocalData"),
            (Flags::SWAP_LOCAL_PORT, "SwapLocalVP"),
            (Flags::SWAP_REMOTE_DATA, "SwapRemoteData"),
            (Flags::SWAP_REMOTE_ADDRESS, "SwapRemoteAddr"),
            (Flags::REDUCE, "ReduceFlag"),
            (Flags::ENDS, "CollEndFlag"),
        ];
        let set: Vec<&str> = flags.iter().filter(|(flag, _)| self.flags.has(*flag)).map(|(_, name)| *name).collect();
        write!(f, "{} B [{}]", self.length, set.join(" "))?;
        if self.count > 0 {
            write!(f, " waits for {} of step {} from source {}", self.count, self.await_seq, self.first_source)?;
        }
        if let Some(reduction) = self.reduction {
            let side = if self.packet_left { "right" } else { "left" };
            write!(f, ", {reduction} with {} on the {side}", list(&self.operand))?;
        } else if !self.operand.is_empty() {
            write!(f, ", copies {}", list(&self.operand))?;
        }
        if self.flags.has(Flags::SWAP_REMOTE_ADDRESS) {
            return write!(f, ", names {} to node {} port {}", list(&self.result), self.dest, self.dest_port);
        }
        if !self.result.is_empty() {
            write!(f, " into {}", list(&self.result))?;
        }
        if !self.sends() {
            return Ok(());
        }
        let message = if self.inline.is_empty() { list(&self.message) } else { "what it carries".to_owned() };
        write!(f, ", sends {message}")?;
        if self.flags.has(Flags::SENDS) {
            write!(f, " as step {}", self.seq)?;
        }
        write!(f, " to node {}", self.dest)?;
        if self.flags.has(Flags::SWAP_LOCAL_PORT) { Ok(()) } else { write!(f, " port {}", self.dest_port) }
    }
}
