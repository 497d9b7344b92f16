//! Parses the value of the `Idempotency-Key` header.

/// Allowed length of a key, in characters.
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 1..=255;

/// The error text for a header that [`idempotency_key`] refuses.
pub const WRONG_KEY: &str = "Idempotency-Key: one key of 1 to 255 visible characters, quoted or bare";

/// The key in the value of the header: quoted (a structured field) or bare. Both forms give the same key.
pub fn idempotency_key(value: &str) -> Result<&str, &'static str> {
    let value = value.trim();
    let key = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').filter(|key| !key.contains(['"', '\\'])).ok_or(WRONG_KEY)?,
        None => value,
    };
    let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if visible && KEY_LENGTH.contains(&key.len()) { Ok(key) } else { Err(WRONG_KEY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_quoted_or_bare_and_of_visible_characters() {
        assert_eq!(idempotency_key("abc"), Ok("abc"));
        assert_eq!(idempotency_key("\"abc\""), Ok("abc"), "quoted and bare are the same key");
        let long = "k".repeat(256);
        for wrong in ["", "\"\"", "\"abc", "a b", "\"a\\\"b\"", &long] {
            assert_eq!(idempotency_key(wrong), Err(WRONG_KEY), "{wrong:?}");
        }
    }
}
