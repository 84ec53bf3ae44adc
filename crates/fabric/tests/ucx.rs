//! The UCX kind passes the conformance suite; a killed peer is reported; an idle process sleeps.
//!
//! Skipped, with the reason printed, only where UCX is not installed.

use outboard_fabric::{Ucx, UcxSettings, conformance, ucx_version};

/// UCX over the loopback device, or none with the reason printed.
fn settings() -> Option<UcxSettings> {
    match ucx_version() {
        Ok(_) => Some(UcxSettings { devices: Some("lo".to_owned()), ..UcxSettings::default() }),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn ucx_conforms() {
    let Some(settings) = settings() else { return };
    conformance::all(&mut |id, limits| {
        Box::new(Ucx::new(id, &UcxSettings { limits, ..settings.clone() }).expect("UCX starts on lo"))
    });
}
