//! Search in the book: the sections that have all words of a query, those first that have them in their heading.

use std::sync::LazyLock;

use super::markdown::render;
use super::pages::PAGES;

/// The longest query, in characters. The rest is ignored.
pub const QUERY_MAX: usize = 200;
/// The most results.
const RESULTS_MAX: usize = 20;
/// About how much text an excerpt has on each side of the word that was found, in bytes.
const AROUND: usize = 110;

struct Section {
    page: String,
    path: String,
    heading: String,
    text: String,
    /// Page, heading and text in lower case. ASCII only, so that positions in `text` stay the same.
    lower: [String; 3],
}

pub struct Found {
    pub page: &'static str,
    pub heading: &'static str,
    pub path: &'static str,
    /// The text before the word, the word, and the text behind it.
    pub excerpt: [&'static str; 3],
}

static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    let sections = PAGES.iter().flat_map(|page| {
        let rendered = render(page);
        let title = rendered.title;
        rendered.sections.into_iter().map(move |section| {
            let hash = if section.anchor.is_empty() { "" } else { "#" };
            let lower = [&title, &section.heading, &section.text].map(|text| text.to_ascii_lowercase());
            let path = format!("{}{hash}{}", page.path, section.anchor);
            Section { page: title.clone(), path, heading: section.heading, text: section.text, lower }
        })
    });
    sections.collect()
});

pub fn find(query: &str) -> Vec<Found> {
    let query: String = query.chars().take(QUERY_MAX).collect::<String>().to_ascii_lowercase();
    let words: Vec<&str> = query.split_whitespace().collect();
    if words.is_empty() {
        return vec![];
    }
    let ranked = SECTIONS.iter().filter_map(|section| Some((rank(section, &words)?, section)));
    let mut ranked: Vec<(usize, &Section)> = ranked.collect();
    // Stable: within a rank in the order of the pages.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(RESULTS_MAX).map(|(_, section)| found(section, &words)).collect()
}

/// Less is better. None if a word is missing. Words begin as the query's words do, rather than have them inside.
fn rank(section: &Section, words: &[&str]) -> Option<usize> {
    let [page, heading, text] = &section.lower;
    let is_exact = words.join(" ") == *heading;
    let ranks = words.iter().map(|word| {
        let places = [begins(heading, word), begins(page, word), begins(text, word), text.find(word)];
        places.iter().position(Option::is_some)
    });
    ranks.sum::<Option<usize>>().map(|rank| if is_exact { 0 } else { rank + 1 })
}

/// Where a word begins with this one.
fn begins(text: &str, word: &str) -> Option<usize> {
    let mut places = text.match_indices(word).map(|(at, _)| at);
    places.find(|at| !text[..*at].ends_with(char::is_alphanumeric))
}

fn found(section: &'static Section, words: &[&str]) -> Found {
    let text = section.text.as_str();
    let lower = &section.lower[2];
    let place = |word: &&str| Some((begins(lower, word).or_else(|| lower.find(word))?, word.len()));
    let hit = words.iter().find_map(|word| place(word).map(|(at, length)| (at, at + length)));
    let (start, end) = hit.unwrap_or((0, 0));
    let from = text[..text.floor_char_boundary(start.saturating_sub(AROUND))].rfind(' ').map_or(0, |space| space + 1);
    let to = text.floor_char_boundary((end + AROUND).min(text.len()));
    let to = text[to..].find(' ').map_or(text.len(), |space| to + space);
    let excerpt = [&text[from..start], &text[start..end], &text[end..to]];
    Found { page: &section.page, heading: &section.heading, path: &section.path, excerpt }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_in_a_heading_comes_first() {
        let found = find("Fingerprint");
        assert_eq!(found[0].heading.to_lowercase(), "fingerprint");
        assert!(found[0].path.starts_with("/docs/glossary#"), "{}", found[0].path);
        assert!(found.len() > 2);
        let found = find("lease");
        assert_eq!(found[0].heading, "lease");
        assert!(found.iter().take(5).all(|found| !found.heading.contains("elease")));
    }

    #[test]
    fn a_section_has_every_word() {
        for Found { heading, page, excerpt, .. } in find("lease renew") {
            assert!(!excerpt.concat().is_empty(), "{page}: {heading}");
        }
        assert!(find("lease nosuchword").is_empty());
        assert!(find("  ").is_empty());
    }

    #[test]
    fn a_query_and_its_results_are_bounded() {
        assert_eq!(find("the").len(), RESULTS_MAX);
        assert_eq!(find(&format!("claim{}", " ".repeat(QUERY_MAX))).len(), RESULTS_MAX);
        assert_eq!(find(&format!("claim{}nosuchword", " ".repeat(QUERY_MAX))).len(), RESULTS_MAX);
        // Excerpts end between characters.
        for letter in 'a'..='z' {
            find(&letter.to_string());
        }
    }
}
