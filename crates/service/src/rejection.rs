//! Replies to processes that cannot attach. A reply is sent once, and no thread waits for its receipt.

use outboard_shm::attach::{AttachChannel, AttachReply};
use outboard_shm::closer::REFUSAL_CLOSER;
use outboard_shm::status::Status;

pub fn send_error(channel: &AttachChannel, status: Status, text: String) {
    if let Err(error) = channel.send(0, &AttachReply::Error { status, text }, &[]) {
        tracing::debug!(%error, "a process does not hear why it is turned away");
    }
}

/// Reports to a process of another user why it cannot attach. A separate thread sends the reply, because the send may
/// take long: the kernel first wakes all waiters at the other end, and there may be millions.
pub fn reject_process(channel: AttachChannel, text: String) {
    REFUSAL_CLOSER.submit(move || send_error(&channel, Status::NoService, text));
}
