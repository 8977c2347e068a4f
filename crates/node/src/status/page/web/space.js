// The space of this store: segments of its log, and the map of its page file.

import {
  byId, bytes, count, element, fitted, plural, setCells, setText, syncRows, themed, tipFor,
} from "./format.js";

const SEGMENTS_HEIGHT = 130;
const MAP_HEIGHT_MAX = 220;

let log = null;
let pages = null;
let bars = null;
let cells = null;

/// A sentence of texts and of figures, which are in bold.
function setLine(node, parts) {
  const shown = JSON.stringify(parts);
  if (node.shown === shown) return;
  node.shown = shown;
  node.replaceChildren(...parts.map((part) => (Array.isArray(part) ? element("b", "", part[0]) : part)));
}

export function showLog(document_) {
  if (document_.error) throw new Error(document_.error);
  log = document_;
  const dead = log.bytes - log.live_bytes;
  setLine(byId("log-line"), [[plural(log.segments_total, "segment")], " with ", [bytes(log.bytes)],
    ": ", [bytes(log.live_bytes)], " are live, ", [bytes(dead)],
    " dead, or room that is not written yet. Segments go oldest first."]);
  showHolders();
  redrawSegments();
}

function showHolders() {
  const panel = byId("holders");
  if (!panel.body) {
    panel.body = element("tbody");
    panel.words = element("p", "empty");
    panel.append(element("h3", "", "The oldest segment is held by"), panel.words,
      element("table", "", panel.body));
  }
  const { holders, holders_total: total } = log;
  setText(panel.words, total === 0
    ? "Nothing: it is the one that is written, or it goes with the next purge."
    : total > holders.length ? `the ${holders.length} largest of ${count(total)}` : "");
  panel.words.hidden = panel.words.textContent === "";
  syncRows(panel.body, holders, (holder) => holder.peer ?? "store", (row, holder) => {
    const words = holder.peer == null ? "the store's own rows"
      : holder.region == null ? `replica ${holder.peer}` : `region ${holder.region}`;
    setCells(row, [words, ["dim", holder.has_entries ? "entries" : "its state"],
      ["n", bytes(holder.bytes)]]);
  });
}

function redrawSegments() {
  const { context, width, height } = fitted(byId("segments"), SEGMENTS_HEIGHT);
  const { segments } = log;
  const most = Math.max(1, ...segments.map((segment) => segment.bytes));
  const wide = Math.min(72, width / Math.max(1, segments.length));
  const gap = wide > 6 ? Math.min(6, wide / 5) : 0;
  const [live, dead, hold] = ["--live", "--dead", "--hold"].map(themed);
  segments.forEach((segment, at) => {
    const x = at * wide;
    const whole = Math.max(2, (segment.bytes / most) * (height - 6));
    const part = (segment.live_bytes / most) * (height - 6);
    context.fillStyle = dead;
    context.fillRect(x, height - whole, wide - gap, whole);
    context.fillStyle = live;
    context.fillRect(x, height - part, wide - gap, part);
    if (at === 0 && log.holders_total > 0) {
      context.fillStyle = hold;
      context.fillRect(x, height - whole - 5, wide - gap, 3);
    }
  });
  bars = { wide };
}

export function showPages(document_) {
  if (document_.error) throw new Error(document_.error);
  pages = document_;
  const used = pages.span_bytes - pages.free_bytes - pages.pending_bytes;
  setLine(byId("pages-line"), ["The file has ", [bytes(pages.file_bytes)], ": ", [bytes(used)],
    " are used, ", [bytes(pages.pending_bytes)], " pending, ", [bytes(pages.free_bytes)],
    " free, of which ", [bytes(pages.hole_bytes)], " are given back to the file system; ",
    [bytes(pages.dirty_bytes)], " are to be written by the next checkpoint."]);
  setText(byId("map-cell"), `a cell is ${bytes(pages.cell_bytes)}`);
  showTrees();
  redrawMap();
}

function showTrees() {
  const panel = byId("trees");
  if (!panel.body) {
    panel.body = element("tbody");
    const heads = [["", "Tree"], ["n", "Keys"], ["n", "Size"]];
    const head = element("tr", "", ...heads.map(([className, words]) => element("th", className, words)));
    panel.append(element("h3", "", "Trees"), element("table", "", element("thead", "", head), panel.body));
  }
  const trees = [...pages.trees].sort((one, other) => other.bytes - one.bytes);
  syncRows(panel.body, trees, (tree) => tree.name, (row, tree) => {
    setCells(row, [["", tree.name, tree.name], ["n", count(tree.keys)], ["n", bytes(tree.bytes)]]);
  });
}

function redrawMap() {
  const canvas = byId("map");
  const number = pages.cells.used_bytes.length;
  const width = Math.max(1, canvas.parentElement.clientWidth);
  let size = 22;
  while (size > 5 && Math.ceil(number / Math.floor(width / size)) * size > MAP_HEIGHT_MAX) size -= 1;
  const columns = Math.floor(width / size);
  const { context } = fitted(canvas, Math.max(1, Math.ceil(number / columns)) * size);
  const [used, pending, free] = ["--live", "--pending", "--free"].map(themed);
  const wide = width / columns;
  for (let at = 0; at < number; at += 1) {
    const [x, y] = [(at % columns) * wide, Math.floor(at / columns) * size];
    const shares = ["used_bytes", "pending_bytes"].map((part) => pages.cells[part][at] / pages.cell_bytes);
    const [inner, high] = [wide - 1.5, size - 1.5];
    context.fillStyle = free;
    context.fillRect(x, y, inner, high);
    // From below: used, then pending, so that a cell shows its shares.
    context.fillStyle = used;
    context.fillRect(x, y + high * (1 - shares[0]), inner, high * shares[0]);
    context.fillStyle = pending;
    context.fillRect(x, y + high * (1 - shares[0] - shares[1]), inner, high * shares[1]);
  }
  cells = { columns, size, wide };
}

export function redrawSpace() {
  if (log) redrawSegments();
  if (pages) redrawMap();
}

tipFor(byId("segments"), (x) => {
  const segment = bars && x >= 0 && log.segments[Math.floor(x / bars.wide)];
  if (!segment) return "";
  return `Segment ${segment.number}, ${segment.state}\n${bytes(segment.live_bytes)} of `
    + `${bytes(segment.bytes)} live`;
});
tipFor(byId("map"), (x, y) => {
  if (!cells || x < 0) return "";
  const at = Math.floor(y / cells.size) * cells.columns + Math.min(cells.columns - 1, Math.floor(x / cells.wide));
  if (!(at < pages.cells.used_bytes.length)) return "";
  const part = (name) => bytes(pages.cells[`${name}_bytes`][at]);
  return `from ${bytes(at * pages.cell_bytes)} of the file on\nused ${part("used")}, `
    + `pending ${part("pending")}, free ${part("free")}`;
});
