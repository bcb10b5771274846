// An image with its patches, and the attention of a patch or of the class token.

import { TURNS, bound, choices, h, headGrid, markHead, meter, number, soft, token } from "../dom.js";
import { effect } from "../effect.js";
import { between, isDark, paint } from "../heat.js";
import { lines as curves } from "../lines.js";
import { bytesOf } from "../packed.js";
import { Tensors } from "../tensors.js";
import { Tip } from "../tip.js";

// Colours of the overlay, dark to bright (matplotlib's inferno), visible on black and on white.
const SHADES = [[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];
const OPACITY = 60;
const SIDE = 460; // pixels of the large picture

export async function show(root, page) {
  await new Picture(root, page).draw();
}

class Picture {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const { about, state, run } = page;
    [this.place] = about.attentions;
    this.rows = about.image[1] / about.patch;
    this.columns = about.image[2] / about.patch;
    this.tokens = run.sides.encoder.tokens;
    this.skipped = this.tokens.filter((token) => token.id < 0).length; // the class token and registers stand first
    this.first = this.tokens[0].id === -1; // whether there is a class token
    this.layer = bound(state.layer, this.place.layers);
    this.head = bound(state.head, this.place.heads);
    const asked = Number(state.query), known = state.query !== undefined && asked >= 0 && asked < this.rows * this.columns;
    // A patch, −1 for the class token, or null for the mean over all patches.
    this.query = state.query === "mean" ? null : known ? Math.floor(asked) : this.first ? -1 : null;
    this.rollout = state.map === "rollout";
    this.gradient = state.map === "gradient";
    this.opacity = state.opacity === undefined ? OPACITY : Math.min(Math.max(Number(state.opacity) || 0, 0), 100);
    this.cursor = null;
    this.tensors = new Tensors(page.source);
    this.pixels = picture(run.image, about.image);
  }

  // --------------------------------------------------------------------------------------------------------- numbers

  tensor(name) { return this.tensors.get(this.page.run.run, name); }

  // The attention of the query to each patch, and to the class token.
  map(tensor, head) {
    const [, , time] = tensor.shape, { query, skipped } = this, start = head * time * time;
    const row = (q) => tensor.data.subarray(start + q * time, start + (q + 1) * time);
    let found;
    if (query !== null) found = row(query < 0 ? 0 : query + skipped);
    else {
      found = new Float64Array(time);
      for (let q = skipped; q < time; q++) row(q).forEach((value, k) => { found[k] += value / (time - skipped); });
    }
    const data = found.subarray(skipped);
    return { queries: this.rows, keys: this.columns, data, most: data.reduce((most, value) => Math.max(most, value), 0),
      rest: skipped ? found.subarray(0, skipped).reduce((sum, value) => sum + value, 0) : null };
  }

  name(patch) { return patch === null ? "all patches, on average" : patch < 0 ? "the class token" : `patch ${this.tokens[patch + this.skipped].text}`; }

  get asked() { return { run: this.page.run.run, query: this.query, layer: this.layer, head: this.head, rollout: this.rollout, gradient: this.gradient }; }

  get kind() { return this.gradient ? "gradient" : this.rollout ? "rollout" : "head"; }

  // --------------------------------------------------------------------------------------------------------- drawing

  async draw() {
    this.bar = h("div", { class: "bar" });
    this.canvas = h("canvas", { id: "picture", tabindex: 0, role: "img", "aria-label": "The image" });
    this.tip = new Tip(this.root);
    this.title = h("h2");
    this.scale = h("div", { class: "legend" });
    this.figures = h("div", { class: "figures", id: "figures", "aria-live": "polite" });
    this.grid = this.#grid();
    const below = h("div");
    this.root.append(this.bar, h("div", { class: "split seen" },
      h("div", { class: "large" }, this.title, this.canvas, this.scale),
      h("div", {}, this.grid, this.figures), h("div", { class: "after" }, this.#plain(), this.#check(), below)));
    this.#listen();
    await this.#changed();
    const answered = await this.page.output(), best = answered.output.answers.find((answer) => !answer.each)?.rows[0].candidates[0];
    if (best) this.answer.replaceChildren(h("b", {}, token(best.text)), " ", h("span", { class: "number" }, number(best.chance)));
    below.replaceChildren(effect(this.page, answered));
    this.root.dataset.ready = "true";
  }

  // The image with its patches, and the answer of the model.
  #plain() {
    const { rows, columns, pixels } = this, cell = Math.max(Math.min(150 / Math.max(rows, columns), 40), 1);
    const canvas = h("canvas", { width: cell * columns, height: cell * rows, role: "img", "aria-label": `The image, ${rows} by ${columns} patches` });
    const pencil = canvas.getContext("2d");
    pencil.imageSmoothingEnabled = false;
    pencil.drawImage(pixels, 0, 0, canvas.width, canvas.height);
    if (cell >= 6) lines(pencil, rows, columns, cell);
    this.answer = h("figcaption");
    return h("figure", {}, canvas, this.answer);
  }

  #controls() {
    const queries = [...(this.first ? [["class", "Class token"]] : []), ["mean", "All patches"]];
    if (this.query >= 0 && this.query !== null) queries.push(["patch", `Patch ${this.tokens[this.query + this.skipped].text}`]);
    const chosen = this.query === null ? "mean" : this.query < 0 ? "class" : "patch";
    const opacity = h("input", { type: "range", name: "opacity", min: 0, max: 100, step: 5, value: this.opacity, oninput: () => {
      this.opacity = Number(opacity.value);
      this.page.set({ opacity: this.opacity === OPACITY ? null : this.opacity });
      this.#picture();
    } });
    const again = (label, change) => (value) => { change(value);
      this.#changed().then(() => this.bar.querySelector(`[aria-label="${label}"] [aria-checked="true"]`)?.focus()); };
    this.bar.replaceChildren(
      choices("Map", [["head", "One head"], ["rollout", "Rollout"], ["gradient", "Gradient"]], this.kind,
        again("Map", (value) => Object.assign(this, { rollout: value === "rollout", gradient: value === "gradient" }))),
      h("span", { class: "hint" }, "seen from"),
      choices("Query", queries, chosen, again("Query", (value) => { if (value !== "patch") this.query = value === "class" ? -1 : null; })),
      h("label", { class: "opacity hint" }, "Overlay", opacity),
      h("span", { class: "hint" }, "Click a patch or press Enter to use it as the query; repeat to go back."));
  }

  async #changed() {
    const { page, layer, head, query } = this;
    page.set({ layer: layer || null, head: head || null, query: query === null ? "mean" : query < 0 ? null : query, map: this.kind === "head" ? null : this.kind });
    this.result?.replaceChildren();
    this.#controls();
    markHead(this.buttons, this, this.kind === "head");
    const turn = this.turn = {};
    let found;
    try {
      found = this.gradient ? this.#relevance(await page.source.ask("patches", this.asked))
        : this.map(await this.tensor(this.rollout ? "rollout.encoder" : `encoder.${layer}.attention.weights`), this.rollout ? 0 : head);
    } catch (error) { page.say(error.message, true); return; }
    if (turn !== this.turn) return;
    this.shown = found;
    const what = this.gradient ? "What each patch adds to the log-probability of the answer" : this.rollout ? `Rollout of ${this.place.layers} layers` : `Layer ${layer} · head ${head}`;
    this.title.textContent = this.gradient ? what : `${what}, from ${this.name(query)}`;
    this.canvas.setAttribute("aria-label",
      `${this.title.textContent}: ${this.rows} rows of ${this.columns} patches. Arrow keys read single numbers, Enter looks from a patch.`);
    this.#picture();
    this.#read();
    await Promise.all([this.#maps(turn), this.#figures(turn)]);
  }

  #relevance({ patches }) {
    return { queries: this.rows, keys: this.columns, data: Float32Array.from(patches), most: Math.max(...patches), rest: null };
  }

  // The image, the map over it, and the lines between patches.
  #picture() {
    const { canvas, rows, columns, shown } = this, ratio = devicePixelRatio || 1;
    const cell = Math.max(Math.min(Math.min(SIDE, this.page.room(canvas, 240, 60)) / Math.max(rows, columns),
      (this.canvas.parentElement.clientWidth || SIDE) / columns),
      2);
    const width = cell * columns, height = cell * rows, pencil = canvas.getContext("2d");
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.dataset.cell = cell;
    pencil.scale(ratio, ratio);
    pencil.imageSmoothingEnabled = false;
    pencil.drawImage(this.pixels, 0, 0, width, height);
    shown.data.forEach((value, i) => {
      pencil.fillStyle = shade(shown.most > 0 ? Math.max(value, 0) / shown.most : 0, this.opacity / 100);
      pencil.fillRect((i % columns) * cell, Math.floor(i / columns) * cell, cell, cell);
    });
    if (cell >= 6) lines(pencil, rows, columns, cell);
    const box = (patch, colour) => {
      pencil.strokeStyle = colour;
      pencil.lineWidth = 2;
      pencil.strokeRect((patch % columns) * cell + 1, Math.floor(patch / columns) * cell + 1, cell - 2, cell - 2);
    };
    if (this.query !== null && this.query >= 0) box(this.query, "#35c2ff");
    if (this.cursor !== null) box(this.cursor, isDark() ? "#f3a952" : "#ffd166");
    const ramp = h("canvas", { width: 140, height: 1, "aria-hidden": "true" }), brush = ramp.getContext("2d");
    for (let i = 0; i < 140; i++) {
      brush.fillStyle = shade(i / 139, 1);
      brush.fillRect(i, 0, 1, 1);
    }
    const rest = shown.rest === null ? "" : ` · to the class token ${number(shown.rest)}`;
    this.scale.replaceChildren("0", ramp, number(shown.most), rest);
  }

  #read() {
    if (this.cursor === null) { this.tip.hide(); return; }
    const value = this.shown.data[this.cursor], uniform = 1 / this.tokens.length, cell = Number(this.canvas.dataset.cell);
    this.tip.near(this.canvas, ((this.cursor % this.columns) + 0.5) * cell,
      (Math.floor(this.cursor / this.columns) + 0.5) * cell,
      h("b", { class: "number", "data-value": value }, value.toFixed(6)), " from ", h("b", {}, this.name(this.query)),
      " to ", h("b", {}, token(this.name(this.cursor))), h("br"),
        soft(`Uniform attention would give ${number(uniform, 6)}: this is ${(value / uniform).toFixed(2)} times as much.`));
  }

  async #maps(turn) {
    for (let layer = 0; layer < this.place.layers; layer++) {
      const tensor = await this.tensor(`encoder.${layer}.attention.weights`);
      if (turn !== this.turn || !this.root.isConnected) return;
      this.buttons[layer].forEach((button, head) => paint(button.firstChild, this.map(tensor, head)));
    }
  }

  async #figures(turn) {
    // A saved file has these numbers for one query only.
    const { concentration: found } = await this.page.source.ask("patches", this.asked).catch((error) => { if (this.page.source.live) throw error; return {}; });
    if (turn !== this.turn) return;
    if (!found) return this.figures.replaceChildren();
    const row = (label, value, key) => h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "number", "data-figure": key }, number(value)),
      h("td", {}, meterOf(value / found.uniform)));
    const chance = this.rollout ? `through one random head a layer (mean of ${found.draws})` : `random other heads (mean of ${found.draws})`;
    this.figures.replaceChildren(h("h3", {}, "How concentrated: entropy over the patches, in nats"), h("table", {}, h("tbody", {},
      row("this map", found.entropy, "entropy"), row("uniform, the most there is", found.uniform, "uniform"),
      found.chance === null ? null : row(chance, found.chance, "chance"))));
  }

  // -------------------------------------------------------------------------------------------------------- choosing

  #grid() {
    const { place, page } = this, off = new Set(page.ablated);
    const [grid, buttons] = headGrid(place, "maps", "Heads by layer, as maps over the image", this, (layer, head) => {
      const id = `encoder.${layer}.attention.${head}`, caption = `Layer ${layer}, head ${head}${off.has(id) ? ", silent" : ""}`;
      return h("button", { role: "gridcell", class: `map${off.has(id) ? " off" : ""}`, "aria-label": caption, title: caption,
        "data-head": id, tabindex: -1, onclick: () => this.#select(layer, head) }, h("canvas", { "aria-hidden": "true" }));
    }, (layer, head) => this.#select(layer, head));
    grid.style.setProperty("--shape", this.columns / this.rows);
    this.buttons = buttons;
    return grid;
  }

  #select(layer, head) {
    Object.assign(this, { layer, head, rollout: false, gradient: false });
    this.#changed();
    this.buttons[layer][head].focus();
  }

  #listen() {
    const { canvas } = this, at = (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns), row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
      return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? row * this.columns + column : null;
    };
    const point = (patch) => {
      if (patch === null || patch === this.cursor || !this.shown) return;
      this.cursor = patch;
      this.#picture();
      this.#read();
    };
    const look = () => { this.query = this.query === this.cursor ? (this.first ? -1 : null) : this.cursor; this.#changed(); };
    canvas.addEventListener("pointermove", (event) => point(at(event)));
    canvas.addEventListener("click", (event) => { point(at(event)); if (this.cursor !== null) look(); });
    canvas.addEventListener("keydown", (event) => {
      const turn = TURNS[event.key];
      if (turn) {
        event.preventDefault();
        if (this.cursor === null) point(Math.max(this.query ?? 0, 0));
        else point(bound(Math.floor(this.cursor / this.columns) + turn[0], this.rows) * this.columns + bound((this.cursor % this.columns) + turn[1], this.columns));
      } else if ((event.key === "Enter" || event.key === " ") && this.cursor !== null) {
        event.preventDefault();
        look();
      }
    });
  }

  // --------------------------------------------------------------------------------------------------------- checking

  #check() {
    this.result = h("div", { id: "deleted", "aria-live": "polite" });
    const curve = h("button", { id: "deletion", disabled: !this.page.source.live, onclick: () => this.#deletion(curve) }, "Deletion curve");
    return h("section", { class: "check", "aria-label": "Does it matter?" }, h("h3", {}, "Do these patches matter for the answer?"),
      h("div", { class: "bar" }, curve), this.result);
  }

  // The probability of the answer while patches are removed, in the order of the map and in two others.
  async #deletion(button) {
    button.disabled = true;
    try {
      const found = await this.page.source.ask("deletion", this.asked), names = { overlay: "this map", centre: "from the centre", random: "random" };
      const series = Object.entries(names).map(([key, name], i) => ({ name, values: found[key], kind: key === "random" ? "chance" : `c${i}` }));
      this.result.replaceChildren(h("p", { class: "soft" }, "Probability of ", h("b", {}, token(found.answer)),
        " while patches are greyed out, the strongest first. A small area means that the map found what matters."),
        curves({ label: "Deletion curves", x: found.shares.map((share) => Math.round(100 * share)), series,
          across: "percent of the patches", up: "probability", room: 420, tall: 220, id: "deletion-curve" }),
        h("table", {},
          h("tbody", {},
            ...Object.entries(names).map(([key, name]) => h("tr", {}, h("th", { scope: "row" }, `area, ${name}`),
              h("td", { class: "number", "data-figure": `area-${key}` }, number(found.area[key])))))));
    } catch (error) { this.page.say(error.message, true); } finally { button.disabled = false; }
  }

}

function meterOf(share) {
  return meter(Math.min(Math.max(share, 0), 1));
}

function shade(share, opacity) { return `rgba(${between(SHADES, share)},${opacity})`; }

function lines(pencil, rows, columns, cell) {
  pencil.strokeStyle = "rgba(140,150,160,0.55)";
  pencil.lineWidth = 1;
  pencil.beginPath();
  for (let column = 0; column <= columns; column++) { pencil.moveTo(column * cell, 0); pencil.lineTo(column * cell, rows * cell); }
  for (let row = 0; row <= rows; row++) { pencil.moveTo(0, row * cell); pencil.lineTo(columns * cell, row * cell); }
  pencil.stroke();
}

// The pixels that the model read, as a canvas of their size.
function picture(encoded, [channels, height, width]) {
  const bytes = bytesOf(encoded), area = width * height;
  const canvas = h("canvas", { width, height }), pencil = canvas.getContext("2d"), image = pencil.createImageData(width, height);
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = bytes[(channels >= 3 ? c : 0) * area + i];
    image.data[4 * i + 3] = 255;
  }
  pencil.putImageData(image, 0, 0);
  return canvas;
}
