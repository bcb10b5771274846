// A matrix as coloured tiles: blue is negative, orange positive, grey hatched is masked. The tip has the numbers.

import { h, number, raised, short, soft } from "./dom.js";
import { colour, isDark, twoColours } from "./heat.js";
import { follow } from "./tip.js";

const FONT = "12px system-ui, sans-serif", SLANT = Math.PI / 3;

// given: { symbol, shape, data, rows, columns (shown), names, keys (of these rows and columns), first (row), row (marked),
// tip, label, cell (pixels); labelled: [rows, columns]; written: numbers as text }.
export function tiles(given) {
  const { data, rows, columns, row, tip, names, keys, cell = 14, labelled = [], written } = given;
  let most = 1e-9, least = 0;
  for (const value of data) if (Number.isFinite(value)) { most = Math.max(most, Math.abs(value)); least = Math.min(least, value); }
  const shade = least < 0 ? twoColours : colour; // one hue for weights and probabilities
  const canvas = h("canvas", { class: "tiles", tabindex: 0, role: "img",
    "aria-label": `${given.label}: ${given.shape.join(" by ")}. Arrow keys read single numbers.` });
  const pencil = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
  pencil.font = FONT;
  const label = (text) => `\u2068${short(text, 11)}\u2069`;
  const widest = (texts) => Math.max(...texts.map((text) => pencil.measureText(label(text)).width), 0);
  const wide = written ? 48 : cell;
  const left = labelled[0] && names ? widest(names) + 6 : 1;
  const top = labelled[1] && keys ? widest(keys) * Math.sin(SLANT) + 8 : 1;
  const lean = labelled[1] && keys ? widest(keys.slice(-1)) * Math.cos(SLANT) : 0;
  const width = left + wide * columns + Math.max(lean, 1), height = top + cell * rows + 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.aspectRatio = `${width} / ${height}`;
  const ink = getComputedStyle(document.documentElement).color;
  const text = (words, x, y, align, turn = 0) => {
    pencil.save();
    pencil.translate(x, y);
    pencil.rotate(turn);
    Object.assign(pencil, { font: FONT, fillStyle: ink, textAlign: align, textBaseline: "middle" });
    pencil.fillText(words, 0, 0);
    pencil.restore();
  };
  const paint = (value, x, y) => {
    if (written) { text(String(value), x + wide - 4, y + cell / 2, "right"); return; }
    pencil.fillStyle = Number.isFinite(value) ? `rgb(${shade(value / most)})` : isDark() ? "#34363a" : "#dedee2";
    pencil.fillRect(x, y, wide - 1, cell - 1);
    if (Number.isFinite(value)) return;
    pencil.fillStyle = isDark() ? "#6d727a" : "#a9adb4";
    pencil.fillRect(x + wide / 2 - 2, y + cell / 2 - 1, 4, 1.5);
  };
  const frame = (colour, weight, x, y, across) => {
    Object.assign(pencil, { strokeStyle: colour, lineWidth: weight });
    pencil.strokeRect(x, y, across, cell - 1);
  };
  const draw = (cursor) => {
    pencil.setTransform(ratio, 0, 0, ratio, 0, 0);
    pencil.clearRect(0, 0, width, height);
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) paint(data[i * columns + j], left + j * wide, top + i * cell);
    if (labelled[0]) names?.forEach((name, i) => text(label(name), left - 4, top + (i + 0.5) * cell, "right"));
    if (labelled[1]) keys?.forEach((key, j) => text(label(key), left + (j + 0.5) * wide, top - 4, "left", -SLANT));
    if (row >= 0 && row < rows) frame(isDark() ? "#f3a952" : "#a34e00", 2, left, top + row * cell, wide * columns - 1);
    if (cursor) frame(isDark() ? "#ffffff" : "#000000", 1.5, left + cursor[1] * wide, top + cursor[0] * cell, wide - 1);
  };
  draw(null);
  const grid = { left, top, wide, high: cell, rows, columns };
  follow(canvas, () => grid, ([i, j], x, y) => {
    draw([i, j]);
    const value = data[i * columns + j], flat = given.shape.length < 2;
    const place = names ? `${short(names[i] ?? "", 16)} at ${given.first + i}` : flat ? `channel ${j}` : `row ${given.first + i}`;
    const across = keys ? ` → ${short(keys[j], 16)}` : flat ? "" : `, channel ${j}`;
    tip.near(canvas, x, y, h("b", { class: "number", "data-value": value }, Number.isFinite(value) ? number(value, written ? 0 : 6) : "−∞, masked"),
      soft(" ", ...raised(given.symbol), `, ${place}${written && names ? "" : across}`));
  }, () => { draw(null); tip.hide(); });
  const [high, broad] = given.shape.length > 1 ? given.shape : [rows, given.shape[0]];
  const part = rows < high || (columns < broad && !written) ? `, shown ${rows} × ${columns}` : "";
  return h("figure", { class: rows > 1 ? "matrix" : "matrix flat", "data-symbol": given.symbol }, h("figcaption", {}, h("b", {}, ...raised(given.symbol)),
    soft(` ${given.shape.join(" × ")}`, h("span", { class: "part" }, part))), canvas);
}
