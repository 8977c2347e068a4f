// Asks the store for its documents, and has them shown. Polls while the page can be seen.

import { byId, duration, setText } from "./format.js";
import { showStores } from "./stores.js";
import { loadRegions, redrawRegions, showRegions } from "./regions.js";
import { historyFrom, redrawLoad, showHistory } from "./load.js";
import { redrawSpace, showLog, showPages } from "./space.js";

const POLL_MS = 2000;
// What changes slowly, or costs the store more, is asked for every other time.
const SLOW_EVERY = 2;
const ANSWER_MS = 6000;

let polls = 0;
let timer = null;
let isAsking = false;
let lastAnswer = null;
// Why the store does not answer, or why some of its documents are missing.
let absence = null;
let gaps = [];

/// The document at a path. Fails with words for the reader.
export async function ask(path) {
  let response;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), redirect: "error" });
  } catch (error) {
    const isLate = error.name === "TimeoutError";
    throw new Error(isLate ? `no answer within ${ANSWER_MS / 1000} s` : "it cannot be reached");
  }
  let document_ = null;
  try {
    document_ = await response.json();
  } catch {
    throw new Error(`its answer to ${path} is no document (status ${response.status})`);
  }
  if (!response.ok) throw new Error(document_.error ?? `it answered ${response.status}`);
  return document_;
}

async function poll() {
  if (isAsking) return;
  isAsking = true;
  const isSlow = polls % SLOW_EVERY === 0;
  polls += 1;
  const asked = [
    ask("/status/stores").then((stores) => showStores(stores)),
    loadRegions(ask).then((regions) => showRegions(regions)),
    ask(`/status/history?from=${historyFrom()}`).then((history) => showHistory(history)),
  ];
  if (isSlow) {
    asked.push(ask("/status/log").then((log) => showLog(log)));
    asked.push(ask("/status/pages").then((pages) => showPages(pages)));
  }
  const failures = (await Promise.allSettled(asked)).filter((it) => it.status === "rejected");
  failures.forEach((failure) => console.warn(failure.reason));
  isAsking = false;
  gaps = [...new Set(failures.map((failure) => failure.reason.message))];
  absence = failures.length === asked.length ? gaps[0] : null;
  if (absence == null) lastAnswer = Date.now();
  showPulse();
  schedule();
}

function showPulse() {
  const [pulse, alarm] = [byId("pulse"), byId("alarm")];
  const isLate = absence != null;
  pulse.className = `pulse ${document.hidden ? "" : isLate ? "late" : "live"}`;
  const words = document.hidden ? "paused"
    : isLate ? "no answer" : lastAnswer ? "live, every 2 s" : "connecting";
  setText(pulse.lastElementChild, words);
  document.documentElement.classList.toggle("stale", isLate);
  alarm.hidden = gaps.length === 0;
  if (!isLate) {
    setText(alarm, `A part of this page is old: ${gaps.join("; ")}.`);
    return;
  }
  const age = lastAnswer ? `What is shown is ${duration(Date.now() - lastAnswer)} old.`
    : "Nothing has been shown yet.";
  setText(alarm, `This store does not answer: ${absence}. ${age}`);
}

function schedule() {
  clearTimeout(timer);
  timer = document.hidden ? null : setTimeout(poll, POLL_MS);
}

function redraw() {
  redrawRegions();
  redrawLoad();
  redrawSpace();
}

document.addEventListener("visibilitychange", () => {
  showPulse();
  if (document.hidden) schedule();
  else poll();
});
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
setInterval(() => absence != null && showPulse(), 1000);
poll();
