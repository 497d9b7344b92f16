import assert from "node:assert/strict";
import { test } from "node:test";
import { api, claimPath, maker, open, unique } from "./support.mjs";

const server = api();
const make = maker(server);

async function search(page, text) {
  await page.goto("/decisions");
  await page.locator("#q").fill(text);
  await Promise.all([page.waitForEvent("load"), page.locator("#q").press("Enter")]);
  return new URL(page.url());
}

// The only one that is called that, or one among others.
async function finds(page, text, path) {
  const { pathname, search: query } = await search(page, text);
  if (pathname !== "/search") return assert.equal(pathname + query, path, text);
  const found = await page.locator("td a").evaluateAll((links) => links.map((link) => link.getAttribute("href")));
  assert.ok(found.includes(path), `${text}: ${found}`);
}

test("an id leads to what it is the id of", async (t) => {
  const page = await open(t);
  const [message, lead, reminder, instance] = await Promise.all([
    server.first("/api/messages"),
    server.first("/api/leads"),
    make.reminder(),
    server.first("/api/sagas?definition=search-import"),
  ]);
  await finds(page, message._id, `/messages/${message._id}`);
  await finds(page, lead._id, `/leads/${lead._id}`);
  await finds(page, message.threadId, `/threads/${message.threadId}`);
  await finds(page, reminder, `/reminders/${reminder}`);
  const [action, send, letter] = [await make.pendingAction(), await make.unknownSend(), await make.letter()];
  await finds(page, action, `/actions/${action}`);
  await finds(page, ` ${send.toUpperCase()} `, `/sends/${send}`);
  await finds(page, letter, `/dead-letters/${letter}`);
  await finds(page, instance.correlationId, `/sagas/search-import/${instance.correlationId}`);
});

test("a claim is found by its id and by the parts of its key", async (t) => {
  const page = await open(t);
  const order = unique("order");
  const one = await make.doneClaim("browser", [`${order} of today`]);
  await finds(page, one.id, claimPath(one.id, "browser"));
  await finds(page, `${order} of today`, claimPath(one.id, "browser"));
  await finds(page, `browser ${order} of today`, claimPath(one.id, "browser"));
  const two = await make.doneClaim("browser", [order, "17"]);
  await finds(page, `${order} 17`, claimPath(two.id, "browser"));
  await finds(page, `browser ${order} 17`, claimPath(two.id, "browser"));
  await finds(page, `${order} · 17`, claimPath(two.id, "browser"));
});

test("people and work are found by their names", async (t) => {
  const page = await open(t);
  const { leadId } = await server.post("/api/messages", { recipientPhone: "+15550142", message: unique("text") });
  for (const phone of ["+15550142", "+1 555 0142", "+1 (555) 01-42", "15550142"]) {
    await finds(page, phone, `/leads/${leadId}`);
  }
  const reminder = await make.reminder();
  const { bookingId } = await server.get(`/api/reminders/${reminder}`);
  await finds(page, bookingId, `/reminders/${reminder}`);
  const entityId = unique("lead");
  const action = await make.pendingAction({ entityId });
  await finds(page, entityId, `/actions/${action}`);
  await make.unknownSend();
  await finds(page, "partner-offer", "/sends?campaign=partner-offer");
});

test("what is nothing is said to be nothing", async (t) => {
  const page = await open(t);
  const nothing = ["no such thing", "01998a5e-0000-7000-8000-0123456789ab", "0".repeat(64), "%", "x".repeat(600)];
  for (const text of nothing) {
    assert.equal((await search(page, text)).pathname, "/search", text);
    await page.getByText("Nothing found.").waitFor();
  }
  assert.deepEqual(page.wrongs, []);
});
