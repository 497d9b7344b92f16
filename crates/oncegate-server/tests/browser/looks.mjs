// What holds for every page, on a phone and on a desk, in light and in dark.
import assert from "node:assert/strict";
import { open } from "./support.mjs";

const SIZES = [
  { width: 390, height: 844 },
  { width: 1440, height: 900 },
];

// In the page: texts that stand out too little from what is behind them, and what is behind all of it.
function seen() {
  const CONTRAST_MIN = 4.5;
  // What is to be done, and what is explained further, counts as well.
  for (const part of document.querySelectorAll("details")) part.open = true;
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  // The canvas mixes what is not opaque, and knows every way to write a colour.
  const painted = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const light = (rgb) => {
    const [red, green, blue] = rgb.map((byte) => {
      const part = byte / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const grounds = (element) => {
    const colours = [];
    for (let one = element; one; one = one.parentElement) colours.unshift(getComputedStyle(one).backgroundColor);
    return colours;
  };
  const ground = painted(grounds(document.body));
  const faint = [];
  let texts = 0;
  let badges = 0;
  const check = (element, text, colour) => {
    const behind = grounds(element);
    const [a, b] = [light(painted([...behind, colour])), light(painted(behind))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    texts += 1;
    if (element.matches(".badge")) badges += 1;
    const which = `${element.tagName}.${element.className}: ${text}`;
    if (contrast < CONTRAST_MIN) faint.push(`${contrast.toFixed(2)} of ${which}`);
  };
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const text = own.map((node) => node.data.trim()).join("");
    if (element.closest("svg") || !element.checkVisibility()) continue;
    if (text) check(element, text, getComputedStyle(element).color);
    if (element.placeholder) check(element, element.placeholder, getComputedStyle(element, "::placeholder").color);
  }
  const root = document.documentElement;
  return { faint, texts, badges, ground, overflows: root.scrollWidth > root.clientWidth };
}

// Opens each page, and says what is wrong with any: `[path, heading, status]`.
export async function inspect(t, pages, options = {}) {
  const faults = new Set();
  let badges = 0;
  for (const viewport of SIZES) {
    const page = await open(t, { viewport, ...options });
    for (const [path, heading, status = 200] of pages) {
      const expect = (holds, what) => holds || faults.add(`${path} at ${viewport.width}: ${what}`);
      const answer = await page.goto(path);
      expect(answer.status() === status, `status ${answer.status()}`);
      const title = await page.locator("h1").textContent();
      expect(title.startsWith(heading) && title.trim(), `its heading is ${title}`);
      const grounds = [];
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        const now = await page.evaluate(seen);
        for (const text of now.faint) expect(false, `${colorScheme}, contrast ${text}`);
        expect(now.texts > 3, "it is empty");
        expect(!now.overflows, "it is wider than the screen");
        grounds.push(Math.max(...now.ground));
        badges += now.badges;
      }
      expect(grounds[0] > 200 && grounds[1] < 50, `light and dark are ${grounds}`);
      for (const wrong of page.wrongs.splice(0)) expect(false, wrong);
    }
  }
  assert.equal(faults.size, 0, [...faults].join("\n"));
  return badges;
}
