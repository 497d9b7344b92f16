//! From Markdown to HTML, with the anchors of a code host and links that lead to the server's own pages.

use std::collections::HashMap;

use pulldown_cmark::{CodeBlockKind, CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

use super::pages::{PICTURES, Page, page_of};

/// Where files are that the server does not serve.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/");

pub struct Rendered {
    pub title: String,
    pub html: String,
    pub sections: Vec<Section>,
}

/// A heading, and the text up to the next one.
pub struct Section {
    /// Empty for the top of the page.
    pub anchor: String,
    pub heading: String,
    pub text: String,
}

pub fn events(page: &Page) -> impl Iterator<Item = Event<'static>> {
    Parser::new_ext(page.text, Options::ENABLE_TABLES)
}

pub fn render(page: &Page) -> Rendered {
    let mut events: Vec<Event<'static>> = events(page).collect();
    let sections = sections(&mut events);
    let mut html = String::with_capacity(page.text.len() * 2);
    html::push_html(&mut html, events.into_iter().filter_map(|event| shown(page, event)));
    let title = sections.first().map(|section| section.heading.clone()).unwrap_or_default();
    Rendered { title, html, sections }
}

/// Gives each heading its anchor, and returns the sections.
fn sections(events: &mut [Event<'static>]) -> Vec<Section> {
    let mut sections: Vec<Section> = vec![];
    let mut anchors = HashMap::new();
    let mut in_heading = false;
    for at in 0..events.len() {
        match &events[at] {
            Event::Start(Tag::Heading { level, .. }) => {
                let is_top = *level == HeadingLevel::H1;
                let heading = heading(&events[at + 1..]);
                let anchor = anchor(&heading, &mut anchors);
                if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
                    *id = Some(anchor.clone().into());
                }
                let anchor = if is_top { String::new() } else { anchor };
                sections.push(Section { anchor, heading, text: String::new() });
                in_heading = true;
            }
            Event::End(TagEnd::Heading(_)) => in_heading = false,
            event => {
                let text = match event {
                    Event::Text(text) | Event::Code(text) => text,
                    Event::SoftBreak | Event::HardBreak => " ",
                    Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell | TagEnd::CodeBlock) => " ",
                    _ => continue,
                };
                if let Some(section) = sections.last_mut().filter(|_| !in_heading) {
                    section.text.push_str(text);
                }
            }
        }
    }
    sections
}

/// The text of the heading that these events begin with.
fn heading(events: &[Event]) -> String {
    let inside = events.iter().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
    inside
        .filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
            _ => None,
        })
        .collect()
}

/// The anchor that GitHub gives to a heading.
fn anchor(heading: &str, seen: &mut HashMap<String, usize>) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    let anchor: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
    let before = seen.entry(anchor.clone()).or_default();
    *before += 1;
    if *before == 1 { anchor } else { format!("{anchor}-{}", *before - 1) }
}

fn shown(page: &Page, event: Event<'static>) -> Option<Event<'static>> {
    let html = |text: &'static str| Event::Html(text.into());
    Some(match event {
        // Wide tables and long lines scroll inside of the page, with the keyboard, too.
        Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) if info.ends_with(" answer") => {
            html("<pre class=\"answer\" tabindex=\"0\"><code>")
        }
        Event::Start(Tag::CodeBlock(_)) => html("<pre tabindex=\"0\"><code>"),
        Event::End(TagEnd::CodeBlock) => html("</code></pre>\n"),
        Event::Start(Tag::Table(_)) => {
            html("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>")
        }
        Event::End(TagEnd::Table) => html("</tbody></table></div>\n"),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            Event::Start(Tag::Link { link_type, dest_url: target(page, &dest_url), title, id })
        }
        Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
            Event::Start(Tag::Image { link_type, dest_url: target(page, &dest_url), title, id })
        }
        // Comments. A test checks that there is no other HTML.
        Event::Html(_) | Event::InlineHtml(_) => return None,
        event => event,
    })
}

/// Where a link of this page leads, as a link of the served page.
fn target(page: &Page, link: &str) -> CowStr<'static> {
    if link.starts_with('#') || link.contains("://") || link.starts_with("mailto:") {
        return link.to_owned().into();
    }
    let (path, fragment) = link.find('#').map_or((link, ""), |at| link.split_at(at));
    let file = joined(page.file, path);
    if let Some(page) = page_of(&file) {
        return format!("{}{fragment}", page.path).into();
    }
    let picture = PICTURES.iter().find(|picture| picture.file == file);
    picture.map_or_else(|| format!("{REPOSITORY}{file}{fragment}"), |picture| picture.path.clone()).into()
}

/// The file that a relative path names in the file `from`.
pub fn joined(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::pages::PAGES;

    const PAGE: Page = Page {
        file: "docs/guides/reminders.md",
        path: "/docs/guides/reminders",
        text: "# A\n\nFirst.\n\n## Keys, and `why`?\n\nx & y\n\n## Keys and why\n",
    };

    #[test]
    fn headings_have_the_anchors_of_a_code_host() {
        let rendered = render(&PAGE);
        assert_eq!(rendered.title, "A");
        let anchors: Vec<&str> = rendered.sections.iter().map(|section| section.anchor.as_str()).collect();
        assert_eq!(anchors, ["", "keys-and-why", "keys-and-why-1"]);
        assert!(
            rendered.html.contains(r#"<h2 id="keys-and-why">Keys, and <code>why</code>?</h2>"#),
            "{}",
            rendered.html
        );
        assert!(rendered.sections[1].text.ends_with("x & y "), "{:?}", rendered.sections[1].text);
    }

    #[test]
    fn links_lead_to_the_served_page_or_to_the_repository() {
        let target = |link| target(&PAGE, link).to_string();
        assert_eq!(target("../glossary.md#claim"), "/docs/glossary#claim");
        assert_eq!(target("charge-once.md"), "/docs/guides/charge-once");
        assert_eq!(target("../README.md#guides"), "/docs#guides");
        assert_eq!(target("../../SECURITY.md"), "/docs/security");
        assert_eq!(target("#set-it"), "#set-it");
        assert_eq!(target("https://jqlang.org"), "https://jqlang.org");
        assert_eq!(target("../../examples/order/order.toml"), format!("{REPOSITORY}examples/order/order.toml"));
        assert!(target("../drill.svg").starts_with("/docs/drill.svg?"));
    }

    #[test]
    fn pages_have_no_html_but_comments() {
        for page in PAGES {
            for event in events(page) {
                if let Event::Html(html) | Event::InlineHtml(html) = event {
                    assert!(html.starts_with("<!--"), "{}: {html}", page.file);
                }
            }
        }
    }
}
