//! Named points at which the process is ended, or delayed: before and after every durable step and every call to the outside.
//!
//! `oncegate drill` and the tests name a point in `ONCEGATE_TEST_CRASH_AT`, as `point` or `point:n`. The process ends with SIGKILL when it
//! passes
//! that point for the n-th time, as in a power failure. Nothing else sets that variable. Without it, a point costs one read of a static.
//!
//! With the feature `crash-points`, which only the tests have, the first task at the point in `ONCEGATE_TEST_PAUSE_AT`, as
//! `point:milliseconds`, sleeps. The feature also adds a clock that tests set forward.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use oncegate::store::Clock;

/// Ends or delays the process here, if the environment asks for it.
pub async fn point(name: &str) {
    static CRASH_AT: LazyLock<Option<(String, u32)>> = LazyLock::new(|| {
        let asked = std::env::var("ONCEGATE_TEST_CRASH_AT").ok()?;
        let (point, passing) = asked.split_once(':').unwrap_or((&asked, "1"));
        Some((point.to_owned(), passing.parse().expect("a number")))
    });
    static PASSED: AtomicU32 = AtomicU32::new(0);

    if let Some((point, passing)) = &*CRASH_AT
        && point == name
        && PASSED.fetch_add(1, Ordering::SeqCst) + 1 >= *passing
    {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::future::pending::<()>().await;
    }
    #[cfg(feature = "crash-points")]
    pause(name).await;
}

#[cfg(feature = "crash-points")]
async fn pause(name: &str) {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    static PAUSE_AT: LazyLock<Option<(String, Duration)>> = LazyLock::new(|| {
        let asked = std::env::var("ONCEGATE_TEST_PAUSE_AT").ok()?;
        let (point, millis) = asked.split_once(':').expect("point:milliseconds");
        Some((point.to_owned(), Duration::from_millis(millis.parse().expect("milliseconds"))))
    });
    static HAS_PAUSED: AtomicBool = AtomicBool::new(false);

    if let Some((point, pause)) = &*PAUSE_AT
        && point == name
        && !HAS_PAUSED.swap(true, Ordering::SeqCst)
    {
        tokio::time::sleep(*pause).await;
    }
}

/// The clock of a test: the system's time, plus the microseconds in the file that `ONCEGATE_TEST_CLOCK` names.
#[cfg(feature = "crash-points")]
pub fn clock() -> Option<Arc<dyn Clock>> {
    struct Ahead(std::path::PathBuf);

    impl Clock for Ahead {
        fn now(&self) -> oncegate::Time {
            let ahead = std::fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse().ok());
            oncegate::store::SystemClock.now() + std::time::Duration::from_micros(ahead.unwrap_or(0))
        }
    }

    let file = std::env::var_os("ONCEGATE_TEST_CLOCK")?;
    Some(Arc::new(Ahead(file.into())))
}

#[cfg(not(feature = "crash-points"))]
pub fn clock() -> Option<Arc<dyn Clock>> {
    None
}
