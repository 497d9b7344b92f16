//! The table of contents: the sections of `docs/README.md`, with the pages that they link.

use std::sync::LazyLock;

use pulldown_cmark::{Event, HeadingLevel, Tag, TagEnd};

use super::markdown::{events, joined, render};
use super::pages::{BOOK, PAGES, page_of};

/// The page that is made from the description of the API.
pub const ENDPOINTS: &str = "/docs/openapi";

pub struct Section {
    /// Empty for the pages before the first section.
    pub name: String,
    pub entries: Vec<Entry>,
}

pub struct Entry {
    pub name: String,
    pub path: &'static str,
}

pub static CONTENTS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    let book = &PAGES[0];
    let mut sections = vec![Section { name: String::new(), entries: vec![entry("Contents", BOOK)] }];
    let mut in_heading = false;
    for event in events(book) {
        match event {
            Event::Start(Tag::Heading { level: HeadingLevel::H2, .. }) => {
                in_heading = true;
                sections.push(Section { name: String::new(), entries: vec![] });
            }
            Event::End(TagEnd::Heading(_)) => in_heading = false,
            Event::Text(text) if in_heading => last(&mut sections).name.push_str(&text),
            Event::Start(Tag::Link { dest_url, .. }) => {
                let Some(page) = page_of(&joined(book.file, &dest_url)) else { continue };
                let entries = &mut last(&mut sections).entries;
                entries.push(entry(&render(page).title, page.path));
                if page.file == "docs/reference/api.md" {
                    entries.push(entry("Every endpoint", ENDPOINTS));
                }
            }
            _ => {}
        }
    }
    sections
});

fn last(sections: &mut [Section]) -> &mut Section {
    sections.last_mut().expect("it begins with one")
}

fn entry(name: &str, path: &'static str) -> Entry {
    Entry { name: name.to_owned(), path }
}

/// The table of contents, as a page shows it.
pub struct Contents {
    pub here: &'static str,
}

impl Contents {
    pub fn sections(&self) -> &'static [Section] {
        &CONTENTS
    }

    pub fn is_here(&self, entry: &Entry) -> bool {
        entry.path == self.here
    }

    /// The pages before and behind this one.
    pub fn beside(&self) -> [Option<&'static Entry>; 2] {
        let entries: Vec<&'static Entry> = CONTENTS.iter().flat_map(|section| &section.entries).collect();
        let Some(at) = entries.iter().position(|entry| self.is_here(entry)) else { return [None, None] };
        [at.checked_sub(1), Some(at + 1)].map(|at| entries.get(at?).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sections_are_those_of_the_books_first_page() {
        let names: Vec<&str> = CONTENTS.iter().map(|section| section.name.as_str()).collect();
        assert_eq!(names[..4], ["", "Start", "Guides", "Concepts"]);
        let guides: Vec<&str> = CONTENTS[2].entries.iter().map(|entry| entry.path).collect();
        assert_eq!(guides[..2], ["/docs/guides/charge-once", "/docs/guides/webhooks-twice"]);
    }

    #[test]
    fn each_page_leads_to_the_next_one() {
        let [before, behind] = Contents { here: "/docs/guides/charge-once" }.beside();
        assert_eq!(before.map(|entry| entry.path), Some("/docs/start"));
        assert_eq!(behind.map(|entry| entry.path), Some("/docs/guides/webhooks-twice"));
        assert!(Contents { here: BOOK }.beside()[0].is_none());
        assert!(Contents { here: "/docs/changelog" }.beside()[1].is_none());
    }
}
