// Curves over integers, with the values under the pointer; ← and → move it.

import { h, number, soft, svg } from "./dom.js";

const ROOM = { left: 52, right: 12, top: 10, bottom: 38 };

// given: { label, x: [...], series: [{ name, values, kind }], band: { low, high, name }, across, up, room, tall, mark }.
// kind is a class: c0 to c6, static, chance.
export function lines(given) {
  const { x, series, band, room, tall = 260 } = given;
  const all = [...series.flatMap((each) => each.values), ...(band ? [...band.low, ...band.high] : [])];
  const [least, most, step] = bounds(Math.min(...all), Math.max(...all));
  const wide = Math.max(room - ROOM.left - ROOM.right, 100), high = tall - ROOM.top - ROOM.bottom;
  const across = (value) => ROOM.left + (x.length > 1 ? (value - x[0]) / (x[x.length - 1] - x[0]) : 0.5) * wide;
  const up = (value) => ROOM.top + (1 - (value - least) / (most - least)) * high;
  const path = (values) => values.map((value, i) => `${i ? "L" : "M"}${across(x[i]).toFixed(2)} ${up(value).toFixed(2)}`).join("");
  const readout = h("p", { class: "readout", "aria-live": "polite" }, soft(given.hint ?? "Point at the curve, or use ← and →."));
  const rule = svg("line", { class: "rule", y1: ROOM.top, y2: ROOM.top + high, x1: -9, x2: -9 });
  const picture = svg("svg", { class: "lines", viewBox: `0 0 ${room} ${tall}`, width: room, tabindex: 0, role: "img", id: given.id,
    "aria-label": `${given.label}. ← and → read single numbers.` },
    ...steps(least, most, step).flatMap((value) => [svg("line", { class: "grid", x1: ROOM.left, x2: ROOM.left + wide, y1: up(value), y2: up(value) }),
      svg("text", { x: ROOM.left - 8, y: up(value) + 4, "text-anchor": "end" }, short(value))]),
    ...spread(x, wide).map((value) => svg("text", { x: across(value), y: tall - 22, "text-anchor": "middle" }, short(value))),
    svg("text", { class: "name", x: ROOM.left + wide / 2, y: tall - 5, "text-anchor": "middle" }, given.across),
    given.mark === undefined ? null : svg("line", { class: "now", x1: across(given.mark), x2: across(given.mark), y1: ROOM.top, y2: ROOM.top + high }),
    band ? svg("path",
      { class: "band",
        d: `${path(band.high)}${[...band.low].map((value, i) => [value, i]).reverse().map(([value, i]) => `L${across(x[i])} ${up(value)}`).join("")}Z` }) : null,
    ...series.map((each) => svg("path", { class: `curve ${each.kind}`, d: path(each.values) })),
    ...(x.length <= 32 ? series.flatMap((each) => each.values.map((value, i) => svg("circle", { class: each.kind, cx: across(x[i]), cy: up(value), r: 2.5 }))) : []),
    rule);
  let at = null;
  const read = (i) => {
    at = Math.min(Math.max(i, 0), x.length - 1);
    for (const end of ["x1", "x2"]) rule.setAttribute(end, across(x[at]));
    const caption = series.map((each) => h("span", { class: "caption" }, each.name, " ",
      h("b", { class: "number", "data-value": each.values[at], "data-name": each.name }, number(each.values[at], 6))));
    if (band) caption.push(h("span", { class: "caption" }, `${band.name} `, h("b", { class: "number" }, `${number(band.low[at], 6)} … ${number(band.high[at], 6)}`)));
    readout.replaceChildren(h("b", {}, `${given.across.split(" (")[0]} ${short(x[at])}: `), ...caption);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), place = ((event.clientX - box.left) * room) / box.width;
    const nearest = x.reduce((best, value, i) => (Math.abs(across(value) - place) < Math.abs(across(x[best]) - place) ? i : best), 0);
    if (nearest !== at) read(nearest);
  });
  picture.addEventListener("keydown", (event) => {
    const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!turn) return;
    event.preventDefault();
    read(at === null ? 0 : at + turn * (event.shiftKey ? 10 : 1));
  });
  const keys = [...series.map((each) => [each.kind, each.name]), ...(band ? [["band", band.name]] : [])];
  const legend = h("ul", { class: "keys" }, ...keys.map(([kind, name]) => h("li", {},
    svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" },
      kind === "band" ? svg("rect", { class: "band", width: 22, height: 10 }) : svg("path",
        { class: `curve ${kind}`, d: "M0 5H22" })),
      name)));
  return h("div", { class: "lined" }, picture, legend, readout);
}

// A range with round ends around all values, and its step.
function bounds(least, most) {
  if (most - least < 1e-9) return [Math.floor(least) - 1, Math.ceil(most) + 1, 1];
  const rough = (most - least) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  return [Math.floor(least / step + 1e-9) * step, Math.ceil(most / step - 1e-9) * step, step];
}

function steps(least, most, step) {
  const count = Math.round((most - least) / step);
  return Array.from({ length: count + 1 }, (_, i) => Math.round(least / step + i) * step).filter((value) => value >= least - 1e-9);
}

// Round numbers below the curve, at least 44 pixels apart.
function spread(x, wide) {
  const last = x[x.length - 1], rough = Math.max(1, ((last - x[0]) * 44) / wide),
    power = 10 ** Math.floor(Math.log10(rough)),
    step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, i) => i * step).filter((value) => value >= x[0]);
}

function short(value) {
  return String(Number(value.toPrecision(4))).replace("-", "−");
}
