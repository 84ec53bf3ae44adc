//! Programs as text, one line per step; the format is in docs/plan-format.md.
//!
//! Invariant: no code here assumes that spans lie inside their buffers, since unverified programs are shown, too.

use std::fmt;

use crate::program::{Op, OpId, Program, Span, Step};

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.0)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Send { to, index, span } if *span == Span::signal() => {
                write!(f, "send signal {index} to {to}")
            }
            Op::Send { to, index, span } => write!(f, "send {span} to {to} as message {index}"),
            Op::Recv { from, index, span } if *span == Span::signal() => {
                write!(f, "receive signal {index} from {from}")
            }
            Op::Recv { from, index, span } => {
                write!(f, "receive message {index} from {from} into {span}")
            }
            Op::Multicast { span } => write!(f, "multicast {span}"),
            Op::MulticastRecv { root, span } => {
                write!(f, "receive multicast of {root} into {span}")
            }
            Op::Copy { from, to } => write!(f, "copy {from} to {to}"),
            Op::Reduce { from, into, from_left: true } => write!(f, "reduce {from} from the left into {into}"),
            Op::Reduce { from, into, from_left: false } => write!(f, "reduce {from} from the right into {into}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        for (i, id) in self.after.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { ", after " } else { " " }, id.0)?;
        }
        Ok(())
    }
}

/// Writes a header with the buffers in bytes and the group's layout, then one numbered line per step.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} of {}: input {} B, output {} B, scratch {} B, chains {}, subgroups {}",
            self.rank, self.ranks, self.input_bytes, self.output_bytes, self.scratch_bytes, self.chains, self.subgroups
        )?;
        for (id, step) in self.steps.iter().enumerate() {
            writeln!(f, "{id:>5}  {step}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::program::{Rank, Span};
    use crate::selection::Collective;
    use crate::{Arguments, Topology, program};

    fn allgather(algorithm: &str, in_place: bool) -> String {
        let topology = Topology::flat(3);
        let arguments = Arguments { in_place, ..Arguments::of(&topology, 8) };
        program(Collective::Allgather.read(algorithm).unwrap(), &arguments, Rank(1)).unwrap().to_string()
    }

    #[test]
    fn ring_program_reads_like_this() {
        assert_eq!(
            allgather("ring", false),
            "rank 1 of 3: input 8 B, output 24 B, scratch 0 B, chains 1, subgroups 1\n\
             \x20   0  receive message 0 from rank 0 into output[0..8]\n\
             \x20   1  receive message 1 from rank 0 into output[16..24]\n\
             \x20   2  copy input[0..8] to output[8..16]\n\
             \x20   3  send input[0..8] to rank 2 as message 0\n\
             \x20   4  send output[0..8] to rank 2 as message 1, after 0\n"
        );
    }

    #[test]
    fn multicast_program_reads_like_this() {
        assert_eq!(
            allgather("multicast:chains=1,subgroups=2", true),
            "rank 1 of 3: input 0 B, output 24 B, scratch 0 B, chains 1, subgroups 2\n\
             \x20   0  receive multicast of rank 0 into output[0..8]\n\
             \x20   1  receive multicast of rank 2 into output[16..24]\n\
             \x20   2  receive signal 0 from rank 0\n\
             \x20   3  multicast output[8..16], after 2\n\
             \x20   4  send signal 0 to rank 2, after 3\n"
        );
    }

    #[test]
    fn span_beyond_64_bits_is_shown_not_wrapped() {
        assert_eq!(Span::input(u64::MAX, 2).to_string(), "input[18446744073709551615..18446744073709551617]");
    }
}
