//! Without the feature `crash-points` the tests of messages cannot end, delay or set the clock of a server: here they are named.
#![cfg(not(feature = "crash-points"))]

#[test]
#[ignore = "messages*.rs need the feature crash-points: run make test, or cargo test --features oncegate-server/crash-points"]
fn the_tests_of_messages() {
    panic!("these tests are in files that were not compiled");
}
