// Points on a plane with labels that do not overlap. Pointer, focus or arrow keys select one.

import { clean, short, svg } from "./dom.js";

const FONT = "600 12px system-ui, sans-serif", MARGIN = 34;
const SHAPES = ["M5 0A5 5 0 1 1 -5 0A5 5 0 1 1 5 0Z", "M-4.5 -4.5H4.5V4.5H-4.5Z", "M0 -6L6 0L0 6L-6 0Z", "M0 -6L5.5 4H-5.5Z", "M0 6L5.5 -4H-5.5Z",
  "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z", "M0 -3L4 -6L6 -4L3 0L6 4L4 6L0 3L-4 6L-6 4L-3 0L-6 -4L-4 -6Z"];

// The marker of a sentence; hollow from the eighth on.
export function glyph(number) {
  const hollow = Math.floor(number / SHAPES.length) % 2 === 1;
  return svg("path", { d: SHAPES[number % SHAPES.length], class: hollow ? "glyph hollow" : "glyph" });
}

export class Scatter {
  // spots: [{ x, y, from: [x, y] of an arrow's start, kind, shape, label, caption }]; given: { room, tall, range, label, axes: [of x, of y], read(spot) }.
  constructor(spots, given) {
    Object.assign(this, { spots, given, width: given.room, height: Math.min(Math.max(given.room * 0.62, 320), 520, given.tall ?? 520) });
    this.#place();
    this.groups = spots.map((spot, i) => svg("g",
      { class: `spot ${spot.kind}`, role: "option", tabindex: -1, "aria-label": clean(spot.caption),
        "aria-selected": false, "data-number": i,
      transform: `translate(${this.at[i][0].toFixed(2)} ${this.at[i][1].toFixed(2)})`,
        onpointerenter: () => this.choose(i), onclick: () => this.choose(i, true), onfocus: () => this.choose(i) },
      svg("circle", { class: "reach", r: 10 }), glyph(spot.shape)));
    const labels = this.#labels();
    this.element = svg("svg",
      { class: "scatter", viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, role: "listbox",
        "aria-label": `${given.label}. Arrow keys go from point to point.` },
      svg("rect", { class: "frame", x: 0.5, y: 0.5, width: this.width - 1, height: this.height - 1, rx: 8 }),
        svg("defs", {},
          svg("marker",
            { id: "point", viewBox: "0 0 8 8", refX: 13, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" },
            svg("path", { d: "M0 0L8 4L0 8Z", class: "head" }))),
        ...this.arrows, ...labels, ...this.groups,
      svg("text", { class: "axis", x: this.width / 2, y: this.height - 9, "text-anchor": "middle" }, given.axes[0]),
      svg("text", { class: "axis", transform: `translate(16 ${this.height / 2}) rotate(-90)`, "text-anchor": "middle" }, given.axes[1]));
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.chosen = null;
  }

  // Both axes have the same scale, so that distances can be compared.
  #place() {
    const { spots, width, height } = this,
      all = [...spots.map(({ x, y }) => [x, y]), ...spots.flatMap((spot) => (spot.from ? [spot.from] : []))],
      range = (axis) => [Math.min(...all.map((each) => each[axis])), Math.max(...all.map((each) => each[axis]))];
    const [[left, right], [low, high]] = [range(0), range(1)],
      wide = width - 2.6 * MARGIN - (spots[0].from ? Math.min(0.38 * width, 320) : 0),
      // room for labels ahead of arrows
      tall = height - 2.6 * MARGIN;
    const [across, up] = this.given.range ?? [right - left, high - low];
    const size = Math.max(across / wide, up / tall), scale = size > 1e-7 ? 1 / size : 0;
    const at = (x, y) => [width / 2 + (x - (left + right) / 2) * scale, height / 2 - 6 - (y - (low + high) / 2) * scale];
    this.at = spots.map((spot) => at(spot.x, spot.y));
    this.arrows = spots.flatMap(({ from, kind },
      i) => (from ? [svg("path",
        { class: `arrow ${kind}`, d: `M${at(...from)}L${this.at[i]}`, "marker-end": "url(#point)" })] : []));
    const start = spots[0].from; // one word has one static vector
    if (start && spots.every(({ from }) => Math.hypot(from[0] - start[0],
      from[1] - start[1]) < 1e-3)) this.arrows.push(svg("text",
      { class: "axis", x: at(...start)[0], y: at(...start)[1] + 18, "text-anchor": "middle" }, "static"));
  }

  // A label next to each point if there is room; otherwise it is shown when the point is selected.
  #labels() {
    const pencil = document.createElement("canvas").getContext("2d"), taken = this.at.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
    pencil.font = FONT; // bold, as the chosen one is
    return this.spots.map((spot, i) => {
      const text = `\u2068${short(spot.label, 48)}\u2069`, width = pencil.measureText(text).width + 4, height = 15, [x, y] = this.at[i];
      const { from } = spot, ahead = from ? Math.round((Math.atan2(spot.y - from[1], spot.x - from[0]) * 4) / Math.PI) : 0; // labels lie ahead of an arrow
      for (const far of [12, 18, 26, 36]) for (const turn of (from ? [0, 1, -1, 2, -2, 3, -3, 4] : [0, 4, 1, 7, 3, 5, 2, 6]).map((each) => each + ahead)) {
        const angle = (turn * Math.PI) / 4, mid = [x + Math.cos(angle) * (far + width / 2), y - Math.sin(angle) * (far + height / 2)];
        const box = [mid[0] - width / 2, mid[1] - height / 2, mid[0] + width / 2, mid[1] + height / 2];
        if (box[0] < 26 || box[1] < 4 || box[2] > this.width - 4 || box[3] > this.height - 24 || taken.some((other) => overlap(box, other))) continue;
        taken.push(box);
        return svg("g", { class: `label ${spot.kind}`, "data-label": i },
          far > 18 ? svg("line",
            { x1: x, y1: y, x2: mid[0] - Math.cos(angle) * (width / 2),
              y2: mid[1] + Math.sin(angle) * (height / 2) }) : null,
          svg("text", { x: mid[0], y: mid[1] + 4, "text-anchor": "middle" }, text));
      }
      return null;
    });
  }

  choose(i, focus = false) {
    if (i !== this.chosen) {
      this.chosen = i;
      this.groups.forEach((group, number) => {
        group.setAttribute("aria-selected", number === i);
        group.setAttribute("tabindex", number === i ? 0 : -1);
      });
      for (const label of this.element.querySelectorAll("[data-label]")) label.classList.toggle("chosen", Number(label.dataset.label) === i);
      this.given.read(this.spots[i]);
    }
    if (focus) this.groups[i].focus({ preventScroll: true });
  }

  // ← and → follow x, ↑ and ↓ follow y.
  #key(event) {
    const [axis, turn] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [1, -1], ArrowDown: [1, 1] }[event.key] ?? [];
    if (axis === undefined) return;
    event.preventDefault();
    const order = this.at.map((_, i) => i).sort((one, two) => this.at[one][axis] - this.at[two][axis] || one - two);
    const next = order[Math.min(Math.max(order.indexOf(this.chosen) + turn, 0), order.length - 1)];
    this.choose(next, true);
  }
}

function overlap(one, other) {
  return one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
}
