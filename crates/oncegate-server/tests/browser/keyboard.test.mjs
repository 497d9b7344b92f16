import assert from "node:assert/strict";
import { test } from "node:test";
import { api, maker, open, unique } from "./support.mjs";

const server = api();
const make = maker(server);

// In the page: what has the focus, and whether one can see that.
function focused() {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
  // The outline is around it, on what is behind it.
  let behind = element.parentElement;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const ground = getComputedStyle(behind).backgroundColor;
  const { top, bottom, left, right } = element.getBoundingClientRect();
  // What the focus has left may be replaced at once; the part that it was in stays.
  const before = window.focusedBefore?.find((one) => one?.isConnected);
  window.focusedBefore = [element, element.closest("[data-swap]")];
  return {
    name: (element.getAttribute("aria-label") ?? element.innerText ?? "").trim() || element.id,
    part: element.closest("header, nav, main, footer")?.tagName ?? "BODY",
    isMarked: outlineStyle === "solid" && parseFloat(outlineWidth) >= 2 && outlineColor !== ground,
    isInView: bottom > 0 && top < innerHeight && right > 0 && left < innerWidth,
    comesNext: !before || Boolean(before.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING),
  };
}

// Tabs on, up to where the page ends, or to what is wanted.
async function tab(page, isWanted = () => false) {
  const stops = [];
  for (let count = 0; count < 400; count += 1) {
    await page.keyboard.press("Tab");
    const stop = await page.evaluate(focused);
    if (!stop) return stops;
    stops.push(stop);
    if (isWanted(stop)) return stops;
  }
  assert.fail("the page never ends");
}

for (const path of ["/", "/actions?status=pending", "/sends?state=unknown"]) {
  test(`one goes through ${path} by Tab, in its order, and sees where one is`, async (t) => {
    await server.first("/api/actions?status=pending");
    const { id } = await server.first("/api/sends?state=unknown");
    const page = await open(t);
    await page.goto(path.startsWith("/sends") ? `/sends/${id}` : path);
    const stops = await tab(page);
    const names = stops.map((stop) => stop.name);
    assert.deepEqual(names.slice(0, 5), ["Skip to the content", "Oncegate", "q", "default", "Overview"]);
    assert.deepEqual(stops.filter((stop) => !stop.isMarked || !stop.isInView || !stop.comesNext), []);
    const parts = stops.map((stop) => stop.part).filter((part, place, all) => part !== all[place - 1]);
    assert.deepEqual(parts, ["BODY", "HEADER", "NAV", "MAIN", "FOOTER"]);
    assert.deepEqual(page.wrongs, []);
  });
}

test("the skip link leads past the menu", async (t) => {
  const page = await open(t);
  await page.goto("/claims");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForURL(/#main$/);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.closest("main") !== null), true);
});

test("a slash begins a search, and Enter leads to what was found", async (t) => {
  const page = await open(t);
  const id = await make.pendingAction();
  await page.goto("/");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "q");
  await page.keyboard.type("a/b");
  assert.equal(await page.locator("#q").inputValue(), "a/b", "where one types, a slash is a slash");
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  await page.keyboard.type(id);
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/actions/${id}`);
});

for (const key of ["Enter", "Space"]) {
  test(`${key} opens what is to be done, and Enter sends it with its reason`, async (t) => {
    const page = await open(t);
    const id = await make.pendingAction();
    const reason = unique("typed");
    await page.goto(`/actions/${id}`);
    await tab(page, (stop) => stop.name === "Cancel …");
    await page.keyboard.press(key);
    await page.keyboard.press("Tab");
    const stop = await page.evaluate(focused);
    assert.ok(stop.isMarked && stop.isInView, JSON.stringify(stop));
    await page.keyboard.type(reason);
    await page.keyboard.press("Enter");
    await page.waitForURL(/did=cancel/);
    assert.equal((await server.get(`/api/actions/${id}`)).status, "cancelled");
    await page.goto("/decisions?fate=noted");
    await page.getByText(reason).waitFor();
  });
}
