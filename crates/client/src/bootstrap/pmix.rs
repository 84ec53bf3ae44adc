//! Bootstrap through the PMIx server of the launcher (mpirun, `srun --mpi=pmix`), by libpmix loaded at run time.
//!
//! Each exchange publishes a blob under its own key (`PMIx_Put`, `PMIx_Commit`). A fence carries all blobs to all
//! servers, then each rank's blob is read (`PMIx_Get`). PMIx 2 to 5 have equal data layouts; the standard preserves
//! them.
//!
//! Invariants: nothing is linked, so a host without libpmix loses only this bootstrap. The library is never unloaded,
//! since its threads may outlive this module.

use super::{Bootstrap, BootstrapError, check};
use crate::bootstrap::tcp_server::{LIMIT, MAX_BLOB_BYTES};
use outboard_shm::functions;
use outboard_shm::status::Status;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Longest name of a job, with its terminating NUL.
const NAMESPACE_BYTES: usize = 256;
/// Longest key, with its terminating NUL.
const KEY_BYTES: usize = 512;
const SUCCESS: c_int = 0;
const PARTIAL_SUCCESS: c_int = -52;
const BOOL: u16 = 1;
const INT: u16 = 6;
const UINT32: u16 = 14;
const BYTE_OBJECT: u16 = 27;
/// Scope: all ranks of the job, on this host and others.
const GLOBAL: u8 = 3;
/// Stands for the job as a whole in place of a rank.
const WILDCARD: u32 = u32::MAX - 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct PmixProcess {
    namespace: [u8; NAMESPACE_BYTES],
    rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PmixByteObject {
    bytes: *mut c_char,
    size: usize,
}

#[repr(C)]
union PmixData {
    flag: bool,
    integer: c_int,
    uint32: u32,
    bytes: PmixByteObject,
    /// Space for the largest member of the library's union.
    room: [u64; 3],
}

#[repr(C)]
struct PmixValue {
    kind: u16,
    data: PmixData,
}

#[repr(C)]
struct PmixInfo {
    key: [u8; KEY_BYTES],
    flags: u32,
    value: PmixValue,
}

const _: () = assert!(size_of::<PmixProcess>() == 260 && size_of::<PmixValue>() == 32 && size_of::<PmixInfo>() == 552);

/// Exchanges of this process, so that no key is published twice: the library caches values that it has read.
static EXCHANGES: Mutex<u32> = Mutex::new(0);

functions! {
    #[allow(non_snake_case, reason = "the library's names")]
    Functions of "libpmix.so.2" or "libpmix.so":
    fn PMIx_Init(*mut PmixProcess, *mut PmixInfo, usize) -> c_int;
    fn PMIx_Finalize(*const PmixInfo, usize) -> c_int;
    fn PMIx_Put(u8, *const c_char, *mut PmixValue) -> c_int;
    fn PMIx_Commit() -> c_int;
    fn PMIx_Fence(*const PmixProcess, usize, *const PmixInfo, usize) -> c_int;
    fn PMIx_Get(*const PmixProcess, *const c_char, *const PmixInfo, usize, *mut *mut PmixValue) -> c_int;
    fn PMIx_Error_string(c_int) -> *const c_char;
}

/// Reasons for which PMIx does not connect the ranks.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, thiserror::Error)]
pub enum PmixError {
    #[error(
        "the launcher speaks PMIx, but its library cannot be used: {0}; install libpmix2, or set OUTBOARD_RENDEZVOUS=HOST:PORT of rank 0"
    )]
    Library(String),
    #[error(
        "PMIx cannot {action}: {reason} ({code}); is the program started by mpirun or `srun --mpi=pmix`? Else set OUTBOARD_RENDEZVOUS=HOST:PORT of rank 0"
    )]
    Call { action: String, reason: String, code: i32 },
    #[error("PMIx answers with nonsense when asked to {0}")]
    InvalidAnswer(String),
}

impl PmixError {
    /// The kind of failure.
    pub fn status(&self) -> Status {
        match self {
            PmixError::Library(_) => Status::Resource,
            PmixError::Call { .. } => Status::RankLost,
            PmixError::InvalidAnswer(_) => Status::Protocol,
        }
    }
}

/// This rank as registered with the launcher's PMIx server.
pub struct PmixBootstrap {
    functions: Functions,
    own_process: PmixProcess,
    ranks: u32,
}

impl std::fmt::Debug for PmixBootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PmixBootstrap")
            .field("rank", &self.own_process.rank)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl Functions {
    fn check(&self, action: impl FnOnce() -> String, code: c_int) -> Result<(), PmixError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: every code has a string, which lives as long as the library.
        let reason = unsafe { CStr::from_ptr((self.PMIx_Error_string)(code)) }.to_string_lossy().into_owned();
        Err(PmixError::Call { action: action(), reason, code })
    }
}

impl PmixBootstrap {
    /// Connects to the launcher's server.
    pub fn new() -> Result<PmixBootstrap, PmixError> {
        let functions = Functions::load_for_ever().map_err(|error| PmixError::Library(error.to_string()))?;
        let mut own_process = PmixProcess { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: a valid place for the answer and no options.
        let code = unsafe { (functions.PMIx_Init)(&raw mut own_process, std::ptr::null_mut(), 0) };
        functions.check(|| "meet the launcher's server".to_owned(), code)?;
        // From here on, dropping `pmix` finalizes the library.
        let mut pmix = PmixBootstrap { functions, own_process, ranks: 0 };
        let action = "tell the number of ranks";
        let size = pmix.get(WILDCARD, c"pmix.job.size", action)?;
        if size.kind != UINT32 {
            return Err(PmixError::InvalidAnswer(action.to_owned()));
        }
        // SAFETY: the kind of the value was just checked.
        pmix.ranks = unsafe { size.data.uint32 };
        if pmix.own_process.rank >= pmix.ranks {
            return Err(PmixError::InvalidAnswer(action.to_owned()));
        }
        Ok(pmix)
    }

    fn get(&self, rank: u32, key: &CStr, action: &str) -> Result<OwnedValue, PmixError> {
        let process = PmixProcess { rank, ..self.own_process };
        let mut value = std::ptr::null_mut();
        // SAFETY: the process and the key live through the call; no options; a valid place for the answer.
        let code =
            unsafe { (self.functions.PMIx_Get)(&raw const process, key.as_ptr(), std::ptr::null(), 0, &raw mut value) };
        self.functions.check(|| action.to_owned(), code)?;
        if value.is_null() { Err(PmixError::InvalidAnswer(action.to_owned())) } else { Ok(OwnedValue(value)) }
    }

    fn publish(&self, key: &CStr, blob: &[u8]) -> Result<(), PmixError> {
        let bytes = PmixByteObject { bytes: blob.as_ptr().cast_mut().cast(), size: blob.len() };
        let mut value = PmixValue { kind: BYTE_OBJECT, data: PmixData { room: [0; 3] } };
        value.data.bytes = bytes;
        // SAFETY: the library copies the value, whose bytes it does not change.
        let code = unsafe { (self.functions.PMIx_Put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.functions.check(|| "publish this rank's blob".to_owned(), code)?;
        // SAFETY: no arguments.
        self.functions.check(|| "publish this rank's blob".to_owned(), unsafe { (self.functions.PMIx_Commit)() })
    }

    /// Waits for all ranks, and transfers their published values to this host.
    fn fence(&self) -> Result<(), PmixError> {
        let mut collect = PmixData { room: [0; 3] };
        collect.flag = true;
        let mut limit = PmixData { room: [0; 3] };
        limit.integer = LIMIT.as_secs() as c_int;
        let options = [info(c"pmix.collect", BOOL, collect), info(c"pmix.timeout", INT, limit)];
        // SAFETY: an empty list of processes means the whole job; the options live through the call.
        let fence = || unsafe { (self.functions.PMIx_Fence)(std::ptr::null(), 0, options.as_ptr(), options.len()) };
        // A rank that is still leaving the last exchange ends the fence early for the waiting ranks.
        let mut codes = (0..=self.ranks).map(|_| fence());
        let code = codes.find(|code| *code != PARTIAL_SUCCESS).unwrap_or(PARTIAL_SUCCESS);
        self.functions.check(|| format!("bring the {} ranks together", self.ranks), code)
    }

    fn read(&self, rank: u32, key: &CStr) -> Result<Vec<u8>, PmixError> {
        let action = format!("read the blob of rank {rank}");
        let answer = self.get(rank, key, &action)?;
        if answer.kind != BYTE_OBJECT {
            return Err(PmixError::InvalidAnswer(action));
        }
        // SAFETY: the kind of the value was just checked.
        let PmixByteObject { bytes, size } = unsafe { answer.data.bytes };
        // The published blob has one byte more, its end mark.
        if bytes.is_null() || size == 0 || size > MAX_BLOB_BYTES as usize + 1 {
            return Err(PmixError::InvalidAnswer(action));
        }
        // SAFETY: the library guarantees this many bytes; they live until the answer is dropped.
        Ok(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size - 1) }.to_vec())
    }
}

fn info(key: &CStr, kind: u16, data: PmixData) -> PmixInfo {
    let mut name = [0; KEY_BYTES];
    let key = key.to_bytes();
    name[..key.len()].copy_from_slice(key);
    PmixInfo { key: name, flags: 0, value: PmixValue { kind, data } }
}

impl Bootstrap for PmixBootstrap {
    fn rank(&self) -> u32 {
        self.own_process.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check(blob)?;
        let number = {
            let mut exchanges = EXCHANGES.lock().unwrap_or_else(PoisonError::into_inner);
            *exchanges += 1;
            *exchanges
        };
        let key = CString::new(format!("outboard.{number}")).expect("no NUL in a number");
        // The blob gets one byte more, since some servers lose empty values.
        self.publish(&key, &[blob, b"."].concat())?;
        self.fence()?;
        Ok((0..self.ranks).map(|rank| self.read(rank, &key)).collect::<Result<_, _>>()?)
    }
}

impl Drop for PmixBootstrap {
    fn drop(&mut self) {
        // SAFETY: matches the initialisation; no options. A failure leaves nothing to do.
        unsafe { (self.functions.PMIx_Finalize)(std::ptr::null(), 0) };
    }
}

struct OwnedValue(*mut PmixValue);

impl std::ops::Deref for OwnedValue {
    type Target = PmixValue;

    fn deref(&self) -> &PmixValue {
        // SAFETY: not NULL, and valid until it is dropped.
        unsafe { &*self.0 }
    }
}

impl Drop for OwnedValue {
    fn drop(&mut self) {
        // SAFETY: by the library's contract, malloc allocated the value and, separately, its bytes; both are freed
        // once, here.
        unsafe {
            if (*self.0).kind == BYTE_OBJECT {
                libc::free((*self.0).data.bytes.bytes.cast::<c_void>());
            }
            libc::free(self.0.cast());
        }
    }
}
