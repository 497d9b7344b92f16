import assert from "node:assert/strict";
import { test } from "node:test";
import axe from "axe-core";
import { open } from "./support.mjs";

const desk = { viewport: { width: 1440, height: 900 } };
const phone = { viewport: { width: 390, height: 844 } };
const scriptless = { javaScriptEnabled: false };

test("the contents lead through the book, with the present page marked", async (t) => {
  const page = await open(t, { ...desk, ...scriptless });
  await page.goto("/docs");
  const contents = page.getByRole("navigation", { name: "The book" });
  await contents.getByRole("link", { name: "Charge a card once" }).click();
  await page.waitForURL("/docs/guides/charge-once");
  assert.equal(await contents.locator("[aria-current=page]").textContent(), "Charge a card once");
  await page.getByRole("link", { name: "Webhooks that fire twice →" }).click();
  await page.waitForURL("/docs/guides/webhooks-twice");
  await page.getByRole("link", { name: "← Charge a card once" }).click();
  await page.waitForURL("/docs/guides/charge-once");
});

test("a keyboard reaches the contents", async (t) => {
  const page = await open(t, desk);
  await page.goto("/docs/start");
  const focused = page.locator("nav a:focus");
  for (let presses = 0; presses < 10 && !(await focused.count()); presses += 1) await page.keyboard.press("Tab");
  assert.equal(await focused.textContent(), "Contents");
});

test("a phone shows the page first, and the contents on request", async (t) => {
  const page = await open(t, { ...phone, ...scriptless });
  await page.goto("/docs/guides/charge-once");
  const link = page.getByRole("navigation", { name: "The book" }).getByRole("link", { name: "Reminders" });
  assert.equal(await link.isVisible(), false);
  await page.getByText("Contents", { exact: true }).first().click();
  await link.click();
  await page.waitForURL("/docs/guides/reminders");
});

test("a link to a section shows the section", async (t) => {
  const page = await open(t, desk);
  await page.goto("/docs/guides/charge-once");
  await page.getByRole("main").getByRole("link", { name: "fingerprint", exact: true }).click();
  await page.waitForURL("/docs/glossary#fingerprint");
  const heading = await page.locator("#fingerprint").boundingBox();
  assert.ok(heading.y > -1 && heading.y < 900, JSON.stringify(heading));
});

test("a word is found, by keyboard, and leads to its section", async (t) => {
  const page = await open(t, desk);
  await page.goto("/docs/start");
  await page.keyboard.press("/");
  await page.keyboard.type("fenced");
  await page.keyboard.press("Enter");
  await page.waitForURL("/docs/search?q=fenced");
  assert.equal(await page.locator("#q").inputValue(), "fenced");
  const found = page.locator(".found");
  assert.ok((await found.locator("mark").count()) > 3);
  await found.locator("a[href='/docs/reference/problems#fenced']").click();
  await page.waitForURL("/docs/reference/problems#fenced");
  await page.goto("/docs/search?q=nosuchword");
  await page.getByText("No section has all of these words.").waitFor();
  assert.deepEqual(page.wrongs, []);
});

test("pages of the dashboard lead to their section of the book", async (t) => {
  const page = await open(t, desk);
  await page.goto("/dead-letters");
  await page.getByRole("link", { name: "About this page" }).click();
  await page.waitForURL("/docs/reference/sagas#dead-letters");
  await page.goto("/problems/fenced");
  await page.getByRole("link", { name: "In the book" }).click();
  await page.waitForURL("/docs/reference/problems#fenced");
});

test("on paper there is only the page", async (t) => {
  const page = await open(t, desk);
  await page.emulateMedia({ media: "print" });
  await page.goto("/docs/start");
  for (const hidden of ["nav", ".top", "footer", ".beside"]) {
    assert.equal(await page.locator(hidden).isVisible(), false, hidden);
  }
  assert.ok(await page.getByRole("heading", { name: "Start", exact: true }).isVisible());
});

test("axe finds nothing serious in the book", async (t) => {
  for (const options of [desk, { ...phone, colorScheme: "dark" }]) {
    const page = await open(t, options);
    for (const path of ["/docs", "/docs/guides/charge-once", "/docs/reference/api", "/docs/search?q=claim", "/docs/openapi"]) {
      await page.goto(path);
      await page.evaluate(axe.source);
      const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
      const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
      assert.deepEqual(serious.map(({ id, nodes }) => `${path}: ${id} ${nodes[0].html}`), []);
    }
  }
});
