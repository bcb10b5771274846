// The sentence as text, with lines from a chosen word to the words that it attends to.

import { bound, choices, clean, content, counted, h, number, opening, picker, short, soft, svg, token } from "../dom.js";
import { headName } from "../effect.js";
import { Tensors } from "../tensors.js";
import { Tip } from "../tip.js";

const MOST = 64; // tokens that are drawn

export async function show(root, page) {
  await new Words(root, page).draw();
}

class Words {
  constructor(root, page) {
    Object.assign(this, { root, page, tensors: new Tensors(page.source) });
    const { about, state, run } = page, kinds = about.attentions;
    const usual = kinds.find((each) => each.kind === "attention" && each.stack === "encoder") ?? kinds[0];
    this.place = kinds.find((each) => `${each.stack}.${each.kind}` === state.at) ?? usual;
    this.queries = run.sides[this.place.stack].tokens.slice(0, MOST);
    this.keys = run.sides[this.place.keys].tokens.slice(0, MOST);
    this.word = state.from !== undefined && this.queries[Number(state.from)] ? Number(state.from) : opening(this.queries);
    this.mode = ["mean", "all"].includes(state.draw) ? state.draw : "one";
  }

  async draw() {
    const { root, page, place } = this;
    this.all = [];
    for (let layer = 0; layer < place.layers; layer++) {
      this.all.push(await this.tensors.get(page.run.run, `${place.stack}.${layer}.${place.kind}.weights`));
      if (!root.isConnected) return;
    }
    const best = this.#informative(), given = page.state.layer !== undefined && page.state.head !== undefined;
    this.layer = given ? bound(page.state.layer, place.layers) : best[0];
    this.head = given ? bound(page.state.head, place.heads) : best[1];
    this.best = best;
    this.bar = h("div", { class: "bar" });
    this.picture = h("div", { class: "lines-of-words" });
    this.side = h("div", { class: "about-part", "aria-live": "polite" });
    root.append(this.bar, h("div", { class: "architecture" }, this.picture, this.side));
    this.tip = new Tip(root);
    this.#show();
    root.dataset.ready = "true";
  }

  row(layer, head, word = this.word) {
    const { shape: [, queries, keys], data } = this.all[layer], start = (head * queries + word) * keys;
    return data.subarray(start, start + this.keys.length);
  }

  // The layer and head with the largest weight of the chosen word on another word, not on a neighbour.
  #informative() {
    let best = [0, 0, -1];
    for (let layer = 0; layer < this.place.layers; layer++) for (let head = 0; head < this.place.heads; head++) this.row(layer, head).forEach((value, k) => {
      if (value > best[2] && content(this.keys[k].text) && (this.place.kind === "cross" || Math.abs(k - this.word) > 1)) best = [layer, head, value];
    });
    return best;
  }

  #go(changes) {
    Object.assign(this, changes);
    this.page.set({ at: `${this.place.stack}.${this.place.kind}`, layer: this.layer, head: this.head, from: this.word, draw: this.mode === "one" ? null : this.mode });
    this.#show();
  }

  #show() {
    const { page, place, mode } = this;
    const [layer, head, value] = this.#informative(); // −1: no head looks at another word
    this.bar.replaceChildren(
      ...(page.about.attentions.length > 1 ? [picker("Attention",
        page.about.attentions.map((each) => [`${each.stack}.${each.kind}`, each.label]), `${place.stack}.${place.kind}`,
        (at) => { page.set({ at, layer: null, head: null, from: null }); page.show(); })] : []),
      choices("Lines", [["one", "One head"], ["all", "All heads"], ["mean", "Their mean"]], mode,
        (chosen) => { this.#go({ mode: chosen }); this.bar.querySelector('[aria-checked="true"]').focus(); }),
      picker("Layer", counted(place.layers, "Layer"), this.layer, (chosen) => this.#go({ layer: Number(chosen) })),
        picker("Head", counted(place.heads, "Head"), this.head,
          (chosen) => this.#go({ head: Number(chosen), mode: "one" })),
      value < 0 ? "" : h("button",
        { id: "informative", disabled: layer === this.layer && head === this.head && mode === "one",
          onclick: () => this.#go({ layer, head, mode: "one" }) },
        `Most informative: layer ${layer}, head ${head} (${value.toFixed(2)})`));
    this.#lines();
    this.#evidence();
  }

  // The weights that are drawn: [weights, class of the colour].
  get drawn() {
    const heads = Array.from({ length: this.place.heads }, (_, head) => head);
    if (this.mode === "one") return [[this.row(this.layer, this.head), `c${this.head % 7}`]];
    if (this.mode === "all") return heads.map((head) => [this.row(this.layer, head), `c${head % 7}`]);
    const mean = new Float32Array(this.keys.length);
    for (const head of heads) this.row(this.layer, head).forEach((value, k) => { mean[k] += value / heads.length; });
    return [[mean, "c0"]];
  }

  #lines() {
    const { queries, keys, drawn, page } = this, count = Math.max(queries.length, keys.length), room = Math.max(this.picture.clientWidth, 280);
    const high = Math.min(Math.max((page.room(this.picture, 300) - 30) / count, 13), 30), wide = Math.min(room, 760),
      left = wide * 0.34, right = wide * 0.66, y = (i) => 14 + (i + 0.5) * high;
    const font = Math.min(high * 0.66, 16), shift = drawn.length > 1 ? 10 / drawn.length : 0;
    const lines = drawn.flatMap(([weights, kind],
      n) => [...weights].map((value,
        k) => (value < 0.01 ? null : svg("path",
          { class: `line ${kind}`, "stroke-width": Math.max(high * 0.42 * value, 0.5), opacity: 0.25 + 0.75 * value,
      d: `M${left + 6} ${y(this.word) + shift * (n - drawn.length / 2)}C${left + (right - left) / 2} ${y(this.word)} ${left + (right - left) / 2} ${y(k)} ${right - 6} ${y(k) + shift * (n - drawn.length / 2)}` }))));
    const choose = (i) => { this.#go({ word: i }); this.picture.querySelector(`[data-word="${i}"]`)?.focus(); };
    const words = queries.map((each, i) => svg("g",
      { class: `word${i === this.word ? " chosen" : ""}`, role: "button", tabindex: i === this.word ? 0 : -1,
        "aria-pressed": i === this.word, "aria-label": `From ${clean(each.text)}`, "data-word": i,
        onclick: () => choose(i),
      onkeydown: (event) => { const turn = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (turn) { event.preventDefault(); choose(Math.min(Math.max(i + turn, 0), queries.length - 1)); } } },
    svg("rect", { x: 0, y: y(i) - high / 2, width: left, height: high, rx: 4 }),
      svg("text", { x: left - 4, y: y(i) + font * 0.35, "text-anchor": "end", "font-size": font },
        `\u2068${short(each.text, 26)}\u2069`)));
    const targets = keys.map((each, k) => svg("g", { class: "target", onpointerenter: (event) => this.#tell(event, k), onpointerleave: () => this.tip.hide() },
      ...drawn.map(([weights, kind], n) => svg("rect",
        { class: kind, x: right + ((wide - right) / drawn.length) * n, y: y(k) - high / 2 + 1,
          width: (wide - right) / drawn.length, height: high - 2, opacity: 0.55 * weights[k], rx: 3 })),
      svg("text", { x: right + 4, y: y(k) + font * 0.35, "font-size": font }, `\u2068${short(each.text, 26)}\u2069`)));
    const height = 20 + count * high, all = [page.run.sides[this.place.stack].tokens.length, page.run.sides[this.place.keys].tokens.length], part = Math.max(...all) > MOST;
    this.picture.style.maxHeight = `${page.room(this.picture, 300)}px`;
    this.picture.replaceChildren(svg("svg",
      { class: "words-map", viewBox: `0 0 ${wide} ${height}`, width: wide, role: "group",
        "aria-label": `Lines from ${clean(queries[this.word].text)}` },
      ...lines.filter(Boolean), ...words, ...targets),
      part ? h("p", { class: "hint" }, `The first ${MOST} of ${Math.max(...all)} tokens are drawn.`) : "");
  }

  #tell(event, k) {
    const parts = this.drawn.map(([weights], n) => h("span", {}, this.drawn.length > 1 ? `${n}: ` : "",
      h("b", { class: "number", "data-value": weights[k] }, weights[k].toFixed(6)), " "));
    this.tip.at(event.clientX, event.clientY, ...parts, soft(" from "), token(this.queries[this.word].text), soft(" to "), token(this.keys[k].text));
  }

  // The words with the largest weights, and what silencing the head does next to random other heads.
  async #evidence() {
    const { page, place, layer, head } = this, [weights] = this.drawn[0], id = `${place.stack}.${layer}.${place.kind}.${head}`;
    const order = [...weights.keys()].sort((one, two) => weights[two] - weights[one]).slice(0, 5);
    const rows = order.map((k) => h("tr", {}, h("td", {}, token(this.keys[k].text)),
      h("td", { class: "soft" }, `at ${k}`),
      h("td", { class: "number", "data-value": weights[k] }, weights[k].toFixed(4))));
    const title = this.mode === "mean" ? `Mean of layer ${layer}` : this.mode === "all" ? `Layer ${layer}, head 0 of ${place.heads}` : `Layer ${layer}, head ${head}`,
      matter = h("div", { id: "evidence" });
    this.side.replaceChildren(h("h2", {}, `${title}, from `, token(this.queries[this.word].text)), h("table", {}, h("tbody", {}, ...rows)), matter);
    const turn = this.turn = {};
    if (this.mode !== "one" || !page.source.live) return;
    matter.append(h("p", { class: "hint" }, "Measuring what this head does …"));
    try {
      const asked = { run: page.run.plain ?? page.run.run, changes: [id] },
        found = await page.source.ask("compare", asked), control = await page.source.ask("control", asked);
      if (turn !== this.turn || !this.root.isConnected) return;
      const [answer] = found.answers, figure = answer && answer.figures.divergence, random = answer && control.answers[answer.name]?.divergence;
      matter.replaceChildren(h("h3", {}, "Without this head"),
        answer ? h("p", {}, "The output changes by ",
          h("b", { class: "number", "data-effect": figure }, number(figure)),
          " nats (KL divergence, mean over the positions); without a random other head by ",
        h("b", { class: "number", "data-random": random?.mean }, number(random?.mean)),
          soft(` (${number(random?.least)} to ${number(random?.most)}, ${control.heads.length} draws).`)) : h("p", {},
          "This model has no output to compare."),
      answer ? h("p", {},
        figure > (random?.most ?? 0) ? "More than any of the random heads: it matters for this input." : "Not more than random heads: these lines alone prove nothing.") : "",
      h("p", { class: "bar" },
        h("button", { onclick: () => page.open({ view: "heads", at: `${place.stack}.${place.kind}`, layer, head }) },
          "Show as a map"),
        h("button", { onclick: () => page.silence([...new Set([...page.ablated, id])]) }, `Silence ${headName(id)}`)));
    } catch (error) { if (turn === this.turn) matter.replaceChildren(h("p", { class: "soft" }, clean(error.message))); }
  }
}
