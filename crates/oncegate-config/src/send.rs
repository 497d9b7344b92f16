//! `[sends]`.

use oncegate::sends::Lost;
use oncegate_core::units::show_duration;

use super::build::table_of;
use super::error::ConfigError;
use super::layers::Layers;
use super::typed::Sends;

pub fn build(layers: &Layers) -> Result<Sends, ConfigError> {
    let table = table_of(layers, "sends");
    let has_hook = table.maybe_text("reconcile_url").is_some();
    let example = "https://example.com/was-it-sent";
    let (lease, keep) = (table.span("lease"), table.span("keep"));
    // After `keep`, any worker may take the send over. A lease beyond it would allow a second worker.
    if lease > keep {
        let at = table.written("keep").or(table.written("lease")).map_or_else(String::new, |(_, at)| at);
        let (lease, keep) = (show_duration(lease), show_duration(keep));
        let what = format!("the lease of [sends] ({lease}) is longer than a send is kept ({keep})");
        return Err(ConfigError::new(at, what, format!("write lease = \"{keep}\" or less, or keep them for longer")));
    }
    Ok(Sends {
        lost: match table.text("lost") {
            "skip" => Lost::Skip,
            "hold" => Lost::Hold,
            _ => Lost::Resend,
        },
        lease,
        keep,
        reconcile_url: has_hook.then(|| table.url_of("reconcile_url", &["http", "https"], example)).transpose()?,
    })
}
