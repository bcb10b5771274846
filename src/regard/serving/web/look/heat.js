// Heat maps on canvas. One hue from light to dark (matplotlib's Blues, reversed on a dark page), readable without
// colour vision. A masked cell is grey and hatched: it is not a zero.

import { short } from "./dom.js";

const LIGHT = [[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const DARK = [[26, 32, 40], [21, 61, 101], [32, 112, 180], [112, 182, 231], [236, 246, 255]];
// Differences: blue is less, orange is more. Both are readable with red-green colour blindness.
const LIGHT_TWO = [[5, 78, 148], [103, 169, 214], [247, 251, 255], [241, 163, 64], [150, 68, 0]];
const DARK_TWO = [[140, 205, 255], [28, 97, 160], [26, 32, 40], [156, 88, 10], [255, 190, 105]];
const MOST = 128; // cells of a small map, each way
const MASKED = { light: [222, 222, 226], dark: [52, 54, 58] };

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function colour(share) {
  return between(isDark() ? DARK : LIGHT, share);
}

// The colour of a difference from −1 to 1.
export function twoColours(share) {
  return between(isDark() ? DARK_TWO : LIGHT_TWO, (share + 1) / 2);
}

export function between(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((part, c) => Math.round(part + (stops[i + 1][c] - part) * (at - i)));
}

// Black or white, for text on a colour: the one with more contrast, at least 4.5 (WCAG 2).
export function inkOn(colour) {
  const [red, green, blue] = colour.map((part) => (part > 10 ? ((part / 255 + 0.055) / 1.055) ** 2.4 : part / 3294));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

// One head of a tensor [heads, queries, keys]. masked(query, key) tells which cells the mask hides.
export function headOf(tensor, head, masked = null) {
  const [, queries, keys] = tensor.shape;
  const data = tensor.data.subarray(head * queries * keys, (head + 1) * queries * keys);
  let most = 0;
  for (const value of data) if (value > most) most = value;
  return { queries, keys, data, most, masked };
}

// The mask of one layer of an attention, by its settings.
export function maskOf(place, layer) {
  const window = place.windows?.[layer] ?? null;
  if (place.kind !== "attention" || (!place.causal && window === null)) return null;
  return (q, k) => (place.causal && k > q) || (window !== null && Math.abs(q - k) >= window);
}

// The second map minus the first, which has the same shape.
export function difference(one, two) {
  const data = two.data.map((value, i) => value - one.data[i]);
  let most = 0;
  for (const value of data) most = Math.max(most, Math.abs(value));
  return { queries: one.queries, keys: one.keys, data, most, signed: true };
}

// Paints one pixel for each cell. In a large map, cells share a pixel, and the largest counts.
export function paint(canvas, map, cells = MOST) {
  const width = Math.min(map.keys, cells), height = Math.min(map.queries, cells);
  canvas.width = width;
  canvas.height = height;
  const pooled = new Float32Array(width * height), seen = map.masked ? new Uint8Array(width * height) : null;
  for (let q = 0; q < map.queries; q++) {
    const row = Math.floor((q * height) / map.queries) * width;
    for (let k = 0; k < map.keys; k++) {
      const place = row + Math.floor((k * width) / map.keys), value = map.data[q * map.keys + k];
      if (seen && !map.masked(q, k)) seen[place] = 1;
      if (Math.abs(value) > Math.abs(pooled[place])) pooled[place] = value;
    }
  }
  const pencil = canvas.getContext("2d"), image = pencil.createImageData(width, height);
  const shades = Array.from({ length: 256 }, (_, i) => (map.signed ? twoColours(i / 127.5 - 1) : colour(i / 255)));
  const scale = map.most ? (map.signed ? 127.5 : 255) / map.most : 0, zero = map.signed ? 127.5 : 0;
  for (let i = 0; i < pooled.length; i++) {
    const shade = seen && !seen[i] ? MASKED[isDark() ? "dark" : "light"] : shades[Math.min(Math.max(Math.round(zero + pooled[i] * scale), 0), 255)];
    image.data[4 * i] = shade[0];
    image.data[4 * i + 1] = shade[1];
    image.data[4 * i + 2] = shade[2];
    image.data[4 * i + 3] = 255;
  }
  pencil.putImageData(image, 0, 0);
}

export function legend(canvas, signed = false) {
  canvas.width = 140;
  canvas.height = 1;
  const pencil = canvas.getContext("2d");
  for (let i = 0; i < 140; i++) {
    pencil.fillStyle = `rgb(${signed ? twoColours(i / 69.5 - 1) : colour(i / 139)})`;
    pencil.fillRect(i, 0, 1, 1);
  }
}

// A map with tokens on both axes. Returns the positions of its cells, and draw(cursor), which only adds the cursor.
export function chart(canvas, map, rows, columns, room, tall = 560) {
  const ink = getComputedStyle(document.documentElement).color, font = "12px system-ui, sans-serif";
  const pencil = canvas.getContext("2d");
  pencil.font = font;
  const names = { rows: rows.map((text) => fitted(pencil, text, 150)), columns: columns.map((text) => fitted(pencil, text, 96)) };
  const left = 10 + Math.max(...names.rows.map((text) => pencil.measureText(text).width));
  const top = 12 + Math.max(...names.columns.map((text) => pencil.measureText(text).width)) * 0.71 + 8;
  const slant = 70;
  const cell = Math.min(44, (room - left - slant) / map.keys, Math.max((tall - top - 4) / map.queries, 1));
  const width = left + cell * map.keys + slant, height = top + cell * map.queries + 4, ratio = devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const base = document.createElement("canvas");
  for (const each of [canvas, base]) {
    each.width = Math.round(width * ratio);
    each.height = Math.round(height * ratio);
  }
  const every = Math.max(1, Math.ceil(14 / cell));
  const labels = (brush, shown, alpha) => {
    brush.font = font;
    brush.direction = "ltr";
    brush.fillStyle = ink;
    brush.globalAlpha = alpha;
    brush.textBaseline = "middle";
    names.rows.forEach((text, i) => {
      if (!shown(0, i)) return;
      brush.textAlign = "right";
      brush.fillText(text, left - 6, top + (i + 0.5) * cell);
    });
    names.columns.forEach((text, i) => {
      if (!shown(1, i)) return;
      brush.save();
      brush.translate(left + (i + 0.5) * cell, top - 6);
      brush.rotate(-Math.PI / 4);
      brush.textAlign = "left";
      brush.fillText(text, 0, 0);
      brush.restore();
    });
    brush.globalAlpha = 1;
  };
  const brush = base.getContext("2d"), inner = document.createElement("canvas");
  brush.scale(ratio, ratio);
  paint(inner, map, 2048);
  brush.imageSmoothingEnabled = inner.width > cell * map.keys * ratio;
  brush.drawImage(inner, left, top, cell * map.keys, cell * map.queries);
  if (map.masked && cell >= 5) hatch(brush, map, left, top, cell);
  if (cell >= 9) grid(brush, map, left, top, cell);
  labels(brush, (_, i) => i % every === 0, 0.8);
  const draw = (cursor) => {
    pencil.setTransform(1, 0, 0, 1, 0, 0);
    pencil.clearRect(0, 0, canvas.width, canvas.height);
    pencil.drawImage(base, 0, 0);
    if (!cursor) return;
    pencil.setTransform(ratio, 0, 0, ratio, 0, 0);
    labels(pencil, (axis, i) => i === cursor[axis], 1);
    pencil.strokeStyle = isDark() ? "#f3a952" : "#a34e00";
    pencil.lineWidth = 2;
    pencil.strokeRect(left + cursor[1] * cell, top + cursor[0] * cell, Math.max(cell, 3), Math.max(cell, 3));
  };
  draw(null);
  Object.assign(canvas.dataset, { left, top, cell });
  return { left, top, wide: cell, high: cell, rows: map.queries, columns: map.keys, draw };
}

function hatch(pencil, map, left, top, cell) {
  pencil.save();
  pencil.beginPath();
  for (let q = 0; q < map.queries; q++) for (let k = 0; k < map.keys; k++) if (map.masked(q, k)) pencil.rect(left + k * cell, top + q * cell, cell, cell);
  pencil.clip();
  pencil.strokeStyle = isDark() ? "#6d727a" : "#a9adb4";
  pencil.lineWidth = 1;
  pencil.beginPath();
  const wide = map.keys * cell, high = map.queries * cell;
  for (let x = -high; x < wide; x += 6) { pencil.moveTo(left + x, top + high); pencil.lineTo(left + x + high, top); }
  pencil.stroke();
  pencil.restore();
}

function grid(pencil, map, left, top, cell) {
  pencil.strokeStyle = isDark() ? "rgba(18,22,28,0.9)" : "rgba(255,255,255,0.9)";
  pencil.lineWidth = 1;
  pencil.beginPath();
  for (let k = 0; k <= map.keys; k++) {
    pencil.moveTo(left + k * cell, top);
    pencil.lineTo(left + k * cell, top + cell * map.queries);
  }
  for (let q = 0; q <= map.queries; q++) {
    pencil.moveTo(left, top + q * cell);
    pencil.lineTo(left + cell * map.keys, top + q * cell);
  }
  pencil.stroke();
}

// Isolated, so that right-to-left words do not move others.
function fitted(pencil, text, most) {
  let found = short(text, 26);
  while (found.length > 2 && pencil.measureText(found).width > most) found = [...found].slice(0, -2).join("") + "…";
  return `\u2068${found}\u2069`;
}
