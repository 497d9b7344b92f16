//! A webhook arrives twice: the charge is made once, and both deliveries get its receipt.
//!
//! `cargo run -p oncegate --example first_duplicate`

use std::sync::atomic::{AtomicU32, Ordering};

use oncegate::{Gate, How, Policy};

pub async fn story(store: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let gate = Gate::open(store).await?;
    let charges = gate.guard("charge", Policy::default())?;
    let charged = AtomicU32::new(0);

    let mut lines = vec![];
    for delivery in 1..=2 {
        let receipt = charges
            .run(["order 17"], |_owner| async {
                let number = charged.fetch_add(1, Ordering::Relaxed) + 1;
                Ok::<_, std::io::Error>(format!("receipt {number}"))
            })
            .await?;
        let how = if receipt.how == How::First { "charged" } else { "a duplicate" };
        lines.push(format!("delivery {delivery}: {how}, {}", receipt.value));
    }
    lines.push(format!("charges made: {}", charged.into_inner()));
    gate.close().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    story("memory:").await.map(|lines| println!("{}", lines.join("\n")))
}
