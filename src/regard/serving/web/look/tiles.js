// A matrix as coloured tiles: blue is negative, orange positive, grey hatched is masked. The tip has the numbers.

import { h, number, raised, short } from "./dom.js";
import { colour, isDark, twoColours } from "./heat.js";
import { follow } from "./tip.js";

// given: { symbol, shape, data, rows, columns (shown), first, names, keys, row (marked), tip, label, cell }.
export function tiles(given) {
  const { data, rows, columns, row, tip } = given, ratio = devicePixelRatio || 1, high = given.cell ?? 13, wide = given.wide ?? 13;
  let most = 1e-9, least = 0;
  for (const value of data) if (Number.isFinite(value)) { most = Math.max(most, Math.abs(value)); least = Math.min(least, value); }
  const shade = least < 0 ? twoColours : colour; // one hue for weights and probabilities
  const canvas = h("canvas", { class: "tiles", tabindex: 0, role: "img", "aria-label": `${given.label}: ${given.shape.join(" by ")}. Arrow keys read single numbers.` });
  const width = wide * columns + 2, height = high * rows + 2, pencil = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.aspectRatio = `${width} / ${height}`;
  const draw = (cursor) => {
    pencil.setTransform(ratio, 0, 0, ratio, 0, 0);
    pencil.clearRect(0, 0, width, height);
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      const value = data[i * columns + j];
      pencil.fillStyle = Number.isFinite(value) ? `rgb(${shade(value / most)})` : isDark() ? "#34363a" : "#dedee2";
      pencil.fillRect(1 + j * wide, 1 + i * high, wide - 1, high - 1);
      if (!Number.isFinite(value)) { pencil.fillStyle = isDark() ? "#6d727a" : "#a9adb4"; pencil.fillRect(1 + j * wide + wide / 2 - 2, 1 + i * high + high / 2 - 1, 4, 1.5); }
    }
    const ink = isDark() ? "#f3a952" : "#a34e00";
    if (row !== undefined && row >= 0 && row < rows) { pencil.strokeStyle = ink; pencil.lineWidth = 2; pencil.strokeRect(1, 1 + row * high - 0.5, width - 2, high); }
    if (cursor) { pencil.strokeStyle = isDark() ? "#ffffff" : "#000000"; pencil.lineWidth = 1.5; pencil.strokeRect(1 + cursor[1] * wide, 1 + cursor[0] * high, wide - 1, high - 1); }
  };
  draw(null);
  follow(canvas, () => ({ left: 1, top: 1, wide, high, rows, columns }), (cell, x, y) => {
    draw(cell);
    const value = data[cell[0] * columns + cell[1]], place = given.first + cell[0];
    const across = given.keys?.length ? ` → ${short(given.keys[cell[1]], 16)}` : given.shape.length > 1 ? `, channel ${cell[1]}` : "";
    tip.near(canvas, x, y, h("b", { class: "number", "data-value": value }, Number.isFinite(value) ? number(value, 6) : "−∞, masked"),
      h("span", { class: "soft" }, " ", ...raised(given.symbol), `, ${given.names?.length ? `${short(given.names[cell[0]] ?? "", 16)} at ${place}` : given.shape.length > 1 ? `row ${place}` : `channel ${cell[1]}`}${across}`));
  }, () => { draw(null); tip.hide(); });
  const part = columns < given.shape.at(-1) || rows < (given.shape.length > 1 ? given.shape[0] : 1);
  return h("figure", { class: "matrix", "data-symbol": given.symbol }, h("figcaption", {}, h("b", {}, ...raised(given.symbol)), h("span", { class: "soft" }, ` ${given.shape.join(" × ")}`)), canvas,
    part ? h("p", { class: "soft part" }, `shown: ${rows} × ${columns}`) : null);
}
