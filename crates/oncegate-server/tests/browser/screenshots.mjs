// Takes the pictures of the docs, of a demo that has run for about a minute: node screenshots.mjs URL FOLDER
import { join } from "node:path";
import { launch } from "./launch.mjs";

const [url, folder] = process.argv.slice(2);
const items = async (path) => (await (await fetch(url + path)).json()).items;
const most = (list, size) => list.reduce((best, one) => (size(one) > size(best) ? one : best));

const claim = most(await items("/api/claims?guard=payment-hook&limit=500"), (one) => one.duplicates);
const [instance] = await items("/api/sagas?definition=search-import&state=Completed");
const [send] = await items("/api/sends?state=unknown");

const desk = { width: 1440, height: 900 };
const phone = { width: 390, height: 844 };
const pictures = [
  ["overview", "/", desk, "light"],
  ["overview-dark", "/", desk, "dark"],
  ["claim", `/claims/${claim.id}?guard=${claim.guard}`, desk, "light"],
  ["decisions-dark", "/decisions", { width: 1280, height: 720 }, "dark"],
  ["saga", `/sagas/search-import/${instance.correlationId}`, desk, "light"],
  ["send-phone-dark", `/sends/${send.id}`, phone, "dark"],
  ["overview-phone", "/", phone, "light"],
];

const browser = await launch();
for (const [name, path, viewport, colorScheme] of pictures) {
  const page = await browser.newPage({ viewport, colorScheme, reducedMotion: "reduce" });
  await page.goto(url + path);
  if (name.startsWith("send")) await page.getByText("Mark as sent …").click();
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await page.close();
}
await browser.close();
