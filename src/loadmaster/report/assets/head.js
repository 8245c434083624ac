// The top of a page: what it is about, the figures that matter as cards, warnings; and the colours.

report.redrawers = [];

function themeChoice() {
  return choice("colours", [["auto", "auto", "as the system"], ["light", "light", ""], ["dark", "dark", ""]], "auto", (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    report.redrawAll();
  });
}

// Draw again whatever depends on the width of the page, its colours or the printer.
function keepDrawn(main, redraw) {
  report.redrawAll = () => redraw(true);
  new ResizeObserver(() => redraw(false)).observe(main);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
  addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); redraw(true); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); redraw(true); });
}

function headPart() {
  const { head, rows, unit } = report.content;
  const title = make("div", make("h1", safe(head.program, 80), make("span", " on "), safe(head.machine, 60)),
                     make("p.quiet", subtitle(head)));
  return make("header.top", make("div.title", title, themeChoice()), cards(head, rows, unit), command(head));
}

const PROBLEMS = { mapping: "a memory for every tensor", "malloc-game": "what is in fast memory when", graph: "fusion, devices and order",
                   order: "the order of ops", allocation: "offsets for buffers", plan: "a plan" };

function subtitle(head) {
  const parts = [PROBLEMS[head.problem] || head.problem];
  if (head.solver) parts.push(`solver ${safe(head.solver, 40)}`, `seed ${head.seed}`);
  if (head.evaluations !== null) parts.push(`${plural(head.evaluations, "evaluation")} in ${head.seconds.toFixed(1)} s`);
  if (head.created) parts.push(head.created.replace("T", " ").replace("Z", " UTC"));
  return parts.join(" · ");
}

function cards(head, rows, unit) {
  const of = (role) => rows.find((row) => row.what === "plan" && row.role === role);
  const after = of("after"), before = of("before");
  const value = after.value === null ? after.picoseconds : after.value;
  const found = [card(unit === "moved" ? "bytes moved" : unit === "ps" ? "time" : head.problem === "order" ? "peak" : "height", valueText(value, unit), head.name, "value")];
  if (before) {
    const old = before.value === null ? before.picoseconds : before.value;
    const change = old ? value / old - 1 : null;
    found.push(card(`before: ${safe(head.before, 24)}`, valueText(old, unit), change === null ? "" : `${share(change, true)} since`, "before"));
  }
  if (after.bound) {
    const proven = after.gap !== null && after.gap <= 0;
    found.push(card("bound", valueText(after.bound, unit), head.bound_method ? `by ${safe(head.bound_method, 60)}` : "", "bound"),
               card("gap", share(after.gap), proven ? `optimal among ${head.space ? safe(head.space, 90) : "its plans"}` : "above the best, at most", "gap"));
  }
  if (report.content.timed && after.stall_seconds > 0) {
    found.push(card("stalls", time(after.stall_seconds * 1e12), "ops waiting for copies", "stalls"));
  }
  const real = rows.find((row) => row.what === "measured");
  if (real) found.push(card("measured", time(real.seconds * 1e12), `simulated ${share(real.difference, true)}`, "measured"));
  const sound = after.violations === 0 && after.fits;
  const verdict = card("checker", sound ? "✓ sound" : `✗ ${plural(after.violations, "violation")}`,
                       sound ? "every rule holds" : safe(head.violations[0] || "it does not fit", 90), "verdict");
  verdict.classList.add(sound ? "good" : "bad");
  return put(make("div.cards"), ...found, verdict);
}

function card(label, value, note, name) {
  const element = make("div.card", make("span.label", label), make("strong", value), make("span.quiet", note || ""));
  element.dataset.name = name;
  return element;
}

function command(head) {
  if (!head.command) return null;
  return make("p.command", make("span.quiet", "repeat with "), make("code", safe(head.command, 400)));
}

function warningPart() {
  const { warnings, views } = report.content;
  const lines = warnings.map((text) => safe(text, 300));
  for (const view of views) {
    if (view.left_out) lines.push(`${count(view.left_out)} small boxes of ${safe(view.name)} are left out of the maps; the bytes in use count them.`);
  }
  return lines.length ? put(make("ul.warnings"), ...lines.map((line) => make("li", line))) : null;
}
