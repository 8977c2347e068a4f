// Numbers as people read them, and the elements of the page. Whatever comes from a store becomes
// text: no string is ever parsed as markup.

const INTEGER = new Intl.NumberFormat("en");

export function count(value) {
  return value == null ? "–" : INTEGER.format(Math.round(value));
}

export function rate(value) {
  if (value == null) return "–";
  return value > 0 && value < 10 ? String(Math.round(value * 10) / 10) : count(value);
}

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export function latency(us) {
  if (us == null) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  const ms = us / 1000;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(1)} s`;
}

export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.floor(ms / 1000);
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  if (minutes > 0) return `${minutes} min ${seconds % 60} s`;
  return `${seconds} s`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export const byId = (id) => document.getElementById(id);

/// An element with a class, and children that are elements or become text.
export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child != null));
  return made;
}

/// Sets a text, if it is another one: a selection of the reader stays.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// Rows of a table, one for each item, in the order of the items. A row stays the same element as
/// long as its item is there.
export function syncRows(body, items, keyOf, fill) {
  const rows = (body.rowsByKey ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
  items.forEach((item, at) => {
    const key = keyOf(item);
    let row = rows.get(key);
    if (!row) {
      row = element("tr");
      rows.set(key, row);
    }
    fill(row, item);
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
  });
}

/// The cells of a row: a text, or [class, text or children...].
export function setCells(row, cells) {
  const shown = JSON.stringify(cells.map((cell) => (cell?.shown ? cell.shown : cell)));
  if (row.shown === shown) return;
  row.shown = shown;
  row.replaceChildren(...cells.map((cell) => {
    if (cell?.make) {
      const made = element("td", cell.className, ...cell.make());
      if (cell.columns) made.colSpan = cell.columns;
      return made;
    }
    if (Array.isArray(cell)) {
      const [className, text, title] = cell;
      const made = element("td", className, text);
      if (title) made.title = title;
      return made;
    }
    return element("td", "", cell);
  }));
}

/// A cell of elements, which is made anew when `shown` is another one.
export const cell = (shown, make, className = "", columns = 0) => ({ shown, make, className, columns });

export function chip(colour) {
  const made = element("i", "chip");
  if (colour) made.style.background = colour;
  return made;
}

export function meter(share, colour) {
  const fill = element("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  if (colour) fill.style.background = colour;
  return element("i", "", fill);
}

/// The value of a colour of the style sheet: canvases know no variables.
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Colours that differ in hue and in lightness, for readers who do not tell red from green.
const COLOURS = ["#2f7fd0", "#e8912d", "#33a474", "#a66bd3", "#d9534f", "#25aebb", "#b59b2a",
  "#6f78e0", "#d86fa9"];

/// The colour of the store, line or tree at this place.
export function colour(at) {
  if (at < 0) return themed("--none");
  return at < COLOURS.length ? COLOURS[at] : `hsl(${(at * 137) % 360} 55% 52%)`;
}

/// Prepares a canvas for the resolution of the screen; its size in pixels of the page.
export function fitted(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(1, canvas.parentElement.clientWidth);
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/// Shows what `words` says of the place under the pointer.
export function tipFor(canvas, words) {
  const tip = byId("tip");
  canvas.addEventListener("pointermove", (event) => {
    const text = words(event.offsetX, event.offsetY);
    tip.hidden = !text;
    if (!text) return;
    setText(tip, text);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 10);
    const above = event.clientY + 18 + tip.offsetHeight > window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18}px`;
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    words(-1, -1);
  });
}
