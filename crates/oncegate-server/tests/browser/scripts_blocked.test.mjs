import assert from "node:assert/strict";
import { test } from "node:test";
import { pages } from "./content.mjs";
import { api, maker, open, unique } from "./support.mjs";

const server = api();
const make = maker(server);
const blocked = { javaScriptEnabled: false };

test("every page shows what it has", async (t) => {
  const page = await open(t, blocked);
  for (const [path, heading] of await pages(server)) {
    const answer = await page.goto(path);
    assert.equal(answer.status(), 200, path);
    assert.ok((await page.locator("h1").textContent()).startsWith(heading), path);
    // A row, a fact, a decision, a moment; or of the search and a problem, words.
    const shown = await page.locator("main :is(td, dd, .decisions li:not(.empty), .moments li, p)").count();
    assert.ok(shown >= (path.startsWith("/search") || path.startsWith("/problems") ? 2 : 4), `${path}: ${shown}`);
  }
});

test("scripts are blocked indeed", async (t) => {
  const page = await open(t, blocked);
  await page.goto("/decisions");
  await page.keyboard.press("/");
  assert.equal(await page.locator("#q:focus").count(), 0);
});

test("lists are filtered", async (t) => {
  const page = await open(t, blocked);
  await make.doneClaim("payout");
  await make.unknownClaim();
  await page.goto("/claims");
  await page.getByLabel("Guard").fill("payout");
  await page.getByLabel("State").selectOption("unknown");
  await page.getByRole("button", { name: "Show" }).click();
  await page.waitForURL(/guard=payout&state=unknown/);
  const column = async (name) => new Set(await page.locator(`td[data-name=${name}]`).allTextContents());
  assert.deepEqual([await column("State"), await column("Guard")], [new Set(["unknown"]), new Set(["payout"])]);
  await page.getByRole("link", { name: "Show all" }).click();
  assert.ok((await column("Guard")).size > 1);

  await page.goto("/decisions");
  await page.getByLabel("What became of it").selectOption("stopped");
  await page.getByRole("button", { name: "Show" }).click();
  await page.waitForURL(/fate=stopped/);
  const fates = new Set(await page.locator(".decisions .badge").allTextContents());
  assert.deepEqual(fates, new Set(["stopped"]));
});

const numbers = Array.from({ length: 60 }, (_, number) => number);
const lists = {
  claims: async (name) => {
    await server.post("/api/claims/batch", numbers.map((number) => ({ guard: name, key: [`${number}`] })));
    return `/claims?guard=${name}`;
  },
  actions: async (name) => {
    const one = () => server.post("/api/actions", { actionType: name, payload: {}, delaySeconds: 600 });
    await Promise.all(numbers.map(one));
    return `/actions?type=${name}`;
  },
  sends: async (name) => {
    const one = (number) => server.post("/api/sends", { campaignId: name, recipientId: `${number}` });
    await Promise.all(numbers.map(one));
    return `/sends?campaign=${name}`;
  },
};

for (const [what, fill] of Object.entries(lists)) {
  test(`'Older' leads to the rest of the ${what}`, async (t) => {
    const page = await open(t, blocked);
    await page.goto(await fill(unique(what)));
    const links = () => page.locator("td code").locator("..").evaluateAll((links) => links.map((link) => link.href));
    const newer = await links();
    await page.getByRole("link", { name: "Older" }).click();
    await page.waitForURL(/cursor=/);
    const older = await links();
    assert.deepEqual([newer.length, older.length, new Set([...newer, ...older]).size], [50, 10, 60]);
    assert.equal(await page.getByRole("link", { name: "Older" }).count(), 0);
  });
}

test("what is to be done is done", async (t) => {
  const page = await open(t, blocked);
  const id = await make.unknownSend();
  await page.goto(`/sends/${id}`);
  await page.getByText("Mark as sent …").click();
  await page.getByLabel("Why?").first().fill("the provider has it");
  await page.getByRole("button", { name: "Mark as sent", exact: true }).click();
  await page.waitForURL(/did=resolve/);
  assert.equal((await server.get(`/api/sends/${id}`)).state, "sent");
});
