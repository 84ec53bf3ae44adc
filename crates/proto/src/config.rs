//! The configuration of a service process.
//!
//! The fields that shape the traffic are part of the agreed configuration. Service processes compare its digest
//! ([`Config::digest`]) when they make a group. On a difference they refuse the group, and the error names both service
//! processes and what differs ([`Difference`]).

use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::combine::scratch_vectors;
use outboard_plan::selection::Tuning;
use siphasher::sip::SipHasher13;

use crate::staging::ALIGN;

/// Positions in a digest, from the top: settings hash, engine bit, bit for authenticated multicast, tuning digest.
const SETTINGS_SHIFT: u32 = 34;
const ENGINE_SHIFT: u32 = 33;
const AUTH_SHIFT: u32 = 32;

/// Version of everything on the wire. Service processes of different versions refuse each other's groups.
pub const VERSION: u8 = 17;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Link rate in bit/s on the wire; senders are paced so that the receive links of the group stay just full.
    pub link_rate: u64,
    /// Payload bytes of one datagram: MTU - 28 (IPv4 + UDP) - 24 (our header).
    pub chunk_bytes: u32,
    /// Bytes a datagram occupies on the link beside its payload: 14 (Ethernet) + 28 + 24.
    pub datagram_overhead: u32,
    /// Whether hosts multicast to one another (MC-8). If not, all traffic between hosts is unicast. Agreed.
    pub multicast: bool,
    /// `M` of MC-8; 0 means as many chains as ranks. Agreed.
    pub chains: u32,
    /// `S` of MC-10: multicast addresses that a block is spread over. Agreed.
    pub subgroups: u16,
    /// Whether the tags of datagrams cover their payload. Agreed if hosts multicast.
    pub multicast_auth: bool,
    /// Smallest block (bytes per rank) that is offloaded. Agreed.
    pub offload_from: u64,
    /// Calls that move at most this many bytes, all ranks together, skip the barrier (MC-9). 0: every call has a
    /// barrier. Agreed.
    pub eager_bytes: u64,
    /// The tuning that selects algorithms; `None` without a tuning file. Agreed.
    pub tuning: Option<Arc<Tuning>>,
    /// The libfabric provider whose deferred work executes all calls that the provider supports
    /// ([`outboard_plan::deferred`]). `None`: the service processes execute all calls. Agreed.
    pub deferred: Option<Arc<str>>,
    /// Bytes of staging for ranks that have not called (SP-6) and for messages that came early.
    pub staging_quota: u64,
    /// Bytes of scratch, beside staging, for the calls of local ranks.
    pub scratch_quota: u64,
    /// Approximate bytes of the tables of groups, recordings and chunks of multicast blocks.
    pub tables_quota: u64,
    /// Most other service processes that all groups together may contain.
    pub peers: usize,
    /// Most remembered service processes without a group.
    pub idle_peers: usize,
    /// After this silence a neighbour is polled for a sign of life.
    pub heartbeat: Duration,
    /// A service process that owes an acknowledgement for this long is declared dead.
    pub dead_after: Duration,
    /// Floor of the adaptive timers of recovery (MC-5's alpha, MC-6).
    pub timer_floor: Duration,
    /// Floor of a link's retransmission timer. The floor is long where the fabric itself is reliable.
    pub retransmit_floor: Duration,
    /// A rank's service process stands in for the rank this long after the first news of a collective.
    pub stand_in_after: Duration,
    /// How much later than the first rank of its service process a rank may request the group.
    pub group_timeout: Option<Duration>,
    /// How long a collective may be in flight before [`crate::Event::Overdue`] reports it.
    pub watchdog: Option<Duration>,
    /// Report every step of every collective ([`crate::Event::Milestone`]).
    pub narrate: bool,
    /// Bytes that every switch port can queue for certain. This size bounds the batches, and how much a sender may
    /// catch up at once.
    pub switch_queue: u64,
    /// Most datagrams of one multicast batch.
    pub batch_chunks: u32,
    /// Payload bytes of one unicast fragment. Larger fragments cost less processor time, but block the other receivers
    /// of their source. So fragments are smaller on slow links, and larger in long messages of few sources. With 40
    /// KiB, sixteen hosts that call at different times can overflow the queue of a switch port. Blocks of a power of
    /// two are cut into whole fragments of the size that [`Config::on_links`] sets.
    pub fragment_bytes: u32,
    /// Most bytes of one collective that are requested and have not come (SP-5). An all-to-all may request 3/4 more.
    pub pull_bytes: u64,
}

impl Default for Config {
    /// The defaults on links of 1 Gbit/s.
    fn default() -> Self {
        Config::on_links(1_000_000_000)
    }
}

impl Config {
    /// The defaults on links of `link_rate` bit/s. From 2 Gbit/s on the processors are slower than the links, so twice
    /// as much is sent and requested at once. An all-to-all of 4 MiB among four hosts on unlimited links then takes
    /// 0.72 of the time and 0.75 of the processor time. The factor is not greater than 2, because faster switch ports
    /// do not queue more. If sixteen hosts call at different times, 2 MiB wait before a 10 Gbit/s port; with fragments
    /// of 128 KiB, 3 MiB wait.
    pub fn on_links(link_rate: u64) -> Self {
        let times = if link_rate < 2_000_000_000 { 1 } else { 2 };
        Config {
            link_rate,
            chunk_bytes: 1448,
            datagram_overhead: 66,
            multicast: true,
            chains: 0,
            subgroups: 1,
            multicast_auth: true,
            offload_from: 4096,
            eager_bytes: 0,
            tuning: None,
            deferred: None,
            staging_quota: 1 << 30,
            scratch_quota: 8 << 30,
            tables_quota: u64::MAX,
            peers: 4096,
            idle_peers: 256,
            heartbeat: Duration::from_secs(1),
            dead_after: Duration::from_millis(3500),
            timer_floor: Duration::from_millis(4),
            retransmit_floor: Duration::from_millis(200),
            stand_in_after: Duration::from_micros(500),
            group_timeout: None,
            watchdog: None,
            narrate: false,
            switch_queue: 512 << 10,
            batch_chunks: 32,
            fragment_bytes: times * (32 << 10),
            pull_bytes: u64::from(times) * (512 << 10),
        }
    }

    /// Digest of the agreed fields and of the protocol version. From the top: hash of the settings, engine bit, bit for
    /// authenticated multicast, tuning digest (0 without a tuning file).
    pub fn digest(&self) -> u64 {
        let tuning = self.tuning.as_ref().map_or(0, |tuning| tuning.digest());
        let auth = self.multicast_auth && self.multicast;
        let bits = u64::from(self.deferred.is_some()) << ENGINE_SHIFT | u64::from(auth) << AUTH_SHIFT;
        self.settings_digest() << SETTINGS_SHIFT | bits | u64::from(tuning)
    }

    /// The largest vector in bytes that `ranks` ranks can combine, if `here` of these ranks share this scratch.
    pub fn reduction_most(&self, ranks: u32, here: u32) -> u64 {
        // An allocation may exceed the request by an eighth ([`crate::staging_size`]).
        let needed = (self.scratch_quota / 9 * 8).saturating_sub(ALIGN * u64::from(here));
        needed / scratch_vectors(ranks, here)
    }

    fn settings_digest(&self) -> u64 {
        let mut h = SipHasher13::new_with_keys(0x6f75_7462, 0x6f61_7264);
        h.write_u8(VERSION);
        h.write_u32(self.chunk_bytes);
        h.write_u8(self.multicast.into());
        h.write_u32(self.chains);
        h.write_u16(self.subgroups);
        h.write_u64(self.offload_from);
        h.write_u64(self.eager_bytes);
        // The digest's engine bit shows whether a provider is set; only its name is hashed here.
        self.deferred.iter().for_each(|provider| h.write(provider.as_bytes()));
        h.finish()
    }
}

/// How two configurations differ, derived from their digests. Displayed after the names of the two service processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub a: u64,
    pub b: u64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = |digest: u64| digest >> SETTINGS_SHIFT;
        let auth = |digest: u64| digest >> AUTH_SHIFT & 1;
        let tuning = |digest: u64| digest as u32;
        let engine = |digest: u64| if digest >> ENGINE_SHIFT & 1 == 1 { "ofi-triggered" } else { "service-process" };
        let mut differences = Vec::new();
        if engine(self.a) != engine(self.b) {
            differences.push(format!(
                "their engines are {} and {}: give both the same --engine (OUTBOARD_ENGINE)",
                engine(self.a),
                engine(self.b)
            ));
        } else if settings(self.a) != settings(self.b) {
            differences.push(format!(
                "their settings differ (digests {:08x}, {:08x}): give both the same version, MTU, algorithm, chains, \
                 subgroups, offload-from, eager-bytes and ofi-provider",
                settings(self.a),
                settings(self.b)
            ));
        } else if auth(self.a) != auth(self.b) {
            differences.push(
                "only one authenticates multicast: give both the same --multicast-auth (OUTBOARD_MULTICAST_AUTH)"
                    .to_owned(),
            );
        }
        match (tuning(self.a), tuning(self.b)) {
            (same, other) if same == other => {}
            (0, one) | (one, 0) => differences.push(format!(
                "only one has a tuning file (digest {one:08x}): give both the same by OUTBOARD_TUNING, or none"
            )),
            (a, b) => differences.push(format!(
                "their tuning files differ (digests {a:08x}, {b:08x}): give both the same by OUTBOARD_TUNING; `outboard explain \
                 choice` shows the digest of a file"
            )),
        }
        f.write_str(&differences.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::staging_size;

    fn difference(a: &Config, b: &Config) -> String {
        Difference { a: a.digest(), b: b.digest() }.to_string()
    }

    #[test]
    fn mc_4_the_scratch_of_a_call_is_enough_for_the_largest_reduction() {
        for (scratch, ranks, here) in [(0, 4, 1), (1000, 4, 1), (65_536, 9, 4), (2 << 30, 32, 16), (1 << 50, 2, 2)] {
            let config = Config { scratch_quota: scratch, ..Config::default() };
            let most = config.reduction_most(ranks, here);
            let each = (scratch_vectors(ranks, here) / u64::from(here) * most).next_multiple_of(ALIGN);
            let taken = staging_size(each * u64::from(here)).expect("it fits");
            assert!(most == 0 || taken <= scratch, "{most} of {scratch} bytes, {ranks} ranks");
            assert_eq!(most > 0, scratch > 0, "{scratch}");
        }
    }

    #[test]
    fn difference_names_the_setting_and_the_remedy() {
        let tuned = |text: &str| Config { tuning: Some(Arc::new(text.parse().unwrap())), ..Config::default() };
        let plain = Config::default();
        let (slow, fast) = (tuned("[cost]\nlatency = \"1 ms\""), tuned("[cost]\nlatency = \"1 us\""));
        assert!(difference(&slow, &fast).starts_with("their tuning files differ"), "{}", difference(&slow, &fast));
        assert!(difference(&slow, &plain).starts_with("only one has a tuning file"), "{}", difference(&slow, &plain));
        let other = Config { chains: 3, ..plain.clone() };
        assert!(difference(&other, &plain).starts_with("their settings differ"), "{}", difference(&other, &plain));
        let open = difference(&Config { multicast_auth: false, ..plain.clone() }, &plain);
        assert!(open.contains("--multicast-auth"), "{open}");
        let ring = |multicast_auth| Config { multicast: false, multicast_auth, ..plain.clone() };
        assert_eq!(ring(false).digest(), ring(true).digest(), "a ring has nothing to authenticate");
        let both = difference(&Config { tuning: slow.tuning.clone(), ..other }, &fast);
        assert!(both.contains("their settings differ") && both.contains("tuning files differ"), "{both}");
        let deferred = |provider: &str| Config { deferred: Some(provider.into()), ..plain.clone() };
        let engines = difference(&deferred("sockets"), &plain);
        assert!(engines.contains("ofi-triggered and service-process") && engines.contains("--engine"), "{engines}");
        let providers = difference(&deferred("sockets"), &deferred("psm3"));
        assert!(providers.contains("ofi-provider"), "{providers}");
        assert_eq!(slow.digest(), tuned("# Slow.\n[cost]\nlatency = \"1000 us\"").digest());
    }
}
