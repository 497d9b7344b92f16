import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { api, eventually, maker, oncegate, open, postForm, url } from "./support.mjs";

const { port } = new URL(url);
let evil;
before(async () => {
  evil = createServer((request, response) => {
    // Whoever is in a sandbox has no origin at all.
    const sandbox = { "content-security-policy": "sandbox allow-forms allow-scripts" };
    const policy = request.url === "/sandboxed" ? sandbox : {};
    response.writeHead(200, { "content-type": "text/html", ...policy }).end("<title>Another</title>");
  });
  await new Promise((resolve) => evil.listen(0, "127.0.0.1", resolve));
});
after(() => evil.close());

// From where, and how we are called there.
const ways = () => {
  const { port: other } = evil.address();
  return [
    [`http://127.0.0.1:${other}/`, `http://127.0.0.1:${port}`],
    [`http://localhost:${other}/`, `http://127.0.0.1:${port}`],
    [`http://127.0.0.1:${other}/`, `http://localhost:${port}`],
    [`http://127.0.0.1:${other}/sandboxed`, `http://127.0.0.1:${port}`],
  ];
};

async function postByFetch(page, address, fields) {
  const ask = ([address, fields]) => {
    const how = { method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams(fields) };
    return fetch(address, how).then(() => {});
  };
  const isOurs = (answer) => answer.request().method() === "POST";
  const [answer] = await Promise.all([page.waitForResponse(isOurs), page.evaluate(ask, [address, fields])]);
  return answer;
}

// Every route that takes a POST, what another would send, and how what it is about stands.
async function targets(server, key) {
  const make = maker(server);
  const [claim, pending, dead, message, letter, send, planned, missed] = await Promise.all([
    make.unknownClaim(),
    make.pendingAction(),
    make.deadAction(),
    make.unknownMessage("cut-off"),
    make.letter(),
    make.unknownSend(),
    make.reminder(),
    make.missedReminder(),
  ]);
  const [ofClaim, reason] = [{ guard: claim.guard }, "because"];
  const posts = [
    [`/claims/${claim.id}/forget`, { ...ofClaim, reason }],
    [`/claims/${claim.id}/resolve`, { ...ofClaim, as: "done", reason }],
    [`/actions/${pending}/cancel`, { reason }],
    [`/actions/${pending}/run-now`, { reason }],
    [`/actions/${dead}/retry`, { reason }],
    [`/actions/${dead}/done`, { reason }],
    [`/actions/${dead}/let-be`, { reason }],
    [`/messages/${message}/resolve`, { as: "sent", reason }],
    [`/dead-letters/${letter}/retry`, { reason }],
    [`/dead-letters/${letter}/discard`, { reason }],
    [`/sends/${send}/resolve`, { as: "sent", reason }],
    [`/reminders/${missed}/send`, { reason }],
    [`/reminders/${missed}/resolve`, { as: "not_sent", reason }],
    [`/reminders/${planned}/cancel`, { reason }],
    ["/login", { key, to: "/" }],
    ["/logout", {}],
  ];
  const stand = () =>
    Promise.all(
      [
        `/api/claims/${claim.id}?guard=${claim.guard}`,
        `/api/actions/${pending}`,
        `/api/actions/${dead}`,
        `/api/messages/${message}`,
        `/api/sagas/dead-letters/${letter}`,
        `/api/sends/${send}`,
        `/api/reminders/${missed}`,
        `/api/reminders/${planned}`,
      ].map(server.get),
    );
  return { posts, stand };
}

// Tries all of it, from everywhere, and changes nothing; says how often the browser sent a cookie along.
async function attack(page, server, key) {
  const { posts, stand } = await targets(server, key);
  const before = await stand();
  const cookies = await page.context().cookies();
  let inSession = 0;
  for (const [from, to] of ways()) {
    for (const [path, fields] of posts) {
      await page.goto(from);
      for (const by of [postByFetch, postForm]) {
        const answer = await by(page, to + path, fields);
        assert.equal(answer.status(), 403, `${by.name} from ${from} to ${to}${path}`);
        if ((await answer.request().allHeaders()).cookie) inSession += 1;
      }
    }
  }
  assert.deepEqual(await stand(), before);
  assert.deepEqual(await page.context().cookies(), cookies);
  return inSession;
}

test("without keys, another origin's page changes nothing", async (t) => {
  await attack(await open(t), api(), "og_nobody");
});

test("in a session, another origin's page changes nothing", async (t) => {
  const made = await oncegate("key", "create", "--workspace", "default", "--role", "operate", "--json");
  const { key } = JSON.parse(made);
  await eventually("the server asks for keys", async () => (await api().status("/api/claims")) === 401);
  const page = await open(t);
  await page.goto("/claims");
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Claims" }).waitFor();
  assert.ok((await attack(page, api(key), key)) > 0, "the session was not even tried");
  await page.goto("/claims");
  await page.getByRole("heading", { name: "Claims" }).waitFor();
});
