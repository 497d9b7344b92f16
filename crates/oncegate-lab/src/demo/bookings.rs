//! Bookings with reminders: set, set again, moved, cancelled, sent. One has a number that no carrier accepts.

use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{Answer, Caller, Done, from_now};
use super::providers::NO_MOBILE;
use oncegate_process::loopback::NoAnswer;

const PATH: &str = "/api/reminders";
const EVERY: Duration = Duration::from_secs(8);

pub async fn remind(caller: Caller) {
    caller.go_on(EVERY, act).await;
}

async fn act(caller: &mut Caller) -> Done {
    let number = caller.turn;
    let phone = format!("+1555012{}", caller.below(10));
    let booking = |phone: &str, seconds| {
        json!({"bookingId": format!("booking {number}"), "sendAt": from_now(seconds), "channel": "sms",
            "recipientPhone": phone, "message": format!("Your booking {number} is tomorrow at nine.")})
    };
    match caller.scene(&[3, 5, 3, 2, 2, 2]) {
        // First, because it takes as long as its grace period.
        0 if caller.is_empty("/api/reminders?state=missed").await? => {
            set(caller, &booking(NO_MOBILE, 0)).await.map(drop)
        }
        2 => set(caller, &booking(&phone, 300 + 60 * number % 600)).await.map(drop),
        3 => {
            let reminder = set(caller, &booking(&phone, 600)).await?;
            let later = json!({"sendAt": from_now(15), "message": format!("Your booking {number} is today, at nine.")});
            caller.put(&format!("{PATH}/{}", reminder.text("id")), &later).await.map(drop)
        }
        4 => {
            let body = booking(&phone, 600);
            let reminder = set(caller, &body).await?;
            caller.delete(&format!("{PATH}/{}", reminder.text("id"))).await?;
            // A late duplicate does not bring it back.
            set(caller, &body).await.map(drop)
        }
        _ => {
            let body = booking(&phone, 2);
            set(caller, &body).await?;
            set(caller, &body).await.map(drop)
        }
    }
}

async fn set(caller: &Caller, body: &Value) -> Result<Answer, NoAnswer> {
    caller.post(PATH, body).await
}
