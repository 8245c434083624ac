// A report from top to bottom. Parts without data are left out.

async function start() {
  const main = document.getElementById("report");
  await readData();
  const { content } = report;
  document.title = `${safe(content.head.program, 60)} on ${safe(content.head.machine, 40)} – Loadmaster`;
  const explorer = new Explorer(content.views.map(readView));
  const curves = content.curves ? learningCurves(content.curves) : null;
  if (curves) report.redrawers.push(() => curves.refresh());
  put(main, headPart(), warningPart(), explorer.element, curves,
      beforeAfter(), make("section", make("div.heading", make("h2", "Tables")), put(make("div.grid"), ...figureTables(explorer))),
      make("footer", `Loadmaster ${content.version}. Everything in this file is offline.`));
  const redraw = (all) => {
    forgetColours();
    explorer.drawNow(all);
    for (const each of report.redrawers) each();
  };
  keepDrawn(main, redraw);
  redraw(true);
  main.setAttribute("aria-busy", "false");
  report.ready = performance.now();
  report.explorer = explorer;
  window.loadmasterReport = report;
}

start().catch((error) => {
  const main = document.getElementById("report");
  main.replaceChildren(make("p.warnings", `This report can't be shown: ${safe(error, 300)}`));
  throw error;
});
