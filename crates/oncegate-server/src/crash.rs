//! Named points at which a test ends or delays the process: before and after every durable step and every call to the outside.
//!
//! Compiled only with the feature `crash-points`. A test names a point in `ONCEGATE_TEST_CRASH_AT`, and the process ends
//! there as if somebody had pulled the plug (SIGKILL); or in `ONCEGATE_TEST_PAUSE_AT`, as `point:milliseconds`, and whoever
//! comes there first sleeps. Beside them, a clock that tests set forward.

use std::sync::Arc;

use oncegate::store::Clock;

/// Ends or delays the process here, if a test has asked for it.
#[cfg(feature = "crash-points")]
pub async fn point(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    static CRASH_AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("ONCEGATE_TEST_CRASH_AT").ok());
    static PAUSE_AT: LazyLock<Option<(String, Duration)>> = LazyLock::new(|| {
        let asked = std::env::var("ONCEGATE_TEST_PAUSE_AT").ok()?;
        let (point, millis) = asked.split_once(':').expect("point:milliseconds");
        Some((point.to_owned(), Duration::from_millis(millis.parse().expect("milliseconds"))))
    });
    static HAS_PAUSED: AtomicBool = AtomicBool::new(false);

    if CRASH_AT.as_deref() == Some(name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::future::pending::<()>().await;
    }
    if let Some((point, pause)) = &*PAUSE_AT
        && point == name
        && !HAS_PAUSED.swap(true, Ordering::SeqCst)
    {
        tokio::time::sleep(*pause).await;
    }
}

#[cfg(not(feature = "crash-points"))]
pub async fn point(_name: &str) {}

/// The clock that a test has brought: the system's, and so many microseconds more as the file in
/// `ONCEGATE_TEST_CLOCK` says.
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
