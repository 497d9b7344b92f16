import assert from "node:assert/strict";
import { before, test } from "node:test";
import { LISTS } from "./content.mjs";
import { inspect } from "./looks.mjs";
import { api, claimPath, eventually, maker, oncegate, open, postForm, url } from "./support.mjs";

const newKey = async (role) =>
  JSON.parse(await oncegate("key", "create", "--workspace", "default", "--role", role, "--json"));

let [operate, send, make, server] = [];
before(async () => {
  [operate, send] = [await newKey("operate"), await newKey("send")];
  await eventually("the server asks for keys", async () => (await api().status("/api/claims")) === 401);
  server = api(operate.key);
  make = maker(server);
});

// Logs in, wherever that was asked for.
async function logIn(page, { key }, path = "/") {
  await page.goto(path);
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
}

test("the login is readable in every size and scheme", async (t) => {
  await inspect(t, [["/login", "Log in"]]);
});

test("a login leads back to where one wanted to go", async (t) => {
  const page = await open(t);
  await page.goto("/");
  assert.equal(new URL(page.url()).pathname, "/login");
  await logIn(page, operate, "/claims?guard=payout&state=done");
  assert.equal(page.url(), `${url}/claims?guard=payout&state=done`);
  await page.getByText(`${operate.id} · operate`).waitFor();
});

test("a wrong key is refused, and says so", async (t) => {
  const page = await open(t);
  await page.goto("/login");
  for (const wrong of ["nonsense", `${operate.key.slice(0, -4)}0000`]) {
    await page.getByLabel("API key").fill(wrong);
    const answered = page.waitForResponse((answer) => answer.request().method() === "POST");
    await page.getByRole("button", { name: "Log in" }).click();
    assert.equal((await answered).status(), 401);
    await page.getByRole("alert").getByText("This is no valid key.").waitFor();
  }
  assert.deepEqual(await page.context().cookies(), []);
});

test("a key that may only send sees the overview, and can do nothing", async (t) => {
  const claim = await make.unknownClaim();
  const action = await make.pendingAction();
  const unknown = await make.unknownSend();
  const message = await make.unknownMessage("cut-off");
  const page = await open(t);
  await logIn(page, send);
  await page.getByText("Is it working?").waitFor();
  for (const path of [...LISTS, "/search?q=x"]) {
    assert.equal((await page.goto(path)).status(), 403, path);
    assert.ok((await page.locator("main").textContent()).includes("operate"), path);
  }
  const things = [claimPath(claim.id, claim.guard), `/actions/${action}`, `/messages/${message}`, `/sends/${unknown}`];
  for (const path of things) {
    await page.goto(path);
    assert.equal(await page.locator(".act, main form").count(), 0, path);
    await page.getByText("log in with a key whose role is operate").waitFor();
  }
  const reason = "because";
  const posts = [
    [`/claims/${claim.id}/resolve`, { guard: claim.guard, as: "done", reason }],
    [`/claims/${claim.id}/forget`, { guard: claim.guard, reason }],
    [`/actions/${action}/cancel`, { reason }],
    [`/actions/${action}/run-now`, { reason }],
    [`/actions/${action}/retry`, { reason }],
    [`/actions/${action}/done`, { reason }],
    [`/actions/${action}/let-be`, { reason }],
    [`/messages/${message}/resolve`, { as: "sent", reason }],
    [`/sends/${unknown}/resolve`, { as: "sent", reason }],
    [`/reminders/${await make.reminder()}/cancel`, { reason }],
    [`/reminders/${await make.reminder()}/send`, { reason }],
    [`/reminders/${await make.reminder()}/resolve`, { as: "sent", reason }],
    [`/dead-letters/${await make.letter()}/retry`, { reason }],
    [`/dead-letters/${await make.letter()}/discard`, { reason }],
  ];
  for (const [path, fields] of posts) {
    await page.goto("/");
    assert.equal((await postForm(page, path, fields)).status(), 403, path);
  }
  assert.equal((await server.get(`/api/claims/${claim.id}?guard=${claim.guard}`)).state, "unknown");
  assert.equal((await server.get(`/api/actions/${action}`)).status, "pending");
  assert.equal((await server.get(`/api/sends/${unknown}`)).state, "unknown");
  assert.equal((await server.get(`/api/messages/${message}`)).status, "unknown");

  // The very same, by somebody who may.
  const other = await open(t);
  await logIn(other, operate);
  assert.equal((await postForm(other, ...posts[2])).status(), 303);
  assert.equal((await server.get(`/api/actions/${action}`)).status, "cancelled");
  await other.goto("/decisions?fate=noted");
  await other.getByText(`action cancelled by ${operate.id}: because`).waitFor();
});

test("who logs out is out, and so is the old cookie", async (t) => {
  const page = await open(t);
  await logIn(page, operate, "/claims");
  const cookies = await page.context().cookies();
  assert.deepEqual([cookies.length, cookies[0].httpOnly, cookies[0].sameSite], [1, true, "Lax"]);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL(/\/login/);
  assert.deepEqual(await page.context().cookies(), []);
  await page.context().addCookies(cookies);
  await page.goto("/claims");
  assert.equal(new URL(page.url()).pathname, "/login");
});

test("a key that is revoked ends its sessions within two seconds", async (t) => {
  const key = await newKey("operate");
  const page = await open(t);
  await eventually("the server knows the key", async () => (await api(key.key).status("/api/claims")) === 200);
  await logIn(page, key, "/claims");
  await page.reload();
  await page.getByRole("heading", { name: "Claims" }).waitFor();
  await oncegate("key", "revoke", key.id);
  const isOut = async () => (await page.goto("/claims")) && new URL(page.url()).pathname === "/login";
  await eventually("the end of the session", isOut, 2_000);
});
