"use strict";
// Shows the data of the page: `job`, and `files`, of which only some are in the document at a time.
const { job, files } = JSON.parse(document.getElementById("data").textContent);
const STEP = 200;
const $ = (id) => document.getElementById(id);
const collator = new Intl.Collator(undefined, { numeric: true });

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  const two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

const count = (n) => n.toLocaleString("en");
const percent = (part, whole) => (whole ? ` (${((100 * part) / whole).toFixed(1)} %)` : "");

// The columns: heading, what they are sorted by (null comes last), what they show, classes
const columns = [
  ["File", (f) => f.path, name, "name"],
  ["Length", (f) => f.seconds, (f) => (f.seconds === null ? null : clock(f.seconds)), "number"],
  ["Language", (f) => f.language, (f) => f.language, ""],
  ["Speakers", (f) => f.speakers && f.speakers.length, speakers, ""],
  ["Words", (f) => f.words, (f) => (f.words === null ? null : words(f)), "number"],
  ["Words/min", (f) => f.speed, (f) => (f.speed === null ? null : count(f.speed)), "number"],
  ["To check", (f) => f.check && f.check.length, check, ""],
];

function words(file) {
  return file.characters ? `${count(file.words)} characters` : count(file.words);
}

function speakers(file) {
  return file.speakers && file.speakers.length ? file.speakers.join(", ") : null;
}

function name(file) {
  const whole = document.createDocumentFragment();
  whole.append(file.path);
  if (file.error) whole.append(make("p", file.error, "failed"));
  else if (file.note) whole.append(make("p", file.note, "unknown"));
  return whole;
}

function check(file) {
  if (!file.check || !file.check.length) return null;
  const details = make("details");
  details.append(make("summary", `${file.check.length} of ${file.segments}`));
  details.open = printing;
  const list = () => {
    if (details.open && details.children.length === 1) details.append(segments(file.check));
  };
  details.addEventListener("toggle", list);
  list();
  return details;
}

function segments(flagged) {
  const list = make("ul", undefined, "segments");
  for (const [start, end, text, reasons] of flagged) {
    const item = make("li");
    item.append(make("time", `${clock(start)}–${clock(end)}`));
    const quote = make("span", text);
    quote.dir = "auto";
    item.append(quote, make("small", reasons.map((r) => job.reasons[r] || r).join("; ")));
    list.append(item);
  }
  return list;
}

let order = { column: 0, down: false };
let kind = "all";
let shown = STEP;
let printing = false;

const KINDS = {
  all: ["All", () => true],
  check: ["To check", (f) => f.check && f.check.length > 0],
  failed: ["Failed", (f) => f.error !== null],
};

function searchText(file) {
  file.searchText ??= [file.path, file.language, file.error, ...(file.speakers || []),
    ...(file.check || []).map((s) => s[2])].join("\n").toLowerCase();
  return file.searchText;
}

function filtered() {
  const query = $("find").value.trim().toLowerCase();
  const isOfKind = KINDS[kind][1];
  const matches = files.filter((f) => isOfKind(f) && (!query || searchText(f).includes(query)));
  const key = columns[order.column][1];
  const sign = order.down ? -1 : 1;
  return matches.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "string" ? collator.compare(x, y) : x - y);
  });
}

function draw() {
  const matches = filtered();
  const part = printing ? matches : matches.slice(0, shown);
  const body = document.createDocumentFragment();
  for (const file of part) {
    const row = make("tr");
    for (const [title, , show, classes] of columns) {
      const content = show(file);
      const cell = make("td", undefined, content === null ? `${classes} empty` : classes);
      if (title !== "File") cell.dataset.label = title;
      if (content !== null) cell.append(content);
      row.append(cell);
    }
    body.append(row);
  }
  $("rows").replaceChildren(body);
  $("count").textContent = matches.length === files.length ? "" : `${count(matches.length)} found`;
  $("more").hidden = part.length === matches.length;
  $("more").textContent = `Show more of ${count(matches.length)} files`;
  for (const [i, head] of [...$("heads").children].entries()) {
    const direction = order.down ? "descending" : "ascending";
    head.setAttribute("aria-sort", i === order.column ? direction : "none");
  }
  $("by").value = order.column;
}

function sortBy(column) {
  order = { column, down: column === order.column ? !order.down : column > 3 };
  shown = STEP;
  draw();
}

function describe(list, pairs) {
  for (const [term, text] of pairs) list.append(make("dt", term), make("dd", text));
}

for (const [i, [title, , , classes]] of columns.entries()) {
  const head = make("th", undefined, classes);
  head.scope = "col";
  const button = make("button", title);
  button.addEventListener("click", () => sortBy(i));
  head.append(button);
  $("heads").append(head);
  const option = make("option", title);
  option.value = i;
  $("by").append(option);
}
for (const [key, [title, isOfKind]] of Object.entries(KINDS)) {
  const button = make("button", `${title} ${count(files.filter(isOfKind).length)}`);
  button.setAttribute("aria-pressed", key === kind);
  button.addEventListener("click", () => {
    kind = key;
    shown = STEP;
    for (const other of $("kinds").children) other.setAttribute("aria-pressed", other === button);
    draw();
  });
  $("kinds").append(button);
}
$("find").addEventListener("input", () => { shown = STEP; draw(); });
$("by").addEventListener("change", () => sortBy(Number($("by").value)));
$("more").addEventListener("click", () => { shown += 5 * STEP; draw(); });
addEventListener("beforeprint", () => { printing = true; draw(); });
addEventListener("afterprint", () => { printing = false; draw(); });

$("when").textContent = job.when;
for (const text of job.notices) $("notices").append(make("p", text, "notice"));
for (const [term, text] of [
  ["Transcribed", count(job.done)],
  ["Failed", count(job.failed)],
  ["Audio", clock(job.seconds)],
  ["Words", count(job.words)],
  ["Segments to check", `${count(job.to_check)}${percent(job.to_check, job.segments)}`],
]) {
  const card = make("div");
  card.append(make("dt", term), make("dd", text));
  $("totals").append(card);
}
describe($("model"), job.model);
describe($("options"), job.options);
draw();
