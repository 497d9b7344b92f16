//! The files of the book, embedded in the binary.

use std::sync::LazyLock;

use oncegate_http::auth::hex;
use sha2::{Digest, Sha256};

/// The path of the book's first page. All other pages are below it.
pub const BOOK: &str = "/docs";

pub struct Page {
    /// Its path in the repository.
    pub file: &'static str,
    pub path: &'static str,
    pub text: &'static str,
}

macro_rules! pages {
    ($($name:literal,)+) => {
        pub static PAGES: &[Page] = &[
            page("docs/README.md", BOOK, include_str!("../../shared/docs/README.md")),
            $(page(
                concat!("docs/", $name, ".md"),
                concat!("/docs/", $name),
                include_str!(concat!("../../shared/docs/", $name, ".md")),
            ),)+
            page("CHANGELOG.md", "/docs/changelog", include_str!("../../shared/CHANGELOG.md")),
            page("SECURITY.md", "/docs/security", include_str!("../../shared/SECURITY.md")),
        ];
    };
}

const fn page(file: &'static str, path: &'static str, text: &'static str) -> Page {
    Page { file, path, text }
}

pages! {
    "benchmarks",
    "concepts/choosing-a-policy",
    "concepts/claims",
    "concepts/comparison",
    "concepts/what-can-go-wrong",
    "concepts/when-not-to-use",
    "faq",
    "glossary",
    "guarantees",
    "guides/charge-once",
    "guides/events-and-sagas",
    "guides/queue-workers-that-crash",
    "guides/reminders",
    "guides/rust-service",
    "guides/scheduled-syncs",
    "guides/webhooks-twice",
    "operate/dashboard",
    "operate/drill",
    "operate/effects",
    "operate/hardening",
    "operate/replicas",
    "operate/reverse-proxy",
    "operate/security",
    "operate/telemetry",
    "operate/watch",
    "reference/actions",
    "reference/api",
    "reference/cli",
    "reference/configuration",
    "reference/events",
    "reference/limits",
    "reference/messages",
    "reference/metrics",
    "reference/problems",
    "reference/roles",
    "reference/sagas",
    "reference/workspaces",
    "start",
    "unsafe",
    "upgrading",
}

pub struct Picture {
    /// Its path in the repository.
    pub file: &'static str,
    pub bytes: &'static [u8],
    /// With a hash of the content, so that browsers may cache the file.
    pub path: String,
}

macro_rules! pictures {
    ($($name:literal,)+) => {
        pub static PICTURES: LazyLock<Vec<Picture>> = LazyLock::new(|| vec![
            $(picture(concat!("docs/", $name), include_bytes!(concat!("../../shared/docs/", $name))),)+
        ]);
    };
}

fn picture(file: &'static str, bytes: &'static [u8]) -> Picture {
    Picture { file, bytes, path: format!("/{file}?{}", hex(&Sha256::digest(bytes)[..6])) }
}

// Only those that a page shows: the README has more.
pictures! {
    "drill.svg",
    "images/claim-life.svg",
    "images/claim.png",
    "images/crash-per-policy.svg",
    "images/lease-and-window.svg",
    "images/message-path.svg",
    "images/overview.png",
    "search-import.svg",
}

impl Picture {
    pub fn media(&self) -> &'static str {
        if self.file.ends_with(".svg") { "image/svg+xml" } else { "image/png" }
    }
}

/// The page of a file of the repository.
pub fn page_of(file: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.file == file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::book::contents::CONTENTS;
    use crate::book::markdown::render;

    fn files(folder: &Path, ending: &str, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, ending, found);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.insert(path.strip_prefix(shared()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    fn shared() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/shared"))
    }

    #[test]
    fn every_page_of_the_folder_is_served() {
        let mut found = BTreeSet::new();
        files(&shared().join("docs"), ".md", &mut found);
        let served = PAGES.iter().map(|page| page.file.to_owned());
        assert_eq!(served.filter(|file| file.starts_with("docs/")).collect::<BTreeSet<_>>(), found);
    }

    #[test]
    fn every_page_is_in_the_table_of_contents() {
        let linked: BTreeSet<_> =
            CONTENTS.iter().flat_map(|section| &section.entries).map(|entry| entry.path).collect();
        let missing = PAGES.iter().filter(|page| !linked.contains(page.path) && page.file != "SECURITY.md");
        assert_eq!(missing.map(|page| page.file).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn every_picture_that_a_page_shows_is_served_and_no_other() {
        let html: String = PAGES.iter().map(|page| render(page).html).collect();
        let shown: BTreeSet<_> = html.split("<img src=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(shown, PICTURES.iter().map(|picture| picture.path.as_str()).collect());
    }

    #[test]
    fn the_labels_of_the_pictures_are_terms_of_the_glossary() {
        let read = |file: &str| fs::read_to_string(shared().join(file)).unwrap();
        let glossary = read("docs/glossary.md").to_lowercase();
        let terms: BTreeSet<_> = glossary.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim).collect();
        let mut labels = 0;
        for picture in PICTURES.iter().filter(|picture| picture.file.ends_with(".svg")) {
            let text = read(picture.file).to_lowercase();
            for element in text.split("class=\"").skip(1) {
                let (classes, rest) = element.split_once('"').unwrap();
                if classes.split(' ').any(|class| class == "term") {
                    let label = rest.split_once('>').unwrap().1.split('<').next().unwrap();
                    let one = label.strip_suffix('s').unwrap_or(label);
                    assert!(terms.contains(label) || terms.contains(one), "{}: {label}", picture.file);
                    labels += 1;
                }
            }
        }
        assert!(labels > 50, "only {labels} labels");
    }
}
