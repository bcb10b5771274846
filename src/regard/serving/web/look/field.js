// Heat maps: two hues for positive and negative numbers; for numbers that are never negative,
// one hue from the least to the most. Cells need not be square.

import { h, number } from "./dom.js";
import { colour, isDark, twoColours } from "./heat.js";
import { follow } from "./tip.js";

const FONT = "12px system-ui, sans-serif";

// given: { id, label, rows, columns, data, range, room, tall, square, axes (in words), first: [row, column],
// columnName(column), mark, read(cell, picture, x, y), leave(), choose(cell) }. Returns the element, and a function that selects a cell.
export function field(given) {
  const { rows, columns } = given, [firstRow, firstColumn] = given.first ?? [0, 0];
  const canvas = h("canvas", { id: given.id, tabindex: 0, role: "img", class: "field",
    "aria-label": `${given.label}. Arrow keys read single numbers, with Shift ten further${given.choose ? ", Enter chooses" : ""}.` });
  const inner = painted(given), left = 46, top = 22;
  const free = Math.max(given.room - left - 8, 80);
  let wide = free / columns, high = given.tall / rows;
  if (given.square) wide = high = Math.min(wide, high, 56);
  const width = left + wide * columns + 4, height = top + high * rows + 4, ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.aspectRatio = `${width} / ${height}`;
  Object.assign(canvas.dataset, { left, top, wide, high });
  let at = null, mark = given.mark ?? null;
  const draw = () => {
    const pencil = canvas.getContext("2d");
    pencil.setTransform(ratio, 0, 0, ratio, 0, 0);
    pencil.clearRect(0, 0, width, height);
    pencil.imageSmoothingEnabled = wide * ratio < 1 || high * ratio < 1;
    pencil.drawImage(inner, left, top, wide * columns, high * rows);
    pencil.font = FONT;
    pencil.fillStyle = getComputedStyle(document.documentElement).color;
    pencil.globalAlpha = 0.75;
    ticks(rows, high, 22, firstRow).forEach((i) => write(pencil, firstRow + i, left - 6, top + (i + 0.5) * high, "right", "middle"));
    ticks(columns, wide, 44,
      given.columnName ? 0 : firstColumn).forEach((i) => write(pencil, given.columnName?.(i) ?? firstColumn + i,
        left + (i + 0.5) * wide, top - 6, "center", "alphabetic"));
    pencil.globalAlpha = 1;
    for (const [cell, ink] of [[mark, isDark() ? "#f3a952" : "#a34e00"], [at, isDark() ? "#ffffff" : "#000000"]]) if (cell) {
      pencil.strokeStyle = ink;
      pencil.lineWidth = 2;
      const [w, t] = [Math.max(wide, 5), Math.max(high, 5)];
      pencil.strokeRect(left + (cell[1] + 0.5) * wide - w / 2, top + (cell[0] + 0.5) * high - t / 2, w, t);
    }
  };
  const moved = follow(canvas, () => ({ left, top, wide, high, rows, columns }), (cell, x, y) => {
    at = cell;
    draw();
    given.read(cell, canvas, x, y);
  }, () => { at = null; draw(); given.leave?.(); });
  const read = moved.to;
  const choose = (cell) => { if (given.choose && cell) { mark = cell; draw(); given.choose(cell); } };
  canvas.addEventListener("click", () => choose(at));
  canvas.addEventListener("keydown", (event) => { if (event.key === "Enter" && at) { event.preventDefault(); choose(at); } });
  draw();
  const legend = h("div", { class: "legend" }, number(given.range[0], 2), scale(given.range), number(given.range[1], 2));
  const axes = h("p", { class: "axes" }, given.axes);
  return { element: h("div", { class: "fielded" }, canvas, h("div", { class: "under" }, axes, legend)), canvas, read };
}

// The range of the colours: symmetric, or from the least to the most if no number is negative. Beyond `share` of the
// numbers, colours end: a few outliers would make all others pale.
export function rangeOf(data, share = 1) {
  const sorted = Float32Array.from(data, share < 1 ? Math.abs : Number).sort(), cut = share < 1 ? sorted[Math.floor(share * (sorted.length - 1))] : Infinity;
  let least = Infinity, most = -Infinity;
  for (const value of data) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  if (cut > 0) { most = Math.min(most, cut); least = Math.max(least, -cut); }
  if (least >= 0 && most > least) return [least, most];
  const size = Math.max(-least, most) || 1;
  return [-size, size];
}

function shades([least, most]) {
  const one = Math.sign(least) === -Math.sign(most) ? (share) => twoColours(2 * share - 1) : colour;
  return Array.from({ length: 511 }, (_, i) => one(i / 510));
}

function painted({ rows, columns, data, range }) {
  const canvas = h("canvas", { width: columns, height: rows }), pencil = canvas.getContext("2d");
  const image = pencil.createImageData(columns, rows), all = shades(range), [least, most] = range;
  for (let i = 0; i < data.length; i++) {
    const share = Math.min(Math.max((data[i] - least) / (most - least), 0), 1);
    image.data.set(all[Math.round(510 * share)], 4 * i);
    image.data[4 * i + 3] = 255;
  }
  pencil.putImageData(image, 0, 0);
  return canvas;
}

function scale(range) {
  const canvas = h("canvas", { width: 256, height: 1, "aria-hidden": "true" }), pencil = canvas.getContext("2d"), all = shades(range);
  for (let i = 0; i < 256; i++) {
    pencil.fillStyle = `rgb(${all[2 * i]})`;
    pencil.fillRect(i, 0, 1, 1);
  }
  return canvas;
}

// The cells whose number is written: as many as fit, at round numbers.
function ticks(count, size, room, first) {
  const by = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500].find((step) => step * size >= room) ?? count;
  return Array.from({ length: count }, (_, i) => i).filter((i) => (i + first) % by === 0);
}

function write(pencil, text, x, y, align, base) {
  pencil.textAlign = align;
  pencil.textBaseline = base;
  pencil.fillText(String(text).replace("-", "−"), x, y);
}
