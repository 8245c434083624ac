// Before and after: the transition matrix, the strip along the program, and what changed in the plan.

function beforeAfter() {
  const { rows, head, strip } = report.content;
  const of = (what) => rows.filter((row) => row.what === what);
  if (!head.before) return null;
  const parts = [];
  if (of("transition").length) parts.push(matrix(of("transition")));
  parts.push(changeTable(of("change"), of("plan")));
  if (strip) parts.push(strips(strip));
  const tensors = of("tensor"), copies = of("copy");
  if (tensors.length) parts.push(namedTensors(tensors));
  if (copies.length) parts.push(namedCopies(copies));
  return make("section", make("div.heading", make("h2", "Before and after"),
    make("span.quiet", `from ${safe(head.before, 40)} to ${safe(head.name, 40)}`)), put(make("div.grid"), ...parts));
}

function matrix(rows) {
  const names = report.content.memories.filter((name) => rows.some((row) => row.from === name || row.to === name));
  const holder = make("div");
  const total = { bytes: rows.reduce((sum, row) => sum + row.bytes, 0), count: rows.reduce((sum, row) => sum + row.count, 0) };
  function fill(by) {
    const head = make("tr", make("th", "from ╲ to"), ...names.map((name) => set(make("th", named(name)), { scope: "col" })));
    const lines = names.map((from) => make("tr", set(make("th", named(from)), { scope: "row" }), ...names.map((to) => {
      const row = rows.find((each) => each.from === from && each.to === to);
      const part = row ? row[by] / (total[by] || 1) : 0;
      const cell = make("td", row ? make("b", by === "bytes" ? bytes(row.bytes) : count(row.count)) : "",
                        row ? make("span", share(part)) : "");
      cell.style.setProperty("--part", `${Math.round(Math.sqrt(part) * 78)}%`);
      if (from === to) cell.className = "stays";
      return cell;
    })));
    holder.replaceChildren(make("table.matrix", make("thead", head), put(make("tbody"), ...lines)));
  }
  fill("bytes");
  const switcher = choice("matrix", [["bytes", "bytes", ""], ["count", "tensors", ""]], "bytes", fill);
  return make("div.panel", make("div.heading", make("h3", "Where tensors went"), switcher), holder,
    make("p.note", "A tensor counts for the memory that serves most of its uses. Outlined: it stayed."));
}

const STRIP = 16;

function strips(strip) {
  const surface = new Surface(4 * STRIP + 26, "memory of each op's result and weights, before and after");
  const memories = strip.memories, ops = report.content.program.ops;
  const rows = ["results", "weights"].flatMap((what) => ["before", "after"].map((role) => [what, role]));
  const tops = [0, STRIP, 2 * STRIP + 12, 3 * STRIP + 12];
  function draw() {
    const pen = surface.begin(), { width: W, height: H } = surface.canvas, words = surface.pixels();
    const tones = memories.map((_, i) => word(`memory${i % 8}`)), none = word("idle");
    rows.forEach(([what, role], line) => {
      const where = column(`strip.${role}.${what}`);
      const top = Math.round(tops[line] * surface.ratio), bottom = Math.round((tops[line] + STRIP - 2) * surface.ratio);
      for (let x = 0; x < W; x += 1) {
        const first = Math.floor((x / W) * ops), last = Math.max(first + 1, Math.floor(((x + 1) / W) * ops));
        let memory = -1;
        for (let op = first; op < last && memory < 0; op += 1) memory = where[op];
        const tone = memory < 0 ? none : tones[memories.indexOf(memory)];
        for (let y = top; y < Math.min(H, bottom); y += 1) words[y * W + x] = tone;
      }
    });
    surface.paint();
    void pen;
  }
  surface.canvas.addEventListener("pointermove", (event) => stripTip(event, surface, tops, rows));
  surface.canvas.addEventListener("pointerleave", () => { document.getElementById("tip").hidden = true; });
  const labels = make("div.strip-labels", ...["results before", "after", "weights before", "after"].map((text, i) => {
    const label = make("span.quiet", text);
    label.style.top = `${tops[i]}px`;
    return label;
  }));
  report.redrawers.push(draw);
  const items = memories.map((memory, i) => legendItem(safe(report.content.memories[memory], 24), `memory${i % 8}`));
  return make("div.panel.wide", make("div.heading", make("h3", "Along the program"), put(make("div.legend"), ...items)),
    make("div.strip", labels, surface.canvas));
}

function stripTip(event, surface, tops, rows) {
  const tip = document.getElementById("tip"), { ops } = report.content.program;
  const line = tops.findLastIndex((top) => event.offsetY >= top);
  const op = Math.min(ops - 1, Math.floor((event.offsetX / surface.width) * ops));
  const [what, role] = rows[Math.max(0, line)];
  const memory = column(`strip.${role}.${what}`)[op], tensor = column(`strip.${what}`)[op];
  tip.replaceChildren(definitionList([["op", opText(op)],
    [what === "results" ? "result" : "weight", tensor < 0 ? "none" : safe(tensorName(tensor))],
    [role, memory < 0 ? "–" : safe(report.content.memories[memory])]]));
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
}

function changeTable(rows, plans) {
  const { unit } = report.content;
  const [after, before] = ["after", "before"].map((role) => plans.find((plan) => plan.role === role));
  const effects = [["time", before.picoseconds, after.picoseconds, time]];
  if (unit !== "ps") effects.unshift(["value", before.value, after.value, (v) => valueText(v, unit)]);
  if (!report.content.timed) effects.pop();
  for (const memory of report.content.rows.filter((row) => row.what === "memory" && row.plan === "after")) {
    const old = report.content.rows.find((row) => row.what === "memory" && row.plan === "before" && row.name === memory.name);
    if (old) effects.push([`peak ${safe(memory.name, 20)}`, old.peak_bytes, memory.peak_bytes, bytes]);
  }
  const table = make("table", make("thead", make("tr", make("th", "effect"), make("th.number", "before"), make("th.number", "after"), make("th.number", "change"))),
    put(make("tbody"), ...effects.map(([name, old, now, text]) => make("tr", make("td", name), make("td.number", text(old)),
      make("td.number", text(now)), make("td.number", old ? share(now / old - 1, true) : "–")))));
  const counts = sortable([["what changed", (r) => r.name], ["count", (r) => r.count, count, true],
                           ["bytes", (r) => r.bytes, (v) => (v === null ? "–" : bytes(v)), true]], rows);
  return make("div.panel", make("h3", "What changed"), make("div.table", table), rows.length ? counts : null);
}

function namedTensors(rows) {
  const columns = [["tensor", (r) => r.name, named], ["change", (r) => r.change], ["from", (r) => r.from, named],
                   ["to", (r) => r.to, named], ["bytes", (r) => r.bytes, bytes, true]];
  if (report.content.timed && rows.some((row) => row.effect_ps !== null)) {
    columns.push(["this change alone", (r) => r.effect_ps,
                  (v) => (v === null ? "–" : v === 0 ? "0" : `${v > 0 ? "+" : "−"}${time(Math.abs(v))}`), true]);
  }
  return make("div.panel.wide", make("h3", `The ${count(rows.length)} largest tensors that changed`), sortable(columns, rows),
    columns.length > 5 ? make("p.note", "Effects of single changes do not add up.") : null);
}

function namedCopies(rows) {
  const columns = [["tensor", (r) => r.name, named], ["copy", (r) => r.change], ["from", (r) => r.from, named], ["to", (r) => r.to, named],
                   ["bytes", (r) => r.bytes, bytes, true], ["issued after", (r) => r.issued_after, (v) => opText(v)],
                   ["needed by", (r) => r.needed_by, (v) => opText(v)]];
  return make("div.panel.wide", make("h3", `The ${count(rows.length)} largest copies added or gone`), sortable(columns, rows));
}
