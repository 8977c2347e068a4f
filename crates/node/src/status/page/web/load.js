// Load and latencies of the last minutes, as lines.

import { byId, bytes, colour, count, element, fitted, latency, rate, setText, themed, tipFor } from "./format.js";

const CHART_HEIGHT = 150;
const LEFT = 54;
const BOTTOM = 18;

// Spans that a chart may show, and between two of their marks: seconds. A store that has just been
// started would fill no more than an edge of ten minutes.
const SPANS = [[60, 15], [180, 60], [600, 120]];

let history = null;
let quantile = "p99_us";

const line = (name, words, format) => ({ path: ["rates", name], words, format });
const quantileLine = (name, which, words) => ({ path: ["latencies", name, which], words, format: latency });
const stage = (name, words) => ({ path: ["latencies", name, null], words, format: latency });

const CHARTS = [
  { id: "chart-requests", lines: [line("writes", "writes", rate), line("reads", "reads", rate)], format: rate },
  { id: "chart-writes", isLog: true, lines: [quantileLine("request.write", "p50_us", "p50"), quantileLine("request.write", "p99_us", "p99")] },
  { id: "chart-reads", isLog: true, lines: [quantileLine("request.read", "p50_us", "p50"), quantileLine("request.read", "p99_us", "p99")] },
  { id: "chart-bytes", lines: [line("log_bytes", "to the log", bytes), line("sent_bytes", "to stores", bytes), line("received_bytes", "from stores", bytes)], format: bytes, isBytes: true },
  { id: "chart-write-stages", isLog: true, lines: [
    ["admission", "admission"], ["mailbox", "mailbox"], ["commit", "commit"], ["apply_queue", "apply queue"], ["apply", "apply"], ["wake", "wake"],
  ].map(([name, words]) => stage(`request_stage.write.${name}`, words)) },
  { id: "chart-read-stages", isLog: true, lines: [
    ...[["admission", "admission"], ["mailbox", "mailbox"], ["grant", "grant"], ["wake", "wake"]]
      .map(([name, words]) => stage(`request_stage.read.${name}`, words)),
    stage("row_read", "row read"), stage("log_write", "log write"),
  ] },
];

/// The number of the first sample that the page lacks.
export function historyFrom() {
  return history?.next ?? 0;
}

export function showHistory(part) {
  const goesOn = history && history.start === part.start && part.first === history.next;
  history = goesOn ? joined(history, part) : part;
  redrawLoad();
}

function joined(before, part) {
  const keep = (old, more) => [...old, ...more].slice(-part.samples_max);
  const rates = Object.fromEntries(Object.entries(part.rates)
    .map(([name, values]) => [name, keep(before.rates[name] ?? [], values)]));
  const latencies = Object.fromEntries(Object.entries(part.latencies).map(([name, now]) => {
    const old = before.latencies[name] ?? { p50_us: [], p99_us: [] };
    return [name, { p50_us: keep(old.p50_us, now.p50_us), p99_us: keep(old.p99_us, now.p99_us) }];
  }));
  return { ...part, rates, latencies };
}

const valuesOf = ({ path }) => path.reduce((found, name) => found?.[name ?? quantile], history) ?? [];

export function redrawLoad() {
  if (!history) return;
  CHARTS.forEach(drawChart);
}

function drawChart(chart) {
  const canvas = byId(chart.id);
  const { context, width, height } = fitted(canvas, CHART_HEIGHT);
  const [grid, faint] = ["--grid", "--faint"].map(themed);
  const [samples, step] = span();
  const series = chart.lines.map((it) => valuesOf(it).slice(-samples));
  const scale = chart.isLog ? logScale(series) : linearScale(series, chart);
  const plot = { left: LEFT, right: width - 2, top: 6, bottom: height - BOTTOM };
  const x = (at, length) => plot.right - ((length - 1 - at) / (samples - 1)) * (plot.right - plot.left);
  const y = (value) => plot.bottom - scale.share(value) * (plot.bottom - plot.top);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.lineWidth = 1;
  for (const tick of scale.ticks) {
    const at = Math.round(y(tick)) + 0.5;
    context.strokeStyle = grid;
    context.beginPath();
    context.moveTo(plot.left, at);
    context.lineTo(plot.right, at);
    context.stroke();
    context.fillStyle = faint;
    context.fillText(scale.format(tick), plot.left - 7, at);
  }
  drawTimes(context, plot, height, samples, step);
  series.forEach((values, place) => {
    context.strokeStyle = colour(place);
    context.lineWidth = series.length > 3 ? 1.2 : 1.6;
    context.lineJoin = "round";
    context.beginPath();
    let isDown = false;
    values.forEach((value, at) => {
      if (value == null) {
        isDown = false;
        return;
      }
      const [px, py] = [x(at, values.length), y(value)];
      if (isDown) context.lineTo(px, py);
      else context.moveTo(px, py);
      // A sample between two gaps is a dot.
      if (!isDown && values[at + 1] == null) context.lineTo(px + 1.6, py);
      isDown = true;
    });
    context.stroke();
  });
  chart.plot = plot;
  drawCursor(context, chart, samples);
  showChartLegend(canvas, chart, series);
}

/// Samples that the charts show, and between two marks.
function span() {
  const seconds = (valuesOf({ path: ["rates", "writes"] }).length * history.interval_ms) / 1000;
  const [shown, step] = SPANS.find(([most]) => seconds <= most) ?? SPANS.at(-1);
  return [shown, step].map((it) => Math.round((it * 1000) / history.interval_ms));
}

function drawTimes(context, plot, height, samples, step) {
  const seconds = (at) => (at * history.interval_ms) / 1000;
  const isMinutes = seconds(samples) > 60;
  const [unit, words] = isMinutes ? [60, "min"] : [1, "s"];
  for (let at = 0; at <= samples; at += step) {
    const x = plot.right - (at / samples) * (plot.right - plot.left);
    const number = `−${seconds(at) / unit}`;
    context.textAlign = at === 0 ? "right" : at === samples ? "left" : "center";
    context.fillText(at === 0 ? "now" : at === samples ? `${number} ${words}` : number, x, height - 6);
  }
}

function drawCursor(context, chart, samples) {
  if (chart.cursor == null) return;
  const { plot } = chart;
  const at = plot.right - (chart.cursor / (samples - 1)) * (plot.right - plot.left);
  context.strokeStyle = themed("--faint");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(at, plot.top);
  context.lineTo(at, plot.bottom);
  context.stroke();
}

function showChartLegend(canvas, chart, series) {
  const legend = canvas.closest("figure").querySelector(".legend");
  if (legend.children.length === 0) {
    legend.append(...chart.lines.map(({ words }, place) => {
      const mark = element("i");
      mark.style.background = colour(place);
      return element("li", "", mark, element("span", "", `${words} `, element("b", "", "–")));
    }));
  }
  chart.lines.forEach(({ format }, place) => {
    setText(legend.children[place].querySelector("b"), format(series[place].at(-1)));
  });
}

function linearScale(series, chart) {
  const most = Math.max(chart.isBytes ? 1024 : 10, ...series.flat().map((value) => value ?? 0));
  const base = chart.isBytes ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const power = 10 ** Math.floor(Math.log10(most / base));
  const step = [0.2, 0.5, 1, 2, 2.5, 5, 10].map((it) => it * power * base).find((it) => most / it <= 4);
  const end = Math.ceil(most / step) * step;
  const ticks = Array.from({ length: Math.round(end / step) + 1 }, (_, at) => at * step);
  return { share: (value) => value / end, ticks, format: chart.format };
}

/// Latencies differ by powers of ten.
function logScale(series) {
  const values = series.flat().filter((value) => value != null && value > 0);
  const least = Math.floor(Math.log10(Math.max(1, Math.min(100, ...values))));
  const most = Math.max(least + 2, Math.ceil(Math.log10(Math.max(1, ...values))));
  const ticks = Array.from({ length: most - least + 1 }, (_, at) => 10 ** (least + at));
  const share = (value) => (Math.log10(Math.max(value, 10 ** least)) - least) / (most - least);
  const format = (us) => (us >= 1e6 ? `${us / 1e6} s` : us >= 1000 ? `${us / 1000} ms` : `${us} µs`);
  return { share, ticks, format };
}

for (const chart of CHARTS) {
  tipFor(byId(chart.id), (x) => {
    if (!history || !chart.plot) return "";
    const { left, right } = chart.plot;
    const [samples] = span();
    const before = chart.cursor;
    const isInside = x >= left && x <= right;
    chart.cursor = isInside ? Math.round(((right - x) / (right - left)) * (samples - 1)) : null;
    if (chart.cursor !== before) drawChart(chart);
    if (!isInside) return "";
    const lines = chart.lines.map((it) => `${it.words}: ${it.format(valuesOf(it).at(-1 - chart.cursor))}`);
    return [`${count((chart.cursor * history.interval_ms) / 1000)} s ago`, ...lines].join("\n");
  });
}
for (const button of document.querySelectorAll("[data-quantile]")) {
  button.addEventListener("click", () => {
    quantile = button.dataset.quantile;
    document.querySelectorAll("[data-quantile]").forEach((it) => {
      it.setAttribute("aria-pressed", String(it === button));
    });
    document.querySelectorAll(".quantile").forEach((it) => setText(it, button.textContent));
    redrawLoad();
  });
}
