// Two models, or one model with and without changed heads, on one input.

import { bound, choices, clean, counted, h, headGrid, markHead, meter, number, picker, short, soft, svg, table, token } from "../dom.js";
import { marked, signed, headName } from "../effect.js";
import { chart, difference, headOf, legend, maskOf } from "../heat.js";
import { Tensors } from "../tensors.js";
import { Tip, follow } from "../tip.js";

const KINDS = { silent: "Silent heads", scaled: "Scaled heads", mean: "Heads that give their mean" };
const FIGURES = [
  ["divergence", "KL divergence, mean over the positions", "nats"],
  ["flipped", "first guesses that change", "share"],
  ["lost", "log-probability that a token loses", "nats"],
];

export function more({ about }) {
  return about.against ? "In two models that were trained independently, layers and heads with the same number may have different roles, and the residual streams have different axes: their cosine is then near 0 and has no meaning." : "";
}
export async function show(root, page) {
  const view = new Compare(root, page);
  await view.draw();
}

class Compare {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const { state, about } = page, kinds = about.attentions;
    this.kind = state.against === "model" ? (about.against ? "model" : "silent") : KINDS[state.against] ? state.against : about.against ? "model" : "silent";
    this.place = kinds.find((each) => `${each.stack}.${each.kind}` === state.at) ?? kinds[kinds.length - 1];
    // A change in the first layer is visible in the attention of the last.
    this.layer = bound(state.layer ?? this.place.layers, this.place.layers);
    this.head = bound(state.head, this.place.heads);
    this.factor = state.factor === undefined ? 0.5 : Number(state.factor);
    const silent = page.ablated.map((word) => word.replace(/[*=].*/, ""));
    const known = (name) => { const [stack, layer, kind, head] = name.split(".");
      return kinds.some((each) => each.stack === stack && each.kind === kind && layer < each.layers && head < each.heads);
      };
    this.edited = (state.edited ?? "").split(",").filter(known);
    if (!this.edited.length) this.edited = silent.length ? silent : [this.id(0, this.head)];
    this.left = page.run.plain ?? page.run.run;
    this.tensors = new Tensors(page.source);
  }

  id(layer, head) { return `${this.place.stack}.${layer}.${this.place.kind}.${head}`; }

  get changes() {
    if (this.kind === "model") return [];
    return this.edited.map((head) => (this.kind === "mean" ? `${head}=mean` : this.kind === "scaled" ? `${head}*${this.factor}` : head));
  }

  async draw() {
    const { root, page } = this, asked = { run: this.left, changes: this.changes };
    root.classList.add("compare");
    this.sections = Object.fromEntries(["summary", "texts", "maps", "streams", "tokens"].map((name) => [name, h("section", { id: `compare-${name}` })]));
    const { summary, texts, maps, ...others } = this.sections;
    root.append(this.#bar(), h("div", { class: "side-by-side" }, h("div", {}, this.#chooser(), texts, summary), maps), ...Object.values(others));
    this.found = await page.source.ask("compare", asked);
    if (!root.isConnected) return;
    this.#summary(null);
    this.#texts();
    this.#tokens();
    this.#streams(null);
    if (this.found.same) await this.#map();
    if (!root.isConnected) return;
    let control = null;
    try { control = await page.source.ask("control", asked); } catch (error) { summary.append(h("p", { class: "soft" }, clean(error.message))); }
    if (!root.isConnected) return;
    if (control) { this.#summary(control); this.#streams(control); }
    root.dataset.ready = "true";
  }

  // ------------------------------------------------------------------------------------------------------- choosing

  #bar() {
    const { page, kind } = this, options = Object.entries(KINDS);
    if (page.about.against) options.unshift(["model", `Model ${short(page.about.against.name, 24)}`]);
    const bar = h("div", { class: "bar" },
      choices("Compare with", options, kind,
        (value) => this.page.again({ against: value, edited: this.edited.join(",") },
          '.choices [aria-checked="true"]')));
    if (kind === "scaled") {
      const caption = h("output", {}, this.factor);
      const input = h("input",
        { type: "range", name: "factor", min: 0, max: 3, step: 0.1, value: this.factor, "aria-label": "Factor",
          oninput: () => { caption.textContent = Number(input.value); },
        onchange: () => this.page.again({ factor: Number(input.value), edited: this.edited.join(",") }, "input[name=factor]") });
      bar.append(h("label", { class: "factor" }, "× factor", input, caption));
    }
    return bar;
  }

  #chooser() {
    const { page, place, kind } = this, changed = new Set(kind === "model" ? [] : this.edited);
    const kinds = page.about.attentions.map((each) => [`${each.stack}.${each.kind}`, each.label]);
    const [grid, buttons] = headGrid(place, "toggles", `${place.label}: heads by layer`, this, (layer, head) => {
      const id = this.id(layer, head), caption = `Layer ${layer}, head ${head}${changed.has(id) ? ", changed" : ""}`;
      return h("button",
        { role: "gridcell", class: changed.has(id) ? "changed" : "", title: caption, "aria-label": caption,
          "data-head": id, onclick: () => this.#clicked(layer, head) });
    }, (layer, head) => this.#select(layer, head),
      (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault();
        this.#toggle(this.id(this.layer, this.head)); } });
    this.buttons = buttons;
    markHead(buttons, this);
    const chips = kind === "model" ? [] : this.edited.map((head) => h("button",
      { disabled: this.edited.length === 1, "aria-label": `Leave ${headName(head)} as it is`,
        onclick: () => this.#toggle(head) },
      `${headName(head)} ×`));
    return h("div", {},
      h("div", { class: "bar" },
        picker("Attention", kinds, `${place.stack}.${place.kind}`,
          (at) => this.page.again({ at, layer: null, head: null, edited: this.edited.join(",") },
            'select[aria-label="Attention"]')),
      h("span", { class: "hint" },
        kind === "model" ? "A click shows a head." : "A click shows a head; a second one, or Enter, changes it or leaves it.")),
        grid, h("div", { class: "chips", "aria-label": "Changed heads" }, ...chips));
  }

  #clicked(layer, head) {
    if (layer === this.layer && head === this.head) this.#toggle(this.id(layer, head));
    else this.#select(layer, head);
  }

  async #select(layer, head) {
    Object.assign(this, { layer, head });
    this.page.set({ at: `${this.place.stack}.${this.place.kind}`, layer, head, edited: this.edited.join(","), olayer: null, ohead: null });
    markHead(this.buttons, this);
    this.buttons[layer][head].focus();
    if (this.found?.same) await this.#map();
  }

  async #toggle(id) {
    if (this.kind === "model") return;
    const left = this.edited.includes(id) ? this.edited.filter((other) => other !== id) : [...this.edited, id];
    if (!left.length) { this.page.say("At least one head is changed; choose another one first."); return; }
    this.page.say("");
    await this.page.again({ edited: left.join(","), at: `${this.place.stack}.${this.place.kind}`, layer: this.layer,
      head: this.head },
      `[data-head="${this.id(this.layer, this.head)}"]`);
  }

  // -------------------------------------------------------------------------------------------------------- showing

  get sides() { return this.kind === "model" ? this.found.names.map((name) => short(name, 24)) : ["all heads",
    { silent: "silent", scaled: "scaled", mean: "mean" }[this.kind]];
    }

  #summary(control) {
    const { found } = this, rows = [];
    const add = (key, name, unit, value, spread) => {
      if (value === null || value === undefined) return;
      const times = spread && spread.mean > 1e-9 ? `${number(value / spread.mean, 1)} ×` : "";
      rows.push(h("tr", { "data-figure": key }, h("td", {}, name, soft(`, ${unit}`)), h("td", { class: "number", "data-value": value }, number(value)),
        h("td", { class: "number", "data-control": spread?.mean }, spread ? number(spread.mean) : "…",
          spread ? h("div", { class: "soft" }, `${number(spread.least)} to ${number(spread.most)}`) : ""),
          h("td", { class: "number" }, times)));
    };
    for (const answer of found.answers)
      for (const [key, name, unit] of FIGURES) add(`${answer.name}.${key}`,
        `${found.answers.length > 1 ? `${clean(answer.name)}: ` : ""}${name}`, unit, answer.figures[key],
        control?.answers[answer.name]?.[key]);
    const last = found.streams[found.streams.length - 1], spread = last && control?.cosines[last.name];
    if (last) add("distance", "1 − cosine of the last layer's stream", "mean", 1 - last.cosine,
      spread && { mean: 1 - spread.mean, least: 1 - spread.most, most: 1 - spread.least });
    const head = ["", this.kind === "model" ? "models" : "this change", "random heads, range", "times"];
    this.sections.summary.replaceChildren(h("h2", {}, "Differences"),
      found.same ? "" : h("p", { id: "unlike" },
        `Tokens cannot be compared one by one: ${found.why}. Only what can be compared is shown.`),
      rows.length ? table(head, rows, "Figures") : "");
    if (control) this.sections.summary.append(h("details", {}, h("summary", {}, "Which heads were drawn"),
      ...control.heads.map((draw) => h("div", {}, draw.map(headName).join(" with ")))));
  }

  #texts() {
    const [before, after] = this.found.written, [one, two] = this.sides;
    if (before === null || after === null) return;
    const list = h("dl", { class: "facts-list" }, h("dt", {}, one), h("dd", { class: "before" }, token(before)),
      h("dt", {}, two), h("dd", { class: "after" }, before === after ? token(after) : marked(before, after)));
    if (before === after) list.append(h("dt", {}, ""), h("dd", { class: "soft" }, "The same words."));
    this.sections.texts.append(h("h2", {}, this.page.about.translates ? "Texts" : "Continuations"), list);
  }

  // The head of the other model, by default the same.
  #otherHead() {
    const { page, place, layer, head } = this;
    if (this.kind !== "model") return { layer, head };
    const there = page.about.against.attentions.find((each) => each.stack === place.stack && each.kind === place.kind);
    if (!there) return null;
    return { layer: bound(page.state.olayer ?? layer, there.layers), head: bound(page.state.ohead ?? head, there.heads), there };
  }

  async #map() {
    const { page, place, layer, head, found } = this, other = this.#otherHead(), name = (at) => `${place.stack}.${at}.${place.kind}.weights`;
    if (!other) return; // the other model has no such attention
    const one = headOf(await this.tensors.get(this.left, name(layer)), head, maskOf(place, layer)),
      two = headOf(await this.tensors.get(found.other, name(other.layer)), other.head,
        maskOf(other.there ?? place, other.layer));
    if (layer !== this.layer || head !== this.head || !this.root.isConnected) return;
    const most = Math.max(one.most, two.most), apart = difference(one, two);
    // A difference has the scale of the maps, unless it would be invisible.
    const own = apart.most > 1e-6 && apart.most < most / 10, scale = own ? apart.most : most,
      titles = [...this.sides, `difference, on ${own ? "a scale of its own" : "the same scale"}`];
    const all = [{ ...one, most }, { ...two, most }, { ...apart, most: scale }];
    const sides = [page.run.sides[place.stack].tokens, page.run.sides[place.keys].tokens].map((side) => side.map((each) => each.text));
    const canvases = titles.map((title, i) => h("canvas",
      { tabindex: 0, role: "img", id: `map-${i}`,
        "aria-label": `${title}: ${one.queries} queries by ${one.keys} keys. Arrow keys read single numbers.` }));
    const scales = titles.map(() => h("canvas", { "aria-hidden": "true" }));
    const told = h("p", { class: "hint" },
      apart.most < 1e-6 ? "Nothing differs here: these weights are computed before the change." : `The largest difference is ${number(apart.most)}. Point at a cell of any map, or use the arrow keys.`);
    const figures = h("div", { class: "three" }, ...titles.map((title, i) => h("figure", {}, h("figcaption", {}, title), canvases[i],
      h("div", { class: "legend" }, i < 2 ? "0" : number(-scale), scales[i], number(i < 2 ? most : scale)))));
    const choose = (key, label) => (value) => { page.set({ [key]: value }); this.#map().then(() => document.querySelector(`[aria-label="${label}"]`)?.focus()); };
    const pickers = other.there ? h("div", { class: "bar" }, h("span", { class: "hint" }, `and of ${this.sides[1]}:`),
      picker("Layer of the other", counted(other.there.layers, "Layer"), other.layer,
        choose("olayer", "Layer of the other")),
      picker("Head of the other", counted(other.there.heads, "Head"), other.head, choose("ohead", "Head of the other"))) : "";
    this.sections.maps.replaceChildren(h("h2", {}, `${place.label} · layer ${layer} · head ${head}`), pickers, figures, told);
    scales.forEach((scale, i) => legend(scale, i === 2));
    const room = figures.firstChild.clientWidth, tip = (this.tip ??= new Tip(this.root));
    const drawn = all.map((map, i) => chart(canvases[i], map, ...sides, Math.max(room, 200), page.room(figures, 240, 80)));
    canvases.forEach((canvas, i) => follow(canvas, () => drawn[i], (cell, x, y) => {
      for (const each of drawn) each.draw(cell);
      this.cell = cell;
      const [q, k] = cell, values = all.map((map) => map.data[q * map.keys + k]);
      tip.near(canvas, x, y, h("b", { class: "number", "data-value": values[0] }, values[0].toFixed(6)), " → ",
        h("b", { class: "number", "data-value": values[1] }, values[1].toFixed(6)), ", difference ",
        h("b", { class: "number", "data-value": values[2] }, number(values[2], 6)),
        " from ", h("b", {}, token(sides[0][q])), soft(` at ${q}`), " to ", h("b", {}, token(sides[1][k])), soft(` at ${k}`));
    }, () => { for (const each of drawn) each.draw(null); tip.hide(); }, () => this.cell));
  }

  #streams(control) {
    const { streams } = this.found, root = this.sections.streams;
    if (!streams.length) { root.replaceChildren(); return; }
    const far = Math.max(1e-9, ...streams.map((each) => 1 - each.cosine), ...Object.values(control?.cosines ?? {}).map((each) => 1 - each.mean));
    const body = streams.map((each) => {
      const [stack, layer] = each.name.split("."), spread = control?.cosines[each.name];
      const place = this.page.run.sides[stack].tokens[each.place].text;
      return h("tr", { "data-stream": each.name },
        h("td", {}, `${stack}, ${layer === "residual" ? "embeddings" : `layer ${layer}`}`),
        h("td", {}, meter((1 - each.cosine) / far, spread ? (1 - spread.mean) / far : undefined)),
        h("td", { class: "number", "data-value": each.cosine }, number(each.cosine)),
          h("td", { class: "number" }, number(each.least)),
          h("td", {}, 1 - each.least > 1e-6 ? token(short(place, 20)) : ""),
          h("td", { class: "number soft" }, spread ? number(spread.mean) : "…"));
    });
    const head = ["stream after", "1 − cosine (below: random heads)", "cosine, mean", "least", "at", "random heads, mean"];
    root.replaceChildren(h("h2", {}, "Residual streams, layer by layer"), table(head, body, "Residual streams"));
  }

  #tokens() {
    const { page, found, sides } = this, parts = found.answers.map((answer) => {
      const writes = answer.name === "output", tokens = page.run.sides[page.run.sides.decoder ? "decoder" : "encoder"].tokens;
      const worst = Math.max(1e-9, ...answer.rows.map((row) => row.divergence));
      const body = answer.rows.flatMap((row,
        i) => (row.actual ? [row.actual] : answer.each ? [row.candidates[0]] : row.candidates).map((pair,
          place) => h("tr", { "data-place": i },
        h("td", {}, answer.each && !place ? token(short(tokens[i].text, 20)) : ""),
          h("td", {}, token(short(pair.text, 24)), row.actual || !answer.each ? "" : soft(" ?")),
          h("td", {}, meter(pair.before, pair.after)),
        h("td", { class: "number", "data-before": pair.before }, number(pair.before)),
          h("td", { class: "number", "data-after": pair.after }, number(pair.after)),
          h("td", { class: "number" }, signed(pair.after - pair.before)),
        h("td", { class: "number", "data-divergence": row.divergence }, place ? "" : number(row.divergence)), h("td", {}, place ? "" : bar(row.divergence / worst)),
        h("td", { class: "soft" }, !answer.each || row.best.id === pair.id ? "" : h("span", {}, token(short(row.best.text, 20)), ` ${number(row.best.after)}`)))));
      const head = [answer.each ? (writes ? "after" : "at") : "", writes ? "comes" : "is", "probability", sides[0],
        sides[1], "change", "KL", "", answer.each ? `most probable, ${sides[1]}` : ""];
      return h("div", {}, writes ? "" : h("h3", {}, clean(answer.name)), table(head, body, "Probabilities of both"));
    });
    if (parts.length) this.sections.tokens.append(h("h2", {}, "Probabilities of the same tokens"), ...parts);
  }
}

function bar(share) {
  return svg("svg", { class: "meter", viewBox: "0 0 120 12", "aria-hidden": "true" }, svg("rect", { class: "after", y: 3, width: 120 * share, height: 6, rx: 1 }));
}
