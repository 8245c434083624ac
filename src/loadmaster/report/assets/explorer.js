// The plan over time: overview, memories, links and devices on one axis, with hover, pins, search,
// zoom and pan.

const MOST_MATCHES = 20_000;

class Explorer {
  constructor(views) {
    this.views = views;
    this.view = views[0];
    this.axis = new Axis(report.content.timed && views[0].bar.op.length <= 400 ? "time" : "op");
    this.hovered = this.pinned = this.moment = this.listed = this.matches = null;
    this.tip = document.getElementById("tip");
    this.overview = new Overview(this.axis);
    this.details = new Details(this);
    this.tracks = make("div.tracks");
    const top = make("div.track.overview", make("div.label", make("h3", "overview"), this.overview.name),
                     make("div.surfaces", this.overview.map.canvas, this.overview.ruler.canvas));
    this.element = make("section.explorer", make("div.sticky", this.toolbar(), top),
                        make("div.body", this.tracks, this.details.element));
    this.element.id = "explorer";
    this.axis.listeners.push(() => this.draw());
    this.listening = new AbortController();
    const { signal } = this.listening;
    document.addEventListener("keydown", (event) => this.key(event), { signal });
    document.addEventListener("scroll", () => this.draw(), { passive: true, signal });
    this.show(this.view);
  }

  // Newer plans of the same program: what is seen, pinned and searched stays.
  refresh(views) {
    const role = this.view.role;
    this.views = views;
    this.view = views.find((view) => view.role === role) || views[0];
    this.fillToolbar();
    this.hover(null);
    this.show(this.view);
    if (this.input.value) this.search(this.input.value);
  }

  // Another one takes its place.
  close() {
    this.listening.abort();
    this.hover(null);
    this.list = null;
    this.element.remove();
  }

  toolbar() {
    const bar = make("div.toolbar");
    this.plans = make("div");
    this.kinds = make("div.legend");
    this.fillToolbar();
    put(bar, this.plans);
    if (report.content.timed) {
      put(bar, choice("axis", [["op", "ops", "every op takes the same room"], ["time", "time", "true to time"]],
                      this.axis.mode, (mode) => this.axis.setMode(mode)));
    }
    put(bar, set(put(make("div.choice"), button("−", "zoom out (−)", () => this.axis.zoom(1.6)),
                     button("+", "zoom in (+)", () => this.axis.zoom(1 / 1.6)),
                     button("fit", "show everything (0)", () => this.fit())), { role: "group", "aria-label": "zoom" }));
    this.input = set(make("input"), { type: "search", placeholder: "search tensors and ops", spellcheck: "false",
                                      "aria-label": "search tensors and ops by name" });
    this.found = set(make("span.quiet"), { role: "status" });
    this.input.addEventListener("input", () => this.search(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    });
    return put(bar, make("div.search", this.input, this.found), this.kinds);
  }

  // What depends on the plans: which are there, and the kinds of their tensors.
  fillToolbar() {
    this.plans.replaceChildren();
    this.plans.hidden = this.views.length < 2;
    put(this.plans, choice("plan", this.views.map((view) => [view, safe(view.name, 48), `show the plan ${safe(view.name)}`]),
                           this.view, (view) => this.show(view)));
    const seen = new Set(this.views.flatMap((view) => Array.from(new Set(view.box.tensor), (t) => column("tensor.kind")[t])));
    const items = KINDS.filter((_, kind) => seen.has(kind)).map((kind) => legendItem(kind, kind));
    this.kinds.replaceChildren(...items);
  }

  show(view) {
    this.view = view;
    this.hovered = this.moment = this.listed = null;
    this.axis.show(view);
    const tall = view.memories.length > 4 ? 120 : view.memories.length > 2 ? 180 : 240;
    // Decided memories are what a plan is about; the others are there for completeness.
    const height = (memory) => (memory.decided || view.memories.length === 1 ? tall : Math.min(tall, 120));
    const memories = view.memories.map((memory) => new MemoryTrack(this, memory, height(memory)));
    const links = view.links.map((link) => new LinkTrack(this, link));
    const devices = report.content.timed ? view.devices.map((device) => new DeviceTrack(this, device)) : [];
    this.list = [...memories, ...links, ...devices];
    this.memories = memories;
    this.tracks.replaceChildren();
    put(this.tracks, heading("Memories", "address over time, and bytes in use"), ...memories.map((track) => track.element));
    if (links.length) {
      put(this.tracks, heading("Copies", "per link; red: an op waits for it"), ...links.map((track) => track.element));
    }
    if (devices.length) {
      put(this.tracks, heading("Devices", "ops over time; gaps are idle, red is waiting for copies", workLegend(view)),
          ...devices.map((track) => track.element));
    }
    this.details.show();
    this.draw();
  }

  listen(surface, track, hit) {
    const { canvas } = surface;
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", (event) => {
      if (!this.dragging) this.hover(hit(event.offsetX, event.offsetY), event);
    });
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("dblclick", (event) => this.axis.zoom(0.4, this.along(surface, event.offsetX)));
    canvas.addEventListener("pointerdown", (event) => this.drag(event, surface, track, hit));
    canvas.addEventListener("wheel", (event) => this.wheel(event, surface, track), { passive: false });
  }

  along(surface, x) {
    return this.axis.low + (x / surface.width) * (this.axis.high - this.axis.low);
  }

  drag(event, surface, track, hit) {
    if (event.button) return;
    const from = [event.clientX, event.clientY], low = this.axis.low;
    const span = this.axis.high - this.axis.low;
    let last = event.clientY;
    follow(surface.canvas, event, (moved) => {
      const far = Math.abs(moved.clientX - from[0]) + Math.abs(moved.clientY - from[1]) > 4;
      if (!this.dragging && !far) return;
      this.dragging = true;
      this.hover(null);
      if (track.map === surface) track.panAddress(moved.clientY - last);
      last = moved.clientY;
      const step = ((from[0] - moved.clientX) / surface.width) * span;
      this.axis.set(low + step, low + step + span);
    }, (ended) => {
      if (!this.dragging && ended.type === "pointerup") this.click(hit(ended.offsetX, ended.offsetY));
      this.dragging = false;
    });
  }

  wheel(event, surface, track) {
    const forward = event.deltaY || event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      this.axis.zoom(Math.exp(Math.sign(forward) * Math.min(0.5, Math.abs(forward) / 250)), this.along(surface, event.offsetX));
    } else if (event.altKey && track.map === surface) {
      track.zoomAddress(Math.exp(Math.sign(forward) * 0.25), event.offsetY);
      this.draw();
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.axis.pan(Math.sign(event.deltaX || event.deltaY) * 0.1);
    } else {
      return; // the page scrolls
    }
    event.preventDefault();
  }

  hover(hit, event) {
    const tensor = hit && hit.tensor !== undefined ? hit.tensor : null;
    if (tensor !== this.hovered) {
      this.hovered = tensor;
      this.draw();
    }
    this.tip.hidden = !hit;
    if (!hit) return;
    this.tip.replaceChildren(definitionList(linesOf(this.view, hit)));
    const { offsetWidth: wide, offsetHeight: tall } = this.tip;
    const right = event.clientX + 16 + wide < window.innerWidth;
    const below = event.clientY + 16 + tall < window.innerHeight;
    this.tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - wide - 12)}px`;
    this.tip.style.top = `${Math.max(4, below ? event.clientY + 16 : event.clientY - tall - 12)}px`;
  }

  click(hit) {
    if (!hit) this.pin(null);
    else if (hit.what === "moment") this.showMoment(hit.memory, hit.when);
    else if (hit.what === "bar") this.pin(this.resultOf(this.view.bar.op[hit.row]));
    else if (hit.tensor !== undefined) this.pin(hit.tensor === this.pinned ? null : hit.tensor);
  }

  // What an op makes: the first tensor that it writes and that lies somewhere.
  resultOf(op) {
    const writer = column("tensor.writer"), { box } = this.view;
    for (let i = 0; i < box.tensor.length; i += 1) if (writer[box.tensor[i]] === op) return box.tensor[i];
    return null;
  }

  pin(tensor, reveal = false) {
    this.pinned = tensor;
    this.moment = this.listed = null;
    this.details.show();
    if (tensor !== null && reveal) {
      const row = this.view.box.tensor.indexOf(tensor);
      if (row >= 0) this.axis.reveal(this.view.box.begin[row], this.view.box.end[row]);
    }
    this.draw();
  }

  showMoment(memory, when, reveal = false) {
    this.pinned = null;
    this.moment = memory ? when : null;
    this.listed = memory ? { memory, when } : null;
    if (memory && reveal) this.axis.centre(when);
    this.details.show();
    this.draw();
  }

  // Ops that use the pinned or hovered tensor.
  users() {
    const tensor = this.pinned === null ? this.hovered : this.pinned;
    if (tensor === null) return null;
    return new Set([...readers(tensor), column("tensor.writer")[tensor]]);
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    this.order = [];
    this.at = -1;
    this.matches = null;
    if (wanted) {
      const { box } = this.view, known = new Map();
      const writer = column("tensor.writer");
      for (let i = 0; i < box.tensor.length && this.order.length < MOST_MATCHES; i += 1) {
        const tensor = box.tensor[i];
        if (!known.has(tensor)) {
          const hit = tensorName(tensor).toLowerCase().includes(wanted) ||
            (writer[tensor] >= 0 && opName(writer[tensor]).toLowerCase().includes(wanted));
          known.set(tensor, hit);
          if (hit) this.order.push([box.begin[i], tensor]);
        }
      }
      this.order.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      this.matches = new Set(this.order.map(([, tensor]) => tensor));
      this.found.textContent = this.order.length ? `${count(this.order.length)} found` : "none found";
    } else {
      this.found.textContent = "";
    }
    this.draw();
  }

  // To the next tensor: of those found, else of all, by when they begin.
  step(forward) {
    const { box } = this.view;
    let all = this.matches ? this.order : null;
    if (!all || !all.length) {
      const begin = new Map();
      for (let i = 0; i < box.tensor.length; i += 1) {
        begin.set(box.tensor[i], Math.min(box.begin[i], begin.get(box.tensor[i]) ?? Infinity));
      }
      all = Array.from(begin, ([tensor, when]) => [when, tensor]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    }
    const here = all.findIndex(([, tensor]) => tensor === this.pinned);
    const next = here < 0 ? (forward > 0 ? 0 : all.length - 1) : (here + forward + all.length) % all.length;
    this.found.textContent = this.matches ? `${count(next + 1)} of ${count(all.length)}` : this.found.textContent;
    this.pin(all[next][1], true);
  }

  fit() {
    for (const track of this.memories) [track.low, track.high] = [0, track.ceiling];
    this.axis.fit();
  }

  key(event) {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "Escape") {
      if (typing) { this.input.value = ""; this.search(""); this.input.blur(); }
      else { this.pin(null); this.hover(null); }
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      "/": () => this.input.focus(), n: () => this.step(1), p: () => this.step(-1), "0": () => this.fit(),
      "+": () => this.axis.zoom(1 / 1.6), "=": () => this.axis.zoom(1 / 1.6), "-": () => this.axis.zoom(1.6),
    };
    // Arrows belong to the page, unless a track has the focus.
    if (event.target instanceof HTMLCanvasElement) {
      actions.ArrowLeft = () => this.axis.pan(-0.15);
      actions.ArrowRight = () => this.axis.pan(0.15);
    }
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.drawNow(); });
  }

  drawNow(all = false) {
    if (!this.list) return;
    const begun = performance.now();
    this.overview.draw();
    for (const track of this.list) {
      const place = track.element.getBoundingClientRect();
      if (all || (place.bottom > -100 && place.top < window.innerHeight + 100)) track.draw();
    }
    report.redraw = performance.now() - begun;
  }
}

function heading(title, note, more) {
  return make("div.heading", make("h2", title), make("span.quiet", note), more || null);
}

function legendItem(name, tone) {
  const swatch = make("i");
  swatch.style.background = `var(--${tone})`;
  return make("span.item", swatch, name);
}

function workLegend(view) {
  const seen = new Set(view.bar.work);
  return put(make("div.legend"), ...WORK.map((name, i) => (seen.has(i) ? legendItem(name, `work${i}`) : null)));
}
