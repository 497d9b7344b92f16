//! Clients that post messages, get no answer, and post again: with an `Idempotency-Key`, and without.

use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{Caller, Done};
use super::providers::{CUT_OFF, NO_MOBILE};

const PATH: &str = "/api/messages";
const EVERY: Duration = Duration::from_secs(3);
/// A client with this time-out gives up before the carrier has answered.
const IMPATIENT: Duration = Duration::from_millis(30);
const GUESTS: [(&str, &str); 8] = [
    ("Ada", "+15550101"),
    ("Ben", "+15550102"),
    ("Cleo", "+15550103"),
    ("Dan", "+15550104"),
    ("Eve", "+15550105"),
    ("Finn", "+15550106"),
    ("Gil", "+15550107"),
    ("Hana", "+15550108"),
];
const CONVERSATION: [&str; 6] = [
    "Hello! Your table for two is booked.",
    "We have a window seat for you, shall we keep it?",
    "It is kept. See you at seven.",
    "The kitchen asks: any allergies?",
    "Noted, thank you.",
    "Your table is ready.",
];

pub async fn post(caller: Caller) {
    caller.go_on(EVERY, act).await;
}

async fn act(caller: &mut Caller) -> Done {
    let (name, phone) = *caller.pick(&GUESTS);
    let number = caller.turn;
    match caller.scene(&[5, 6, 6, 1, 1, 4, 3, 1]) {
        0 => converse(caller).await,
        1 => {
            let body = sms(phone, &format!("{name}, your order {number} is on its way."));
            lost_answer(caller, &format!("order-{number}"), &body).await
        }
        2 => {
            let body = sms(phone, &format!("{name}, your code is {:04}.", 1000 + number * 7919 % 9000));
            caller.post(PATH, &body).await?;
            caller.post(PATH, &body).await?;
            caller.post(PATH, &body).await.map(drop)
        }
        3 => caller.post(PATH, &sms(NO_MOBILE, &format!("Your parcel {number} has arrived."))).await.map(drop),
        4 if caller.is_empty("/api/messages?status=unknown").await? || caller.below(50) == 0 => {
            let body = sms(CUT_OFF, &format!("Your appointment {number} is confirmed."));
            caller.post(PATH, &body).await?;
            // The message may have arrived, so it is not sent again.
            caller.post(PATH, &body).await.map(drop)
        }
        5 => {
            // Two servers react to the same cause.
            let body = sms(phone, &format!("{name}, the door code of today is {:04}.", 1000 + number * 31 % 9000));
            let (one, other) = tokio::join!(caller.post(PATH, &body), caller.post(PATH, &body));
            one.and(other).map(drop)
        }
        7 => {
            // The key is reused for another body: a defect of the client.
            let key = format!("invoice-{number}");
            caller.post_under(&key, PATH, &sms(phone, &format!("{name}, invoice {number} is due."))).await?;
            caller.post_under(&key, PATH, &sms(phone, &format!("{name}, invoice {number} is overdue."))).await.map(drop)
        }
        _ => {
            let email = format!("{}@example.com", name.to_lowercase());
            let body =
                json!({"recipientEmail": email, "recipientName": name, "message": format!("Your receipt {number}.")});
            caller.post(PATH, &body).await?;
            caller.post(PATH, &body).await.map(drop)
        }
    }
}

/// Sends the whole conversation at first, so that there is a thread to read. Later it sends a line now and then, and the last line
/// twice.
async fn converse(caller: &mut Caller) -> Done {
    let (_, phone) = GUESTS[caller.below(2)];
    let lines = if caller.turn == 0 { &CONVERSATION[..] } else { &CONVERSATION[caller.below(6)..][..1] };
    for line in lines {
        caller.post(PATH, &sms(phone, line)).await?;
    }
    caller.post(PATH, &sms(phone, lines.last().expect("one at least"))).await.map(drop)
}

async fn lost_answer(caller: &Caller, key: &str, body: &Value) -> Done {
    let _ = tokio::time::timeout(IMPATIENT, caller.post_under(key, PATH, body)).await;
    caller.post_under(key, PATH, body).await?;
    caller.post_under(key, PATH, body).await.map(drop)
}

fn sms(phone: &str, text: &str) -> Value {
    json!({"recipientPhone": phone, "message": text})
}
