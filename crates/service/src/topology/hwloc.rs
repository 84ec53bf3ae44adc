//! The part of hwloc 2 that is used, loaded at run time and never linked, so that the daemon starts where it is
//! missing.
//!
//! Invariant: the object's layout equals the installed header's, which the test shows with the C compiler; hwloc keeps
//! it within one major version, and others are refused.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libloading::Library;

use super::Position;

/// As Debian and others install version 2, and as its development package does.
const NAMES: [&str; 2] = ["libhwloc.so.15", "libhwloc.so"];
const PACKAGE: c_int = 1;
const CORE: c_int = 2;
const PROCESSOR: c_int = 3;
/// Processors that this process may not use are of interest too: ranks may.
const INCLUDE_DISALLOWED: c_ulong = 1;

/// The beginning of `struct hwloc_obj`.
#[repr(C)]
struct Object {
    kind: c_int,
    _subtype: *const c_char,
    os_index: c_uint,
    _name: *const c_char,
    _total_memory: u64,
    _attributes: *const c_void,
    _depth: c_int,
    logical_index: c_uint,
    next_cousin: *const Object,
    _previous_cousin: *const Object,
    parent: *const Object,
}

/// Why hwloc does not tell.
#[derive(Debug, thiserror::Error)]
pub(super) enum HwlocError {
    #[error("hwloc cannot be loaded: {0}; install libhwloc15")]
    Missing(#[from] libloading::Error),
    #[error("hwloc's interface {0:#x} is not of version 2")]
    Version(c_uint),
    #[error("hwloc cannot read this machine")]
    Unreadable,
}

type Handle = *mut c_void;

struct Functions {
    api_version: unsafe extern "C" fn() -> c_uint,
    init: unsafe extern "C" fn(*mut Handle) -> c_int,
    set_flags: unsafe extern "C" fn(Handle, c_ulong) -> c_int,
    load: unsafe extern "C" fn(Handle) -> c_int,
    destroy: unsafe extern "C" fn(Handle),
    type_depth: unsafe extern "C" fn(Handle, c_int) -> c_int,
    object_by_depth: unsafe extern "C" fn(Handle, c_int, c_uint) -> *const Object,
}

/// Socket and core of every processor, and the version that says so.
pub(super) fn read() -> Result<(BTreeMap<u32, Position>, String), HwlocError> {
    // SAFETY: libhwloc has no initialisers that matter; the signatures are those of its header. The library outlives
    // the functions, which do not leave this call.
    let (_library, functions) = unsafe {
        let library = Library::new(NAMES[0]).or_else(|_| Library::new(NAMES[1]))?;
        let functions = Functions {
            api_version: *library.get(b"hwloc_get_api_version\0")?,
            init: *library.get(b"hwloc_topology_init\0")?,
            set_flags: *library.get(b"hwloc_topology_set_flags\0")?,
            load: *library.get(b"hwloc_topology_load\0")?,
            destroy: *library.get(b"hwloc_topology_destroy\0")?,
            type_depth: *library.get(b"hwloc_get_type_depth\0")?,
            object_by_depth: *library.get(b"hwloc_get_obj_by_depth\0")?,
        };
        (library, functions)
    };
    // SAFETY: no arguments.
    let version = unsafe { (functions.api_version)() };
    if version >> 16 != 2 {
        return Err(HwlocError::Version(version));
    }
    let told = format!("{}.{}", version >> 16, version >> 8 & 0xff);
    let mut handle: Handle = std::ptr::null_mut();
    // SAFETY: a place for the handle.
    if unsafe { (functions.init)(&raw mut handle) } != 0 {
        return Err(HwlocError::Unreadable);
    }
    // SAFETY: the handle is initialised, and configured before it is loaded.
    let loaded = unsafe { (functions.set_flags)(handle, INCLUDE_DISALLOWED) == 0 && (functions.load)(handle) == 0 };
    let positions = if loaded { positions(&functions, handle) } else { BTreeMap::new() };
    // SAFETY: initialised once, destroyed once; no object is held any more.
    unsafe { (functions.destroy)(handle) };
    if positions.is_empty() { Err(HwlocError::Unreadable) } else { Ok((positions, told)) }
}

/// The handle is of a loaded topology.
fn positions(functions: &Functions, handle: Handle) -> BTreeMap<u32, Position> {
    let mut positions = BTreeMap::new();
    // SAFETY: the handle is of a loaded topology; objects live as long as it does, and parents are objects or NULL.
    unsafe {
        let depth = (functions.type_depth)(handle, PROCESSOR);
        let mut object = (functions.object_by_depth)(handle, depth, 0);
        while !object.is_null() {
            let (mut socket, mut core) = (None, None);
            let mut above = (*object).parent;
            while !above.is_null() {
                match (*above).kind {
                    PACKAGE => socket = Some((*above).logical_index),
                    CORE => core = Some((*above).logical_index),
                    _ => {}
                }
                above = (*above).parent;
            }
            // Where hwloc sees no sockets or cores there is one of each, or each processor is one.
            let position = (socket.unwrap_or(0), core.unwrap_or((*object).logical_index));
            positions.insert((*object).os_index, position);
            object = (*object).next_cousin;
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::process::Command;

    /// Needs gcc and libhwloc-dev, which Open MPI's development package brings (`make deps`).
    #[test]
    fn the_object_is_laid_out_as_in_the_installed_header() {
        let directory = tempfile::tempdir().expect("a directory");
        let (source, object) = (directory.path().join("layout.c"), directory.path().join("layout.o"));
        let offsets = [
            ("type", offset_of!(Object, kind)),
            ("os_index", offset_of!(Object, os_index)),
            ("logical_index", offset_of!(Object, logical_index)),
            ("next_cousin", offset_of!(Object, next_cousin)),
            ("parent", offset_of!(Object, parent)),
        ];
        let kinds = [("PACKAGE", PACKAGE), ("CORE", CORE), ("PU", PROCESSOR)];
        let mut text = "#include <hwloc.h>\n#include <stddef.h>\n".to_owned();
        for (name, offset) in offsets {
            text += &format!("_Static_assert(offsetof(struct hwloc_obj, {name}) == {offset}, \"{name}\");\n");
        }
        for (name, kind) in kinds {
            text += &format!("_Static_assert(HWLOC_OBJ_{name} == {kind}, \"{name}\");\n");
        }
        text += &format!("_Static_assert(HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED == {INCLUDE_DISALLOWED}, \"flag\");\n");
        std::fs::write(&source, text).expect("written");
        let compiled = Command::new("gcc").arg("-c").arg(&source).arg("-o").arg(&object).output().expect("gcc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }
}
