//! A wall clock that steps, and usually steps back.

use std::time::Duration;

use crate::chaos::Run;
use crate::chaos::dice::Dice;

use super::disk_of;

const HOUR: Duration = Duration::from_secs(3600);

pub async fn step(run: &Run, dice: &mut Dice) -> Result<(), String> {
    let clock = &disk_of(run)?.clock;
    let said = |stepped: std::io::Result<()>| stepped.map_err(|error| error.to_string());
    let by = *dice.pick(&[HOUR, HOUR, HOUR * 48, Duration::from_secs(90)]);
    let is_forward = dice.percent(60);
    said(if is_forward { clock.step_forward(by) } else { clock.step_back(by) })?;
    tokio::time::sleep(dice.millis(500..4000)).await;
    said(if is_forward { clock.step_back(by) } else { clock.step_forward(by) })
}
