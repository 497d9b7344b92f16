//! `[sends]`.

use oncegate::sends::Lost;

use super::build::table_of;
use super::error::ConfigError;
use super::layers::Layers;
use super::typed::Sends;

pub fn build(layers: &Layers) -> Result<Sends, ConfigError> {
    let table = table_of(layers, "sends");
    let has_hook = table.maybe_text("reconcile_url").is_some();
    let example = "https://example.com/was-it-sent";
    Ok(Sends {
        lost: match table.text("lost") {
            "skip" => Lost::Skip,
            "hold" => Lost::Hold,
            _ => Lost::Resend,
        },
        lease: table.span("lease"),
        keep: table.span("keep"),
        reconcile_url: has_hook.then(|| table.url_of("reconcile_url", &["http", "https"], example)).transpose()?,
    })
}
