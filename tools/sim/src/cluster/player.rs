//! The common part of players that write their script as they go, event by event.

use std::rc::Rc;
use std::time::Duration;

use super::{Cluster, ClusterStep};
use crate::host::{HostAction, Input};
use crate::network::TransitFrame;
use crate::violation::Violation;

/// A script with more events counts as a livelock.
const MOST_STEPS: u64 = 4 << 20;

/// A player on a cluster. Its own events are the ends of its waits, numbered.
pub(crate) trait ScriptPlayer {
    fn cluster(&mut self) -> &mut Cluster<u64>;

    fn handle_action(&mut self, host: usize, action: HostAction) -> Result<(), Violation>;

    /// Handles a frame that goes to the player: see [`Cluster::hijacked`].
    fn intercept_frame(&mut self, _: &Rc<TransitFrame>) -> Result<(), Violation> {
        Ok(())
    }

    /// Feeds an input to a service process and processes the resulting notifications.
    fn handle(&mut self, host: usize, input: Input) -> Result<(), Violation> {
        self.cluster().deliver(host, input)?;
        self.poll_actions()
    }

    /// Passes on the notifications that service processes send to ranks.
    fn poll_actions(&mut self) -> Result<(), Violation> {
        while let Some((host, action)) = self.cluster().poll() {
            self.handle_action(host, action)?;
        }
        Ok(())
    }

    /// Lets the next event happen. Returns false if none is left, or if the event is the end of this wait.
    fn step(&mut self, wait: u64) -> Result<bool, Violation> {
        match self.cluster().step()? {
            None => return Ok(false),
            Some(ClusterStep::PlayerEvent(ended)) if ended == wait => return Ok(false),
            Some(ClusterStep::Frame(frame)) => self.intercept_frame(&frame)?,
            Some(ClusterStep::PlayerEvent(_) | ClusterStep::Done) => {}
        }
        self.poll_actions()?;
        match self.cluster().steps {
            steps if steps > MOST_STEPS => Err(Violation::Storm { sent: steps, bound: MOST_STEPS }),
            _ => Ok(true),
        }
    }

    /// Steps until `so` holds or `time` has passed. Returns whether `so` holds.
    fn run_until(&mut self, time: Duration, so: impl Fn(&Self) -> bool) -> Result<bool, Violation>
    where
        Self: Sized,
    {
        let cluster = self.cluster();
        cluster.steps += 1;
        let (wait, end) = (cluster.steps, cluster.now() + time);
        cluster.schedule(end, wait);
        while !so(self) {
            if !self.step(wait)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn run_for(&mut self, time: Duration) -> Result<(), Violation>
    where
        Self: Sized,
    {
        self.run_until(time, |_| false).map(drop)
    }
}
