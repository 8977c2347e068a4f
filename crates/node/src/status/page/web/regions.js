// The regions on the key space: the field of cells, the panel of one region, and the table.

import {
  byId, bytes, cell, chip, count, duration, element, plural, setCells, setText, syncRows, tipFor,
} from "./format.js";
import { drawField, hit } from "./strip.js";
import { storeColour, storeIds, storeName, workInFlight } from "./stores.js";

// Rows of the table at most; the filter finds the others.
const ROWS_MAX = 200;
// Regions that the page loads at most.
const REGIONS_MAX = 10000;
const PAGE_REGIONS = 2000;

let seen = { view: "placement", total: 0, without_leader: 0, regions: [] };
let field = null;
let chosen = null;
let replicaHere = null;
let askStore = null;

/// All pages of the regions, up to a bound.
export async function loadRegions(ask) {
  askStore = ask;
  let all = null;
  for (;;) {
    const last = all?.regions.at(-1)?.id ?? 0;
    const page = await ask(`/status/regions?after=${last}&limit=${PAGE_REGIONS}`);
    const regions = [...(all?.regions ?? []), ...page.regions];
    all = { ...page, regions };
    if (!page.more || page.regions.length === 0 || regions.length >= REGIONS_MAX) return all;
  }
}

const isLost = (region) => region.leader == null || region.leader_status !== "fresh";
const isJoint = (region) => region.replicas.some((replica) => replica.role !== "voter");

/// What is being done with a region, in words.
function workOf(region, byRegion) {
  const words = [...(byRegion.get(region.id) ?? [])];
  if (region.work) words.push(`replicas: ${region.work}`);
  else if (isJoint(region)) words.push("replicas change");
  return words;
}

function workByRegion() {
  const byRegion = new Map();
  for (const work of workInFlight().work) {
    const words = work.kind === "split" ? `split into ${work.parts}`
      : `snapshot to ${storeName(work.to)}`;
    byRegion.set(work.region, [...(byRegion.get(work.region) ?? []), words]);
  }
  return byRegion;
}

export function showRegions(loaded) {
  seen = loaded;
  const isLocal = seen.view === "store";
  const view = byId("regions-view");
  view.hidden = !isLocal;
  if (isLocal) {
    setText(view, `Only the regions with a replica on ${storeName(seen.store)} are shown, as it `
      + `knows them: ${seen.reason ?? "the leader of placement does not answer"}.`);
  }
  setText(byId("regions-note"), isLocal ? "" : `as ${storeName(seen.store)} knows them, which leads placement`);
  const byRegion = workByRegion();
  const changing = seen.regions.filter((region) => region.work || isJoint(region)).length;
  setText(byId("sum-regions"), count(seen.total));
  const note = byId("sum-regions-note");
  setText(note, seen.without_leader > 0 ? `${count(seen.without_leader)} without a leader`
    : "all have leaders");
  note.className = seen.without_leader > 0 ? "bad" : "";
  const { work, waiting, splits, snapshots } = workInFlight();
  setText(byId("sum-work"), count(work.length + changing));
  setText(byId("sum-work-note"), `${plural(splits, "split")}, ${plural(snapshots, "snapshot")}, `
    + `${plural(changing, "move")}`);
  setText(byId("work-note"), waiting > 0 ? `${plural(waiting, "split")} wait` : "");
  showLegend();
  showWorkRows();
  redrawRegions(byRegion);
  showTable(byRegion);
  showPanel(byRegion);
}

function showLegend() {
  const legend = byId("region-legend");
  const led = new Map();
  seen.regions.forEach((region) => {
    const leader = isLost(region) ? null : region.leader;
    led.set(leader, (led.get(leader) ?? 0) + 1);
  });
  const shown = JSON.stringify([storeIds().map((id) => [id, storeName(id), led.get(id)]), led.get(null)]);
  if (legend.shown === shown) return;
  legend.shown = shown;
  const mark = (className, colour) => {
    const made = element("i", className);
    if (colour) made.style.background = colour;
    return made;
  };
  const leaders = storeIds().map((id) => element("li", "", mark("", storeColour(id)),
    element("span", "", `${storeName(id)} leads `, element("b", "", count(led.get(id) ?? 0)))));
  legend.replaceChildren(...leaders,
    element("li", "", mark("lost"), element("span", "", "no leader that is heard ",
      element("b", "", count(led.get(null) ?? 0)))),
    element("li", "", mark("work"), "work in flight"));
}

export function redrawRegions(byRegion = workByRegion()) {
  const wanted = filterOf(byId("filter").value, byRegion);
  const isFiltered = byId("filter").value.trim() !== "";
  const regions = seen.regions;
  field = drawField(byId("strip"), regions.length, (at) => {
    const region = regions[at];
    return {
      fill: storeColour(region.leader), isLost: isLost(region),
      isBusy: workOf(region, byRegion).length > 0, isChosen: region.id === chosen,
      isFaded: isFiltered && !wanted(region), label: String(region.id),
      note: isLost(region) ? "no leader" : storeName(region.leader),
    };
  });
  const more = seen.total - regions.length;
  setText(byId("strip-order"), more > 0 ? `the first ${count(regions.length)} of ${count(seen.total)}`
    : field.isRow ? "" : "in the order of the keys, row by row");
}

/// Whether a region is one that the reader looks for.
function filterOf(text, byRegion) {
  const words = text.trim().toLowerCase();
  if (words === "") return () => true;
  if (words === "work") return (region) => workOf(region, byRegion).length > 0;
  if (words === "no leader") return isLost;
  const leads = words.match(/^leader[:= ](.+)$/)?.[1];
  return (region) => {
    const leader = storeName(region.leader).toLowerCase();
    if (leads) return leader === leads || String(region.leader) === leads;
    return String(region.id) === words || region.start.toLowerCase().includes(words)
      || region.end.toLowerCase().includes(words)
      || region.replicas.some((replica) => storeName(replica.store).toLowerCase() === words);
  };
}

const keyCell = (key, edge) => (key === "" ? ["edge", edge] : ["key", key, key]);

function showTable(byRegion) {
  const wanted = filterOf(byId("filter").value, byRegion);
  const found = seen.regions.filter(wanted);
  const shown = found.slice(0, ROWS_MAX);
  setText(byId("table-note"), shown.length < found.length
    ? `${count(shown.length)} of ${count(found.length)}: filter for the others`
    : found.length < seen.regions.length ? `${count(found.length)} found` : "");
  syncRows(byId("region-rows"), shown, (region) => region.id, (row, region) => {
    row.dataset.region = region.id;
    row.className = region.id === chosen ? "chosen" : "";
    const others = region.replicas.map((replica) => storeName(replica.store)
      + (replica.role === "voter" ? "" : ` (${replica.role})`)
      + (region.down.includes(replica.store) ? " (down)" : ""));
    setCells(row, [
      ["n", String(region.id)], keyCell(region.start, "first"), keyCell(region.end, "last"),
      leaderCell(region), others.join(", "), ["n", `${region.version}.${region.conf_version}`],
      workOf(region, byRegion).join(", "),
    ]);
  });
}

function leaderCell(region) {
  const words = region.leader == null ? "none" : storeName(region.leader);
  const note = region.leader_status === "suspect" ? " (silent)" : "";
  return cell([words, note, region.leader, storeColour(region.leader)], () => [
    chip(storeColour(region.leader)), element("span", isLost(region) ? "bad" : "", words + note),
  ]);
}

function showWorkRows() {
  const { work } = workInFlight();
  const moves = seen.regions.filter((region) => region.work || isJoint(region)).slice(0, 50);
  const rows = [
    ...work.slice(0, 50).map((it) => ({
      key: `${it.kind} ${it.region} ${it.to ?? ""}`, region: it.region,
      what: it.kind === "split" ? `split into ${it.parts}`
        : `snapshot from ${storeName(it.from)} to ${storeName(it.to)}`,
      how: it.kind === "split" ? "" : `${bytes(it.bytes)} of ${bytes(it.bytes_total)}`,
      lasts: duration(it.ms),
    })),
    ...moves.map((region) => ({
      key: `move ${region.id}`, region: region.id, what: "replicas are moved",
      how: region.work ?? "", lasts: "",
    })),
  ];
  if (rows.length === 0) rows.push({ key: "none", what: "Nothing: no split, no snapshot, no move." });
  syncRows(byId("work-rows"), rows, (row) => row.key, (row, it) => {
    setCells(row, it.region == null ? [["dim", it.what]]
      : [`region ${it.region}`, it.what, ["dim", it.how], ["n dim", it.lasts]]);
  });
}

function showPanel(byRegion = workByRegion()) {
  const panel = byId("region-panel");
  const region = seen.regions.find((it) => it.id === chosen);
  const shown = JSON.stringify([region, replicaHere, byRegion.get(chosen), storeIds()]);
  if (panel.shown === shown) return;
  panel.shown = shown;
  if (!region) {
    panel.replaceChildren(element("p", "empty", chosen == null
      ? "Choose a region: click on a cell or a row, or use the arrow keys on the field."
      : `Region ${chosen} is not among the regions any more.`));
    return;
  }
  const list = element("dl");
  const add = (term, value, className = "") => {
    list.append(element("dt", "", term), element("dd", className, value));
  };
  add("from", region.start === "" ? "the first key" : region.start, region.start === "" ? "" : "key");
  add("to, not included", region.end === "" ? "the last key" : region.end, region.end === "" ? "" : "key");
  add("leader", isLost(region) ? "none that is heard" : storeName(region.leader), isLost(region) ? "bad" : "");
  add("replicas", region.replicas.map((it) => `${storeName(it.store)} ${it.role === "voter" ? "" : it.role}`.trim()).join(", "));
  add("version", `${region.version}, of its replicas ${region.conf_version}`);
  workOf(region, byRegion).forEach((words) => add("work", words, "warn"));
  const title = element("h3", "", chip(isLost(region) ? null : storeColour(region.leader)), `Region ${region.id}`);
  panel.replaceChildren(title, list, ...replicaPart());
}

/// The replica of the chosen region on this store, as its shard sees it.
function replicaPart() {
  if (!replicaHere || replicaHere.id !== chosen) return [];
  const list = element("dl");
  const add = (term, value) => list.append(element("dt", "", term), element("dd", "", value));
  const { log, waiting, size } = replicaHere;
  add("here it is", `${replicaHere.role}, term ${replicaHere.term}`);
  add("committed", count(replicaHere.committed));
  add("applied", count(replicaHere.applied));
  add("log", `${count(log.first)} to ${count(log.last)}`);
  add("waiting", `${plural(waiting.queued + waiting.proposed, "write")}, ${plural(waiting.reads, "read")}`);
  if (size) add("size", `${bytes(size.bytes)}, ${plural(size.keys, "key")}`);
  return [element("hr"), list];
}

async function choose(id) {
  chosen = id;
  replicaHere = null;
  redrawRegions();
  showTable(workByRegion());
  showPanel();
  try {
    const found = await askStore(`/regions/${id}`);
    if (chosen === id) replicaHere = found;
  } catch {
    // It has no replica here: the rest of the panel is what there is.
  }
  showPanel();
}

const strip = byId("strip");
const regionAt = (x, y) => seen.regions[hit(field, seen.regions.length, x, y)];
strip.addEventListener("click", (event) => {
  const region = regionAt(event.offsetX, event.offsetY);
  if (region) choose(region.id);
});
strip.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -field?.columns, ArrowDown: field?.columns };
  const step = steps[event.key];
  if (!step || seen.regions.length === 0) return;
  event.preventDefault();
  const now = seen.regions.findIndex((region) => region.id === chosen);
  const next = now < 0 ? 0 : Math.max(0, Math.min(seen.regions.length - 1, now + step));
  choose(seen.regions[next].id);
});
tipFor(strip, (x, y) => {
  const region = regionAt(x, y);
  if (!region) return "";
  const work = workOf(region, workByRegion()).join(", ");
  return `Region ${region.id}, ${isLost(region) ? "no leader" : `led by ${storeName(region.leader)}`}\n`
    + `${region.start || "first key"} … ${region.end || "last key"}${work ? `\n${work}` : ""}`;
});
byId("region-rows").addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row?.dataset.region) choose(Number(row.dataset.region));
});
byId("filter").addEventListener("input", () => {
  redrawRegions();
  showTable(workByRegion());
});
showPanel();
