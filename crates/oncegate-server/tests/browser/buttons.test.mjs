import assert from "node:assert/strict";
import { test } from "node:test";
import { api, claimPath, eventually, maker, open, unique } from "./support.mjs";

const server = api();
const make = maker(server);

// Does one thing to what is shown at `path`, by clicks: not without a reason, and then with one.
async function press(page, path, name, says) {
  await page.goto(path);
  const act = page.locator("details.act", { has: page.getByText(`${name} …`, { exact: true }) });
  const [button, why] = [act.getByRole("button", { name, exact: true }), act.getByLabel("Why?")];
  await act.locator("summary").click();
  await button.click();
  assert.equal(await why.evaluate((input) => input.validity.valueMissing), true, "the browser lets it through");
  assert.equal(new URL(page.url()).search, new URL(path, page.url()).search, "it was sent without a reason");

  await why.fill("   ");
  const isPost = (answer) => answer.request().method() === "POST";
  const [refused] = await Promise.all([page.waitForResponse(isPost), button.click()]);
  assert.equal(refused.status(), 400);
  await page.goto(path);

  const reason = unique(`because of ${name}`);
  await act.locator("summary").click();
  await why.fill(reason);
  await button.click();
  await page.waitForURL(/[?&]did=/);
  assert.equal(await page.locator(".did").textContent(), says);
  // Who did it, and why, is in the stream of decisions.
  await page.goto("/decisions?fate=noted");
  await page.getByText(`by local: ${reason}`).first().waitFor();
  await page.goto(path);
  assert.deepEqual(page.wrongs, [], path);
  return reason;
}

const state = (page) => page.locator("h1 .badge").textContent();

test("a claim is forgotten", async (t) => {
  const page = await open(t);
  const { id, guard, key } = await make.doneClaim();
  const reason = await press(page, claimPath(id, guard), "Forget", "Forgotten. The next caller is allowed.");
  assert.equal(await state(page), "gone");
  await page.getByText(`By local: ${reason}`).waitFor();
  assert.equal(await server.status(`/api/claims/${id}?guard=${guard}`), 404);
  assert.equal((await server.post("/api/claims", { guard, key })).claim, "won");
});

test("of an unknown claim somebody says that it happened", async (t) => {
  const page = await open(t);
  const { id, guard } = await make.unknownClaim();
  await press(page, claimPath(id, guard), "Mark as done", "Settled.");
  assert.equal(await state(page), "done");
  assert.equal((await server.get(`/api/claims/${id}?guard=${guard}`)).state, "done");
});

test("of an unknown claim somebody says that it did not happen", async (t) => {
  const page = await open(t);
  const { id, guard, key } = await make.unknownClaim();
  await press(page, claimPath(id, guard), "Mark as not done", "Settled.");
  assert.equal(await state(page), "failed");
  const { claim, state: now } = await server.post("/api/claims", { guard, key });
  assert.deepEqual([claim, now], ["duplicate", "failed"]);
});

test("an action is run now", async (t) => {
  const page = await open(t);
  const id = await make.pendingAction();
  await press(page, `/actions/${id}`, "Run now", "It is due now.");
  await page.getByText("It is due: it runs as soon as a worker is free.").waitFor();
  assert.ok(Date.parse((await server.get(`/api/actions/${id}`)).runAt) <= Date.now());
});

test("an action is cancelled, and tried again after all", async (t) => {
  const page = await open(t);
  const id = await make.pendingAction();
  await press(page, `/actions/${id}`, "Cancel", "Cancelled.");
  assert.equal(await state(page), "cancelled");
  assert.equal((await server.get(`/api/actions/${id}`)).status, "cancelled");
  await press(page, `/actions/${id}`, "Retry", "It is being retried.");
  assert.equal(await state(page), "pending");
  assert.equal((await server.get(`/api/actions/${id}`)).status, "pending");
});

test("an action that waits for its next try is tried again at once", async (t) => {
  const page = await open(t);
  const id = await make.failedAction();
  await press(page, `/actions/${id}`, "Retry", "It is being retried.");
  const { actionType, runAt } = await server.get(`/api/actions/${id}`);
  assert.ok(Date.parse(runAt) <= Date.now());
  const [leased] = await server.post("/api/actions/lease", { types: [actionType], waitSeconds: 5 });
  assert.equal(leased.id, id);
});

for (const [status, made] of [["dead", make.deadAction], ["unknown", make.unknownAction]]) {
  test(`an action that is ${status} is tried again`, async (t) => {
    const page = await open(t);
    const id = await made();
    await page.goto(`/actions/${id}`);
    assert.equal(await state(page), status);
    await press(page, `/actions/${id}`, "Retry", "It is being retried.");
    await eventually("another try", async () => (await server.get(`/api/actions/${id}`)).tries.length === 2);
    await page.reload();
    assert.equal(await page.getByText(/^Attempt 1 failed: /).count(), 2);
  });
}

for (const [status, made] of [["dead", make.deadAction], ["unknown", make.unknownAction]]) {
  test(`an action that is ${status} is let be`, async (t) => {
    const page = await open(t);
    const id = await made();
    const reason = await press(page, `/actions/${id}`, "Dismiss", "Dismissed.");
    assert.equal(await state(page), "cancelled");
    await page.getByText(`By local: ${reason}`).waitFor();
    const { status: now, resolved } = await server.get(`/api/actions/${id}`);
    assert.deepEqual([now, resolved.was], ["cancelled", status]);
  });
}

test("of an unknown action somebody says that it happened", async (t) => {
  const page = await open(t);
  const id = await make.unknownAction();
  await press(page, `/actions/${id}`, "Mark as done", "Settled as done.");
  assert.equal(await state(page), "completed");
  assert.equal((await server.get(`/api/actions/${id}`)).status, "completed");
});

for (const [name, becomes] of [["Mark as sent", "sent"], ["Mark as not sent", "failed"]]) {
  test(`of an unknown message somebody says: ${name.toLowerCase()}`, async (t) => {
    const page = await open(t);
    const id = await make.unknownMessage();
    const reason = await press(page, `/messages/${id}`, name, "Settled.");
    assert.equal(await state(page), becomes);
    await page.getByText(`By local: ${reason}`).waitFor();
    assert.equal((await server.get(`/api/messages/${id}`)).status, becomes);
  });
}

test("a dead letter is tried again once its reason is gone", async (t) => {
  const page = await open(t);
  const search = unique("search");
  const id = await make.letter(search);
  await make.savedSearch(search);
  await press(page, `/dead-letters/${id}`, "Retry", "Retried: it is no longer a dead letter.");
  assert.equal(await state(page), "retried");
  assert.equal((await server.get(`/api/sagas/dead-letters/${id}`)).status, "retried");
  const { data } = await server.get(`/api/sagas/search-import/${search}`);
  assert.ok(!data.waiting.includes("stray.pdf"), JSON.stringify(data));
});

test("a dead letter is discarded", async (t) => {
  const page = await open(t);
  const id = await make.letter();
  await press(page, `/dead-letters/${id}`, "Discard", "Discarded.");
  assert.equal(await state(page), "discarded");
  assert.equal((await server.get(`/api/sagas/dead-letters/${id}`)).status, "discarded");
});

for (const [name, becomes] of [["Mark as sent", "sent"], ["Mark as not sent", "failed"]]) {
  test(`of an unknown send somebody says: ${name.toLowerCase()}`, async (t) => {
    const page = await open(t);
    const id = await make.unknownSend();
    const reason = await press(page, `/sends/${id}`, name, "Settled.");
    assert.equal(await state(page), becomes);
    await page.getByText(`By local: ${reason}`).waitFor();
    assert.equal((await server.get(`/api/sends/${id}`)).state, becomes);
  });
}

test("a missed reminder is sent anyway", async (t) => {
  const page = await open(t);
  const id = await make.missedReminder();
  const deliveries = async () => (await server.get(`/api/reminders/${id}`)).deliveries.length;
  const before = await deliveries();
  await press(page, `/reminders/${id}`, "Send anyway", "It is being sent.");
  await page.getByText("Sent by hand by").waitFor();
  // The carrier is called once more; this phone is no mobile, today as yesterday.
  await eventually("another delivery", async () => (await deliveries()) > before);
});

for (const [name, becomes] of [["Mark as sent", "sent"], ["Dismiss", "cancelled"]]) {
  test(`of a missed reminder somebody says: ${name.toLowerCase()}`, async (t) => {
    const page = await open(t);
    const id = await make.missedReminder();
    const reason = await press(page, `/reminders/${id}`, name, "Settled.");
    assert.equal(await state(page), becomes);
    await page.getByText(`By local: ${reason}`).waitFor();
    assert.equal((await server.get(`/api/reminders/${id}`)).state, becomes);
  });
}

test("a reminder is cancelled", async (t) => {
  const page = await open(t);
  const id = await make.reminder();
  await press(page, `/reminders/${id}`, "Cancel", "Cancelled.");
  assert.equal(await state(page), "cancelled");
  assert.equal((await server.get(`/api/reminders/${id}`)).state, "cancelled");
});
