//! A client that calls the API again and again.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Method;
use oncegate::store::{Clock, SystemClock};
use serde_json::Value;

use oncegate_process::loopback::{NoAnswer, ask};

/// The pause between two scenes that run for the first time.
const OPENING: Duration = Duration::from_millis(250);

pub struct Caller {
    address: SocketAddr,
    dice: Dice,
    pace: f64,
    /// How many different scenes there are.
    scenes: u64,
    /// How many scenes have run. A name with this number is new.
    pub turn: u64,
}

pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    pub fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }
}

pub type Done = Result<(), NoAnswer>;

impl Caller {
    pub fn new(address: SocketAddr, seed: u64, pace: f64) -> Caller {
        Caller { address, dice: Dice(seed), pace, scenes: 0, turn: 0 }
    }

    /// Runs one scene after the other: each for the first time without delay, later on average one per `every`.
    pub async fn go_on(mut self, every: Duration, act: impl AsyncFn(&mut Caller) -> Done) {
        loop {
            // Without an answer the client goes on with the next scene.
            let _ = act(&mut self).await;
            self.turn += 1;
            let pause = match self.turn < self.scenes {
                true => OPENING,
                // Between half and one and a half times as long.
                false => every.mul_f64((500 + self.below(1000)) as f64 / 1000.0),
            };
            tokio::time::sleep(pause.div_f64(self.pace)).await;
        }
    }

    /// Chooses the next scene: each once, in order, then at random by weight.
    pub fn scene(&mut self, weights: &[usize]) -> usize {
        self.scenes = weights.len() as u64;
        if self.turn < self.scenes {
            return self.turn as usize;
        }
        let drawn = self.below(weights.iter().sum());
        let mut sum = 0;
        let is_drawn = |weight: &usize| {
            sum += weight;
            drawn < sum
        };
        weights.iter().position(is_drawn).expect("what is drawn is less than their sum")
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.dice.roll() % bound as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, NoAnswer> {
        self.send(Method::POST, path, None, Some(body)).await
    }

    /// With an `Idempotency-Key`.
    pub async fn post_under(&self, key: &str, path: &str, body: &Value) -> Result<Answer, NoAnswer> {
        self.send(Method::POST, path, Some(key), Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer, NoAnswer> {
        self.send(Method::PUT, path, None, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Answer, NoAnswer> {
        self.send(Method::DELETE, path, None, None).await
    }

    /// Whether the list has nothing for a person to do. So a new entry is created only when the last one is settled, and entries do not
    /// pile up.
    pub async fn is_empty(&self, list: &str) -> Result<bool, NoAnswer> {
        let listed = self.send(Method::GET, &format!("{list}&limit=1"), None, None).await?;
        Ok(listed.body["items"].as_array().is_some_and(Vec::is_empty))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, NoAnswer> {
        let (status, text) = ask(self.address, method, path, key, body).await?;
        if status == 400 {
            // No client of the demo is supposed to make this mistake.
            tracing::error!(event = "demo.refused", path, text);
        }
        Ok(Answer { status, body: serde_json::from_str(&text).unwrap_or_default() })
    }
}

/// The time in RFC 3339.
pub fn from_now(seconds: u64) -> String {
    (SystemClock.now() + Duration::from_secs(seconds)).to_string()
}

pub async fn seconds(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// `base`, with the fields of `more` added or replaced.
pub fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// SplitMix64: the same numbers in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scene_comes_once_in_its_order_and_then_as_often_as_it_weighs() {
        let mut caller = Caller::new(([127, 0, 0, 1], 1).into(), 7, 1.0);
        let mut drawn = vec![];
        while caller.turn < 1003 {
            drawn.push(caller.scene(&[3, 0, 1]));
            caller.turn += 1;
        }
        assert_eq!(drawn[..3], [0, 1, 2]);
        let count = |scene: usize| drawn[3..].iter().filter(|drawn| **drawn == scene).count();
        assert!((700..800).contains(&count(0)) && count(1) == 0 && (200..300).contains(&count(2)), "{drawn:?}");
    }
}
