//! A payment provider that calls its hook twice, and the workers behind the hook: they claim before they book, and settle after that.

use std::time::Duration;

use serde_json::{Value, json};

use super::caller::{Answer, Caller, Done, seconds, with};
use oncegate_process::loopback::NoAnswer;

const HOOK: &str = "payment-hook";
const PAYOUT: &str = "payout";
const EVERY: Duration = Duration::from_millis(600);
/// The lease, in seconds, of a worker that is about to die.
const SHORT_LEASE: f64 = 1.0;

pub async fn take_hooks(caller: Caller) {
    caller.go_on(EVERY, act).await;
}

async fn act(caller: &mut Caller) -> Done {
    let number = caller.turn;
    let payment = format!("payment {number}");
    let cents = 500 + 10 * caller.below(2000);
    match caller.scene(&[20, 10, 16, 1, 1, 3, 1]) {
        0 => {
            book(caller, &payment, cents).await?;
            book(caller, &payment, cents).await
        }
        1 => at_once(caller, &payment, cents).await,
        2 => {
            // The provider missed our answer a while ago, and calls again.
            let earlier = number.saturating_sub(1 + caller.below(20) as u64);
            let answer = claim(caller, HOOK, &format!("payment {earlier}"), json!({})).await?;
            match answer.status {
                // There never was a hook for that payment.
                201 => say(caller, "release", HOOK, &answer, None).await,
                _ => Ok(()),
            }
        }
        3 => {
            // The same payment with another amount: a person finds out which is wrong.
            book(caller, &payment, cents).await?;
            let other = json!({"fingerprint": format!("{} cents", cents + 100)});
            claim(caller, HOOK, &payment, other).await.map(drop)
        }
        4 => dies_and_is_replaced(caller, &payment).await,
        5 if caller.is_empty(&format!("/api/claims?guard={PAYOUT}&state=unknown")).await? => {
            let payout = format!("payout {number}");
            claim(caller, PAYOUT, &payout, json!({"leaseSeconds": SHORT_LEASE})).await?;
            // The worker died. It is unknown whether it has paid, so no worker pays again.
            seconds(SHORT_LEASE + 0.2).await;
            claim(caller, PAYOUT, &payout, json!({})).await.map(drop)
        }
        6 => {
            let won = claim(caller, HOOK, &payment, json!({})).await?;
            say(caller, "fail", HOOK, &won, Some(json!({"error": "card declined"}))).await?;
            claim(caller, HOOK, &payment, json!({})).await.map(drop)
        }
        _ => {
            let payout = format!("payout {number}");
            let won = claim(caller, PAYOUT, &payout, json!({"attributes": {"account": "demo"}})).await?;
            say(caller, "settle", PAYOUT, &won, Some(json!({"transfer": format!("t-{number}")}))).await
        }
    }
}

async fn claim(caller: &Caller, guard: &str, key: &str, more: Value) -> Result<Answer, NoAnswer> {
    caller.post("/api/claims", &with(json!({"guard": guard, "key": [key]}), more)).await
}

/// Reports the result of a claim that was won.
async fn say(caller: &Caller, verb: &str, guard: &str, won: &Answer, outcome: Option<Value>) -> Done {
    let mut body = json!({"guard": guard, "token": won.body["token"]});
    if let Some(outcome) = outcome {
        body["outcome"] = outcome;
    }
    caller.post(&format!("/api/claims/{}/{verb}", won.text("id")), &body).await.map(drop)
}

/// The winner of the claim books the payment. Every other caller gets the receipt.
async fn book(caller: &Caller, payment: &str, cents: usize) -> Done {
    let terms = json!({"fingerprint": format!("{cents} cents"), "attributes": {"cents": cents}, "waitSeconds": 5});
    let answer = claim(caller, HOOK, payment, terms).await?;
    if answer.status == 201 {
        seconds(0.3).await;
        say(caller, "settle", HOOK, &answer, Some(json!({"receipt": format!("receipt of {payment}")}))).await?;
    }
    Ok(())
}

/// Two hooks, two servers: one books, the other waits for it.
async fn at_once(caller: &Caller, payment: &str, cents: usize) -> Done {
    let (one, other) = tokio::join!(book(caller, payment, cents), async {
        seconds(0.05).await;
        book(caller, payment, cents).await
    });
    one.and(other)
}

/// The next worker takes over. The first was only paused, and its renewal is refused.
async fn dies_and_is_replaced(caller: &Caller, payment: &str) -> Done {
    let first = claim(caller, HOOK, payment, json!({"leaseSeconds": SHORT_LEASE})).await?;
    seconds(SHORT_LEASE + 0.2).await;
    let second = claim(caller, HOOK, payment, json!({})).await?;
    say(caller, "renew", HOOK, &first, None).await?;
    say(caller, "settle", HOOK, &second, Some(json!({"receipt": format!("receipt of {payment}")}))).await
}
