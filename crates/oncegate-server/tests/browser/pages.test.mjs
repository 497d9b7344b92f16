import assert from "node:assert/strict";
import { test } from "node:test";
import { pages } from "./content.mjs";
import { inspect } from "./looks.mjs";
import { api } from "./support.mjs";

test("every page can be read on a phone and on a desk, in light and in dark", async (t) => {
  const nothing = ["/messages/01998a5e-0000-7000-8000-0123456789ab", "", 404];
  const badges = await inspect(t, [...(await pages(api())), nothing]);
  assert.ok(badges > 100, `only ${badges} badges were looked at`);
});
