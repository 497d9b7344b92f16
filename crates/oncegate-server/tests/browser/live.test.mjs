import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { LISTS } from "./content.mjs";
import { inspect } from "./looks.mjs";
import { api, eventually, open, unique } from "./support.mjs";

// A server of our own, which can be stopped and started again where it was.
async function serve(t, listen = "127.0.0.1:0") {
  const stdio = ["ignore", "pipe", "ignore"];
  const child = spawn(process.env.DASHBOARD_PROGRAM, ["serve", "--listen", listen], { stdio });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  const kill = () => child.kill("SIGKILL") && ended;
  t.after(kill);
  for await (const line of createInterface(child.stdout)) {
    const { event, address } = JSON.parse(line);
    if (event !== "server.listening") continue;
    // Whatever it says after that goes nowhere, and stops nobody.
    child.stdout.resume();
    return { address, url: `http://${address}`, kill };
  }
  throw new Error("the server did not listen");
}

const nodes = (page) => page.evaluate(() => document.querySelectorAll("*").length);
// The first decision of the list is about this claim.
const isFirst = (page, id) => page.locator("#decisions li").first().locator(`a[href*="${id}"]`).waitFor();

test("where there is nothing yet, that is readable, too", async (t) => {
  const { url } = await serve(t);
  await inspect(t, ["/", "/decisions", ...LISTS].map((path) => [path, ""]), { baseURL: url });
});

test("a page that is open is kept up to date, and does not grow", async (t) => {
  const { url } = await serve(t);
  const server = api(undefined, url);
  const page = await open(t, { baseURL: url });
  await page.goto("/");
  await page.evaluate(() => (window.wasNotReloaded = true));
  const stopped = () => page.locator(".tile", { hasText: "What did it stop?" }).locator(".big").textContent();
  const before = Number(await stopped());

  const claim = { guard: "live", key: [unique("key")] };
  const { id, token } = await server.post("/api/claims", claim);
  await isFirst(page, id);
  await server.post(`/api/claims/${id}/settle`, { guard: "live", token });
  await server.post("/api/claims", claim);
  await eventually("a number that changed", async () => Number(await stopped()) === before + 1);

  const decide = async (count) => {
    const claims = Array.from({ length: count }, () => ({ guard: "live", key: [unique("key")] }));
    await server.post("/api/claims/batch", claims);
    const { id } = await server.post("/api/claims", { guard: "live", key: [unique("key")] });
    await isFirst(page, id);
  };
  await decide(50);
  const full = await nodes(page);
  for (let times = 0; times < 4; times += 1) await decide(50);
  // The picture may have gained the bar of a new minute.
  assert.ok((await nodes(page)) <= full + 10, `${await nodes(page)} nodes, and ${full} before`);
  assert.equal(await page.locator("#decisions li").count(), 12);
  assert.equal(await page.evaluate(() => window.wasNotReloaded), true);
});

const said = (page) => page.evaluate(() => getComputedStyle(document.querySelector("main"), "::before").content);
const saysThatItIsAway = (page) =>
  eventually("a word about it", async () => (await said(page)).includes("The server does not answer"));
const saysNoMore = (page) => eventually("no more word about it", async () => (await said(page)) === "none");

test("a page says that the server is away, and comes back with it", async (t) => {
  const first = await serve(t);
  const page = await open(t, { baseURL: first.url });
  await page.goto("/");
  assert.equal(await said(page), "none");
  await first.kill();
  await saysThatItIsAway(page);
  const second = await serve(t, first.address);
  await saysNoMore(page);
  const { id } = await api(undefined, second.url).post("/api/claims", { guard: "live", key: [unique("key")] });
  await isFirst(page, id);
});

test("a page comes back, too, where a proxy answers for the server", async (t) => {
  const { url } = await serve(t);
  const page = await open(t, { baseURL: url });
  await page.route("**/live?*", (route) => route.fulfill({ status: 502, body: "Bad gateway" }));
  await page.goto("/");
  await saysThatItIsAway(page);
  await page.unroute("**/live?*");
  await saysNoMore(page);
});
