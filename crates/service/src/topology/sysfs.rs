//! The kernel's description of the processors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Position;

/// Directory in which the kernel describes the processors.
pub(super) const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Positions of all processors in `directory` that report socket and core; processors that are off do not.
pub(super) fn read(directory: &Path) -> BTreeMap<u32, Position> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let raw: BTreeMap<u32, Position> = entries
        .filter_map(|entry| {
            let cpu = entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()?;
            let number = |name: &str| -> Option<u32> {
                std::fs::read_to_string(entry.path().join("topology").join(name)).ok()?.trim().parse().ok()
            };
            Some((cpu, (number("physical_package_id")?, number("core_id")?)))
        })
        .collect();
    renumber(&raw)
}

/// Renumbers sockets and cores without gaps: the kernel's numbers have gaps, and core numbers restart in each socket.
fn renumber(raw: &BTreeMap<u32, Position>) -> BTreeMap<u32, Position> {
    let sockets: BTreeSet<u32> = raw.values().map(|(socket, _)| *socket).collect();
    let cores: BTreeSet<Position> = raw.values().copied().collect();
    let socket = |one: u32| sockets.range(..one).count() as u32;
    let core = |one: Position| cores.range(..one).count() as u32;
    raw.iter().map(|(cpu, position)| (*cpu, (socket(position.0), core(*position)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_numbers_are_made_contiguous() {
        let raw = BTreeMap::from([(0, (0, 0)), (1, (3, 0)), (2, (0, 8)), (3, (3, 8)), (4, (0, 0))]);
        let expected = BTreeMap::from([(0, (0, 0)), (1, (1, 2)), (2, (0, 1)), (3, (1, 3)), (4, (0, 0))]);
        assert_eq!(renumber(&raw), expected);
    }

    #[test]
    fn entries_that_are_no_processors_are_skipped() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, core) in [("cpu0", "0"), ("cpu1", "1"), ("cpuidle", "2"), ("cpu2", "x")] {
            let topology = directory.path().join(name).join("topology");
            std::fs::create_dir_all(&topology).expect("fresh");
            std::fs::write(topology.join("physical_package_id"), "0\n").expect("written");
            std::fs::write(topology.join("core_id"), core).expect("written");
        }
        assert_eq!(read(directory.path()), BTreeMap::from([(0, (0, 0)), (1, (0, 1))]));
        assert!(read(&directory.path().join("nowhere")).is_empty());
    }
}
