//! S3 notifications in AWS's format: their records, and the events that a saga makes of them.

use oncegate_core::Time;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition::Definition;
use crate::event::Event;
use crate::expr::Scope;
use crate::step::fields;
use crate::steps::Steps;

/// The fields that expressions see as `s3`.
pub(crate) const FIELDS: [&str; 10] =
    ["eventName", "eventTime", "region", "bucket", "key", "versionId", "sequencer", "size", "eTag", "principalId"];

/// A notification with its records. It has none if it only reports that notifications are set up.
#[derive(Clone, Debug)]
pub struct Notification {
    /// The changes of objects, in the order of the notification.
    pub records: Vec<Record>,
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// What happened to the object, for example `ObjectCreated:Put`.
    pub event_name: String,
    /// When it happened, as S3 writes it.
    pub event_time: Option<String>,
    /// The AWS region of the bucket.
    pub region: Option<String>,
    /// The name of the bucket.
    pub bucket: String,
    /// The key, decoded.
    pub key: String,
    /// The version of the object, if the bucket keeps versions.
    pub version_id: Option<String>,
    /// Orders the changes of one object: S3 gives a later change a larger value.
    pub sequencer: Option<String>,
    /// The size of the object in bytes.
    pub size: Option<u64>,
    /// The entity tag of the object, which changes with its content.
    pub e_tag: Option<String>,
    /// The AWS user that made the change.
    pub principal_id: Option<String>,
}

/// Why a document is not a notification of S3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotificationError(String);

/// The document in AWS's format. It has more fields than are read here, and will get more.
#[derive(Deserialize)]
struct Document {
    #[serde(rename = "Records")]
    records: Option<Vec<Written>>,
    /// `s3:TestEvent` in the notification that reports that notifications are set up.
    #[serde(rename = "Event")]
    event: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    event_source: Option<String>,
    event_name: String,
    event_time: Option<String>,
    aws_region: Option<String>,
    user_identity: Option<Identity>,
    s3: Told,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    principal_id: Option<String>,
}

#[derive(Deserialize)]
struct Told {
    bucket: Bucket,
    object: Object,
}

#[derive(Deserialize)]
struct Bucket {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    key: String,
    size: Option<u64>,
    e_tag: Option<String>,
    version_id: Option<String>,
    sequencer: Option<String>,
}

impl Notification {
    /// Reads a notification from its JSON.
    pub fn read(bytes: &[u8]) -> Result<Notification, NotificationError> {
        let wrong = |what: String| NotificationError(format!("this is no notification of S3: {what}"));
        let document: Document = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        match (document.records, document.event.as_deref()) {
            (Some(records), _) => {
                let records = records
                    .into_iter()
                    .enumerate()
                    .map(|(i, record)| Record::read(record).map_err(|what| wrong(format!("Records[{i}]{what}"))));
                Ok(Notification { records: records.collect::<Result<_, _>>()? })
            }
            (None, Some("s3:TestEvent")) => Ok(Notification { records: vec![] }),
            (None, _) => Err(wrong("it has no `Records`".into())),
        }
    }
}

impl Record {
    fn read(written: Written) -> Result<Record, String> {
        let Written { event_source, event_name, event_time, aws_region, user_identity, s3 } = written;
        if let Some(other) = event_source.filter(|source| source != "aws:s3") {
            return Err(format!(".eventSource is {other:?}, not \"aws:s3\""));
        }
        let Told { bucket, object } = s3;
        // Encoded as in a query: a plus means a space.
        let key = object.key.replace('+', " ");
        let key = percent_decode_str(&key).decode_utf8().map_err(|_| ".s3.object.key is no UTF-8".to_owned())?;
        Ok(Record {
            event_name,
            event_time,
            region: aws_region,
            bucket: bucket.name,
            key: key.into_owned(),
            version_id: object.version_id,
            sequencer: object.sequencer,
            size: object.size,
            e_tag: object.e_tag,
            principal_id: user_identity.and_then(|identity| identity.principal_id),
        })
    }

    /// The same id for the same change of the same object. The key comes last, because it may contain any character.
    pub fn id(&self) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("s3:{}:{}:{}:{}", self.bucket, text(&self.sequencer), text(&self.version_id), self.key)
    }

    fn seen(&self) -> Value {
        serde_json::to_value(self).expect("a record is JSON")
    }
}

impl Definition {
    /// The event that a record becomes, by the first rule that matches; `None` if no rule matches.
    pub fn event_of(&self, record: &Record, now: Time) -> Result<Option<Event>, String> {
        self.event_of_within(record, now, &Steps::default())
    }

    /// Like `event_of`, with a limit on steps.
    pub fn event_of_within(&self, record: &Record, now: Time, steps: &Steps) -> Result<Option<Event>, String> {
        let mut scope = Scope::at(now, steps);
        scope.set("s3", &record.seen())?;
        for rule in &self.s3 {
            if rule.condition.as_ref().map_or(Ok(true), |condition| condition.eval_bool(&scope))? {
                let data = Value::Object(fields(&rule.data, &scope)?);
                let event = Event::new(rule.event.clone(), data).id(record.id());
                return Ok(Some(Event { time: record.event_time.clone(), ..event }));
            }
        }
        Ok(None)
    }
}
