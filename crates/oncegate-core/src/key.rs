//! Keys: what makes two requests the same request.
//!
//! A key is a list of parts; a part's position names it. The hash frames each part, so two different lists
//! never hash alike by concatenation, and an absent part differs from an empty one.
//! Parts are compared byte for byte: the hash does not trim, case-fold or normalise them.

use std::fmt;
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::names::{GuardName, WorkspaceName};

/// The first bytes of every hash input. A change of the framing must change this tag, so that
/// an id of one framing is never mistaken for an id of another.
const FRAMING: &[u8] = b"oncegate.key.v1";

/// One part of a key, as hashed. An integer and the text of its digits are different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart<'a> {
    /// The part is missing. A missing part differs from an empty one.
    Absent,
    /// The bytes of a text.
    Bytes(&'a [u8]),
    /// A whole number.
    Integer(i128),
}

impl<'a, P: AsRef<[u8]>> From<&'a Option<P>> for KeyPart<'a> {
    fn from(part: &'a Option<P>) -> Self {
        part.as_ref().map_or(KeyPart::Absent, |bytes| KeyPart::Bytes(bytes.as_ref()))
    }
}

impl<'a> From<&'a KeyPart<'a>> for KeyPart<'a> {
    fn from(part: &'a KeyPart<'a>) -> Self {
        *part
    }
}

/// The SHA-256 of a guard's name and a key's parts: the claim's id everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 32]);

impl ClaimId {
    /// Hashes `parts` under `guard`.
    ///
    /// Each part is written as its kind, then the length and bytes of a text, or the 16 bytes of an integer. The hash input
    /// therefore decodes to exactly one list of parts.
    pub fn of<'a, P>(guard: &GuardName, parts: &'a [P]) -> Self
    where
        KeyPart<'a>: From<&'a P>,
    {
        let mut hash = Sha256::new();
        let framed = |hash: &mut Sha256, bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        framed(&mut hash, FRAMING);
        framed(&mut hash, guard.as_str().as_bytes());
        for part in parts {
            match KeyPart::from(part) {
                KeyPart::Absent => hash.update([0]),
                KeyPart::Bytes(bytes) => {
                    hash.update([1]);
                    framed(&mut hash, bytes);
                }
                KeyPart::Integer(number) => {
                    hash.update([2]);
                    hash.update(number.to_le_bytes());
                }
            }
        }
        ClaimId(hash.finalize().into())
    }

    /// The id with these bytes, as a store has kept them. Nothing is hashed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        ClaimId(bytes)
    }

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The id as 64 lower-case hex digits.
    pub fn to_hex(&self) -> Hex {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0u8; 64];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Hex(hex)
    }

    /// Reads 64 lower-case hex digits; anything else is not an id.
    pub fn parse(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(ClaimId(bytes))
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// An id in hex, without an allocation.
pub struct Hex([u8; 64]);

impl std::ops::Deref for Hex {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hex digits are ASCII")
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({self})")
    }
}

/// Identifies a claim: its workspace and its id. The id already covers the guard; the field repeats it for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimKey {
    /// The workspace that owns the claim.
    pub workspace: WorkspaceName,
    /// The hash of the guard's name and the key's parts.
    pub id: ClaimId,
    /// The guard that the claim belongs to.
    pub guard: GuardName,
}

/// Leaves out the guard, because the id is derived from it.
impl Hash for ClaimKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
        self.workspace.hash(state);
    }
}

impl ClaimKey {
    /// The key of the claim in `workspace` with these parts under `guard`.
    pub fn of<'a, P>(workspace: &WorkspaceName, guard: &GuardName, parts: &'a [P]) -> Self
    where
        KeyPart<'a>: From<&'a P>,
    {
        ClaimKey { workspace: workspace.clone(), guard: guard.clone(), id: ClaimId::of(guard, parts) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(guard: &str, parts: &[Option<&str>]) -> ClaimId {
        ClaimId::of(&GuardName::new(guard).unwrap(), parts)
    }

    #[test]
    fn framing_keeps_apart_what_concatenation_would_join() {
        let distinct = [
            id("g", &[Some("a"), Some("bc")]),
            id("g", &[Some("ab"), Some("c")]),
            id("g", &[Some("abc")]),
            id("g", &[Some("abc"), None]),
            id("g", &[Some("abc"), Some("")]),
            id("g", &[None, Some("abc")]),
            id("ga", &[Some("bc")]),
            id("g", &[Some("a"), Some("b"), Some("c")]),
            id("g", &[Some(" abc")]),
            id("g", &[Some("ABC")]),
        ];
        for (i, a) in distinct.iter().enumerate() {
            for b in &distinct[i + 1..] {
                assert_ne!(a, b);
            }
        }
    }

    #[test]
    fn the_framing_is_pinned_because_stored_ids_depend_on_it() {
        assert_eq!(
            id("message", &[Some("+15550100"), None, Some("hi")]).to_string(),
            "164481e1287680728bd080bb1fcb44d2f76201dbab1afd1e80341abdab627b5a"
        );
    }

    #[test]
    fn an_integer_and_its_digits_are_different_parts() {
        let guard = GuardName::new("g").unwrap();
        let of = |parts: &[KeyPart<'_>]| ClaimId::of(&guard, parts);
        let texts: [&[u8]; 4] = [b"17", &17i128.to_le_bytes(), &[2, 17], b""];
        for text in texts {
            assert_ne!(of(&[KeyPart::Integer(17)]), of(&[KeyPart::Bytes(text)]));
        }
        assert_ne!(of(&[KeyPart::Integer(17)]), of(&[KeyPart::Integer(-17)]));
        assert_eq!(of(&[KeyPart::Bytes(b"17")]), id("g", &[Some("17")]));
        assert_eq!(of(&[KeyPart::Absent]), id("g", &[None]));
    }

    #[test]
    fn only_64_lower_case_hex_digits_are_an_id() {
        let good = id("g", &[Some("a")]);
        assert_eq!(ClaimId::parse(&good.to_string()), Some(good));
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(65), &"G".repeat(64), &"A".repeat(64)] {
            assert_eq!(ClaimId::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn different_lists_of_parts_have_different_ids(
            a in prop::collection::vec(prop::option::of("[ab]{0,3}"), 0..5),
            b in prop::collection::vec(prop::option::of("[ab]{0,3}"), 0..5),
        ) {
            let guard = GuardName::new("g").unwrap();
            prop_assert_eq!(a == b, ClaimId::of(&guard, &a) == ClaimId::of(&guard, &b));
        }
    }
}
