// Canvases, and the painter that fills boxes pixel by pixel: its cost is that of the pixels, so a
// hundred thousand boxes take no longer than the surface they cover.

class Surface {
  constructor(height, label) {
    this.height = height;
    this.canvas = make("canvas");
    this.canvas.style.height = `${height}px`;
    if (label) set(this.canvas, { role: "img", "aria-label": label });
    this.width = 0;
  }

  // The pen, on an empty surface of the right size; one unit is one CSS pixel.
  begin() {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.width = this.canvas.clientWidth || 1;
    const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.ratio = ratio;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = `11px ${fontFamily()}`;
    return pen;
  }

  // All pixels as one array, to be given back to `paint`.
  pixels() {
    const { width, height } = this.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = new ImageData(width, height);
      this.words = new Uint32Array(this.image.data.buffer);
    } else {
      this.words.fill(0);
    }
    return this.words;
  }

  paint() {
    this.canvas.getContext("2d").putImageData(this.image, 0, 0);
  }
}

function fillBox(words, width, left, right, top, bottom, fill, edge) {
  const framed = right - left > 3 && bottom - top > 3;
  for (let y = top; y < bottom; y += 1) {
    const row = y * width;
    const shade = framed && y === top ? edge : fill;
    if (right - left > 12) words.fill(shade, row + left, row + right);
    else for (let x = row + left; x < row + right; x += 1) words[x] = shade;
    if (framed) words[row + left] = edge;
  }
}

// A step function as an area: `ys[i]` from `xs[i]` on, the largest value within each pixel.
function drawArea(pen, xs, ys, low, high, width, height, top, fill) {
  const scale = width / (high - low), columns = new Float64Array(Math.ceil(width) + 1);
  let i = Math.max(0, firstAtLeast(xs, low) - 1);
  for (; i < xs.length && xs[i] <= high; i += 1) {
    const from = Math.max(0, Math.floor((xs[i] - low) * scale));
    const next = i + 1 < xs.length ? xs[i + 1] : xs[i];
    const to = Math.min(columns.length - 1, Math.max(from, Math.ceil((next - low) * scale) - 1));
    for (let x = from; x <= to; x += 1) if (ys[i] > columns[x]) columns[x] = ys[i];
  }
  pen.fillStyle = fill;
  for (let x = 0; x < columns.length; x += 1) {
    const tall = (columns[x] / top) * (height - 1);
    if (columns[x] > 0) pen.fillRect(x, height - Math.max(1, tall), 1, Math.max(1, tall));
  }
}

// Colours come from the style, so that light, dark and print have theirs in one place.
const palette = { known: new Map(), words: new Map() };

function colour(name) {
  if (!palette.known.has(name)) {
    const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    palette.known.set(name, value || "#888888");
  }
  return palette.known.get(name);
}

// The same as a pixel, mixed with another: `part` of the second.
function word(name, other = null, part = 0) {
  const key = `${name} ${other} ${part}`;
  if (!palette.words.has(key)) {
    const [a, b] = [channels(colour(name)), channels(colour(other || name))];
    const mixed = a.map((value, i) => Math.round(value + (b[i] - value) * part));
    palette.words.set(key, ((255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0]) >>> 0);
  }
  return palette.words.get(key);
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function forgetColours() {
  palette.known.clear();
  palette.words.clear();
}

let family = null;
function fontFamily() {
  family = family || getComputedStyle(document.body).fontFamily;
  return family;
}

// Pointer moves until the button is released, also outside of the element.
function follow(element, event, move, end) {
  element.setPointerCapture(event.pointerId);
  const stop = (last) => {
    element.removeEventListener("pointermove", move);
    element.removeEventListener("pointerup", stop);
    element.removeEventListener("pointercancel", stop);
    if (end) end(last);
  };
  element.addEventListener("pointermove", move);
  element.addEventListener("pointerup", stop);
  element.addEventListener("pointercancel", stop);
}
