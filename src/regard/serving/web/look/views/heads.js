// Every head of every layer as a small map, and one of them enlarged.

import { bound, choices, clean, h, headGrid, markHead, number, soft, token } from "../dom.js";
import { effect } from "../effect.js";
import { chart, headOf, legend, maskOf, paint } from "../heat.js";
import { Tensors } from "../tensors.js";
import { Tip, follow } from "../tip.js";

const SIGNS = { "previous-token": "←", "next-token": "→", "same-position": "•", "first-token": "⇤", delimiter: "¶", induction: "↻" };
const ROLLOUT = "The share of each input (column) in each position (row), if attention were all: heads are averaged, the residual stream counts half, and layers are multiplied. Values, feed-forward layers and norms are ignored.";
const percent = (share) => `${(100 * share).toFixed(1)} %`;

export function more({ about, state }) {
  const measured = about.align_measured.filter(({ to }) => !to || !about.directions.length || to === (state.to ?? about.directions[0][1]));
  const caption = measured.map(({ heads, error, pairs, data, naive, joined }) =>
    `Read as word alignment, the heads marked with a dot${heads ? ` (${clean(heads)})` : ""} have an error rate of ${percent(error)} on ` +
      `${pairs.toLocaleString("en")} gold pairs${data ? ` (${clean(data)})` : ""}; the last layer with all heads has ${percent(naive)}` +
      `${joined === null ? "" : `, both directions combined ${percent(joined)}`}.`);
  if (!measured.length && about.aligned.length) {
    caption.push("Heads with a dot were chosen on gold word alignments (regard align --choose); other heads may not align words.");
  }
  return caption.join(" ");
}
export async function show(root, page) {
  await new Heads(root, page).draw();
}

class Heads {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const kinds = page.about.attentions;
    this.place = kinds.find((each) => `${each.stack}.${each.kind}` === page.state.at) ?? kinds[kinds.length - 1];
    this.layer = bound(page.state.layer, this.place.layers);
    this.head = bound(page.state.head, this.place.heads);
    this.tensors = new Tensors(page.source);
    this.rolled = page.state.map === "rollout";
    this.own = page.state.scale === "own"; // colours end at the largest weight of each map instead of 1
    this.notes = null;
  }

  scaled(map) { return this.own ? map : { ...map, most: 1 }; }

  name(layer) { return `${this.place.stack}.${layer}.${this.place.kind}.weights`; }
  id(layer, head) { return `${this.place.stack}.${layer}.${this.place.kind}.${head}`; }

  tensor(layer) { return this.tensors.get(this.page.run.run, this.name(layer)); }

  async draw() {
    const { page, place } = this;
    const options = page.about.attentions.map((each) => [`${each.stack}.${each.kind}`, each.label]);
    const bar = h("div", { class: "bar" },
      choices("Attention", options, `${place.stack}.${place.kind}`, (at) => page.again({ at, layer: null, head: null }, '.choices [aria-checked="true"]')),
      ...this.#choices(),
      h("span", { class: "hint" }, page.source.live
        ? "Click or arrow keys enlarge a head; a second click, or Enter, silences it."
        : `Click or arrow keys enlarge a head. To silence heads, run: regard look ${clean(page.about.name)}.${page.source.rounded ? ` Weights are within ${page.source.rounded.toFixed(5)}.` : ""}`));
    this.grid = this.#grid();
    this.large = h("div", { class: "large" });
    this.after = h("div", { class: "after" });
    this.known = h("div", { class: "known" });
    this.root.append(bar, h("div", { class: "split" }, h("div", {}, this.grid, this.known), this.large, this.after));
    this.tip = new Tip(this.root);
    markHead(this.maps, this, !this.rolled);
    const order = [this.layer, ...Array.from({ length: place.layers }, (_, i) => i).filter((i) => i !== this.layer)];
    for (const layer of order) {
      const tensor = await this.tensor(layer).catch((error) => { if (page.source.live || layer === order[0]) throw error; });
      if (!this.root.isConnected) return;
      if (!tensor) { // a saved file may lack layers
        this.maps[layer].forEach((button) => { button.classList.add("missing"); button.title += ", not in this file"; });
        continue;
      }
      if (layer === order[0]) await this.#enlarge();
      this.maps[layer].forEach((button, head) => paint(button.firstChild, this.scaled(headOf(tensor, head, maskOf(place, layer)))));
      if (layer !== order[0]) continue;
      this.answered = await page.output();
      this.after.replaceChildren(effect(page, this.answered));
    }
    this.root.dataset.ready = "true";
    this.#note(); // not awaited
  }

  // Heads or rollout, and the output of silent heads.
  #choices() {
    const { page } = this, focus = (label) => `[aria-label="${label}"] [aria-checked="true"]`;
    const silent = choices("Silent heads give", [["zero", "zero"], ["mean", "their mean"]], page.state.mean === "1" ? "mean" : "zero", (value) => {
      page.set({ mean: value === "mean" ? 1 : null });
      (page.ablated.length ? page.look() : page.show()).then(() => document.querySelector(focus("Silent heads give"))?.focus());
    });
    const map = choices("Map", [["head", "Heads"], ["rollout", "Rollout"]], this.rolled ? "rollout" : "head",
      (value) => page.again({ map: value === "rollout" ? value : null }, focus("Map")));
    const scale = choices("Scale", [["one", "0 to 1"], ["own", "own scale"]], this.own ? "own" : "one",
      (value) => page.again({ scale: value === "own" ? value : null }, focus("Scale")));
    const colours = h("span", { class: "hint given" }, "Colours ", scale);
    return page.source.live ? [map, colours, h("span", { class: "hint given" }, "Silent heads give ", silent)] : [map, colours];
  }

  // Heads with a known pattern: a sign in the grid, a list below it, and a line under the enlarged head.
  async #note() {
    const { page, place } = this;
    const notes = {}, named = [];
    for (let layer = 0; layer < place.layers; layer++) { // one by one, so that other requests do not wait for all
      try { Object.assign(notes, (await page.source.ask("notes", { run: page.run.run, at: `${place.stack}.${layer}.${place.kind}` })).heads); } catch { continue; }
      if (!this.root.isConnected) return;
    }
    this.notes = notes;
    this.maps.forEach((row, layer) => row.forEach((button, head) => {
      const note = this.notes[this.id(layer, head)];
      if (!note?.name) return;
      named.push({ ...note, layer, head });
      button.append(h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[note.name]));
      const caption = `${button.title}, ${this.#kind(note.name)} head: ${number(note.score)} (chance ${number(note.chance)})`;
      button.title = caption;
      button.setAttribute("aria-label", caption);
    }));
    const kinds = Object.keys(SIGNS).map((name) => [name,
      named.filter((each) => each.name === name).sort((a, b) => b.score - a.score)]).filter(([,
        found]) => found.length);
    const rows = kinds.map(([name, found]) => h("tr", {}, h("th", { scope: "row" }, `${SIGNS[name]} ${this.#kind(name)}`),
      h("td", {},
        h("div", { class: "chips" },
          ...found.map(({ layer, head, score, chance }) => h("button",
            { "data-named": this.id(layer, head), onclick: () => this.#select(layer, head) },
        `${layer}.${head} `, h("span", { class: "number" }, `${score.toFixed(2)} (${chance.toFixed(2)})`)))))));
    if (rows.length) this.known.replaceChildren(h("h2", {}, "Known patterns on this input"),
      h("p", { class: "hint" },
        "layer.head, the share of its attention that follows the pattern, and in brackets the share by chance"),
      h("table", {}, h("tbody", {}, ...rows)));
    else this.known.replaceChildren(h("p", { class: "hint" }, `No head of ${place.label.toLowerCase()} follows a known pattern far above chance on this input.`));
    this.#describe();
    this.root.dataset.noted = "true";
  }

  #kind(name) {
    if (!this.page.about.image) return name;
    return name === "first-token" && this.page.run.sides.encoder.tokens[0].id < 0 ? "class-token" : name.replace("token", "patch");
  }

  // The note on the enlarged head, or on the rollout.
  #describe() {
    const line = this.large.querySelector("#note"), note = this.notes?.[this.id(this.layer, this.head)];
    if (!line || this.rolled || !note) return;
    const figure = (label, value, key) => (value === null ? [] : [`${label} `, h("b", { class: "number", "data-note": key }, number(value))]);
    const pattern = note.best === null ? [] : [note.name ? h("b", {}, `${this.#kind(note.name)} head: `) : `no known pattern (nearest: ${this.#kind(note.best)}): `,
      ...figure("", note.score, "score"), ...figure(", chance", note.chance, "chance"), " · "];
    const back = note.signed === null ? "" : ` (${Math.abs(note.signed) < 0.05 ? "in both directions" : `${number(Math.abs(note.signed), 1)} ${note.signed < 0 ? "back" : "ahead"} in sum`})`;
    line.replaceChildren(...pattern, ...figure("entropy", note.entropy, "entropy"), note.share === null ? "" : ` nats, ${(100 * note.share).toFixed(0)} % of uniform · `,
      ...figure("mean distance", note.distance, "distance"), back);
  }

  #grid() {
    const { place, page } = this, off = new Set(page.ablated);
    const marked = new Set(place.kind === "cross" ? page.about.aligned.map(([layer, head]) => this.id(layer, head)) : []);
    const [grid, maps] = headGrid(place, "maps", `${place.label}: heads by layer`, this, (layer, head) => {
      const id = this.id(layer, head), silent = off.has(id);
      const caption = `Layer ${layer}, head ${head}${silent ? ", silent" : ""}${marked.has(id) ? ", aligns words" : ""}`;
      return h("button", { role: "gridcell", class: `map${silent ? " off" : ""}${marked.has(id) ? " marked" : ""}`,
        "aria-label": caption, title: caption, "data-head": id, tabindex: -1,
          onclick: () => this.#clicked(layer, head) },
          h("canvas", { "aria-hidden": "true" }),
          silent ? h("span", { class: "silent", "aria-hidden": "true" }, "off") : null);
    }, (layer, head) => this.#select(layer, head), (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.#toggle(); } });
    this.maps = maps;
    return grid;
  }

  #clicked(layer, head) {
    if (!this.rolled && layer === this.layer && head === this.head) this.#toggle();
    else this.#select(layer, head);
  }

  async #select(layer, head) {
    Object.assign(this, { layer, head });
    if (this.rolled) { // back from the rollout to a head
      this.page.set({ map: null, at: `${this.place.stack}.${this.place.kind}`, layer, head });
      await this.page.show();
      document.querySelector(`[data-head="${this.id(layer, head)}"]`)?.focus();
      return;
    }
    this.page.set({ at: `${this.place.stack}.${this.place.kind}`, layer, head });
    markHead(this.maps, this, !this.rolled);
    this.maps[layer][head].focus();
    await this.#enlarge();
  }

  async #toggle() {
    if (!this.page.source.live) return;
    const id = this.id(this.layer, this.head), off = this.page.ablated;
    this.page.set({ at: `${this.place.stack}.${this.place.kind}`, layer: this.layer, head: this.head });
    await this.page.silence(off.includes(id) ? off.filter((other) => other !== id) : [...off, id]);
    document.querySelector(`[data-head="${id}"]`)?.focus();
  }

  async #enlarge() {
    const { page, place, layer, head } = this;
    const rolled = this.rolled && (place.kind === "cross" ? "rollout.source" : `rollout.${place.stack}`);
    const found = rolled ? headOf(await page.source.tensor(page.run.run, rolled), 0) : headOf(await this.tensor(layer), head, maskOf(place, layer));
    const map = this.scaled(found);
    if (layer !== this.layer || head !== this.head) return;
    const queries = page.run.sides[place.stack].tokens, keys = page.run.sides[place.keys].tokens;
    const silent = page.ablated.includes(this.id(layer, head));
    const button = h("button", { id: "silence", "aria-pressed": silent, disabled: !page.source.live, onclick: () => this.#toggle() },
      silent ? "Restore this head" : "Silence this head");
    const name = rolled ? `Rollout of the ${place.stack}${place.kind === "cross" ? ", from the source" : ""} · ${place.layers} layers` : `${place.label} · layer ${layer} · head ${head}`;
    const note = h("p", { class: "soft", id: "note" }, rolled ? ROLLOUT : "");
    const canvas = h("canvas", { tabindex: 0, role: "img", id: "enlarged",
      "aria-label": `${name}: ${map.queries} queries by ${map.keys} keys. Arrow keys read single numbers.` });
    const scale = h("canvas", { "aria-hidden": "true" }), holder = h("div");
    const legends = [h("span", {}, "0"), scale, h("span", {}, this.own ? `${number(found.most)} (largest here)` : "1"),
      map.masked ? h("span", { class: "masked" }, "hatched: masked") : null,
      place.stack === "decoder" ? h("span", {}, "rows: token read → token written") : null];
    this.large.replaceChildren(h("div", { class: "bar" }, h("h2", {}, name), rolled ? null : button), holder);
      // late parts come below, so that nothing moves under the pointer
    const below = h("div", {}, h("div", { class: "legend" }, ...legends.filter(Boolean)), note);
    holder.append(canvas, below);
    legend(scale);
    this.#describe();
    const read = place.stack === "decoder" ? page.run.sides.decoder.writes : null;
    const names = [queries.map((each, i) => (read?.[i] ? `${each.text} → ${read[i]}` : each.text)), keys.map((each) => each.text)];
    const drawn = chart(canvas, map, ...names, Math.max(this.large.clientWidth, 240), page.room(holder, 260, 74));
    follow(canvas, () => drawn, ([q, k], x, y) => {
      drawn.draw([q, k]);
      const value = map.data[q * map.keys + k], hidden = map.masked?.(q, k);
      this.tip.near(canvas, x, y, h("b", { class: "number", "data-value": value }, hidden ? "masked" : value.toFixed(page.source.rounded ? 4 : 6)), " from ",
        h("b", {}, token(queries[q].text)), soft(` at ${q}`), read?.[q] ? soft(" (writes ", token(read[q]), ")") : "",
          " to ", h("b", {}, token(keys[k].text)), soft(` at ${k}`));
    }, () => { drawn.draw(null); this.tip.hide(); });
  }
}
