//! Bytes that the transposes of a transform must move between hosts.

use super::FftOptions;
use outboard_lab::LinkLimits;

/// Bytes of a double-precision complex number.
const CELL_BYTES: u64 = 16;

/// Payload of one pair of transforms, forward and backward, of all fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FftTraffic {
    /// Bytes into each host's link.
    into: Vec<u64>,
    /// Bytes out of each host's link.
    out_of: Vec<u64>,
}

impl FftTraffic {
    pub(super) fn of(options: &FftOptions, grid: u32) -> Self {
        let hosts = u32::from(options.setup.lab.hosts());
        let (rows, columns) = options.process_grid();
        let host = |rank| (options.setup.layout.host_of(rank, options.setup.ranks(), hosts) - 1) as usize;
        let mut traffic = Self { into: vec![0; hosts as usize], out_of: vec![0; hosts as usize] };
        let mut carry = |from: u32, to: u32, cells: u64| {
            let bytes = cells * CELL_BYTES * u64::from(options.variables);
            // The backward transform moves the blocks of the forward one in the other direction.
            for (from, to) in [(host(from), host(to)), (host(to), host(from))] {
                if from != to {
                    traffic.out_of[from] += bytes;
                    traffic.into[to] += bytes;
                }
            }
        };
        let half = grid / 2 + 1;
        for row in 0..rows {
            for column in 0..columns {
                let own = column * rows + row;
                let (y, z, x) = (part(grid, rows, row), part(grid, columns, column), part(half, rows, row));
                for other in 0..rows {
                    carry(own, column * rows + other, z * y * part(half, rows, other));
                }
                for other in 0..columns {
                    carry(own, other * rows + row, z * x * part(grid, columns, other));
                }
            }
        }
        traffic
    }

    /// Least time of the busiest link at its rate, without any computation.
    pub(super) fn limit_ms(&self, link: &LinkLimits) -> f64 {
        let busiest = self.into.iter().chain(&self.out_of).copied().max().unwrap_or(0);
        link.milliseconds(busiest as f64 * 8.0)
    }

    /// Bytes over all switch ports, in and out.
    pub(super) fn bytes(&self) -> u64 {
        self.into.iter().chain(&self.out_of).sum()
    }
}

/// The part of `length` for index `at` of `parts`; if `parts` does not divide it, the first parts have one more.
fn part(length: u32, parts: u32, at: u32) -> u64 {
    u64::from(length / parts + u32::from(at < length % parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Setup};

    fn options(lab: &str, ranks_per_host: u32, layout: Layout) -> FftOptions {
        let mut setup = Setup::new(lab.parse().unwrap(), 1);
        (setup.ranks_per_host, setup.layout) = (ranks_per_host, layout);
        FftOptions { setup, grids: vec![64], variables: 1 }
    }

    #[test]
    fn parts_are_the_whole() {
        for (length, parts) in [(65, 2), (33, 4), (8, 8), (129, 7)] {
            assert_eq!((0..parts).map(|at| part(length, parts, at)).sum::<u64>(), u64::from(length));
        }
    }

    /// On 2x2 ranks half of all cells move in each of the four transposes of a pair.
    #[test]
    fn half_the_cells_move_in_each_transpose_of_a_square() {
        let traffic = FftTraffic::of(&options("4x1gbit", 1, Layout::Contiguous), 64);
        let cells = 33 * 64 * 64;
        assert_eq!(traffic.bytes(), 2 * 4 * (cells / 2) * CELL_BYTES);
        assert_eq!(traffic.into.iter().sum::<u64>(), traffic.out_of.iter().sum::<u64>());
    }

    /// Rows of the process grid that share a host exchange nothing over the host's link. With strided ranks, the
    /// same rows exchange over links.
    #[test]
    fn rows_within_a_host_stay_off_the_link() {
        let contiguous = FftTraffic::of(&options("2x1gbit", 2, Layout::Contiguous), 64);
        let strided = FftTraffic::of(&options("2x1gbit", 2, Layout::Strided), 64);
        let cells = 33 * 64 * 64;
        // Only the two transposes within columns cross links, or only the two within rows.
        assert_eq!(contiguous.bytes(), 2 * 2 * (cells / 2) * CELL_BYTES);
        assert_eq!(strided.bytes(), 2 * 2 * (cells / 2) * CELL_BYTES);
        let alone = FftTraffic::of(&options("1x1gbit", 4, Layout::Contiguous), 64);
        assert_eq!(alone.bytes(), 0);
        assert_eq!(alone.limit_ms(&"1x1gbit".parse::<outboard_lab::LabSpec>().unwrap().link()), 0.0);
    }

    #[test]
    fn fields_add_up() {
        let one = options("4x1gbit", 1, Layout::Contiguous);
        let mut three = one.clone();
        three.variables = 3;
        assert_eq!(FftTraffic::of(&three, 64).bytes(), 3 * FftTraffic::of(&one, 64).bytes());
    }
}
