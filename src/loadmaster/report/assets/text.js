// Text for people. Names come from other people's files: they reach the page as text only, with
// control characters and direction marks spelled out, and long ones cut in the middle.

const MARKS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const LONGEST = 96;
const PER_BYTE = 1000; // picoseconds, where the value is bytes moved

function safe(text, longest = LONGEST) {
  let shown = String(text);
  if (shown.length > longest) {
    const head = Math.ceil(longest * 0.6), tail = Math.floor(longest * 0.25);
    shown = `${shown.slice(0, head)}…${shown.slice(-tail)} (${count(shown.length)} characters)`;
  }
  return shown.replace(MARKS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

const bytes = (number) => bytesTo(number, 2);

function bytesTo(number, digits) {
  if (number === null || number === undefined) return "–";
  let size = number;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") {
      return unit === "B" ? `${number} B` : `${size.toFixed(digits)} ${unit}`;
    }
    size /= 1024;
  }
}

function exactBytes(number) {
  return number < 1024 ? `${count(number)} bytes` : `${bytes(number)} (${count(number)} bytes)`;
}

const time = (picoseconds) => timeTo(picoseconds, 2);

function timeTo(picoseconds, digits) {
  if (picoseconds === null || picoseconds === undefined) return "–";
  for (const [unit, factor] of [["s", 1e12], ["ms", 1e9], ["µs", 1e6], ["ns", 1e3]]) {
    if (Math.abs(picoseconds) >= factor) return `${(picoseconds / factor).toFixed(digits)} ${unit}`;
  }
  return `${Math.round(picoseconds)} ps`;
}

function valueText(value, unit, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (unit === "moved") return bytesTo(Math.round(value / PER_BYTE), digits);
  return unit === "ps" ? timeTo(value, digits) : unit === "bytes" ? bytesTo(value, digits) : count(value);
}

// Digits enough to tell the first value from the others.
function digitsFor(unit, value, ...others) {
  const different = others.filter((other) => typeof other === "number" && other !== value);
  const same = (digits) => different.some((other) => valueText(other, unit, digits) === valueText(value, unit, digits));
  return [2, 3, 4, 5].find((digits) => !same(digits)) || 6;
}

function share(ratio, signed = false) {
  if (ratio === null || ratio === undefined) return "–";
  const percent = 100 * ratio;
  const digits = percent === 0 ? 0 : Math.abs(percent) >= 1 ? 1 : 2;
  const text = `${Math.abs(percent).toFixed(digits)} %`;
  return (percent < 0 ? "−" : signed && percent > 0 ? "+" : "") + text;
}

function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

// Elements: `make("div.card", "text", child, …)`; texts are never read as markup.
function make(selector, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return put(element, ...children);
}

function put(element, ...children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) {
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function button(label, title, action) {
  const element = set(make("button", label), { type: "button", title });
  element.addEventListener("click", action);
  return element;
}

// A choice of a few: buttons of which one is pressed.
function choice(label, options, chosen, action) {
  const group = set(make("div.choice"), { role: "group", "aria-label": label });
  const buttons = options.map(([value, text, title]) => button(text, title || "", () => pick(value, true)));
  function pick(value, tell) {
    options.forEach(([each], i) => buttons[i].setAttribute("aria-pressed", String(each === value)));
    if (tell) action(value);
  }
  pick(chosen, false);
  return put(group, ...buttons);
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return put(set(element, attributes), ...children);
}

// The marks of an axis as texts: one unit for all, and digits enough to tell them apart.
function markTexts(marks, unit) {
  if (unit === "moved") return markTexts(marks.map((mark) => mark / PER_BYTE), "bytes");
  const scales = unit === "ps" ? [["s", 1e12], ["ms", 1e9], ["µs", 1e6], ["ns", 1e3], ["ps", 1]]
    : unit === "bytes" ? [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]] : [["", 1]];
  const most = Math.max(...marks.map(Math.abs), 0);
  const [name, factor] = scales.find(([, each]) => most >= each) || scales[scales.length - 1];
  const step = marks.length > 1 ? Math.abs(marks[1] - marks[0]) / factor : most / factor || 1;
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) digits += 1;
  return marks.map((mark) => {
    const text = (mark / factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return name ? `${text} ${name}` : text;
  });
}

// Round numbers for an axis: at most `most` of them in [low, high].
function ticks(low, high, most, base = 10) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16];
  const power = base ** Math.floor(Math.log(span / most) / Math.log(base));
  const step = steps.map((s) => s * power).find((s) => span / s <= most) || power * base;
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
  return found;
}
