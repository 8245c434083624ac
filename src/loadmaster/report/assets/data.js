// The report's data: one JSON object, and columns as typed arrays out of one gzip stream.

const report = { content: null, columns: {}, texts: {} };

async function readData() {
  const holder = document.getElementById("columns"), packed = holder.textContent;
  holder.textContent = "";
  takeData(JSON.parse(document.getElementById("content").textContent), await unpack(packed));
}

// From now on the data of this report, in place of what was there.
function takeData(content, buffer) {
  Object.assign(report, { content, buffer, columns: {}, texts: {} });
}

async function unpack(text) {
  const packed = atob(text);
  const data = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i += 1) data[i] = packed.charCodeAt(i);
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const ARRAYS = { Int8Array, Uint8Array, Int32Array, Float64Array };

// A column by name, or null. The machine must be little-endian, as all that browsers run on are.
function column(name) {
  if (!(name in report.columns)) {
    const entry = report.content.columns[name];
    if (!entry) return null;
    const [kind, offset, length, steps] = entry;
    report.columns[name] = kind === "text"
      ? new Uint8Array(report.buffer, offset, length)
      : new ARRAYS[steps || kind](report.buffer, offset, length);
    if (steps) report.columns[name] = summed(report.columns[name], new ARRAYS[kind](length));
  }
  return report.columns[name];
}

// Of the differences from each number to the next, the numbers.
function summed(steps, numbers) {
  let sum = 0;
  for (let i = 0; i < steps.length; i += 1) numbers[i] = sum += steps[i];
  return numbers;
}

const decoder = new TextDecoder();

// The text of row `row` of a column of texts.
function textAt(name, row) {
  const ends = column(`${name}.ends`), all = column(name);
  if (row < 0 || row >= ends.length) return "";
  // Plain letters are one byte each: then one long text can be cut, which is much quicker.
  if (!(name in report.texts)) {
    const whole = decoder.decode(all);
    report.texts[name] = whole.length === all.length ? whole : null;
  }
  const begin = row ? ends[row - 1] : 0, whole = report.texts[name];
  return whole === null ? decoder.decode(all.subarray(begin, ends[row])) : whole.slice(begin, ends[row]);
}

const KINDS = ["weight", "input", "activation", "output", "state"];
const WORK = ["matrix", "vector", "transcendental", "no flops"];

const opName = (op) => textAt("op.name", op);
const opKind = (op) => textAt("op.kinds", column("op.kind")[op]);
const tensorName = (tensor) => textAt("tensor.name", tensor);
const tensorBytes = (tensor) => column("tensor.bytes")[tensor];
const tensorKind = (tensor) => KINDS[column("tensor.kind")[tensor]];

function tensorType(tensor) {
  const start = column("tensor.shape_start"), shape = column("tensor.shape");
  const sizes = Array.from(shape.subarray(start[tensor], start[tensor + 1]));
  const type = textAt("tensor.dtypes", column("tensor.dtype")[tensor]);
  return sizes.length ? `${type}[${sizes.join(", ")}]` : type;
}

function readers(tensor) {
  const start = column("tensor.reader_start");
  return column("tensor.reader").subarray(start[tensor], start[tensor + 1]);
}

// An op as people find it again: its number and its name; `op` may be before or after all ops.
function opText(op) {
  const ops = report.content.program.ops;
  if (op === -1) return "before the program";
  if (op === -2) return "a copy";
  if (op >= ops) return "the end";
  return `${safe(opName(op), 48)} (op ${count(op)})`;
}

// One plan over time. Its tables are objects of columns.
function readView(about) {
  const table = (part, names) =>
    Object.fromEntries(names.map((name) => [name, column(`${about.prefix}.${part}.${name}`)]));
  const view = {
    ...about,
    box: table("box", ["memory", "tensor", "begin", "end", "address", "size", "decided", "first", "last"]),
    bar: table("bar", ["op", "members", "device", "start", "end", "stall", "work"]),
    move: table("move", ["tensor", "link", "start", "end", "bytes", "issued_after", "needed_by", "row",
                         "stalls", "planned"]),
    warp: table("warp", ["when", "op"]),
    profile: {},
  };
  for (const memory of view.memories) {
    view.profile[memory.number] = table(`profile${memory.number}`, ["when", "bytes"]);
  }
  // Boxes come by memory: each memory has one stretch of rows.
  view.rows = {};
  for (const memory of view.memories) {
    view.rows[memory.number] = [firstAtLeast(view.box.memory, memory.number),
                                firstAtLeast(view.box.memory, memory.number + 1)];
  }
  view.copies = new Map();
  for (let i = 0; i < view.move.tensor.length; i += 1) {
    const tensor = view.move.tensor[i];
    view.copies.set(tensor, (view.copies.get(tensor) || 0) + 1);
  }
  return view;
}

// The first row of a sorted column that is at least `value`.
function firstAtLeast(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
