//! Whether a chain is whole: `oncegate audit verify`.

use oncegate::WorkspaceName;
use oncegate::store::{MainStore, StoreError};

use super::line::Head;
use super::{Line, READ_AT_ONCE, find_head, read};

/// The first line that differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub seq: u64,
    pub why: &'static str,
}

/// A chain without a missing or changed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub lines: u64,
    /// The hash of the last line.
    pub hash: String,
}

/// Follows a chain line by line.
struct Walk<'w> {
    workspace: &'w WorkspaceName,
    head: Head,
}

impl Walk<'_> {
    /// The next line, as it is in the store.
    fn step(&mut self, body: Option<&[u8]>) -> Result<(), Broken> {
        let seq = self.head.seq + 1;
        let broken = |why| Broken { seq, why };
        let body = body.ok_or_else(|| broken("it is missing"))?;
        let line: Line = serde_json::from_slice(body).map_err(|_| broken("it was changed: it cannot be read"))?;
        if line.seq != seq || line.workspace != self.workspace.as_str() {
            return Err(broken("another line is in its place"));
        }
        if line.prev != self.head.hash {
            return Err(broken("it does not follow the line before it: one of the two was changed"));
        }
        if line.hash != line.digest() {
            return Err(broken("it was changed: its hash is another"));
        }
        self.head = Head::of(&line);
        Ok(())
    }
}

/// A line's hash from outside the store: from the server's log. A chain alone does not show that its end was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub seq: u64,
    pub hash: String,
}

impl std::str::FromStr for Anchor {
    type Err = String;

    fn from_str(text: &str) -> Result<Anchor, String> {
        let parsed = text.split_once(':').and_then(|(seq, hash)| Some((seq.parse().ok()?, hash)));
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        match parsed {
            Some((seq, hash)) if seq > 0 && is_hash(hash) => Ok(Anchor { seq, hash: hash.to_lowercase() }),
            _ => Err("an anchor is NUMBER:HASH, auditSeq and auditHash of a log line".into()),
        }
    }
}

/// Checks a workspace's chain from its first line to its last.
pub async fn check(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    anchors: &[Anchor],
) -> Result<Result<Whole, Broken>, StoreError> {
    let end = find_head(store, workspace, None).await?.seq;
    let mut walk = Walk { workspace, head: Head::genesis() };
    while walk.head.seq < end {
        let from = walk.head.seq + 1;
        for (seq, body) in read(store, workspace, from, end.min(from + READ_AT_ONCE - 1)).await? {
            if let Err(broken) = walk.step(body.as_deref()) {
                return Ok(Err(broken));
            }
            if anchors.iter().any(|anchor| anchor.seq == seq && anchor.hash != walk.head.hash) {
                return Ok(Err(Broken { seq, why: "the chain was written anew: the anchor has another hash" }));
            }
        }
    }
    match anchors.iter().find(|anchor| anchor.seq > end) {
        Some(_) => Ok(Err(Broken { seq: end + 1, why: "it is missing: the end of the chain was cut off" })),
        None => Ok(Ok(Whole { lines: end, hash: walk.head.hash })),
    }
}
