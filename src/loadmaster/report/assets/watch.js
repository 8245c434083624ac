// The page of `loadmaster watch`: asks every second how the runs stand, and draws again what has changed.

const ASK_AFTER = 1000, REDRAW_AFTER = 2000; // milliseconds, at least, and
const SHARE = 20; // so many times what the last answer took: the search needs the processors
const STATES = { running: "running", budget: "budget spent", time: "time is up", optimal: "proven optimal", done: "done",
                 infeasible: "proven infeasible", interrupted: "interrupted", error: "failed", killed: "killed" };
const DOTS = { running: "running", optimal: "optimal", error: "failed", killed: "failed" };

const watch = { chosen: "", told: "", buttons: new Map(), explorer: null, shown: "", view: null, next: 0, asking: false };

function start() {
  const main = document.getElementById("watch");
  watch.chosen = location.hash.slice(1);
  watch.title = make("h1", "Runs");
  watch.status = set(make("span.status"), { role: "status" });
  watch.follow = button("follow the newest", "show the newest run, also one that starts later", () => choose(""));
  watch.filter = set(make("input"), { type: "search", placeholder: "find a run", "aria-label": "find a run", hidden: "" });
  watch.filter.addEventListener("input", () => filterRuns());
  watch.list = set(make("ul.runs"), { "aria-label": "runs, newest first" });
  watch.detail = make("div.detail");
  watch.parts = { head: make("header"), cards: make("div.cards"), share: make("div.share", make("div")), lines: make("div.lines"),
                  curves: make("section"), map: make("section") };
  put(main, make("div.bar", watch.title, watch.status, watch.follow, themeChoice()),
      make("div.columns", set(make("nav.side", watch.filter, watch.list), { "aria-label": "runs" }), watch.detail));
  addEventListener("hashchange", () => choose(location.hash.slice(1)));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  keepDrawn(main, (all) => {
    forgetColours();
    if (watch.explorer) watch.explorer.drawNow(all);
    if (watch.parts.curves.refresh) watch.parts.curves.refresh();
  });
  window.loadmasterWatch = watch;
  ask();
}

// A run by its number; none: the newest.
function choose(id) {
  if (location.hash.slice(1) !== id) history.replaceState(null, "", id ? `#${id}` : location.pathname);
  watch.chosen = id;
  watch.told = "";
  ask();
}

async function ask() {
  clearTimeout(watch.timer);
  const asked = watch.chosen, begun = performance.now();
  try {
    if (!document.hidden) {
      const response = await fetch(`state.json?run=${encodeURIComponent(asked)}`);
      if (!response.ok) throw new Error((await response.text()).trim());
      const told = await response.text();
      if (asked === watch.chosen && told !== watch.told) showState(JSON.parse(told));
      if (asked === watch.chosen) watch.told = told;
    }
  } catch (error) {
    watch.told = "";
    watch.status.textContent = error instanceof TypeError ? "no answer: 'loadmaster watch' has ended" : safe(error.message, 120);
    watch.status.classList.add("lost");
  }
  clearTimeout(watch.timer);
  watch.timer = setTimeout(ask, Math.max(ASK_AFTER, SHARE * (performance.now() - begun)));
  refreshMap();
}

function showState(state) {
  const running = state.rows.filter((row) => row.state === "running").length;
  const broken = state.rows.filter((row) => row.error !== null).length;
  const parts = [`${running} running`, `${count(state.rows.length - running - broken)} ended`];
  if (broken) parts.push(`${count(broken)} can't be read`);
  if (state.left_out) parts.push(`${count(state.left_out)} older ones are not shown`);
  watch.title.replaceChildren("Runs", make("span", " in "), safe(state.folder, 60));
  watch.status.textContent = parts.join(" · ");
  watch.status.classList.remove("lost");
  watch.follow.setAttribute("aria-pressed", String(!state.rows.some((row) => row.id === watch.chosen)));
  showRuns(state.rows, state.chosen && state.chosen.id);
  showChosen(state);
  document.getElementById("watch").setAttribute("aria-busy", "false");
}

// The list: what is there stays where it is, so that neither focus nor scrolling is lost.
function showRuns(rows, current) {
  const { list, buttons } = watch, seen = new Set(rows.map((row) => row.id));
  for (const [id, entry] of buttons) {
    if (!seen.has(id)) {
      entry.item.remove();
      buttons.delete(id);
    }
  }
  rows.forEach((row, i) => {
    const told = JSON.stringify(row), entry = buttons.get(row.id) || { item: make("li"), told: "" };
    buttons.set(row.id, entry);
    if (entry.told !== told) fillRun(entry, row, told);
    if (!row.error) entry.item.firstChild.setAttribute("aria-current", String(row.id === current));
    if (list.children[i] !== entry.item) list.insertBefore(entry.item, list.children[i] || null);
  });
  watch.filter.hidden = rows.length < 8;
  filterRuns();
}

function fillRun(entry, row, told) {
  const wanted = row.error ? "DIV" : "BUTTON", old = entry.item.firstChild;
  const shell = old && old.tagName === wanted ? old : row.error ? make("div.run.broken") : button("", "", () => choose(row.id));
  if (shell !== old) entry.item.replaceChildren(shell);
  shell.classList.add("run");
  set(shell, { title: safe(row.error || row.run, 300) });
  shell.replaceChildren(...(row.error ? [make("b", safe(row.run, 60)), make("span.quiet", safe(row.error, 200))] : runTexts(row)));
  entry.told = told;
  entry.text = Object.values(row).join(" ").toLowerCase();
}

function runTexts(row) {
  const bar = row.state === "running" && row.budget_share !== null ? shareBar(row) : null;
  return [make("b", safe(row.program, 40), " on ", safe(row.machine, 30)), make("span.number", valueText(row.value, row.unit)),
          make("span.quiet", make(`i.dot.${DOTS[row.state] || "ended"}`), STATES[row.state] || safe(row.state, 20),
               ` · ${safe(row.solver, 20)}, seed ${safe(row.seed, 12)}`),
          make("span.number.quiet", row.gap === null ? "" : `gap ${share(row.gap)}`), bar].filter((part) => part !== null);
}

function shareBar(row) {
  const bar = make("div.share", make("div"));
  bar.firstChild.style.width = `${100 * row.budget_share}%`;
  return set(bar, { role: "progressbar", "aria-label": "budget spent", "aria-valuenow": Math.round(100 * row.budget_share) });
}

function filterRuns() {
  const wanted = watch.filter.hidden ? "" : watch.filter.value.trim().toLowerCase();
  for (const entry of watch.buttons.values()) entry.item.hidden = !entry.text.includes(wanted);
}

function showChosen(state) {
  const run = state.chosen, { parts, detail } = watch;
  if (!run) {
    document.title = "Loadmaster watch";
    closeMap();
    watch.view = null;
    delete detail.dataset.run;
    detail.replaceChildren(make("p.empty", "No run here yet. One that is started appears by itself: ",
                                make("code", `loadmaster plan MODEL --run ${safe(state.folder, 60)}`)));
    return;
  }
  if (watch.view !== run.id) {
    closeMap();
    parts.curves = make("section");
    detail.replaceChildren(parts.head, parts.cards, parts.share, parts.lines, parts.curves, parts.map);
    watch.view = run.id;
    watch.shown = "";
    watch.next = 0;
  }
  watch.plan = run.plan;
  detail.dataset.run = run.id;
  document.title = `${valueText(run.value, run.unit)} · ${safe(run.program, 40)} – Loadmaster watch`;
  parts.head.replaceChildren(make("div.heading", make("h2.subject", safe(run.program, 80), make("span", " on "), safe(run.machine, 60)),
    make("span.quiet", `${PROBLEMS[run.problem] || safe(run.problem, 40)} · solver ${safe(run.solver, 40)} · seed ${safe(run.seed, 20)} · ${utc(run.started)}`)));
  parts.cards.replaceChildren(...liveCards(run));
  const bar = run.state !== "running" || run.budget_share === null ? make("div") : shareBar(run);
  bar.hidden = run.state !== "running";
  parts.share.replaceWith(bar);
  parts.share = bar;
  parts.lines.replaceChildren(...liveLines(run));
  showCurves(run);
  if (!watch.explorer && !watch.shown) {
    parts.map.replaceChildren(make("p.empty", run.plan ? "Drawing the best plan so far…" : "No plan yet."));
  }
}

function liveCards(run) {
  const proven = run.gap !== null && run.gap <= 0;
  const text = (value) => valueText(value, run.unit, digitsFor(run.unit, run.value, run.bound, run.solver_value));
  const beside = run.origin && run.origin !== run.solver;
  const own = run.solver_value === null ? "the solver has none yet" : `the solver has ${text(run.solver_value)}`;
  const cards = [card("best so far", text(run.value), run.value === null ? "no plan yet" : beside ? `by '${safe(run.origin, 24)}'; ${own}` : `by ${safe(run.solver, 30)}`, "value")];
  if (run.bound) cards.push(card("bound", text(run.bound), run.bound_method ? `by ${safe(run.bound_method, 60)}` : "", "bound"));
  if (run.gap !== null) cards.push(card("gap", share(run.gap), proven ? "proven optimal" : "above the best, at most", "gap"));
  const ended = STATES[run.state] || safe(run.state, 20);
  const state = run.state === "running"
    ? card("time left", run.seconds_left === null ? "–" : duration(run.seconds_left), `${duration(run.seconds)} so far`, "left")
    : card("ended", ended, `after ${duration(run.seconds)}`, "left");
  if (proven) cards[cards.length - 1].classList.add("good");
  if (DOTS[run.state] === "failed") state.classList.add("bad");
  const rate = run.evals_per_s === null ? "" : `${run.evals_per_s >= 10 ? count(run.evals_per_s) : run.evals_per_s.toFixed(1)} a second`;
  return [...cards, state, card("evaluations", count(run.evaluations), rate, "evaluations")];
}

function liveLines(run) {
  const lines = run.notes.map((note) => make("p.warning", safe(note, 300)));
  if (run.resume) lines.push(make("p", make("span.quiet", "go on with "), make("code", safe(run.resume, 300))));
  lines.push(make("p", make("span.quiet", "started with "), make("code", safe(run.command, 400))));
  return lines;
}

function showCurves(run) {
  const { parts } = watch;
  let next = parts.curves;
  if (!run.curves) next = make("section");
  else if (parts.curves.refresh) parts.curves.refresh(run.curves);
  else next = learningCurves(run.curves);
  if (next === parts.curves) return;
  parts.curves.replaceWith(next);
  parts.curves = next;
  if (next.refresh) next.refresh(); // now that it has its width
}

// What lies where in the best plan so far, drawn again as it improves, but not so often that the search notices.
async function refreshMap() {
  const { view, plan } = watch;
  if (!view || !plan || watch.asking || document.hidden || watch.shown === `${view} ${plan}` || performance.now() < watch.next) return;
  watch.asking = true;
  const begun = performance.now();
  try {
    const response = await fetch(`view.json?run=${encodeURIComponent(view)}`);
    const content = response.ok ? await response.json() : { error: (await response.text()).trim() };
    const buffer = content.error ? null : await unpack(content.packed);
    if (view === watch.view) showMap(content, buffer, `${view} ${content.error ? plan : content.plan}`);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the server has gone, which is said elsewhere
  } finally {
    watch.asking = false;
    watch.next = performance.now() + Math.max(REDRAW_AFTER, SHARE * (performance.now() - begun));
    if (view !== watch.view) watch.next = 0;
  }
}

function showMap(content, buffer, shown) {
  const { parts } = watch;
  watch.shown = shown;
  if (content.error) {
    closeMap();
    parts.map.replaceChildren(make("p.empty", `Its plan can't be drawn: ${safe(content.error, 300)}`));
    return;
  }
  delete content.packed;
  takeData(content, buffer);
  const views = content.views.map(readView);
  if (watch.explorer) {
    watch.explorer.refresh(views);
  } else {
    watch.explorer = new Explorer(views);
    const all = set(make("a", "full report"), { href: `report.html?run=${encodeURIComponent(watch.view)}`, target: "_blank", rel: "noopener" });
    parts.map.replaceChildren(make("div.heading", make("h2", "What lies where"),
      make("span.quiet", "in the best plan so far; drawn again as it improves"), all), watch.explorer.element);
  }
  watch.explorer.drawNow(true);
  parts.map.dataset.plan = content.plan;
}

function closeMap() {
  if (watch.explorer) watch.explorer.close();
  watch.explorer = null;
  watch.parts.map.replaceChildren();
  delete watch.parts.map.dataset.plan;
}

function duration(seconds) {
  if (seconds < 100) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const utc = (text) => safe(String(text).replace("T", " ").replace("Z", " UTC"), 40);

start();
