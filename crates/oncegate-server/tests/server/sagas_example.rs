//! The order of `examples/order`, as a reader runs it.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Home, Server, eventually, with};

fn home() -> Home {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/order"));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it ships");
    let home = Home::with_config(&read("oncegate.toml"));
    std::fs::write(home.path().join("order.toml"), read("order.toml")).expect("the folder is ours");
    home
}

async fn post(server: &Server, name: &str, id: &str, data: Value) -> (String, String) {
    let event = json!({ "type": name, "id": id, "data": data });
    let handled = server.client().post("/api/events", &event).await.expect(200).body;
    let text = |field: &str| handled[field].as_str().unwrap_or_default().to_owned();
    (text("result"), text("state"))
}

fn told(result: &str, state: &str) -> (String, String) {
    (result.into(), state.into())
}

async fn place(server: &Server, order: &str) {
    let data =
        json!({ "orderId": order, "customer": "ada@example.com", "items": ["lamp", "desk"], "totalCents": 5000 });
    assert_eq!(
        post(server, "OrderPlaced", &format!("{order} placed"), data.clone()).await,
        told("applied", "AwaitingPayment")
    );
    assert_eq!(
        post(server, "OrderPlaced", &format!("{order} placed"), data).await,
        told("duplicate", "AwaitingPayment")
    );
}

/// The commands of an order, in order.
async fn commands(home: &Home, count: usize) -> Vec<(String, Value)> {
    eventually(&format!("{count} commands"), || async {
        let lines = home.noted();
        let command = |line: Value| (line["actionType"].as_str().expect("a type").to_owned(), line["payload"].clone());
        (lines.len() == count).then(|| lines.into_iter().map(command).collect())
    })
    .await
}

#[tokio::test]
async fn an_order_is_paid_in_parts_packed_and_shipped() {
    let home = home();
    let server = home.serve();
    let data = |more: Value| with(json!({ "orderId": "17" }), more);
    place(&server, "17").await;
    assert_eq!(
        post(&server, "PaymentReceived", "e2", data(json!({ "cents": 2000 }))).await,
        told("applied", "AwaitingPayment")
    );
    assert_eq!(
        post(&server, "PaymentReceived", "e2", data(json!({ "cents": 2000 }))).await,
        told("duplicate", "AwaitingPayment")
    );
    assert_eq!(
        post(&server, "PaymentReceived", "e3", data(json!({ "cents": 3000 }))).await,
        told("applied", "Packing")
    );
    assert_eq!(post(&server, "PaymentReceived", "e4", data(json!({ "cents": 100 }))).await, told("applied", "Packing"));
    assert_eq!(post(&server, "ItemShipped", "e5", data(json!({ "item": "desk" }))).await, told("applied", "Packing"));
    assert_eq!(
        post(&server, "OrderCancelled", "e6", data(json!({}))).await,
        told("applied", "Packing"),
        "it is too late"
    );
    assert_eq!(post(&server, "ItemShipped", "e7", data(json!({ "item": "lamp" }))).await, told("applied", "Shipped"));
    assert_eq!(post(&server, "PaymentTimeout", "e8", data(json!({}))).await, told("ignored", "Shipped"));
    let mut sent = commands(&home, 5).await;
    sent.sort_by_key(|(command, payload)| (command.clone(), payload.to_string()));
    let expected = [
        ("ChargeCard", json!({ "cents": 5000, "orderId": "17" })),
        ("PackItem", json!({ "item": "desk", "orderId": "17" })),
        ("PackItem", json!({ "item": "lamp", "orderId": "17" })),
        ("RefundPayment", json!({ "cents": 100, "orderId": "17" })),
        ("TellCustomer", json!({ "customer": "ada@example.com", "what": "your order has been shipped" })),
    ];
    assert_eq!(sent, expected.map(|(command, payload)| (command.to_owned(), payload)));
}

#[tokio::test]
async fn an_order_that_is_cancelled_in_time_is_refunded_and_one_that_is_not_paid_times_out() {
    let home = home();
    home.set_clock_ahead(std::time::Duration::ZERO);
    let server = home.serve_by_clock(&[]);
    place(&server, "18").await;
    post(&server, "PaymentReceived", "e2", json!({ "orderId": "18", "cents": 5000 })).await;
    let cancelled = post(&server, "OrderCancelled", "e3", json!({ "orderId": "18" })).await;
    assert_eq!(cancelled, told("applied", "Cancelled"));
    let refunds = commands(&home, 5).await.into_iter().filter(|(command, _)| command == "RefundPayment");
    assert_eq!(refunds.map(|(_, payload)| payload).collect::<Vec<_>>(), [json!({ "cents": 5000, "orderId": "18" })]);
    if !cfg!(feature = "crash-points") {
        return;
    }
    place(&server, "19").await;
    // No command is under way when the clock is set: the jump would end its lease, and the command would be delivered again.
    eventually("all commands are done", || async {
        let page = server.client().get("/api/actions?status=completed").await.expect(200).body;
        (page["items"].as_array().map(Vec::len) == Some(6)).then_some(())
    })
    .await;
    home.set_clock_ahead(std::time::Duration::from_secs(15 * 60));
    eventually("it is cancelled", || async {
        let order = server.client().get("/api/sagas/order/19").await.expect(200).body;
        (order["state"] == "Cancelled").then_some(())
    })
    .await;
    // The order was never paid: there is nothing to refund.
    let refunds = commands(&home, 7).await.into_iter().filter(|(command, _)| command == "RefundPayment").count();
    assert_eq!(refunds, 1);
}
