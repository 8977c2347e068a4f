// The stores of the cluster, and the figures over all of them.

import {
  byId, bytes, cell, chip, colour, count, duration, element, latency, meter, plural, rate, setCells,
  setText, syncRows,
} from "./format.js";

let known = new Map();

/// The name of a store as the page shows it, and its colour.
export function storeName(id) {
  return known.get(id)?.name ?? (id == null ? "none" : `store ${id}`);
}

export function storeColour(id) {
  return colour(known.has(id) ? known.get(id).place : -1);
}

export function storeIds() {
  return [...known.keys()];
}

export function showStores(document_) {
  const { here, stores } = document_;
  known = new Map(stores.map((store, place) => [store.id, { name: store.name, place }]));
  const own = stores.find((store) => store.id === here);
  const status = own?.status;
  setText(byId("where"), `${own?.name ?? ""} (store ${here}) · cluster ${document_.cluster_id}`
    + ` · version ${status?.version ?? "–"} · API V${document_.api_version}`);
  document.title = `${own?.name ?? "store"} · Flotilla`;
  const leaderWords = document_.placement_leader == null ? "no leader of placement is known"
    : `${storeName(document_.placement_leader)} leads placement`;
  setText(byId("stores-note"), leaderWords);
  byId("stores-note").className = document_.placement_leader == null ? "bad" : "";
  for (const note of document.querySelectorAll(".here")) {
    if (note.shownFor !== own?.name) {
      note.shownFor = own?.name;
      note.replaceChildren("of this store, ", element("b", "", own?.name ?? ""),
        "; other stores have a page of their own");
    }
  }
  const leadersMost = Math.max(1, ...stores.map((store) => store.status?.leaders ?? 0));
  syncRows(byId("store-rows"), stores, (store) => store.id, (row, store) => {
    setCells(row, storeCells(store, here, document_.placement_leader, leadersMost));
  });
  showSums(stores);
  showWork(stores);
}

function storeCells(store, here, placementLeader, leadersMost) {
  const { status } = store;
  const name = cell([store.name, store.id, store.id === here, store.id === placementLeader], () => [
    chip(storeColour(store.id)), element("b", "", store.name),
    element("span", "dim", ` ${store.id}`),
    store.id === here ? element("span", "tag", "this store") : null,
    store.id === placementLeader ? element("span", "tag", "placement") : null,
  ].filter(Boolean));
  const labels = Object.entries(store.labels).map(([key, value]) => `${key}=${value}`).join(", ");
  const address = cell([store.address, labels], () => {
    const link = element("a", "", store.address);
    link.href = `${location.protocol}//${store.address}/`;
    return [link, labels ? element("span", "dim", ` ${labels}`) : ""];
  });
  const isGone = ["lost", "removed"].includes(store.state);
  const cells = [name, address, stateCell(store, isGone), linkCell(store, here, isGone)];
  if (!status) {
    const reason = isGone ? "it takes no part any more" : store.reason ?? "no answer";
    return [...cells, cell([reason], () => [reason], isGone ? "dim" : "reason", 7)];
  }
  const load = status.load ?? {};
  const disk = status.disk;
  const free = disk ? disk.free_bytes / Math.max(1, disk.bytes) : 0;
  return [
    ...cells,
    ["n", count(status.replicas)],
    cell([status.leaders, leadersMost], () => [element("div", "meter",
      meter(status.leaders / leadersMost, storeColour(store.id)), count(status.leaders))]),
    ["n", rate(load.writes)],
    ["n", rate(load.reads)],
    ["n", latency(load.write_p99_us)],
    ["n", latency(load.read_p99_us)],
    cell([disk && [bytes(disk.free_bytes), bytes(disk.bytes)]], () => disk ? [element("div", "meter",
      meter(free, free < 0.1 ? "var(--bad)" : "var(--good)"),
      `${bytes(disk.free_bytes)} of ${bytes(disk.bytes)}`)] : ["–"]),
  ];
}

function stateCell(store, isGone) {
  const { status, state } = store;
  if (isGone) return ["dim", state];
  if (!status) return ["bad", state === "up" ? "no answer" : `${state}, no answer`];
  const lacking = status.replicas_without_leader;
  if (lacking > 0) return ["bad", `${state}, ${count(lacking)} without leader`];
  return [state === "up" ? "good" : "warn", state];
}

function linkCell(store, here, isGone) {
  if (isGone) return ["dim", "–"];
  if (store.id === here) return ["", `runs ${duration(store.since_ms)}`];
  if (store.connected == null) return ["dim", "not known yet"];
  const lasts = duration(store.since_ms);
  return store.connected ? ["", `connected ${lasts}`]
    : ["bad", `away ${lasts}`, store.fault ?? ""];
}

function showSums(stores) {
  const here = stores.filter((store) => !["lost", "removed"].includes(store.state));
  const answers = here.filter((store) => store.status);
  setText(byId("sum-stores"), `${answers.length} of ${here.length}`);
  byId("sum-stores").className = answers.length < here.length ? "bad" : "";
  const leaderless = answers.reduce((sum, store) => sum + store.status.replicas_without_leader, 0);
  const note = byId("sum-stores-note");
  setText(note, leaderless > 0 ? `${plural(leaderless, "replica")} without leader`
    : "all replicas have leaders");
  note.className = leaderless > 0 ? "bad" : "";
  for (const kind of ["write", "read"]) {
    const loads = answers.map((store) => store.status.load).filter(Boolean);
    const sum = loads.reduce((total, load) => total + load[`${kind}s`], 0);
    const slowest = Math.max(-1, ...loads.map((load) => load[`${kind}_p99_us`] ?? -1));
    setText(byId(`sum-${kind}s`), `${rate(sum)} /s`);
    setText(byId(`sum-${kind}s-note`), slowest < 0 ? "none in the last second"
      : `p99 of the slowest store ${latency(slowest)}`);
  }
}

function showWork(stores) {
  const all = stores.flatMap((store) => (store.status?.work ?? [])
    .map((work) => ({ ...work, at: store.id })));
  // A snapshot is told by both of its stores: the sender's word is enough if there is one.
  const sent = new Set(all.filter((it) => it.kind === "snapshot" && it.at === it.from)
    .map((it) => `${it.region} ${it.to}`));
  const work = all.filter((it) => it.kind !== "snapshot" || it.at === it.from
    || !sent.has(`${it.region} ${it.to}`));
  const waiting = stores.reduce((sum, store) => sum + (store.status?.splits_waiting ?? 0), 0);
  const splits = work.filter((it) => it.kind === "split").length;
  inFlight = { work, waiting, splits, snapshots: work.length - splits };
}

let inFlight = { work: [], waiting: 0, splits: 0, snapshots: 0 };

/// Splits and snapshots of all stores that answer.
export function workInFlight() {
  return inFlight;
}
