//! What operators do with events and subscriptions.

use uuid::Uuid;

use super::Operator;
use crate::error::{Error, Result};
use crate::model::EventId;
use crate::store::statement::{
    OPERATOR_RELAY_RETRY, OPERATOR_ROTATE_HISTORY, OPERATOR_SUBSCRIPTION_DROP, OPERATOR_SUBSCRIPTION_PAUSE,
    OPERATOR_SUBSCRIPTION_REWIND, OPERATOR_SUBSCRIPTION_SKIP, OPERATOR_SUBSCRIPTION_UNPARK,
};
use crate::subscription::Start;

/// What acts on a subscription answers with [`Error::is_not_found`] for a name that is not known.
impl Operator {
    /// Stops a subscription; a batch that is leased goes on. True when it was not paused before.
    pub async fn pause_subscription(&self, name: &str, reason: Option<&str>) -> Result<bool> {
        self.value(&OPERATOR_SUBSCRIPTION_PAUSE, &[&name, &true, &reason]).await
    }

    /// Lets a subscription go on. True when it was paused before.
    pub async fn resume_subscription(&self, name: &str, reason: Option<&str>) -> Result<bool> {
        self.value(&OPERATOR_SUBSCRIPTION_PAUSE, &[&name, &false, &reason]).await
    }

    /// Sets a subscription's position back: everything after it is delivered again. Returns the new position.
    ///
    /// [`Start::Position`] names the last position that counts as handled: the event there is not delivered again. What was
    /// parked, skipped or given back after the new position comes again in its place and is aside no more; what was given
    /// back up to there still comes first, so nothing is lost and nothing is delivered twice by the one rewind.
    ///
    /// A lease ends, and late reports from before change nothing. It never goes forward over events that are kept:
    /// [`Operator::skip_event`] names the one that it leaves out.
    ///
    /// # Errors
    /// [`Error::is_invalid_input`] for [`Start::Now`] and for a position ahead of the cursor,
    /// [`Error::is_history_truncated`] for one that is not kept any more.
    pub async fn rewind_subscription(&self, name: &str, to: Start, reason: Option<&str>) -> Result<i64> {
        if to == Start::Now {
            return Err(Error::invalid(
                "start",
                "a rewind to now would leave out what was not handled",
                "Use the beginning, a position or a time; to leave an event out, skip it with a reason.",
            ));
        }
        self.value(&OPERATOR_SUBSCRIPTION_REWIND, &[&name, &to.text(), &reason]).await
    }

    /// Leaves out the event that is delivered next, or that the subscription waits at, which is kept as skipped. Returns the
    /// position from now on.
    ///
    /// An event that was given back stands before those after the position: skipping it moves no position.
    ///
    /// # Errors
    /// [`Error::is_conflict`] when the next event is at another position, so that nobody skips one that they have not
    /// seen, and [`Error::is_invalid_input`] without a reason.
    pub async fn skip_event(&self, name: &str, position: i64, reason: &str) -> Result<i64> {
        self.value(&OPERATOR_SUBSCRIPTION_SKIP, &[&name, &position, &reason]).await
    }

    /// Gives a parked or skipped event back to its subscription, which handles it by itself, before what is new, and at once
    /// even where it waits after a failure. When the event fails again it is the one that the subscription waits at. False
    /// when no event at this position is parked, or it was given back before.
    pub async fn unpark_event(&self, name: &str, position: i64, reason: Option<&str>) -> Result<bool> {
        let found: String = self.value(&OPERATOR_SUBSCRIPTION_UNPARK, &[&name, &position, &reason]).await?;
        Ok(found == "unparked")
    }

    /// Forgets a subscription and what it has parked. Returns how many events, skipped ones among them, went with it.
    pub async fn drop_subscription(&self, name: &str, reason: Option<&str>) -> Result<i64> {
        self.value(&OPERATOR_SUBSCRIPTION_DROP, &[&name, &reason]).await
    }

    /// Gives an event that the relay has parked another round of attempts. False when no event of this id is parked.
    pub async fn retry_event(&self, id: EventId, reason: Option<&str>) -> Result<bool> {
        let found: String = self.value(&OPERATOR_RELAY_RETRY, &[&id.0, &reason]).await?;
        Ok(found == "due")
    }

    /// Begins a new history of positions and returns its id. To be called once after a restore that goes its own way.
    ///
    /// Readers elsewhere that hold positions of the old history are refused from then on, instead of being given other
    /// events under the same numbers. The subscriptions of this database go on where they are.
    pub async fn rotate_history(&self, reason: Option<&str>) -> Result<Uuid> {
        self.value(&OPERATOR_ROTATE_HISTORY, &[&reason]).await
    }
}
