//! `saga`: the action becomes an event.

use oncegate::sagas::{Event, Sagas};
use oncegate::{StoreError, WorkspaceName};
use oncegate_core::job::Failure;
use serde_json::json;
use serde_json::value::RawValue;

use oncegate_transports::effect::Effect;

/// The source of the events. Their ids are the effect keys of actions.
const SOURCE: &str = "oncegate:action";

/// Passes the action to each saga that handles the event. A retry has no second effect.
pub async fn feed(
    sagas: &Sagas,
    event_type: Option<&str>,
    workspace: &WorkspaceName,
    effect: Effect<'_>,
) -> Result<Option<Box<RawValue>>, Failure> {
    let data = serde_json::from_str(effect.payload.get()).map_err(|error| Failure::refused(error.to_string()))?;
    let event = Event::new(event_type.unwrap_or(effect.action_type), data).id(effect.effect_key.to_string());
    let event = Event { source: Some(SOURCE.into()), ..event };
    match sagas.handle(workspace, &event).await {
        Ok(handled) => {
            let told =
                handled.iter().map(|handled| json!({ "saga": handled.saga, "result": handled.outcome.as_str() }));
            let result = serde_json::value::to_raw_value(&told.collect::<Vec<_>>()).expect("what was JSON is JSON");
            handled.iter().for_each(|handled| crate::sagas::tell(workspace, &event.event_type, handled));
            Ok(Some(result))
        }
        Err(StoreError::Unavailable(why)) => Err(Failure::busy(why, None)),
        Err(StoreError::Unknown(why)) => Err(Failure::unknown(why)),
        Err(StoreError::Refused(why) | StoreError::Unreadable(why)) => Err(Failure::refused(why)),
    }
}
