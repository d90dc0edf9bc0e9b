//! Whose context is current: ours during a call, the caller's before and after, on every path.

use crate::driver::{Answer, Context, Driver};

/// Makes a context current and, when it goes, the caller's again: also after a failure or a panic.
struct Current<'d> {
    driver: &'d dyn Driver,
    /// What to restore; `None` when our context was already current.
    previous: Option<Context>,
}

impl<'d> Current<'d> {
    fn enter(driver: &'d dyn Driver, context: Context) -> Answer<Current<'d>> {
        let previous = driver.context_current()?;
        if previous == context {
            return Ok(Current { driver, previous: None });
        }
        driver.context_set_current(context)?;
        Ok(Current { driver, previous: Some(previous) })
    }

    /// Restores the caller's context. A driver that refuses once is asked once more: the refusal may be the late report
    /// of earlier work, and the body has already succeeded.
    fn leave(mut self) -> Answer<()> {
        let Some(previous) = self.previous.take() else {
            return Ok(());
        };
        self.driver.context_set_current(previous).or_else(|failure| {
            tracing::warn!(call = failure.call, code = failure.code, "restoring the caller's context");
            self.driver.context_set_current(previous)
        })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous.take()
            && let Err(failure) = self.driver.context_set_current(previous)
        {
            tracing::error!(call = failure.call, code = failure.code, "the caller's context could not be restored");
        }
    }
}

/// Runs `body` with `context` current. The first failure is reported: entering, the body, restoring.
pub(crate) fn with<T>(driver: &dyn Driver, context: Context, body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let current = Current::enter(driver, context)?;
    let value = body()?;
    current.leave()?;
    Ok(value)
}
