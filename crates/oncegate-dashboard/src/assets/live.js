// Keeps a page up to date. Without this every page is whole; with it nobody has to reload.
"use strict";

// What the server sends is put where it belongs, unless somebody is just reading or using it.
const isInUse = (part) =>
  part.contains(document.activeElement) ||
  (part.matches("ol") && part.matches(":hover")) ||
  !document.getSelection().isCollapsed;

let source = null;

function listen() {
  const address = document.body.dataset.live;
  if (!address || source || document.hidden) return;
  source = new EventSource(address);
  for (const part of document.querySelectorAll("[data-swap]")) {
    source.addEventListener(part.dataset.swap, (event) => {
      if (!isInUse(part) && part.innerHTML !== event.data) part.innerHTML = event.data;
    });
  }
  source.onopen = () => document.body.classList.remove("away");
  source.onerror = () => {
    document.body.classList.add("away");
    // A browser comes again by itself, but not to who answers with something else: a proxy whose server is away.
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(listen, 3000);
  };
}

// A browser has few connections to one server: what nobody sees needs none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && source) {
    source.close();
    source = null;
  } else {
    listen();
  }
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea");
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("q")?.select();
  }
});

function span(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

// How long ago something was changes while one looks at it.
setInterval(() => {
  for (const time of document.querySelectorAll("td time, dd time")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (!Number.isNaN(seconds)) time.textContent = seconds < 0 ? `in ${span(-seconds)}` : `${span(seconds)} ago`;
  }
}, 5000);

listen();
