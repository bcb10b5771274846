// The whole model as in figure 1 of the paper: stacks of parts, with shapes on the arrows. Play sends the input through.

import { choices, clean, h, short, svg } from "../dom.js";

const WIDE = 300, GAP = 11, APART = 130;
const HIGH = { attention: 34, cross: 34, ffn: 34, embedding: 34, linear: 34, positions: 34, softmax: 20, norm: 20, add: 20, "add-norm": 20 };

export async function show(root, page) {
  await new Architecture(root, page).draw();
}

export function amount(value) {
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (value >= size) return `${(value / size).toPrecision(3)}${unit}`;
  return String(value);
}

class Architecture {
  constructor(root, page) {
    Object.assign(this, { root, page, boxes: [], zoom: 1, timer: null });
    this.measure = page.state.measure === "flops" ? "flops" : "parameters";
  }

  async draw() {
    const { root, page } = this;
    this.found = await page.source.ask("architecture", { run: page.run.run });
    if (!root.isConnected) return;
    this.output = await page.output().catch(() => null);
    if (!root.isConnected) return;
    const all = this.found.stacks.flatMap((stack) => [...stack.before, ...stack.after,
      ...stack.groups.flatMap((group) => group.parts.map((part) => ({ ...part, times: group.count })))]);
    this.total = Object.fromEntries(["parameters", "flops"].map((key) => [key, all.reduce((sum, part) => sum + part[key] * (part.times ?? 1), 0)]));
    this.play = h("button", { class: "main", onclick: () => this.#play() }, "▶ Play");
    const zoom = (factor, label, name) => h("button",
      { "aria-label": name,
        onclick: () => { this.zoom = factor ? Math.min(Math.max(this.zoom * factor, 0.4), 4) : 1; this.#fit(); } },
      label);
    this.holder = h("div", { class: "diagram", tabindex: 0, role: "region", "aria-label": "Diagram" });
    this.side = h("div", { class: "about-part", "aria-live": "polite" });
    root.append(h("div", { class: "bar" }, this.play,
      choices("Measure", [["parameters", "Parameters"], ["flops", "FLOPs"]], this.measure,
        (value) => { page.set({ measure: value === "flops" ? value : null }); page.show(); }),
      zoom(1.25, "+", "Zoom in"), zoom(0.8, "−", "Zoom out"), zoom(0, "Fit", "Fit"),
        h("span", { class: "hint" },
          `${amount(this.total.parameters)} parameters, ${amount(this.total.flops)} FLOPs for this input. Click a part.`)),
    h("div", { class: "architecture" }, this.holder, this.side));
    this.#picture();
    this.#fit();
    this.#start();
    root.dataset.ready = "true";
  }

  // ---------------------------------------------------------------------------------------------------------- drawing

  #picture() {
    const columns = this.found.stacks.map((stack, i) => this.#column(stack, 60 + i * (WIDE + APART)));
    const height = Math.max(...columns.map((column) => column.height)) + 8, width = 60 + columns.length * (WIDE + APART) - 60;
    const groups = columns.map((column) => svg("g", { transform: `translate(0 ${height - 8})` }, ...column.parts)); // y grows upwards from the bottom
    const cross = columns[1] ? this.#memory(height - 8) : [];
    this.size = [width, height];
    this.svg = svg("svg",
      { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The model, from input below to output above" },
      svg("defs", {},
        svg("marker",
          { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
          svg("path", { d: "M0 0L8 4L0 8Z", class: "head" }))),
      ...groups, ...cross);
    this.holder.replaceChildren(this.svg);
  }

  #column(stack, x) {
    const parts = [], mid = x + WIDE / 2, lines = [];
    let y = -6;
    const text = (at, content, kind, more = {}) => parts.push(svg("text", { x: mid, y: at, "text-anchor": "middle", class: kind, ...more }, content));
    const words = this.page.run.sides[stack.name].tokens.map((each) => each.text);
    this.words ??= {};
    this.words[stack.name] = svg("text", { x: mid, y, "text-anchor": "middle", class: "words" },
      this.page.about.image ? `image, ${words.length} tokens` : `\u2068${short(words.join(" "), 40)}\u2069`);
    parts.push(this.words[stack.name]);
    y -= 16;
    const arrow = (from, to, shape) => {
      lines.push(svg("path", { class: "flow", d: `M${mid} ${from}V${to + 1}`, "marker-end": "url(#tip)" }));
      if (shape) parts.push(svg("text", { x: mid + 6, y: (from + to) / 2 + 4, class: "shape" }, shape.join(" × ")));
    };
    const place = (part, layer) => {
      const high = HIGH[part.kind] ?? 36, from = y;
      y -= GAP;
      arrow(from, y, part.above);
      y -= high;
      const box = this.#box(part, x, y, high, stack, layer);
      parts.push(box);
      this.boxes.push({ part, stack: stack.name, box, y: y + high / 2 });
      return [y + high, y];
    };
    const tokens = stack.tokens, width = this.page.about.width;
    stack.before.forEach((part, i) => place(i ? part : { ...part, above: [tokens] }, 0));
    let last = [tokens, width];
    for (const group of stack.groups) {
      const bottom = y - 6;
      let skip = y - GAP / 2;
      const skips = [];
      group.parts.forEach((part, i) => {
        const [, top] = place({ ...part, above: i ? null : last }, group);
        if (part.kind.startsWith("add")) {
          skips.push(svg("path", { class: "skip-line", d: `M${mid} ${skip}H${x - 14}V${top + HIGH[part.kind] / 2}H${x + WIDE / 2 - 46}`, "marker-end": "url(#tip)" }));
          skip = top - GAP / 2;
        }
        last = null;
      });
      parts.unshift(svg("rect", { class: "layer", x: x - 26, y: y - 8, width: WIDE + 52, height: bottom - y + 14, rx: 10 }), ...skips);
      parts.push(svg("text", { x: x + WIDE + 32, y: (y + bottom) / 2, class: "times" }, `${group.count} ×`));
      y -= 8;
      last = [tokens, width];
    }
    stack.after.forEach((part, i) => place(i ? { ...part, above: stack.after[i - 1].shape } : { ...part, above: [tokens, width] }, null));
    y -= 20;
    const writes = this.output?.output.answers[0]?.rows.map((row) => row.actual?.text ?? row.candidates[0].text);
    const told = stack.name === "encoder" && this.found.stacks.length > 1 ? "to every decoder layer" : writes ? `\u2068${short((this.output.output.answers[0].each ? writes : writes.slice(0, 1)).join(" "), 40)}\u2069` : "hidden states";
    this.told ??= {};
    this.told[stack.name] = svg("text", { x: mid, y: y + 8, "text-anchor": "middle", class: "words" }, told);
    parts.push(this.told[stack.name]);
    text(y - 8, stack.name === "encoder" ? "Encoder" : "Decoder", "stack");
    y -= 22;
    return { parts: [...parts.filter((part) => part.classList.contains("layer")), ...lines,
      ...parts.filter((part) => !part.classList.contains("layer"))],
      height: -y, top: y + 44 };
  }

  // The encoder's output goes to the cross-attention of the decoder.
  #memory(base) {
    const cross = this.boxes.filter(({ part, stack }) => part.kind === "cross" && stack === "decoder"),
      top = this.boxes.filter(({ stack }) => stack === "encoder").at(-1).y, right = 60 + WIDE + APART;
    return cross.map(({ y }) => svg("path",
      { class: "flow memory", d: `M${60 + WIDE} ${base + top}H${60 + WIDE + APART / 2 + 16}V${base + y}H${right - 1}`,
        "marker-end": "url(#tip)" }));
  }

  #box(part, x, y, high, stack, group) {
    const share = this.total[this.measure] ? (part[this.measure] * (group?.count ?? 1)) / this.total[this.measure] : 0, own = part[this.measure];
    const told = `${amount(own)}${own && share >= 0.0005 ? ` · ${(100 * share).toFixed(1)} %` : ""}`, thin = high < 30;
    const label = `${part.label}${part.detail ? `, ${part.detail}` : ""}: ${own.toLocaleString("en")} ${this.measure}`;
    const box = svg("g", { class: `box ${part.kind}`, tabindex: 0, role: "button", "aria-label": label, "data-part": part.step, transform: `translate(${x} ${y})`,
      onclick: () => this.#choose(part, stack, group),
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault();
          this.#choose(part, stack, group); } } },
    svg("rect", { width: WIDE, height: high, rx: 6 }), svg("rect", { class: "share", width: Math.max(WIDE * share, own ? 1.5 : 0), height: 3, y: high - 3, rx: 1 }),
    svg("text", { x: 10, y: 14, class: "label" }, part.label), svg("text", { x: WIDE - 10, y: thin ? 14 : 28, "text-anchor": "end", class: "amount" }, own ? told : ""),
    thin ? null : svg("text", { x: 10, y: 28, class: "detail" }, short(part.detail, own ? 28 : 46)));
    return box;
  }

  #fit() {
    const [width, height] = this.size, room = this.page.room(this.holder, 320), least = innerWidth < 800 ? 0.8 : 0.6;
      // smaller, the text cannot be read; the diagram scrolls
    const scale = Math.max(Math.min(room / height, this.holder.clientWidth / width, 1.25), least) * this.zoom;
    this.holder.style.maxHeight = `${room}px`;
    this.svg.setAttribute("width", width * scale);
    this.svg.setAttribute("height", height * scale);
  }

  // ---------------------------------------------------------------------------------------------------------- choosing

  #start() {
    this.side.replaceChildren(h("h2", {}, "Three steps"),
      h("ol", {}, h("li", {}, "Press ▶ Play: the input goes through the model."),
        h("li", {}, "Click a part to see its size and its formula."),
        h("li", {}, "Open Heads or Words, and silence a head to see whether it matters.")));
  }

  #choose(part, stack, group) {
    for (const each of this.boxes) each.box.classList.toggle("chosen", each.part.step === part.step && each.stack === stack.name);
    const layer = group?.first ?? 0, row = (name, value) => [h("dt", {}, name), h("dd", {}, value)], times = group?.count ?? 1;
    const share = (key) => (this.total[key] ? ` (${((100 * part[key] * times) / this.total[key]).toFixed(1)} % of the model)` : "");
    const go = (view, changes, text) => h("button",
      { "data-open": view,
        onclick: () => this.page.open({ view, at: `${stack.name}.${part.kind === "cross" ? "cross" : "attention"}`,
          layer, ...changes }) },
      text);
    this.side.replaceChildren(h("h2", {}, part.label), part.detail ? h("p", {}, clean(part.detail)) : "",
      h("dl", { class: "facts-list" }, ...row("Output", part.shape.join(" × ")),
        ...row("Parameters",
          `${part.parameters.toLocaleString("en")}${times > 1 ? ` × ${times} layers` : ""}${share("parameters")}`),
        ...row("FLOPs", `${part.flops.toLocaleString("en")}${times > 1 ? ` × ${times}` : ""}${share("flops")}`)),
      h("p", { class: "bar" }, go("walk", { step: part.step.replace("{}", layer) }, "Open in Walk"),
        part.heads ? go("heads", { head: 0 }, "Show its heads") : "",
        part.kind === "positions" ? h("button",
          { onclick: () => this.page.open({ view: "positions", side: stack.name }) }, "Show positions") : ""));
  }

  // ------------------------------------------------------------------------------------------------------------- play

  // The encoder once; then the decoder, token by token, each with what it writes.
  #play() {
    if (this.timer) { this.#stop(); return; }
    const of = (name) => this.boxes.filter((each) => each.stack === name), { sides } = this.page.run, frames = [];
    if (sides.encoder) frames.push(...of("encoder").map(({ box }) => ({ box })));
    const rows = this.output?.output.answers[0]?.rows ?? [];
    if (sides.decoder) sides.decoder.tokens.slice(0, 40).forEach((_, t) => {
      of("decoder").forEach(({ box }, i) => frames.push({ box, read: i ? null : sides.decoder.tokens.slice(0, t + 1), fast: t > 0 }));
      frames.push({ told: rows.slice(0, t + 1).map((row) => (row.actual ?? row.candidates[0]).text) });
    });
    this.before = [this.words.decoder?.textContent, this.told.decoder?.textContent];
    this.play.textContent = "■ Stop";
    let at = 0;
    const next = () => {
      if (!this.root.isConnected || at >= frames.length) { this.#stop(); return; }
      const { box, read, told, fast } = frames[at++];
      for (const each of this.boxes) each.box.classList.toggle("lit", each.box === box);
      if (read) this.words.decoder.textContent = `\u2068${short(read.map((each) => each.text).join(" "), 40)}\u2069`;
      if (told) this.told.decoder.textContent = `\u2068${short(told.join(" "), 40)}\u2069`;
      this.timer = setTimeout(next, told ? 400 : fast ? 60 : 260);
    };
    next();
  }

  #stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.play.textContent = "▶ Play";
    for (const each of this.boxes) each.box.classList.remove("lit");
    if (this.words.decoder && this.before) [this.words.decoder.textContent, this.told.decoder.textContent] = this.before;
  }
}
