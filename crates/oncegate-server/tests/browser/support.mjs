// What the tests share: a browser, the server's API, and waiting for what is to come.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after } from "node:test";
import { promisify } from "node:util";
import { launch } from "./launch.mjs";

export const url = process.env.DASHBOARD_URL;
// Longer than anything that goes well takes, on a busy machine too.
const PATIENCE = 20_000;

export const browser = await launch();
after(() => browser.close());

// A page in a browser profile of its own. What goes wrong in it is noted in `page.wrongs`.
export async function open(t, options = {}) {
  // Colours that are on their way are nobody's colours.
  const all = { baseURL: url, reducedMotion: "reduce", ...options };
  const { origin } = new URL(all.baseURL);
  const context = await browser.newContext(all);
  t.after(() => context.close());
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.wrongs = [];
  page.on("pageerror", (error) => page.wrongs.push(`error: ${error}`));
  // A violation of the policy is an error on the console, too.
  page.on("console", (message) => {
    const isAnswer = message.text().startsWith("Failed to load resource") && message.location().url === page.url();
    if (message.type() === "error" && !isAnswer) page.wrongs.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== origin) page.wrongs.push(`asked another: ${request.url()}`);
  });
  return page;
}

// Posts a form from the page that is open, whosever it is.
export async function postForm(page, action, fields) {
  const submit = ([action, fields]) => {
    const form = Object.assign(document.createElement("form"), { method: "post", action });
    const input = ([name, value]) => Object.assign(document.createElement("input"), { name, value });
    form.append(...Object.entries(fields).map(input));
    document.body.append(form);
    form.submit();
  };
  const isOurs = (answer) => answer.request().method() === "POST";
  const [answer] = await Promise.all([
    page.waitForResponse(isOurs),
    page.waitForEvent("load"),
    page.evaluate(submit, [action, fields]),
  ]);
  return answer;
}

// Looks again until there is something to see, and says what was looked for when there never is.
export async function eventually(what, look, within = PATIENCE) {
  const deadline = Date.now() + within;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    assert.ok(Date.now() < deadline, `not within ${within} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

// The API, as somebody with this key, or without one.
export function api(key, base = url) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const ask = async (method, path, body) => {
    const type = body === undefined ? {} : { "content-type": "application/json" };
    const answer = await fetch(base + path, { method, headers: { ...headers, ...type }, body: JSON.stringify(body) });
    const text = await answer.text();
    return { status: answer.status, body: text.startsWith("{") || text.startsWith("[") ? JSON.parse(text) : text };
  };
  const well = async (method, path, body) => {
    const answer = await ask(method, path, body);
    assert.ok(answer.status < 300, `${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  };
  return {
    status: async (path) => (await ask("GET", path)).status,
    get: (path) => well("GET", path),
    post: (path, body = {}) => well("POST", path, body),
    // Whatever it is answered with.
    tell: async (path, body) => (await ask("POST", path, body)).body,
    // Of a list, once something is in it.
    first: (path) => eventually(path, async () => (await well("GET", path)).items[0]),
  };
}

// The command line, in the server's folder.
export async function oncegate(...words) {
  const { stdout } = await promisify(execFile)(process.env.DASHBOARD_PROGRAM, words, { timeout: PATIENCE });
  return stdout;
}

let made = 0;
// A name that nobody else uses.
export const unique = (what) => `${what}-${process.pid}-${++made}`;

export const claimPath = (id, guard) => `/claims/${id}?guard=${guard}`;

// Makes each kind of thing that a person can do something about, through the API of a demo.
export function maker(server) {
  const becomes = (path, field, wanted) =>
    eventually(`${path} is ${wanted}`, async () => {
      const seen = await server.get(path);
      return seen[field] === wanted && seen;
    });
  const at = (milliseconds) => new Date(Date.now() + milliseconds).toISOString();
  const acted = async (status, actionType, payload) => {
    const { id } = await server.post("/api/actions", { actionType, payload, delaySeconds: 0 });
    await becomes(`/api/actions/${id}`, "status", status);
    return id;
  };
  const stray = async (searchId) => {
    const data = { searchId, fileId: "stray.pdf" };
    const event = { type: "ReferenceFileParsingCompleted", id: unique("stray"), data };
    await server.post("/api/events", event);
    const ours = (letter) => letter.correlationId === searchId;
    const list = "/api/sagas/dead-letters?status=open";
    return (await eventually("the dead letter", async () => (await server.get(list)).items.find(ours))).id;
  };
  return {
    becomes,
    doneClaim: async (guard = "browser", key = [unique("key")], outcome = { receipt: "r-1" }) => {
      const won = await server.post("/api/claims", { guard, key });
      await server.post(`/api/claims/${won.id}/settle`, { guard, token: won.token, outcome });
      return { guard, id: won.id, key };
    },
    unknownClaim: async () => {
      const [guard, key] = ["payout", [unique("payout")]];
      const { id } = await server.post("/api/claims", { guard, key, leaseSeconds: 0.05 });
      await becomes(`/api/claims/${id}?guard=${guard}`, "state", "unknown");
      return { guard, id, key };
    },
    pendingAction: async (payload = { for: "a test" }) => {
      const body = { actionType: unique("work"), payload, delaySeconds: 600 };
      return (await server.post("/api/actions", body)).id;
    },
    // A worker elsewhere says so.
    failedAction: async () => {
      const actionType = unique("work");
      const { id } = await server.post("/api/actions", { actionType, payload: {} });
      const [{ token }] = await server.post("/api/actions/lease", { types: [actionType], waitSeconds: 5 });
      const word = { token, error: "out of paper", reached: "no", retryInSeconds: 600 };
      await server.post(`/api/actions/${id}/fail`, word);
      return id;
    },
    deadAction: () => acted("dead", "crm:export", {}),
    unknownAction: () => acted("unknown", "door:open", {}),
    letter: (searchId = unique("search")) => stray(searchId),
    savedSearch: (searchId) => {
      const data = { projectId: "p", searchId, searchName: "A search", referenceFiles: ["stray.pdf", "other.pdf"] };
      return server.post("/api/events", { type: "SearchUploadSaved", id: unique("saved"), data });
    },
    // The carrier takes it, and hangs up before it says so.
    unknownMessage: async (channel = "sms") => {
      const body = { recipientPhone: "+15550197", message: unique("Your parcel"), channel };
      const { message } = await server.tell("/api/messages", body);
      await becomes(`/api/messages/${message._id}`, "status", "unknown");
      return message._id;
    },
    unknownSend: async () => {
      const body = { campaignId: "partner-offer", recipientId: unique("reader"), leaseSeconds: 0.05 };
      const { id } = await server.post("/api/sends", body);
      // It is unknown from the end of its lease on; that is written down a little later, and then nothing moves.
      const ended = async () => (await server.get(`/api/sends/${id}`)).attempts[0].endedAt;
      await eventually("the end of its attempt", ended);
      await becomes(`/api/sends/${id}`, "state", "unknown");
      return id;
    },
    reminder: async (message = "Tomorrow at nine.") => {
      const body = { bookingId: unique("booking"), sendAt: at(600_000), channel: "sms", message };
      return (await server.post("/api/reminders", { ...body, recipientPhone: "+15550120" })).id;
    },
    // The carrier takes nothing for this phone, and the grace of six seconds is nearly over.
    missedReminder: async () => {
      const body = { bookingId: unique("booking"), sendAt: at(-5_000), channel: "sms", message: "Today at nine." };
      const { id } = await server.post("/api/reminders", { ...body, recipientPhone: "+15550198" });
      await becomes(`/api/reminders/${id}`, "state", "missed");
      return id;
    },
  };
}
