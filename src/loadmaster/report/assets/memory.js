// A memory: its map, address over time, with one box per stretch that a tensor lies there; and below
// it the bytes in use, with the peak.

const PROFILE_HEIGHT = 46;
const MOST_LABELS = 400;

class MemoryTrack {
  constructor(explorer, memory, height) {
    this.explorer = explorer;
    this.memory = memory;
    this.map = new Surface(height, `${memory.name}: addresses over time`);
    this.profile = new Surface(PROFILE_HEIGHT, `${memory.name}: bytes in use over time`);
    const near = memory.capacity && memory.top > memory.capacity * 0.5;
    this.ceiling = Math.max(1, near ? Math.max(memory.capacity, memory.top) : memory.top) * 1.04;
    this.low = 0;
    this.high = this.ceiling;
    this.scale = new Surface(height, "");
    this.element = make("div.track.memory", this.label(), this.scale.canvas,
                        make("div.surfaces", this.map.canvas, this.profile.canvas));
    explorer.listen(this.map, this, (x, y) => this.hitMap(x, y));
    explorer.listen(this.profile, this, (x) => this.hitProfile(x));
  }

  label() {
    const { memory } = this;
    const held = memory.capacity ? `of ${bytes(memory.capacity)}` : "no limit";
    const meter = make("div.meter", make("div"));
    meter.firstChild.style.width = `${Math.min(100, (100 * memory.peak) / (memory.capacity || memory.peak || 1))}%`;
    const undecided = memory.boxes - memory.decided;
    const note = undecided === 0 ? null
      : make("p.note", memory.decided ? `${count(undecided)} of ${count(memory.boxes)} boxes have no ` +
             "decided address: drawn pale, where there is room" : "no addresses decided: drawn packed");
    const go = button(`peak ${bytes(memory.peak)}`, "show the tensors at the peak",
                      () => this.explorer.showMoment(memory, memory.peak_at, true));
    go.className = "link";
    return make("div.label", make("h3", safe(memory.name, 24)), make("div", go), make("div.quiet", held),
                memory.capacity ? meter : null, note);
  }

  draw() {
    this.drawMap();
    this.drawProfile();
  }

  drawMap() {
    const { map, explorer } = this, { axis, view } = explorer;
    const pen = map.begin();
    const { width: W, height: H } = map.canvas, words = map.pixels();
    const [first, last] = view.rows[this.memory.number], { box } = view;
    const begin = axis.column(box.begin), end = axis.column(box.end);
    const sx = W / (axis.high - axis.low), sy = H / (this.high - this.low);
    const shades = this.shades(), matches = explorer.matches, labels = [];
    for (let i = first; i < last; i += 1) {
      if (end[i] <= axis.low || begin[i] >= axis.high) continue;
      const bottom = Math.min(H, Math.floor(H - (box.address[i] - this.low) * sy));
      const top = Math.max(0, Math.floor(H - (box.address[i] + box.size[i] - this.low) * sy));
      if (bottom < 0 || top >= H) continue;
      const left = Math.max(0, Math.floor((begin[i] - axis.low) * sx));
      const right = Math.min(W, Math.max(left + 1, Math.floor((end[i] - axis.low) * sx)));
      const tensor = box.tensor[i], dim = matches && !matches.has(tensor);
      const shade = shades[column("tensor.kind")[tensor]][dim ? 6 : (box.decided[i] ? 0 : 3) + (tensor % 3)];
      fillBox(words, W, left, right, top, Math.min(H, Math.max(top + 1, bottom)), shade[0], shade[1]);
      if (right - left > 44 * map.ratio && bottom - top > 12 * map.ratio && labels.length < MOST_LABELS) {
        labels.push([i, left / map.ratio, right / map.ratio, (top + bottom) / 2 / map.ratio]);
      }
    }
    map.paint();
    this.drawLabels(pen, labels);
    this.drawLines(pen);
    this.drawChosen(pen);
  }

  // By kind: shades for neighbours, pale ones for undecided addresses, one for what is not searched.
  shades() {
    return KINDS.map((kind) => [0, 0.16, 0.3, 0.48, 0.56, 0.64, 0.86].map((part) =>
      [word(kind, "paper", part), word(kind, part > 0.4 ? "paper" : "edge", part > 0.4 ? part / 2 : 0.45)]));
  }

  drawLabels(pen, labels) {
    pen.textBaseline = "middle";
    const { tensor, decided } = this.explorer.view.box, matches = this.explorer.matches;
    for (const [i, left, right, middle] of labels) {
      if (matches && !matches.has(tensor[i])) continue;
      pen.fillStyle = colour(!decided[i] ? "ink" : column("tensor.kind")[tensor[i]] === 0 ? "on-weight" : "on-box");
      const text = fitted(pen, safe(tensorName(tensor[i]), 60), right - left - 8);
      if (text) pen.fillText(text, left + 5, middle + 1);
    }
  }

  drawLines(pen) {
    const { width, height } = this.map, { memory } = this;
    const y = (address) => height - ((address - this.low) / (this.high - this.low)) * height;
    const side = this.scale.begin();
    side.textAlign = "right";
    side.textBaseline = "middle";
    side.fillStyle = colour("muted");
    pen.fillStyle = colour("grid");
    const marks = ticks(this.low, this.high, Math.max(2, Math.floor(height / 40)), 2), texts = markTexts(marks, "bytes");
    for (const [i, mark] of marks.entries()) {
      if (mark > this.low) pen.fillRect(0, Math.round(y(mark)), width, 1);
      side.fillText(mark ? texts[i] : "0", this.scale.width - 2, Math.max(6, Math.min(height - 6, y(mark))));
    }
    for (const [at, name, tone] of [[memory.capacity, "capacity", "alarm"], [memory.floor, "bound", "accent"]]) {
      if (!at || at > this.high || at < this.low) continue;
      dashed(pen, y(at), width, colour(tone));
      const text = `${name} ${bytes(at)}`;
      const wide = pen.measureText(text).width, top = y(at) > 18 ? y(at) - 16 : y(at) + 2;
      pen.fillStyle = colour("halo");
      pen.fillRect(width - wide - 10, top, wide + 8, 14);
      pen.fillStyle = colour(tone);
      pen.textBaseline = "middle";
      pen.fillText(text, width - wide - 6, top + 7.5);
    }
  }

  drawChosen(pen) {
    const { explorer } = this, { axis, view } = explorer, { width, height } = this.map;
    for (const [tensor, line] of [[explorer.hovered, 1.5], [explorer.pinned, 2.5]]) {
      if (tensor === null) continue;
      const [first, last] = view.rows[this.memory.number];
      for (let i = first; i < last; i += 1) {
        if (view.box.tensor[i] !== tensor) continue;
        const place = this.placeOf(i);
        if (place.right < 0 || place.left > width || place.bottom < 0 || place.top > height) continue;
        pen.lineWidth = line + 2;
        pen.strokeStyle = colour("paper");
        pen.strokeRect(place.left, place.top, place.right - place.left, place.bottom - place.top);
        pen.lineWidth = line;
        pen.strokeStyle = colour("ink");
        pen.strokeRect(place.left, place.top, place.right - place.left, place.bottom - place.top);
      }
    }
    drawMoment(pen, explorer, height);
  }

  // Where a box is on the map, in CSS pixels.
  placeOf(i) {
    const { axis, view } = this.explorer, { width, height } = this.map, { box } = view;
    const x = (when) => ((axis.fromTime(when) - axis.low) / (axis.high - axis.low)) * width;
    const y = (address) => height - ((address - this.low) / (this.high - this.low)) * height;
    const left = x(box.begin[i]), top = y(box.address[i] + box.size[i]);
    return { left, right: Math.max(left + 1, x(box.end[i])), top,
             bottom: Math.max(top + 1, y(box.address[i])) };
  }

  drawProfile() {
    const { profile, explorer, memory } = this, { axis, view } = explorer;
    const pen = profile.begin(), { width, height } = profile;
    const top = Math.max(memory.peak, memory.capacity && memory.capacity < memory.peak * 1.6 ? memory.capacity : 0) * 1.25;
    const { when, bytes: held } = view.profile[memory.number];
    drawArea(pen, axis.column(when), held, axis.low, axis.high, width, height, top, colour("area"));
    const y = (amount) => height - (amount / top) * (height - 1);
    if (memory.capacity && memory.capacity <= top) dashed(pen, y(memory.capacity), width, colour("alarm"));
    if (memory.floor) dashed(pen, y(memory.floor), width, colour("accent"));
    const x = ((axis.fromTime(memory.peak_at) - axis.low) / (axis.high - axis.low)) * width;
    if (x >= 0 && x <= width) drawPeak(pen, Math.min(width - 5, Math.max(5, x)), y(memory.peak), width, memory);
    drawMoment(pen, explorer, height);
  }

  // The box under the pointer; the smallest where several are.
  hitMap(x, y) {
    const { axis, view } = this.explorer, { width, height } = this.map, { box } = view;
    const along = axis.low + (x / width) * (axis.high - axis.low);
    const address = this.low + ((height - y) / height) * (this.high - this.low);
    const slack = [(axis.high - axis.low) / width, (this.high - this.low) / height];
    const begin = axis.column(box.begin), end = axis.column(box.end);
    let best = -1;
    for (let i = view.rows[this.memory.number][0]; i < view.rows[this.memory.number][1]; i += 1) {
      if (begin[i] > along || Math.max(end[i], begin[i] + slack[0]) <= along) continue;
      if (box.address[i] > address || box.address[i] + Math.max(box.size[i], slack[1]) <= address) continue;
      if (best < 0 || box.size[i] < box.size[best] || end[i] - begin[i] < end[best] - begin[best]) best = i;
    }
    return best < 0 ? null : { what: "box", row: best, tensor: box.tensor[best] };
  }

  hitProfile(x) {
    const { axis } = this.explorer;
    const when = axis.toTime(axis.low + (x / this.profile.width) * (axis.high - axis.low));
    return { what: "moment", memory: this.memory, when };
  }

  // Zoom and pan of addresses.
  zoomAddress(factor, y) {
    const at = this.low + (1 - y / this.map.height) * (this.high - this.low);
    const span = Math.min(this.ceiling, (this.high - this.low) * factor);
    this.low = Math.max(0, Math.min(this.ceiling - span, at - (at - this.low) * factor));
    this.high = this.low + span;
  }

  panAddress(pixels) {
    const step = (pixels / this.map.height) * (this.high - this.low), span = this.high - this.low;
    this.low = Math.max(0, Math.min(this.ceiling - span, this.low + step));
    this.high = this.low + span;
  }
}

function drawPeak(pen, x, y, width, memory) {
  pen.fillStyle = colour("ink");
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - 4, y - 6);
  pen.lineTo(x + 4, y - 6);
  pen.fill();
  const text = `peak ${bytes(memory.peak)}`, wide = pen.measureText(text).width;
  pen.textBaseline = "middle";
  haloed(pen, text, x + 8 + wide > width ? x - 8 - wide : x + 8, Math.max(7, y - 4), colour("ink"));
}

// The moment whose tensors are listed.
function drawMoment(pen, explorer, height) {
  if (explorer.moment === null) return;
  const { axis } = explorer, width = pen.canvas.clientWidth;
  const x = ((axis.fromTime(explorer.moment) - axis.low) / (axis.high - axis.low)) * width;
  if (x < 0 || x > width) return;
  pen.fillStyle = colour("ink");
  pen.fillRect(Math.round(x), 0, 1, height);
}

function dashed(pen, y, width, tone) {
  pen.strokeStyle = tone;
  pen.lineWidth = 1.25;
  pen.setLineDash([6, 4]);
  pen.beginPath();
  pen.moveTo(0, Math.round(y) + 0.5);
  pen.lineTo(width, Math.round(y) + 0.5);
  pen.stroke();
  pen.setLineDash([]);
}

function haloed(pen, text, x, y, tone) {
  pen.lineWidth = 3;
  pen.lineJoin = "round";
  pen.strokeStyle = colour("halo");
  pen.strokeText(text, x, y);
  pen.fillStyle = tone;
  pen.fillText(text, x, y);
}

// As much of a text as there is room for; nothing, if that is hardly any.
function fitted(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low < 3 ? "" : `${text.slice(0, low)}…`;
}
