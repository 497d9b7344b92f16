//! The output of the examples is what they promise.

#![allow(dead_code, reason = "each example has a `main`, and the tests call its `story`")]

#[path = "../../examples/embedded_saga.rs"]
mod embedded_saga;
#[path = "../../examples/embedded_worker.rs"]
mod embedded_worker;
#[path = "../../examples/first_duplicate.rs"]
mod first_duplicate;
#[path = "../../examples/lost_worker.rs"]
mod lost_worker;

fn stores() -> (tempfile::TempDir, [String; 2]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sqlite = format!("sqlite:{}", folder.path().join("ledger.db").display());
    (folder, ["memory:".to_owned(), sqlite])
}

#[tokio::test]
async fn a_duplicate_delivery_gets_the_first_ones_receipt() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(
            first_duplicate::story(&store).await.unwrap(),
            ["delivery 1: charged, receipt 1", "delivery 2: a duplicate, receipt 1", "charges made: 1"]
        );
    }
}

#[tokio::test]
async fn a_lost_worker_is_taken_over_or_held_as_the_policy_says() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(
            lost_worker::story(&store).await.unwrap(),
            ["TakeOver: attempt 2 settled it, the dead one is fenced: true", "Hold: unknown, a person has to look"]
        );
    }
}

#[tokio::test]
async fn a_program_runs_the_actions_that_it_schedules() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(
            embedded_worker::story(&store).await.unwrap(),
            ["attempt 1, revision 3: Ada", "attempt 2, revision 3: Ada"]
        );
    }
}

#[tokio::test]
async fn a_program_runs_the_commands_and_the_time_outs_of_its_sagas() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(
            embedded_saga::story(&store).await.unwrap(),
            ["Placed: applied", "Placed: duplicate", "ChargeCard: \"17\"", "no payment came: Cancelled"]
        );
    }
}
