// What is known about the thing under the pointer: short beside it, long in the panel once pinned.

// Lines of [label, text] about a box, a bar, a copy or a moment.
function linesOf(view, hit) {
  const timed = report.content.timed;
  if (hit.what === "box") return boxLines(view, hit.row);
  if (hit.what === "bar") {
    const { bar } = view, i = hit.row;
    const lines = [["op", opText(bar.op[i])], ["kind", `${safe(opKind(bar.op[i]), 40)}, ${WORK[bar.work[i]]}`]];
    if (bar.members[i] > 1) lines.push(["fused", `${count(bar.members[i])} ops as one`]);
    lines.push(["starts", time(bar.start[i])], ["takes", time(bar.end[i] - bar.start[i])]);
    if (bar.stall[i]) lines.push(["waited", `${time(bar.stall[i])} for copies`]);
    return lines;
  }
  if (hit.what === "move") {
    const { move } = view, i = hit.row;
    return [["tensor", safe(tensorName(move.tensor[i]))], [move.planned[i] ? "copies" : "sends", exactBytes(move.bytes[i])],
            ["issued after", opText(move.issued_after[i])], ["needed by", opText(move.needed_by[i])],
            ["starts", time(move.start[i])], ["takes", time(move.end[i] - move.start[i])],
            ["an op waits", move.stalls[i] ? "yes" : "no"]];
  }
  if (hit.what === "idle") return [["device", `${safe(hit.device.name)} is idle`], ["at", time(hit.when)]];
  const profile = view.profile[hit.memory.number];
  const at = Math.max(0, firstAtLeast(profile.when, hit.when + 1) - 1);
  return [["memory", safe(hit.memory.name)], ["in use", exactBytes(profile.bytes[at] || 0)],
          ["at", timed ? time(hit.when) : safe(opName(Math.floor(between(view.warp.when, view.warp.op, hit.when))))]];
}

function boxLines(view, row) {
  const { box } = view, tensor = box.tensor[row];
  const lines = [
    ["tensor", safe(tensorName(tensor))],
    ["kind", `${tensorKind(tensor)}, ${safe(tensorType(tensor), 60)}`],
    ["bytes", exactBytes(tensorBytes(tensor))],
    ["memory", safe(report.content.memories[box.memory[row]])],
    ["offset", box.decided[row] ? `${count(box.address[row])} (0x${box.address[row].toString(16)})` : "not decided"],
    ["first op", opText(box.first[row])],
    ["last op", opText(box.last[row])],
    ["reads", count(readers(tensor).length)],
    ["copies", count(view.copies.get(tensor) || 0)],
  ];
  return lines;
}

function definitionList(lines) {
  const list = make("dl");
  for (const [label, text] of lines) put(list, make("dt", label), make("dd", text));
  return list;
}

class Details {
  constructor(explorer) {
    this.explorer = explorer;
    this.element = set(make("aside.details"), { "aria-live": "polite", "aria-label": "details" });
    this.show();
  }

  show() {
    const { explorer } = this;
    this.element.replaceChildren();
    if (explorer.pinned !== null) this.showTensor(explorer.pinned);
    else if (explorer.listed) this.showMoment(explorer.listed.memory, explorer.listed.when);
    else this.showHelp();
  }

  showHelp() {
    put(this.element, make("h3", "Look closer"), make("ul.help",
      make("li", make("b", "Hover"), " names a tensor, an op or a copy."),
      make("li", make("b", "Click"), " pins a tensor: its ops and copies are marked everywhere."),
      make("li", make("b", "Peak"), " lists what is in a memory when it is fullest."),
      make("li", make("b", "Drag"), " pans, ", make("kbd", "Ctrl"), " + wheel zooms time, ",
           make("kbd", "Alt"), " + wheel zooms addresses."),
      make("li", make("kbd", "←"), make("kbd", "→"), " pan, ", make("kbd", "+"), make("kbd", "−"), " zoom, ",
           make("kbd", "0"), " fits, ", make("kbd", "n"), make("kbd", "p"), " next and previous tensor, ",
           make("kbd", "/"), " searches, ", make("kbd", "Esc"), " lets go.")));
  }

  showTensor(tensor) {
    const { explorer } = this, { view } = explorer;
    const close = button("unpin", "let go of this tensor (Esc)", () => explorer.pin(null));
    put(this.element, make("header", make("h3.name", safe(tensorName(tensor), 160)), close));
    const writer = column("tensor.writer")[tensor], uses = Array.from(readers(tensor));
    put(this.element, definitionList([
      ["kind", `${tensorKind(tensor)}, ${safe(tensorType(tensor), 60)}`],
      ["bytes", exactBytes(tensorBytes(tensor))],
      ["made by", writer < 0 ? "given" : opText(writer)],
      ["reads", count(uses.length)],
      ["copies", count(view.copies.get(tensor) || 0)],
    ]));
    this.list("Lies in", this.rowsOf(tensor).map((row) => this.residency(row)));
    this.list("Read by", uses.map((op) => make("li", opText(op))));
    this.list("Copied", this.movesOf(tensor).map((i) => make("li",
      `${view.links.find((link) => link.number === view.move.link[i]).name}, ${time(view.move.start[i])} to ` +
      `${time(view.move.end[i])}, for ${opText(view.move.needed_by[i])}`)));
  }

  residency(row) {
    const { explorer } = this, { box } = explorer.view;
    const at = box.decided[row] ? ` at ${count(box.address[row])}` : "";
    const go = button(`${safe(report.content.memories[box.memory[row]], 24)}${at}`, "show it",
                      () => explorer.axis.reveal(box.begin[row], box.end[row]));
    go.className = "link";
    return make("li", go, make("span.quiet", ` ${opText(box.first[row])} to ${opText(box.last[row])}`));
  }

  list(title, items, most = 12) {
    if (!items.length) return;
    put(this.element, make("h4", title), put(make("ul.plain"), ...items.slice(0, most)));
    if (items.length > most) put(this.element, make("p.note", `and ${count(items.length - most)} more`));
  }

  rowsOf(tensor) {
    const found = [], all = this.explorer.view.box.tensor;
    for (let i = 0; i < all.length; i += 1) if (all[i] === tensor) found.push(i);
    return found;
  }

  movesOf(tensor) {
    const found = [], all = this.explorer.view.move.tensor;
    for (let i = 0; i < all.length; i += 1) if (all[i] === tensor) found.push(i);
    return found;
  }

  // The tensors that a memory holds at one moment, largest first.
  showMoment(memory, when) {
    const { explorer } = this, { view } = explorer, { box } = view;
    const [first, last] = view.rows[memory.number], alive = [];
    for (let i = first; i < last; i += 1) if (box.begin[i] <= when && when < box.end[i]) alive.push(i);
    alive.sort((a, b) => box.size[b] - box.size[a] || box.tensor[a] - box.tensor[b]);
    const seen = new Set();
    const unique = alive.filter((row) => !seen.has(box.tensor[row]) && seen.add(box.tensor[row]));
    const close = button("close", "let go of this moment (Esc)", () => explorer.showMoment(null, null));
    put(this.element, make("header", make("h3.name", `${safe(memory.name, 24)} ${when === memory.peak_at ? "at its peak" : "then"}`), close));
    put(this.element, definitionList([...linesOf(view, { what: "moment", memory, when }).slice(1),
                                      ["tensors", count(unique.length)]]));
    this.list("Largest", unique.slice(0, 25).map((row) => {
      const go = button(safe(tensorName(box.tensor[row]), 40), "pin this tensor", () => explorer.pin(box.tensor[row]));
      go.className = "link";
      return make("li.split", go, make("span.quiet", bytes(box.size[row])));
    }), 25);
    if (unique.length > 25) put(this.element, make("p.note", `and ${count(unique.length - 25)} more`));
  }
}
