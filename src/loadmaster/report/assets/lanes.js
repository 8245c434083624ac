// Lanes: what a device runs, and what goes over a link. Idle time is what is left white.

const LANE = 22;

class DeviceTrack {
  constructor(explorer, device) {
    this.explorer = explorer;
    this.surface = new Surface(LANE + 10, `${device.name}: ops over time`);
    this.device = device;
    const { bar } = explorer.view;
    this.rows = [];
    for (let i = 0; i < bar.op.length; i += 1) if (bar.device[i] === device.number) this.rows.push(i);
    this.rows = Int32Array.from(this.rows);
    const busy = explorer.view.total ? device.busy / explorer.view.total : 0;
    this.element = make("div.track.lane",
      make("div.label", make("h3", safe(device.name, 24)), make("span.quiet", `busy ${share(busy)}`)),
      make("div.surfaces", this.surface.canvas));
    explorer.listen(this.surface, this, (x) => this.hit(x));
  }

  draw() {
    const { surface, explorer, rows } = this, { axis, view } = explorer, { bar } = view;
    const pen = surface.begin(), { width: W, height: H } = surface.canvas, words = surface.pixels();
    const start = axis.column(bar.start), end = axis.column(bar.end);
    const sx = W / (axis.high - axis.low), labels = [];
    const top = Math.round(4 * surface.ratio), bottom = Math.round((4 + LANE) * surface.ratio);
    const tones = [[word("alarm"), word("alarm")], ...WORK.map((_, i) => [word(`work${i}`), word(`work${i}`, "edge", 0.5)])];
    words.fill(word("idle"), top * W, bottom * W);
    // What is narrower than a pixel shares it with others: drawn over one another, the last would have all of it.
    const shares = tones.map(() => new Float64Array(W + 1)), tails = [], covered = new Uint8Array(W + 1);
    const place = (from, to, kind) => {
      const left = Math.max(0, (from - axis.low) * sx), right = Math.min(W, (to - axis.low) * sx);
      const x = Math.floor(left), end = Math.floor(right);
      if (right < left || left >= W) return 0;
      if (right - left >= 1) {
        fillBox(words, W, x, end, top, bottom, ...tones[kind]);
        covered.fill(1, x, end);
        tails.push([kind, end, right - end]);
      } else {
        shares[kind][x] += Math.min(right, x + 1) - left;
        shares[kind][x + 1] += Math.max(0, right - x - 1);
      }
      return right - left;
    };
    for (const i of rows) {
      if (end[i] <= axis.low || start[i] >= axis.high) continue;
      const left = Math.max(0, (start[i] - axis.low) * sx), wide = place(start[i], end[i], 1 + bar.work[i]);
      if (wide > 50 * surface.ratio && labels.length < MOST_LABELS) {
        labels.push([i, left / surface.ratio, (left + wide) / surface.ratio]);
      }
    }
    for (const i of rows) {
      if (bar.stall[i]) place(axis.fromTime(bar.start[i] - bar.stall[i]), start[i], 0);
    }
    for (const [kind, x, share] of tails) if (!covered[x]) shares[kind][x] += share;
    drawShares(words, W, shares, tones, top, bottom);
    surface.paint();
    pen.textBaseline = "middle";
    for (const [i, left, right] of labels) {
      pen.fillStyle = colour(`on-work${bar.work[i]}`);
      const more = bar.members[i] > 1 ? ` +${bar.members[i] - 1}` : "";
      const text = fitted(pen, safe(opName(bar.op[i]), 50) + more, right - left - 8);
      if (text) pen.fillText(text, left + 5, 4 + LANE / 2 + 1);
    }
    this.drawUsers(pen);
    drawMoment(pen, explorer, surface.height);
  }

  // The ops that use the chosen tensor, underlined.
  drawUsers(pen) {
    const { explorer } = this, { axis } = explorer, { width } = this.surface;
    const users = explorer.users();
    if (!users) return;
    pen.fillStyle = colour("ink");
    const { bar } = explorer.view;
    for (const i of this.rows) {
      if (!users.has(bar.op[i])) continue;
      const x = (when) => ((axis.fromTime(when) - axis.low) / (axis.high - axis.low)) * width;
      const left = x(bar.start[i]);
      pen.fillRect(left, 4 + LANE + 1, Math.max(2, x(bar.end[i]) - left), 3);
    }
  }

  hit(x) {
    const { axis, view } = this.explorer, { bar } = view;
    const along = axis.low + (x / this.surface.width) * (axis.high - axis.low);
    const slack = (axis.high - axis.low) / this.surface.width;
    const start = axis.column(bar.start), end = axis.column(bar.end);
    for (const i of this.rows) {
      if (start[i] <= along && along < Math.max(end[i], start[i] + slack)) return { what: "bar", row: i };
    }
    return { what: "idle", device: this.device, when: axis.toTime(along) };
  }
}

// Each pixel from below: of every kind as much height as it has of the pixel's time, a line at least; what is left stays.
function drawShares(words, width, shares, tones, top, bottom) {
  for (let x = 0; x < width; x += 1) {
    let sum = 0, low = bottom;
    shares.forEach((share, kind) => {
      if (!share[x]) return;
      sum += share[x];
      const high = Math.max(top, Math.min(low - 1, bottom - Math.round(Math.min(1, sum) * (bottom - top))));
      fillBox(words, width, x, x + 1, high, low, tones[kind][0], tones[kind][0]);
      low = high;
    });
  }
}

class LinkTrack {
  constructor(explorer, link) {
    this.explorer = explorer;
    this.link = link;
    this.tall = link.rows > 2 ? 9 : 13;
    this.surface = new Surface(link.rows * this.tall + 8, `${link.name}: copies over time`);
    const { move } = explorer.view;
    this.rows = [];
    for (let i = 0; i < move.link.length; i += 1) if (move.link[i] === link.number) this.rows.push(i);
    this.element = make("div.track.lane",
      make("div.label", make("h3", safe(link.name, 32)),
           make("span.quiet", `${plural(this.rows.length, "copy").replace("copys", "copies")}, ${bytes(link.bytes)}`)),
      make("div.surfaces", this.surface.canvas));
    explorer.listen(this.surface, this, (x, y) => this.hit(x, y));
  }

  draw() {
    const { surface, explorer } = this, { axis, view } = explorer, { move } = view;
    const pen = surface.begin(), { width: W } = surface.canvas, words = surface.pixels();
    const start = axis.column(move.start), end = axis.column(move.end);
    const sx = W / (axis.high - axis.low);
    const tones = [word("transfer"), word("copy"), word("alarm")];
    const edges = [word("transfer", "edge", 0.6), word("copy", "edge", 0.6), word("alarm", "edge", 0.4)];
    const matches = explorer.matches, pale = word("copy", "paper", 0.85);
    for (const i of this.rows) {
      if (end[i] <= axis.low || start[i] >= axis.high) continue;
      const left = Math.max(0, Math.floor((start[i] - axis.low) * sx));
      const right = Math.min(W, Math.max(left + 1, Math.floor((end[i] - axis.low) * sx)));
      const top = Math.round((4 + move.row[i] * this.tall) * surface.ratio);
      const tone = move.stalls[i] ? 2 : move.planned[i] ? 1 : 0;
      const dim = matches && !matches.has(move.tensor[i]);
      fillBox(words, W, left, right, top, top + Math.round((this.tall - 2) * surface.ratio),
              dim ? pale : tones[tone], dim ? pale : edges[tone]);
    }
    surface.paint();
    const chosen = explorer.pinned === null ? explorer.hovered : explorer.pinned;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    for (const i of this.rows) {
      if (move.tensor[i] !== chosen) continue;
      const left = ((start[i] - axis.low) / (axis.high - axis.low)) * surface.width;
      const right = ((end[i] - axis.low) / (axis.high - axis.low)) * surface.width;
      pen.strokeRect(left, 3 + move.row[i] * this.tall, Math.max(3, right - left), this.tall);
    }
    drawMoment(pen, explorer, surface.height);
  }

  hit(x, y) {
    const { axis, view } = this.explorer, { move } = view;
    const along = axis.low + (x / this.surface.width) * (axis.high - axis.low);
    const slack = (2 * (axis.high - axis.low)) / this.surface.width;
    const start = axis.column(move.start), end = axis.column(move.end);
    const row = Math.floor((y - 4) / this.tall);
    for (const i of this.rows) {
      if (move.row[i] === row && start[i] - slack <= along && along < end[i] + slack) {
        return { what: "move", row: i, tensor: move.tensor[i] };
      }
    }
    return null;
  }
}
