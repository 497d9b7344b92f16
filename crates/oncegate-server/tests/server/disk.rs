//! Disk errors of a running server's file: the server reports them, and is not ready.

use oncegate_lab::power::{Shim, errno};

use crate::support::{Home, Server, claim_of, eventually};

/// On a read-only file system each claim waits until the file has been opened again.
const CLAIMS: [usize; 2] = [500, 20];

#[tokio::test]
async fn a_full_disk_is_named_makes_the_server_unready_and_does_not_flood_the_log() {
    let home = Home::new();
    let disk = Shim::new(home.path().join("oncegate-data"), home.path().join("power")).expect("cc builds the shim");
    let mut command = home.command(["serve", "--listen", "127.0.0.1:0"]);
    disk.apply_to(&mut command);
    let server = Server::start(command);
    let mut client = server.client();
    client.win(&claim_of("g", "before")).await;
    let faults = [(errno::ENOSPC, "the disk is full"), (errno::EROFS, "the file system is read-only")];
    for ((error, cause), claims) in faults.into_iter().zip(CLAIMS) {
        disk.fail_writes(Some(error)).expect("sets");
        for number in 0..claims {
            client.claim(&claim_of("g", &format!("{error} {number}"))).await.expect(503);
        }
        let unready = client.get("/readyz").await.expect(503);
        assert!(unready.body.to_string().contains(cause), "{:?}", unready.body);
        disk.fail_writes(None).expect("sets");
        eventually("it is ready again", || async {
            (server.client().get("/readyz").await.status == 200).then_some(())
        })
        .await;
        client.win(&claim_of("g", &format!("after {error}"))).await;
    }
    server.logged("sqlite.recovered", 2).await;
    let lines: Vec<_> = server.log().into_iter().filter(|line| line["level"] == "error").collect();
    assert!(lines.len() < CLAIMS[0] / 2, "{} lines for {CLAIMS:?} refusals: {:?}", lines.len(), &lines[..5]);
    let of_store = lines.iter().filter(|line| line["event"].as_str().is_some_and(|event| event.starts_with("sqlite.")));
    assert!(of_store.clone().count() < 20);
    assert!(of_store.clone().any(|line| line.to_string().contains("the disk is full")));
    // The count is in the next line, which may come a second later.
    disk.fail_writes(Some(errno::ENOSPC)).expect("sets");
    eventually("the rest is counted", || async {
        server.client().claim(&claim_of("g", "another")).await.expect(503);
        let counts = |line: &serde_json::Value| line["leftOut"].as_u64().is_some_and(|left_out| left_out > 0);
        server.log().iter().any(counts).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_deleted_is_told_once_and_answered_with_503_for_good() {
    let home = Home::new();
    let server = home.serve();
    let mut client = server.client();
    client.win(&claim_of("g", "before")).await;
    std::fs::remove_file(home.path().join("oncegate-data/oncegate.db")).expect("deletes");
    for number in 0..20 {
        client.claim(&claim_of("g", &number.to_string())).await.expect(503);
        client.claim(&claim_of("g", "before")).await.expect(503);
        client.get("/readyz").await.expect(503);
    }
    server.logged("sqlite.file_gone", 1).await;
    let told = server.log().iter().filter(|line| line["event"] == "sqlite.file_gone").count();
    assert_eq!(told, 1);
}
