// The key space as a field of cells: one for each region, in the order of the keys.

import { fitted, themed } from "./format.js";

const ROW_HEIGHT = 76;
const FIELD_HEIGHT_MAX = 236;
const CELL_MIN = 4;
const CELL_MAX = 30;
// Narrower cells than this make one row unreadable.
const WIDE_CELL = 30;

/// The places of `count` cells in a field of this width.
export function layout(count, width) {
  if (count === 0) return { columns: 1, rows: 1, wide: width, high: ROW_HEIGHT, gap: 0, isRow: true };
  if (count * WIDE_CELL <= width) {
    return { columns: count, rows: 1, wide: width / count, high: ROW_HEIGHT, gap: 3, isRow: true };
  }
  for (let size = CELL_MAX; size > CELL_MIN; size -= 1) {
    const rows = Math.ceil(count / Math.floor(width / size));
    if (rows * size <= FIELD_HEIGHT_MAX) {
      // Rows of about the same length: the last key is at the right end.
      const columns = Math.ceil(count / rows);
      return { columns, rows, wide: width / columns, high: size, gap: size > 9 ? 2 : 1 };
    }
  }
  const columns = Math.floor(width / CELL_MIN);
  return { columns, rows: Math.ceil(count / columns), wide: width / columns, high: CELL_MIN, gap: 1 };
}

/// Draws the cells; `look` says of each one its colour, and whether it has a leader and work.
export function drawField(canvas, count, look) {
  const width = Math.max(1, canvas.parentElement.clientWidth);
  const field = layout(count, width);
  const { context, height } = fitted(canvas, field.rows * field.high);
  const [bad, ink, card] = ["--bad", "--ink", "--card"].map(themed);
  for (let at = 0; at < count; at += 1) {
    const [x, y, wide, high] = cellAt(field, at);
    const { fill, isLost, isBusy, isChosen, isFaded, label, note } = look(at);
    context.globalAlpha = isFaded ? 0.18 : 1;
    context.fillStyle = fill;
    box(context, x, y, wide, high, field.gap > 1 ? 3 : 0);
    if (isLost) hatch(context, x, y, wide, high, bad, card);
    if (field.isRow && wide > 26) drawLabel(context, x, y, wide, high, label, note, isLost ? ink : "#fff");
    if (isBusy) {
      const radius = Math.max(1.5, Math.min(4, wide / 5));
      context.fillStyle = ink;
      context.strokeStyle = "#fff";
      context.lineWidth = Math.max(1, radius / 2.5);
      context.beginPath();
      const middle = field.isRow ? y + 11 : y + high / 2;
      context.arc(field.isRow ? x + wide - 11 : x + wide / 2, middle, radius, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
    context.globalAlpha = 1;
    if (isChosen) {
      context.strokeStyle = ink;
      context.lineWidth = 2;
      context.strokeRect(x - 0.5, y - 0.5, wide + 1, high + 1);
    }
  }
  return { ...field, height };
}

function cellAt(field, at) {
  const [column, row] = [at % field.columns, Math.floor(at / field.columns)];
  const [x, y] = [column * field.wide, row * field.high];
  return [x + field.gap / 2, y + field.gap / 2, field.wide - field.gap, field.high - field.gap];
}

/// The cell at a place of the canvas, or -1.
export function hit(field, count, x, y) {
  if (!field || x < 0 || y < 0) return -1;
  const column = Math.min(field.columns - 1, Math.floor(x / field.wide));
  const at = Math.floor(y / field.high) * field.columns + column;
  return at < count ? at : -1;
}

function box(context, x, y, wide, high, radius) {
  if (radius === 0) {
    context.fillRect(x, y, wide, high);
    return;
  }
  context.beginPath();
  context.roundRect(x, y, wide, high, radius);
  context.fill();
}

/// No leader: stripes, which do not rest on the colour alone.
function hatch(context, x, y, wide, high, line, ground) {
  context.save();
  context.beginPath();
  context.rect(x, y, wide, high);
  context.clip();
  context.fillStyle = ground;
  context.fillRect(x, y, wide, high);
  context.strokeStyle = line;
  context.lineWidth = 1.5;
  for (let from = -high; from < wide; from += 5) {
    context.beginPath();
    context.moveTo(x + from, y + high);
    context.lineTo(x + from + high, y);
    context.stroke();
  }
  context.strokeRect(x + 0.75, y + 0.75, wide - 1.5, high - 1.5);
  context.restore();
}

function drawLabel(context, x, y, wide, high, label, note, ink) {
  context.fillStyle = ink;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = "600 13px system-ui, sans-serif";
  context.fillText(label, x + wide / 2, y + high / 2 - (wide > 30 ? 8 : 0), wide - 4);
  if (wide > 30) {
    context.font = "11px system-ui, sans-serif";
    context.fillText(note, x + wide / 2, y + high / 2 + 9, wide - 6);
  }
}
