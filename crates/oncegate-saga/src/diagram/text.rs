//! The approximate width of a text, and how to write it into XML.

/// The width of a text in a sans-serif font. The actual font is unknown, so this is rather too wide than too narrow.
pub(super) fn width(text: &str, font_size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * font_size
}

fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ':' | '\'' | '|' => 0.34,
        'f' | 'r' | 't' | '-' | ' ' => 0.42,
        'm' | 'w' | 'M' | 'W' => 0.95,
        'A'..='Z' => 0.74,
        c if c.is_ascii() => 0.62,
        _ => 1.0,
    }
}

pub(super) fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// A length, rounded to a tenth of a pixel.
pub(super) fn px(length: f64) -> String {
    let tenths = (length * 10.0).round();
    // Adding 0.0 avoids a minus zero.
    format!("{}", (tenths + 0.0) / 10.0)
}
