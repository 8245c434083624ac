// Tables: sorted by any column, a page at a time, from the keyboard too.

const PAGE = 25;

// `columns`: [title, value of a row, text of a value, whether it is a number]; `rows`: any objects.
function sortable(columns, rows, { sort = null, caption = "" } = {}) {
  const state = { by: sort ? sort[0] : -1, down: sort ? sort[1] : false, shown: PAGE };
  const order = Array.from(rows.keys ? rows.keys() : rows, Number);
  const body = make("tbody"), more = make("div.more");
  const heads = columns.map(([title, , , numeric], i) => {
    const sorter = button(title, `sort by ${title}`, () => {
      state.down = state.by === i ? !state.down : Boolean(numeric);
      state.by = i;
      fill();
    });
    return set(make(numeric ? "th.number" : "th", sorter), { scope: "col" });
  });
  const table = make("table", caption ? make("caption", caption) : null, make("thead", make("tr", ...heads)), body);

  function fill() {
    if (state.by >= 0) {
      const value = columns[state.by][1], sign = state.down ? -1 : 1;
      const keys = Array.from(order.keys(), (row) => value(rows[row], row));
      order.sort((a, b) => sign * compared(keys[a], keys[b]) || a - b);
    }
    heads.forEach((head, i) => head.setAttribute("aria-sort",
      i !== state.by ? "none" : state.down ? "descending" : "ascending"));
    body.replaceChildren();
    for (const row of order.slice(0, state.shown)) {
      put(body, make("tr", ...columns.map(([, value, text, numeric]) => {
        const content = text ? text(value(rows[row], row), rows[row], row) : value(rows[row], row);
        return make(numeric ? "td.number" : text ? "td.named" : "td", content === null || content === undefined ? "–" : content);
      })));
    }
    more.replaceChildren();
    if (order.length > state.shown) {
      put(more, button(`show ${count(Math.min(100, order.length - state.shown))} more of ${count(order.length)}`, "", () => {
        state.shown += 100;
        fill();
      }));
    }
  }
  fill();
  return make("div.table", table, more);
}

const collator = new Intl.Collator("en", { numeric: true });

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" || typeof b === "string" ? collator.compare(a, b) : a - b;
}

const named = (text) => safe(text, 64);

function figureTables(explorer) {
  const { rows, unit } = report.content;
  const of = (what) => rows.filter((row) => row.what === what);
  const plan = (row) => row.plan;
  const parts = [
    ["Plans", of("plan"), [
      ["plan", (r) => r.name, named], ["value", (r) => r.value, (v) => valueText(v, unit), true],
      ["bound", (r) => r.bound, (v) => valueText(v, unit), true], ["gap", (r) => r.gap, (v) => share(v), true],
      ["time", (r) => r.picoseconds, time, true],
      ["violations", (r) => r.violations, (v) => (v === undefined ? "–" : count(v)), true],
      ["evaluations", (r) => r.evaluations, (v) => (v === null ? "–" : count(v)), true],
      ["seconds of search", (r) => r.search_seconds, (v) => (v === null ? "–" : v.toFixed(2)), true],
    ]],
    ["Memories", of("memory"), [
      ["memory", (r) => r.name, named], ["plan", plan], ["peak", (r) => r.peak_bytes, bytes, true],
      ["peak, bytes", (r) => r.peak_bytes, count, true],
      ["capacity", (r) => r.capacity_bytes, (v) => (v === null ? "no limit" : bytes(v)), true],
      ["too many bytes", (r) => r.over_bytes, (v) => (v ? count(v) : "–"), true],
      ["op at the peak", (r) => r.peak_op, (v) => (v === null ? "–" : named(v))],
      ["tensors there", (r) => r.tensors_at_peak, count, true],
    ]],
    ["Devices", report.content.timed ? of("device") : [], [
      ["device", (r) => r.name, named], ["plan", plan], ["busy", (r) => r.busy_seconds * 1e12, time, true],
      ["share", (r) => r.busy_share, (v) => share(v), true], ["steps", (r) => r.steps, count, true],
    ]],
    ["Links", of("link"), [
      ["link", (r) => `${r.source} → ${r.target}`, named], ["plan", plan], ["copies", (r) => r.copies, count, true],
      ["moved", (r) => r.bytes, bytes, true],
    ]],
    ["Measured", of("measured"), [
      ["plan", (r) => r.name, named], ["device", (r) => r.device, named], ["measured", (r) => r.seconds * 1e12, time, true],
      ["simulated", (r) => r.simulated_seconds * 1e12, time, true], ["difference", (r) => r.difference, (v) => share(v, true), true],
    ]],
    ["Measured ops", of("measured_op"), [
      ["op", (r) => r.name, named], ["measured", (r) => r.seconds * 1e12, time, true],
      ["simulated", (r) => r.simulated_seconds * 1e12, time, true],
      ["simulated − measured", (r) => r.off_seconds * 1e12, time, true],
    ]],
  ];
  const found = parts.filter(([, list]) => list.length)
    .map(([title, list, columns]) => make(columns.length > 5 || !of("link").length ? "div.panel.wide" : "div.panel",
                                         make("h3", title), sortable(columns, list)));
  return [...found, tensorTable(explorer)];
}

// All tensors of the plan that is shown first.
function tensorTable(explorer) {
  const view = explorer.views[0], first = new Map(), { box } = view;
  for (let i = 0; i < box.tensor.length; i += 1) if (!first.has(box.tensor[i])) first.set(box.tensor[i], i);
  const tensors = Array.from(first.keys());
  const go = (tensor) => {
    const link = button(safe(tensorName(tensor), 64), "show it above", () => {
      explorer.pin(tensor, true);
      document.getElementById("explorer").scrollIntoView({ block: "start" });
    });
    link.className = "link";
    return link;
  };
  const columns = [
    ["tensor", (t) => tensorName(t), (_, t) => go(t)], ["kind", (t) => tensorKind(t)],
    ["bytes", (t) => tensorBytes(t), count, true], ["memory", (t) => report.content.memories[box.memory[first.get(t)]], named],
    ["offset", (t) => (box.decided[first.get(t)] ? box.address[first.get(t)] : null), (v) => (v === null ? "–" : count(v)), true],
    ["first op", (t) => box.first[first.get(t)], (v) => opText(v)], ["last op", (t) => box.last[first.get(t)], (v) => opText(v)],
    ["reads", (t) => readers(t).length, count, true], ["copies", (t) => view.copies.get(t) || 0, count, true],
  ];
  return make("div.panel.wide", make("h3", `Tensors of ${safe(view.name, 40)}`), sortable(columns, tensors, { sort: [2, true] }));
}
