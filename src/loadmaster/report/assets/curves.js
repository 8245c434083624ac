// Learning curves: the best value so far against evaluations and seconds, as steps. Runs of one solver
// that differ in their seeds are, from three on, a median with the band from best to worst.

const CHART = { width: 600, height: 300, left: 76, right: 96, top: 14, bottom: 40 };
const GUTTER = 20; // between charts, as in the style
const NEAREST = 50; // of two marks of the x axis
const LINES = ["line0", "line1", "line2", "line3", "line4", "line5"];

function learningCurves(curves) {
  let scale = "log";
  const logarithmic = choice("scale", [["linear", "linear", ""], ["log", "logarithmic", ""]], scale, (chosen) => {
    scale = chosen;
    fill();
  });
  const holder = make("div.charts"), legend = make("div.legend");
  function fill() {
    // As wide as there is room for, so that texts have their size on any screen.
    const columns = getComputedStyle(holder).gridTemplateColumns.split(" ").length;
    const room = (holder.clientWidth - GUTTER * (columns - 1)) / columns;
    CHART.width = room > 0 ? Math.max(260, Math.floor(room)) : 600;
    holder.replaceChildren(chart(curves, "evaluations", scale === "log"), chart(curves, "seconds", scale === "log"));
    const groups = Array.from(new Set(curves.runs.map((run) => run.group)));
    legend.replaceChildren(...groups.map((group, i) => legendItem(groupName(curves, group), LINES[i % LINES.length])));
  }
  fill();
  const section = make("section.panel.curves", make("div.heading", make("h2", "Learning curves"),
    make("span.quiet", "best value so far; smaller is better"), logarithmic), holder, legend);
  section.refresh = (newer = curves) => {
    curves = newer;
    fill();
  };
  return section;
}

function groupName(curves, group) {
  const runs = curves.runs.filter((run) => run.group === group);
  return runs.length === 1 ? safe(runs[0].name, 40) : `${safe(runs[0].solver, 30)}, ${runs.length} seeds`;
}

function series(run, by) {
  const xs = by === "seconds" ? run.seconds : run.evaluations;
  const ys = by === "seconds" ? run.values_by_seconds : run.values;
  const end = by === "seconds" ? run.last_second : run.last_evaluation;
  return { xs: [...xs, Math.max(end, xs[xs.length - 1] || 0)], ys: [...ys, ys[ys.length - 1]] };
}

function chart(curves, by, logarithmic) {
  const all = curves.runs.map((run) => ({ ...series(run, by), group: run.group }));
  const levels = [...curves.baselines.map(([name, value]) => [name, value, "muted"])];
  if (curves.bound) levels.push(["bound", curves.bound, "accent"]);
  const rising = curves.runs.length === 1 && curves.runs[0].bounds.values.length > 1 ? curves.runs[0].bounds : null;
  // One scale for both pictures: several values of one moment are one value by seconds.
  const values = curves.runs.flatMap((run) => [...run.values, ...run.values_by_seconds]);
  const smallest = Math.min(...values, ...levels.map((level) => level[1]));
  // A first value far off would flatten all that matters: it is cut where most of the curve is below.
  const last = Math.max(...all.map((line) => line.ys[line.ys.length - 1]), ...levels.map((level) => level[1]).filter((value) => value < smallest * 1.5));
  const largest = Math.max(...values);
  const top = Math.min(largest, Math.max(last + (last - smallest) * 1.5, smallest * 1.06));
  const low = smallest - (top - smallest) * 0.06, high = top + (top - smallest) * 0.04;
  const left = by === "seconds" ? 0.01 : 1;
  const end = Math.max(left * 2, ...all.map((line) => line.xs[line.xs.length - 1]));
  const { width, height } = CHART, inner = width - CHART.left - CHART.right;
  const x = (value) => CHART.left + inner * (logarithmic
    ? Math.log(Math.max(value, left) / left) / Math.log(end / left) : value / end);
  const y = (value) => CHART.top + (height - CHART.top - CHART.bottom) * (1 - (value - low) / (high - low || 1));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
                              "aria-label": `best value against ${by}` });
  drawAxes(picture, { x, y, low, high, left, end, logarithmic, by, unit: curves.unit });
  // What is above the picture is cut off, not pressed against its upper edge.
  const field = svg("svg", { x: CHART.left, y: CHART.top - 4, width: inner, height: height - CHART.top - CHART.bottom + 8,
                            viewBox: `${CHART.left} ${CHART.top - 4} ${inner} ${height - CHART.top - CHART.bottom + 8}` });
  const groups = Array.from(new Set(all.map((line) => line.group)));
  groups.forEach((group, i) => {
    const lines = all.filter((line) => line.group === group), tone = LINES[i % LINES.length];
    if (lines.length < 3) for (const line of lines) field.append(stepPath(line.xs, line.ys, x, y, tone));
    else drawBand(field, lines, x, y, tone);
  });
  if (rising) {
    const xs = [...rising[by], Math.max(end, rising[by][rising[by].length - 1])];
    field.append(stepPath(xs, [...rising.values, rising.values[rising.values.length - 1]], x, y, "bound"));
  }
  picture.append(field);
  drawLevels(picture, levels.filter(([, value]) => value <= high), y, rising ? "bound" : null);
  return make("figure", picture);
}

function drawAxes(picture, { x, y, low, high, left, end, logarithmic, by, unit }) {
  const { width, height } = CHART;
  const heights = ticks(low, high, 5), texts = markTexts(heights, unit);
  for (const [i, mark] of heights.entries()) {
    picture.append(svg("line", { x1: CHART.left, x2: width - CHART.right, y1: y(mark), y2: y(mark), class: "grid" }),
                   svg("text", { x: CHART.left - 8, y: y(mark) + 4, class: "tick end" }, texts[i]));
  }
  let marks = ticks(0, end, 5);
  if (logarithmic) {
    marks = [];
    for (let power = left; power <= end * 1.001; power *= 10) marks.push(power);
  }
  let last = -Infinity;
  for (const mark of marks) {
    if (x(mark) - last < NEAREST) continue;
    last = x(mark);
    picture.append(svg("text", { x: x(mark), y: height - CHART.bottom + 16, class: "tick middle" },
                       by === "seconds" ? String(Number(mark.toPrecision(3))) : count(mark)));
  }
  picture.append(svg("text", { x: (CHART.left + width - CHART.right) / 2, y: height - 4, class: "tick middle" }, by));
}

// Lines across, their names at the right, one above the other where they would meet.
function drawLevels(picture, levels, y, drawn) {
  const { width } = CHART, taken = [];
  for (const [name, value, tone] of levels.sort((a, b) => a[1] - b[1])) {
    if (name !== drawn) {
      picture.append(svg("line", { x1: CHART.left, x2: width - CHART.right, y1: y(value), y2: y(value), class: `level ${tone}` }));
    }
    let at = y(value) + 4;
    while (taken.some((other) => Math.abs(other - at) < 13)) at -= 13;
    taken.push(at);
    picture.append(svg("text", { x: width - CHART.right + 8, y: at, class: `tick ${tone}` }, safe(name, 14)));
  }
}

function stepPath(xs, ys, x, y, tone) {
  let path = "";
  xs.forEach((at, i) => {
    path += i ? `H${x(at).toFixed(1)}V${y(ys[i]).toFixed(1)}` : `M${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
  });
  return svg("path", { d: path, class: `curve ${tone}` });
}

function drawBand(picture, lines, x, y, tone) {
  const at = Array.from(new Set(lines.flatMap((line) => line.xs))).sort((a, b) => a - b);
  const begun = at.filter((moment) => lines.every((line) => line.xs[0] <= moment));
  const valueAt = (line, moment) => line.ys[Math.max(0, firstAtLeast(line.xs, moment + 1e-9) - 1)];
  const rows = begun.map((moment) => lines.map((line) => valueAt(line, moment)).sort((a, b) => a - b));
  const upper = stepPath(begun, rows.map((row) => row[row.length - 1]), x, y, tone).getAttribute("d");
  const lower = begun.map((moment, i) => [x(moment), y(rows[i][0])]).reverse();
  let path = upper;
  lower.forEach(([across, down], i) => { path += i ? `V${down.toFixed(1)}H${across.toFixed(1)}` : `L${across.toFixed(1)} ${down.toFixed(1)}`; });
  picture.append(svg("path", { d: `${path}Z`, class: `band ${tone}` }),
                 stepPath(begun, rows.map((row) => row[row.length >> 1]), x, y, tone));
}
