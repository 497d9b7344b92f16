//! Without the feature `crash-points` a test cannot crash a server, pause it or set its clock: this file lists the tests that do.
#![cfg(not(feature = "crash-points"))]

#[test]
#[ignore = "most tests of the server need the feature crash-points: run make test, or cargo test --features oncegate-server/crash-points"]
fn the_tests_that_end_a_server_or_set_its_clock() {
    panic!("these tests are in files that were not compiled");
}
