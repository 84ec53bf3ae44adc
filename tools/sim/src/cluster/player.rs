//! The common part of players that write their script as they go, event by event.

use std::rc::Rc;
use std::time::Duration;

use super::{Cluster, Step};
use crate::breach::Breach;
use crate::host::{Action, Input};
use crate::network::Frame;

/// A script with more events counts as a livelock.
const MOST_STEPS: u64 = 4 << 20;

/// A player on a cluster. Its own events are the ends of its waits, numbered.
pub(crate) trait Player {
    fn cluster(&mut self) -> &mut Cluster<u64>;

    fn told(&mut self, host: usize, action: Action) -> Result<(), Breach>;

    /// Shows a frame to the player: see [`Cluster::hijacked`].
    fn shown(&mut self, _: &Rc<Frame>) -> Result<(), Breach> {
        Ok(())
    }

    /// Feeds an input to a service process and processes the resulting notifications.
    fn handle(&mut self, host: usize, input: Input) -> Result<(), Breach> {
        self.cluster().deliver(host, input)?;
        self.listen()
    }

    /// Passes on the notifications that service processes send to ranks.
    fn listen(&mut self) -> Result<(), Breach> {
        while let Some((host, action)) = self.cluster().poll() {
            self.told(host, action)?;
        }
        Ok(())
    }

    /// Lets the next event happen. Returns false if none is left, or if the event is the end of this wait.
    fn step(&mut self, wait: u64) -> Result<bool, Breach> {
        match self.cluster().step()? {
            None => return Ok(false),
            Some(Step::Own(ended)) if ended == wait => return Ok(false),
            Some(Step::Frame(frame)) => self.shown(&frame)?,
            Some(Step::Own(_) | Step::Done) => {}
        }
        self.listen()?;
        match self.cluster().steps {
            steps if steps > MOST_STEPS => Err(Breach::Storm { sent: steps, bound: MOST_STEPS }),
            _ => Ok(true),
        }
    }

    /// Steps until `so` holds or `time` has passed. Returns whether `so` holds.
    fn run_until(&mut self, time: Duration, so: impl Fn(&Self) -> bool) -> Result<bool, Breach>
    where
        Self: Sized,
    {
        let cluster = self.cluster();
        cluster.steps += 1;
        let (wait, end) = (cluster.steps, cluster.now() + time);
        cluster.put(end, wait);
        while !so(self) {
            if !self.step(wait)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn run_for(&mut self, time: Duration) -> Result<(), Breach>
    where
        Self: Sized,
    {
        self.run_until(time, |_| false).map(drop)
    }
}
