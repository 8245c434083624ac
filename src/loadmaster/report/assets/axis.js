// The x axis that all tracks share: picoseconds, or ops at equal widths. Tracks think in "along":
// picoseconds or a place among the ops, by the mode; `low` and `high` bound what is seen.

class Axis {
  constructor(mode) {
    this.mode = mode;
    this.listeners = [];
  }

  show(view) {
    const first = !this.view;
    const [low, high] = first ? [0, 1] : [this.low / this.end, this.high / this.end];
    this.view = view;
    this.cache = new Map();
    this.set(low * this.end, high * this.end);
  }

  get end() {
    return this.mode === "time" ? this.view.total : this.view.warp.op[this.view.warp.op.length - 1];
  }

  setMode(mode) {
    const [low, high] = [this.toTime(this.low), this.toTime(this.high)];
    this.mode = mode;
    this.set(this.fromTime(low), this.fromTime(high));
  }

  // From picoseconds: between the starts of two ops the axis is straight.
  fromTime(when) {
    return this.mode === "time" ? when : between(this.view.warp.when, this.view.warp.op, when);
  }

  toTime(along) {
    return this.mode === "time" ? along : between(this.view.warp.op, this.view.warp.when, along);
  }

  // A whole column of moments; kept, since columns never change.
  column(moments) {
    if (this.mode === "time") return moments;
    if (!this.cache.has(moments)) {
      this.cache.set(moments, Float64Array.from(moments, (moment) => this.fromTime(moment)));
    }
    return this.cache.get(moments);
  }

  get least() {
    return this.mode === "time" ? Math.max(10, this.end / 2e6) : Math.min(4, this.end);
  }

  set(low, high) {
    const span = Math.min(this.end, Math.max(this.least, high - low));
    this.low = Math.max(0, Math.min(low, this.end - span));
    this.high = this.low + span;
    for (const listener of this.listeners) listener();
  }

  zoom(factor, at = (this.low + this.high) / 2) {
    this.set(at - (at - this.low) * factor, at + (this.high - at) * factor);
  }

  pan(share) {
    const step = (this.high - this.low) * share;
    this.set(this.low + step, this.high + step);
  }

  fit() {
    this.set(0, this.end);
  }

  // Make sure that a stretch of time is seen, with some room around it.
  reveal(begin, end) {
    const [low, high] = [this.fromTime(begin), this.fromTime(end)];
    if (low >= this.low && high <= this.high && high - low > (this.high - this.low) / 50) return;
    const span = Math.max(high - low, this.end / 400, this.least / 2);
    this.set(low - span * 0.75, high + span * 0.75);
  }

  // Make sure that a moment is seen, without zooming.
  centre(when) {
    const along = this.fromTime(when), half = (this.high - this.low) / 2;
    if (along < this.low || along > this.high) this.set(along - half, along + half);
  }

  labels(marks) {
    if (this.mode === "time") return markTexts(marks, "ps");
    if (report.content.timed) return marks.map(count);
    return marks.map((mark) => safe(opName(Math.min(mark, report.content.program.ops - 1)), 12));
  }
}

// The straight line between neighbours of `x` in the rising column `xs`.
function between(xs, ys, x) {
  const right = Math.min(xs.length - 1, Math.max(1, firstAtLeast(xs, x)));
  const left = right - 1;
  const width = xs[right] - xs[left];
  const part = width > 0 ? Math.min(1, Math.max(0, (x - xs[left]) / width)) : 0;
  return ys[left] + part * (ys[right] - ys[left]);
}

// The ruler and, above it, the whole program in small with the window that is seen.
class Overview {
  constructor(axis) {
    this.axis = axis;
    this.map = new Surface(44, "the whole program; drag to choose what is seen");
    this.ruler = new Surface(22, "");
    this.name = make("span.quiet");
    this.map.canvas.addEventListener("pointerdown", (event) => this.drag(event));
  }

  drag(event) {
    const { axis } = this, width = this.map.width;
    const scale = axis.end / width, span = axis.high - axis.low;
    const start = event.offsetX * scale;
    const inside = start >= axis.low && start <= axis.high && span < axis.end * 0.999;
    const from = axis.low;
    const move = (moved) => {
      const now = Math.max(0, Math.min(width, moved.offsetX)) * scale;
      if (inside) axis.set(from + now - start, from + now - start + span);
      else if (Math.abs(now - start) > 3 * scale) axis.set(Math.min(start, now), Math.max(start, now));
    };
    follow(this.map.canvas, event, move, (ended) => {
      const now = ended.offsetX * scale;
      if (!inside && Math.abs(now - start) <= 3 * scale) axis.set(now - span / 2, now + span / 2);
    });
  }

  draw() {
    this.drawMap();
    this.drawRuler();
  }

  drawMap() {
    const { axis } = this, { view } = axis, pen = this.map.begin(), { width, height } = this.map;
    const fullest = view.memories.reduce(
      (best, memory) => (fullness(memory) > fullness(best) ? memory : best), view.memories[0]);
    this.name.textContent = fullest ? safe(fullest.name, 20) : "";
    if (fullest) {
      const profile = view.profile[fullest.number];
      drawArea(pen, axis.column(profile.when), profile.bytes, 0, axis.end, width, height, fullest.peak,
               colour("area"));
    }
    const scale = width / axis.end, low = axis.low * scale, high = Math.max(low + 2, axis.high * scale);
    pen.fillStyle = colour("veil");
    pen.fillRect(0, 0, low, height);
    pen.fillRect(high, 0, width - high, height);
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 1.5;
    pen.strokeRect(low + 0.75, 0.75, Math.max(1, high - low - 1.5), height - 1.5);
  }

  drawRuler() {
    const { axis } = this, pen = this.ruler.begin(), { width } = this.ruler;
    pen.fillStyle = colour("muted");
    pen.strokeStyle = colour("line");
    pen.textBaseline = "middle";
    let marks = ticks(axis.low, axis.high, Math.max(2, Math.floor(width / 110)));
    if (axis.mode === "op") marks = marks.filter((mark) => Number.isInteger(mark));
    const texts = axis.labels(marks);
    for (const [i, mark] of marks.entries()) {
      const x = ((mark - axis.low) / (axis.high - axis.low)) * width;
      pen.beginPath();
      pen.moveTo(Math.round(x) + 0.5, 0);
      pen.lineTo(Math.round(x) + 0.5, 6);
      pen.stroke();
      const text = texts[i], half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.max(0, Math.min(width - 2 * half, x - half)), 14);
    }
  }
}

const fullness = (memory) => memory.peak / (memory.capacity || memory.peak * 4 || 1);
