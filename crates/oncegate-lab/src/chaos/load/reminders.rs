//! Reminders: one for each booking. A reminder is never sent twice (the provider reports that at once). Each acknowledged reminder
//! exists in the end.

use std::sync::Arc;

use oncegate_store::{Clock, SystemClock};
use serde_json::json;

use super::Shift;
use crate::chaos::{Clients, Patience, Run};

const BOOKINGS: usize = 20;

pub async fn generation(run: &Arc<Run>, number: u64) -> Result<(), String> {
    let shift = Shift::begin();
    let (mut clients, mut dice) = (run.clients(), run.dice("reminders", number));
    let mut told: Vec<(usize, String)> = vec![];
    while !shift.is_over(run) {
        let booking = dice.below(BOOKINGS);
        let send_at = SystemClock.now() + dice.millis(0..1500);
        let body = json!({
            "bookingId": format!("g{number} b{booking}"), "sendAt": send_at.to_string(), "channel": "plain",
            "recipientPhone": "+15550100", "message": format!("g{number} reminder {booking}"),
        });
        run.tally.count("reminders posted", 1);
        if let Ok(answer) = clients.any(&mut dice).post("/api/reminders", &body).await {
            told.extend(answer.text("id").filter(|_| matches!(answer.status, 200 | 201)).map(|id| (booking, id)));
        }
        tokio::time::sleep(dice.millis(50..200)).await;
    }
    let mut clients = Clients::new(run);
    for (booking, id) in &told {
        if let Some((_, other)) = told.iter().find(|(other, of)| other == booking && of != id) {
            return Err(format!("one booking has two reminders: g{number} b{booking}, {id} and {other}"));
        }
        let mut patience = Patience::default();
        let answer = loop {
            let answer = clients.get(run, &format!("/api/reminders/{id}")).await?;
            if !matches!(answer.body["state"].as_str(), Some("scheduled" | "sending")) {
                break answer;
            }
            patience.wait(run, &format!("reminder {id} is sent, or missed: {}", answer.body)).await?;
        };
        if answer.status != 200 {
            return Err(format!("an acknowledged reminder is gone: g{number} b{booking}, {id}: {}", answer.body));
        }
        let arrived = run.site.provider.arrivals("/plain", &format!("g{number} reminder {booking}")).len();
        if answer.body["state"] == "sent" && arrived == 0 {
            return Err(format!("a reminder that never arrived is said to be sent: g{number} b{booking}, {id}"));
        }
    }
    Ok(())
}
