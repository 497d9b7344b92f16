//! A saga that runs in the program itself, with no server. An order is charged when it is placed; if no payment comes in time, the
//! time-out cancels it. A duplicate event changes nothing.
//!
//! `cargo run -p oncegate --features sagas --example embedded_saga`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate::Gate;
use oncegate::sagas::{Draft, Effects, Event, Options};
use oncegate::worker::Run;
use serde_json::{Value, json};

pub async fn story(store: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let order = Draft::new("order")
        .correlation("event.data.orderId")
        .events(["Placed", "Paid", "PaymentTimeout"])
        .states(["Waiting", "Done", "Cancelled"])
        .terminal(["Done", "Cancelled"])
        .on(
            "none",
            "Placed",
            Effects::default()
                .send("ChargeCard", &[("orderId", "event.data.orderId")])
                .schedule("PaymentTimeout", Duration::from_millis(300))
                .to("Waiting"),
        )
        .on("Waiting", "Paid", Effects::default().to("Done"))
        .on("Waiting", "PaymentTimeout", Effects::default().to("Cancelled"))
        .ignore("Waiting", "Placed")
        .ignore("Done,Cancelled", "*")
        .unexpected("none", "Paid,PaymentTimeout")
        .check()?;
    let gate = Gate::open(store).await?;
    let sagas = gate.sagas([order], Options::default())?;
    let placed = Event::new("Placed", json!({ "orderId": "17" })).id("event 1");
    let mut lines = vec![];
    for _ in 0..2 {
        let handled = sagas.handle(&placed).await?;
        lines.push(format!("Placed: {}", handled[0].outcome.as_str()));
    }

    let commands = Arc::new(Mutex::new(vec![]));
    let sent = commands.clone();
    let charge = move |payload: Value, _: Run| {
        sent.lock().expect("no holder panics").push(format!("ChargeCard: {}", payload["orderId"]));
        async { Ok::<_, std::io::Error>(()) }
    };
    let cancelled = async {
        loop {
            let found = sagas.find("order", "17").await.expect("the store answers");
            if found.is_some_and(|found| found.instance.state == "Cancelled") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    gate.worker().on::<Value>("ChargeCard", charge).sagas(&sagas).run(cancelled).await;
    lines.extend(commands.lock().expect("no holder panics").drain(..));
    lines.push("no payment came: Cancelled".into());
    gate.close().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    story("memory:").await.map(|lines| println!("{}", lines.join("\n")))
}
