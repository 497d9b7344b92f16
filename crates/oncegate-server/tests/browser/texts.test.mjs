import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "./looks.mjs";
import { api, claimPath, maker, open, unique } from "./support.mjs";

const server = api();
const make = maker(server);

// A text that would like to be more. It ends with what must not be read as something else.
const html = `"'><img src=x onerror=ran=1><b class=made>&lt;`;
// As it stands within JSON.
const quoted = JSON.stringify(html).slice(1, -1);
const named = (what) => `${unique(what)} ${html}`;

async function isText(page, path) {
  const answer = await page.goto(path);
  const text = await page.locator("main").evaluate((main) => main.textContent);
  assert.ok(text.includes(html) || text.includes(quoted), `${path} does not show it: ${text}`);
  await isNothingElse(page, `${path} (${answer.status()})`);
}

async function isNothingElse(page, where) {
  assert.equal(await page.locator(".made, img[src=x], [onerror], main script").count(), 0, where);
  assert.equal(await page.evaluate(() => window.ran), undefined, where);
  assert.deepEqual(page.wrongs, [], where);
}

const tests = {
  "a message": async () => {
    const body = { recipientEmail: "ada@example.com", recipientName: named("name"), message: named("text") };
    const { message, leadId } = await server.post("/api/messages", body);
    return ["/messages", `/messages/${message._id}`, "/leads", `/leads/${leadId}`, `/threads/${message.threadId}`];
  },
  "a part of a claim's key, its outcome and its attributes": async () => {
    const key = [named("part"), html];
    const won = await server.post("/api/claims", { guard: "texts", key, attributes: { [html]: html } });
    await server.post(`/api/claims/${won.id}/settle`, { guard: "texts", token: won.token, outcome: { [html]: html } });
    return ["/claims?guard=texts", claimPath(won.id, "texts")];
  },
  "an action's type, entity and payload": async () => {
    const payload = { entityId: named("entity"), entityType: html, [html]: html };
    const body = { actionType: named("type"), payload, delaySeconds: 600 };
    const { id } = await server.post("/api/actions", body);
    const entity = encodeURIComponent(payload.entityId);
    return [`/actions?entityId=${entity}`, `/actions/${id}`, `/search?q=${encodeURIComponent(`x ${html}`)}`];
  },
  "what a worker says of its failure": async () => {
    const actionType = unique("work");
    const { id } = await server.post("/api/actions", { actionType, payload: {} });
    const [{ token }] = await server.post("/api/actions/lease", { types: [actionType], waitSeconds: 5 });
    await server.post(`/api/actions/${id}/fail`, { token, error: html, reached: "no", retryInSeconds: 600 });
    return [`/actions/${id}`];
  },
  "a dead letter's event": async () => {
    const searchId = named("search");
    const id = await make.letter(searchId);
    return [`/dead-letters/${id}`];
  },
  "a saga's correlation id and data": async () => {
    const searchId = named("search");
    await make.savedSearch(searchId);
    return ["/sagas/search-import", `/sagas/search-import/${encodeURIComponent(searchId)}`];
  },
  "a send's campaign, recipient and job": async () => {
    const campaignId = named("campaign");
    const body = { campaignId, recipientId: named("reader"), jobId: html, templateId: html };
    const { id } = await server.post("/api/sends", body);
    return ["/sends", `/sends?campaign=${encodeURIComponent(campaignId)}`, `/sends/${id}`];
  },
  "a reminder's booking and text": async () => {
    const body = { bookingId: named("booking"), sendAt: new Date(Date.now() + 600_000).toISOString(), channel: "sms" };
    const { id } = await server.post("/api/reminders", { ...body, recipientPhone: "+15550120", message: html });
    return ["/reminders", `/reminders/${id}`];
  },
  "what is refused": async () => ["/messages?status=", "/sends?state="].map((path) => path + encodeURIComponent(html)),
};

for (const [what, made] of Object.entries(tests)) {
  test(`${what} is shown as text`, async (t) => {
    const page = await open(t);
    for (const path of await made()) await isText(page, path);
  });
}

test("a word that is longer than a screen is wide does not widen the page", async (t) => {
  const word = "x".repeat(240);
  const { id, guard } = await make.doneClaim("long", [word], { [word]: word });
  const work = { actionType: word, payload: { entityId: word }, delaySeconds: 600 };
  const action = await server.post("/api/actions", work);
  const send = await server.post("/api/sends", { campaignId: word, recipientId: word, jobId: word });
  await make.savedSearch(word);
  const { message } = await server.post("/api/messages", { recipientEmail: "ben@example.com", message: word });
  const paths = [
    "/claims?guard=long",
    claimPath(id, guard),
    "/actions",
    `/actions/${action.id}`,
    "/sends",
    `/sends/${send.id}`,
    "/sagas/search-import",
    `/sagas/search-import/${word}`,
    "/messages",
    `/messages/${message._id}`,
    `/threads/${message.threadId}`,
    `/search?q=${word}`,
  ];
  await inspect(t, paths.map((path) => [path, ""]));
});

test("a reason is shown as text, also by a page that is open", async (t) => {
  const page = await open(t);
  const watching = await open(t);
  await Promise.all([watching.goto("/"), page.goto("/decisions?fate=noted")]);
  const { id, guard } = await make.unknownClaim();
  const [acting, reason] = [await open(t), named("because")];
  await acting.goto(claimPath(id, guard));
  await acting.getByText("Mark as done …").click();
  await acting.getByLabel("Why?").first().fill(reason);
  await acting.getByRole("button", { name: "Mark as done", exact: true }).click();
  await acting.waitForURL(/did=resolve/);
  await isText(acting, claimPath(id, guard));
  await page.getByText(reason).waitFor();
  await isNothingElse(page, "the decisions");
  await isText(page, "/decisions?fate=noted");
  // Put there by the script.
  await watching.locator("#decisions").getByText(reason).waitFor();
  await isNothingElse(watching, "the overview");
});
