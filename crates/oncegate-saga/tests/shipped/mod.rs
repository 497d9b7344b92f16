//! The saga that ships with Oncegate.

use oncegate_saga::{Definition, Draft};

pub const EVENTS: [&str; 6] = [
    "SearchUploadStarted",
    "SearchUploadSaved",
    "UploadTimeout",
    "ReferenceFileParsingCompleted",
    "ReferenceFileFaulted",
    "StartParsingFaulted",
];

pub fn definition() -> Definition {
    let text = include_str!("../../../../sagas/search-import.toml");
    Draft::read("search-import.toml", text).and_then(Draft::check).expect("what ships is right")
}
