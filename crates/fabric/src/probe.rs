//! Checks which fabrics work on this host and names the remedy for those that do not: the fabric part of `outboard
//! doctor`. Never changes a setting of the host.

use std::time::Duration;

use crate::multicast::{
    IP_UDP_HEADERS, Interface, MulticastReceiver, MulticastSender, MulticastSettings, Reach, ReceiveBatch, WaitOutcome,
    channel_address,
};
use crate::{FabricLimits, Identity, SharedKey, Tcp, TcpSettings, rdma_device, rdma_is_asked_for, ucx_version};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricCheck {
    pub what: &'static str,
    pub ok: bool,
    pub detail: String,
    /// The remedy, if the feature does not work fully.
    pub remedy: Option<String>,
}

impl FabricCheck {
    fn good(what: &'static str, detail: String) -> Self {
        Self { what, ok: true, detail, remedy: None }
    }

    fn bad(what: &'static str, detail: String, remedy: &str) -> Self {
        Self { what, ok: false, detail, remedy: Some(remedy.to_owned()) }
    }
}

/// Checks unicast and multicast over the interface of `multicast`. Takes under a second. The test datagram (time to
/// live 0) stays on this host.
pub fn probe(multicast: &MulticastSettings) -> Vec<FabricCheck> {
    vec![
        unicast(&multicast.interface),
        library(),
        packet_size(&multicast.interface),
        segmentation(multicast),
        receive_buffer(multicast),
        round_trip(multicast),
    ]
}

fn library() -> FabricCheck {
    let what = "UCX library";
    match ucx_version() {
        Ok((major, minor, release)) => FabricCheck::good(what, format!("{major}.{minor}.{release}")),
        Err(error) => FabricCheck::bad(what, error.to_string(), "apt install libucx0"),
    }
}

/// The fabric that a service process on this interface would use, and why.
fn unicast(interface: &Interface) -> FabricCheck {
    let what = "unicast";
    let limits = FabricLimits::default();
    let listening = interface.address().map_err(|error| error.to_string()).and_then(|at| {
        let (identity, cluster) = (Identity::generate(), SharedKey::default());
        Tcp::new(TcpSettings { at, identity, cluster, encrypt: false, siblings: false, limits })
            .map(|_| at)
            .map_err(|error| error.to_string())
    });
    match listening {
        Ok(at) => match rdma_device(interface.name()) {
            Some(device) => FabricCheck::good(what, rdma_is_asked_for(&device)),
            None => FabricCheck::good(what, format!("tcp at {at}: {} has no RDMA device", interface.name())),
        },
        Err(error) => FabricCheck::bad(what, error, "name a network device that is up and has an IPv4 address"),
    }
}

fn packet_size(interface: &Interface) -> FabricCheck {
    let what = "packet size";
    match interface.mtu() {
        Ok(mtu) if mtu >= 1500 => {
            FabricCheck::good(what, format!("{}: {} bytes per datagram", interface.name(), mtu - IP_UDP_HEADERS))
        }
        Ok(mtu) => {
            let detail = format!("{}: MTU {mtu}, headers take more of the link than usual", interface.name());
            FabricCheck::bad(what, detail, "raise the MTU to 1500 or more (ip link set DEVICE mtu 1500)")
        }
        Err(error) => FabricCheck::bad(what, error.to_string(), "name a network device that exists (ip link)"),
    }
}

fn segmentation(settings: &MulticastSettings) -> FabricCheck {
    let what = "UDP segmentation offload";
    match MulticastSender::new(settings) {
        Ok(sender) if sender.segments() => FabricCheck::good(what, "offered by the kernel".to_owned()),
        Ok(_) => FabricCheck::bad(
            what,
            "not offered: sending takes more processor time".to_owned(),
            "use Linux 4.18 or newer",
        ),
        Err(error) => FabricCheck::bad(what, error.to_string(), "check that the network device is up"),
    }
}

fn receive_buffer(settings: &MulticastSettings) -> FabricCheck {
    let what = "multicast receive buffer";
    match MulticastReceiver::new(settings) {
        Ok(receiver) if receiver.buffer_bytes() >= settings.buffer_bytes => {
            FabricCheck::good(what, format!("{} bytes", receiver.buffer_bytes()))
        }
        Ok(receiver) => {
            let detail = format!("{} of {} bytes", receiver.buffer_bytes(), settings.buffer_bytes);
            let remedy = format!("sysctl net.core.rmem_max={} or give outboardd CAP_NET_ADMIN", settings.buffer_bytes);
            FabricCheck::bad(what, detail, &remedy)
        }
        Err(error) => FabricCheck::bad(what, error.to_string(), "free the UDP port or set another"),
    }
}

/// Sends one datagram to a group and receives it on this host.
fn round_trip(settings: &MulticastSettings) -> FabricCheck {
    let what = "multicast on this host";
    let settings = MulticastSettings { reach: Reach::Host, ..settings.clone() };
    match send_and_receive(&settings) {
        Ok(true) => FabricCheck::good(what, format!("a datagram came back through {}", settings.interface.name())),
        Ok(false) => {
            let detail = format!("a datagram by {} was lost on the way", settings.interface.name());
            FabricCheck::bad(what, detail, "allow UDP to 239.192.0.0/14 in the firewall (nft list ruleset)")
        }
        Err(error) => {
            FabricCheck::bad(what, error.to_string(), "check that the device is up and takes multicast (ip link)")
        }
    }
}

fn send_and_receive(settings: &MulticastSettings) -> std::io::Result<bool> {
    // Process ids differ, so parallel probes rarely share a group. The mark distinguishes their datagrams if they do.
    let mark = u64::from(std::process::id()).to_le_bytes();
    let group = channel_address(u64::from_le_bytes(mark));
    let mut receiver = MulticastReceiver::new(settings)?;
    receiver.join(group)?;
    let sent = MulticastSender::new(settings)?.send(group, 1, &[mark], &[])?;
    if sent.congested {
        return Ok(false);
    }
    let mut batch = ReceiveBatch::new(4);
    // Bounds foreign datagrams, not time.
    for _ in 0..16 {
        if receiver.wait(Some(Duration::from_millis(300)))? != WaitOutcome::Readable {
            return Ok(false);
        }
        receiver.receive(&mut batch)?;
        if batch.datagrams().any(|datagram| datagram.bytes == mark) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_fit_the_host() {
        let lo = Interface::named("lo").expect("every host has lo");
        let multicast = MulticastSettings::new(lo);
        let checks = probe(&multicast);
        for check in &checks {
            assert_eq!(check.ok, check.remedy.is_none(), "{check:?}");
        }
        let ok = |what| checks.iter().any(|check| check.what == what && check.ok);
        assert!(ok("multicast on this host") && ok("packet size") && ok("UDP segmentation offload"), "{checks:?}");
        assert!(ok("unicast"), "{checks:?}");
    }
}
