// Words of several sentences on a plane, and their cosines by layer.

import { bound, choices, clean, h, number, picker, soft, svg, table, token } from "../dom.js";
import { signed } from "../effect.js";
import { lines } from "../lines.js";
import { once, unpacked } from "../packed.js";
import { Scatter, glyph } from "../scatter.js";

const MOST_LINES = 12, NEAREST = 5, ASIDE = 8;

export const more = () => h("span", { id: "measured" });

export async function show(root, page) {
  await new Vectors(root, page).draw();
}

class Vectors {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const { about, state } = page, from = about.directions.find(([, to]) => to === state.to)?.[0] ?? about.directions[0]?.[0];
    this.sample = about.samples[from] ?? about.samples.en;
    this.side = h("div", { class: "side" });
    this.map = h("div", { class: "mapped" });
    this.below = h("div");
    this.analogy = h("section", { class: "analogy" });
  }

  get lines() { return this.page.state.lines ?? this.sample.lines.join("\n"); }

  async draw() {
    const field = h("textarea", { name: "lines", rows: 8, maxlength: 20000, spellcheck: "false", dir: "auto", disabled: !this.page.source.live });
    field.value = this.lines;
    const form = h("form", { class: "sentences", onsubmit: (event) => { event.preventDefault(); this.page.set({ lines: field.value, word: null }); this.#ask(); } },
      h("label", {}, "Sentences, one a line (instead of the text above)", field), h("button", { class: "main", type: "submit", disabled: !this.page.source.live }, "Show"));
    field.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); } });
    this.choice = h("div", { class: "sliders" });
    this.list = h("ol", { class: "legend-list" });
    this.readout = h("div", { class: "readout", id: "readout", "aria-live": "polite" });
    this.side.append(form, this.choice, this.readout, this.list);
    this.root.append(h("div", { class: "vectors" }, this.side, this.map), this.below, this.analogy);
    await Promise.all([this.#analogies(), this.#ask()]);
    this.root.dataset.ready = "true";
  }

  async #ask() {
    const { page } = this;
    try {
      const texts = this.lines.split("\n").map((line) => line.trim()).filter(Boolean);
      const found = await once(page, "vectors", { texts, to: (page.about.translates && page.state.to) || null });
      if (!this.root.isConnected) return;
      page.say("");
      this.#take(found);
    } catch (error) { page.say(error.message, true); }
  }

  #take(found) {
    this.found = found;
    this.cosines = unpacked(found.cosines);
    this.static = unpacked(found.static);
    this.count = found.words.length;
    this.layers = this.cosines.shape[0];
    this.points = found.charts.map((chart) => unpacked(chart.points));
    this.arrows = found.charts.map((chart) => unpacked(chart.arrows));
    const { state } = this.page, named = (word) => found.charts.findIndex((chart) => chart.word && chart.word.toLowerCase() === word.toLowerCase());
    const wanted = state.word ?? (state.lines === undefined ? this.sample.word : undefined);
    this.chosen = state.word === "*" ? 0 : Math.max(wanted === undefined ? Math.min(1, found.charts.length - 1) : named(wanted), 0);
    this.layer = bound(state.depth ?? this.layers, this.layers);
    this.at = this.chart.places[0];
    this.#choices();
    this.#sentences();
    this.#show();
  }

  // b − a + c in the table of embeddings. The first answer is asked for with the button.
  async #analogies() {
    const { page } = this, words = (page.state.analogy ?? "boy,girl,man").split(","), off = !page.source.live;
    const [c, a, b] = [2, 0,
      1].map((i) => h("input",
        { value: words[i] ?? "", maxlength: 60, disabled: off, "aria-label": `Word ${"abc"[i]}` })),
      out = h("div", { class: "pair" });
    const rows = (title, list) => h("table", {}, h("caption", {}, title),
      ...list.map(([word, cosine]) => h("tr", {}, h("th", { scope: "row" }, token(word)),
        h("td", { class: "number", "data-value": cosine }, number(cosine)))));
    const ask = async (event) => {
      event?.preventDefault();
      try {
        page.set({ analogy: [a, b, c].map((field) => field.value.trim()).join(",") });
        const found = await once(page, "analogy", { a: a.value, b: b.value, c: c.value });
        page.say("");
        out.replaceChildren(rows(`nearest to ${clean(c.value)} − ${clean(a.value)} + ${clean(b.value)}`, found.analogy),
          rows(`nearest to ${clean(c.value)} alone`, found.neighbours), h("div", { class: "plane" }));
        this.#plane(out.lastChild, [a.value, b.value, c.value, found.analogy[0]?.[0]], found.plane);
      } catch (error) { page.say(error.message, true); }
    };
    this.analogy.replaceChildren(h("h2", {}, "Analogies of static vectors"),
      h("form", { class: "bar", onsubmit: ask }, c, "−", a, "+", b,
        h("button", { class: "main", type: "submit", disabled: off }, "Nearest words"),
        h("span", { class: "hint" },
          "Embeddings of the vocabulary, by cosine; the words and their parts are left out. Compare with the right column.")),
      out);
    if (page.state.analogy && !off) await ask();
  }

  // The four words of an analogy: two arrows that should be parallel.
  #plane(holder, names, points) {
    const spot = (i,
      from) => ({ x: points[i][0], y: points[i][1], from: from === undefined ? null : points[from],
        kind: i < 2 ? "c0" : "c1", shape: 0, label: names[i], caption: names[i] });
    const spots = [spot(0), spot(2), spot(1, 0), ...(points[3] ? [spot(3, 2)] : [])];
    const axes = ["first direction of these words", "second direction"];
    holder.append(new Scatter(spots,
      { room: Math.min(Math.max(holder.clientWidth, 260), 560), tall: 320, label: "The words of the analogy", axes,
        read: () => {} }).element);
  }

  get chart() { return this.found.charts[this.chosen]; }
  cosine(one, two, layer = this.layer) { return this.cosines.data[(layer * this.count + one) * this.count + two]; }

  // Words that occur more than once have their own colour; the others share one.
  kind(word) {
    const chart = this.found.charts.findIndex((each) => each.word && each.word.toLowerCase() === this.found.words[word].text.toLowerCase());
    return chart < 0 ? "once" : `c${(chart - 1) % 7}`;
  }

  #choices() {
    const { page, found } = this,
      options = [["*", "All words"],
        ...found.charts.slice(1).map((chart) => [chart.word, `${clean(chart.word)} (${chart.places.length} times)`])];
    const word = picker("Word", options, this.chart.word ?? "*", (value) => {
      page.set({ word: value });
      this.chosen = value === "*" ? 0 : found.charts.findIndex((chart) => chart.word === value);
      this.at = this.chart.places[0];
      this.#sentences();
      this.#show();
    });
    word.name = "word";
    const caption = h("output", {}, name(this.layer, this.layers));
    const slider = h("input", { type: "range", name: "depth", min: 0, max: this.layers - 1, value: this.layer, oninput: () => {
      this.layer = Number(slider.value);
      caption.textContent = name(this.layer, this.layers);
      page.set({ depth: this.layer });
      this.#show();
    } });
    const scale = choices("Scale", [["same", "the same in every layer"], ["own", "own"]],
      page.state.scale === "own" ? "own" : "same",
      (value) => { page.set({ scale: value === "own" ? value : null }); this.#choices(); this.#show();
        this.choice.querySelector('[aria-label="Scale"] [aria-checked="true"]').focus(); });
    const shown = choices("Vectors", [["", "contextual"], ["1", "static → contextual"]], page.state.arrows ?? "",
      (value) => { page.set({ arrows: value || null }); this.#choices(); this.#show();
        this.choice.querySelector('[aria-label="Vectors"] [aria-checked="true"]').focus(); });
    this.choice.replaceChildren(h("label", { class: "one" }, "Word", word), h("label", {}, "Layer", caption, slider),
      h("div", { class: "one" }, shown), page.state.arrows ? "" : h("div", { class: "one hint" }, "Scale ", scale));
  }

  #sentences() {
    const { texts, words } = this.found, shown = new Set(this.chart.places);
    this.list.replaceChildren(...texts.map((text, i) => {
      const letters = [...text], parts = [];
      let behind = 0;
      words.forEach((word, number) => {
        if (word.sentence !== i || !shown.has(number) || this.chart.word === null) return;
        parts.push(clean(letters.slice(behind, word.span[0]).join("")), h("mark", { class: this.kind(number) }, clean(letters.slice(...word.span).join(""))));
        behind = word.span[1];
      });
      return h("li", {}, svg("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" }, glyph(i)), h("bdi", {}, ...parts, clean(letters.slice(behind).join(""))));
    }));
  }

  #show() {
    const { chart, layer, found } = this, arrows = this.page.state.arrows && this.arrows[this.chosen], points = arrows || this.points[this.chosen], n = chart.places.length;
    const share = chart[arrows ? "arrow_share" : "share"][layer], rows = arrows ? 2 * n : n,
      xy = (i) => [0, 1].map((axis) => points.data[(layer * rows + i) * 2 + axis]), both = 100 * (share[0] + share[1]),
      chance = chart.chance?.layers[layer];
    const same = chart.places.every((word) => this.cosine(chart.places[0], word) > 1 - 1e-6);
    const measured = this.root.parentElement?.querySelector("#measured");
    const against = chance === undefined ? "There are too few other words for a baseline." :
      `Random other words of these sentences have a mean cosine of ${number(chance, 3)} ${where(layer)} (${chart.chance.pairs.toLocaleString("en")} pairs): compare with it.`;
    if (measured) measured.textContent = `${same ? "Here all of these have the same vector." : `The two axes show ${both.toFixed(0)} % of the variance.`} ${against}`;
    const spots = chart.places.map((word, i) => ({ word, x: xy(rows - n + i)[0], y: xy(rows - n + i)[1], from: arrows ? xy(i) : null, kind: this.kind(word),
      shape: found.words[word].sentence, label: this.#label(word), caption: `${found.words[word].text}, sentence ${found.words[word].sentence + 1}` }));
    const map = new Scatter(spots,
      { room: Math.max(this.map.clientWidth, 280),
        label: `${chart.word === null ? "All words" : `The word ${chart.word}`} ${where(layer)}: ${n} points`,
      axes: share.map((part, i) => `${i ? "second" : "first"} direction, ${(100 * part).toFixed(0)} % of the variance`),
        range: arrows || this.page.state.scale === "own" ? null : this.#range(points),
        tall: this.page.room(this.map, 320),
        read: (spot) => { this.#read(spot); if (chart.word === null) this.#pairs(); } });
    this.map.replaceChildren(map.element);
    map.choose(Math.max(chart.places.indexOf(this.at), 0));
    if (chart.word !== null) this.#pairs();
  }

  // The largest extent of the points, across and up, over all layers.
  #range(points) {
    const [layers, n] = points.shape, most = [0, 0];
    for (let layer = 0; layer < layers; layer++) for (const axis of [0, 1]) {
      const all = Array.from({ length: n }, (_, i) => points.data[(layer * n + i) * 2 + axis]);
      most[axis] = Math.max(most[axis], Math.max(...all) - Math.min(...all));
    }
    return most;
  }

  // In a map of one word, labels are the words around it.
  #label(word) {
    const { text, sentence, span } = this.found.words[word], number = sentence + 1;
    if (this.chart.word === null) return `${number} ${text}`;
    const letters = [...this.found.texts[sentence]],
      inside = this.found.words.filter((each) => each.sentence === sentence),
      at = inside.findIndex((each) => each.span[0] === span[0]);
    const begin = inside[Math.max(at - 1, 0)].span[0], end = inside[Math.min(at + 3, inside.length - 1)].span[1];
    return `${number} ${begin > inside[0].span[0] ? "… " : ""}${letters.slice(begin, end).join("")}${end < inside[inside.length - 1].span[1] ? " …" : ""}`;
  }

  #read(spot) {
    const { found, layer } = this, word = spot.word, { text, sentence, tokens } = found.words[word];
    this.at = word;
    const near = this.#nearest(word, NEAREST), chance = this.chart.chance?.layers[layer];
    const rows = near.map((other) => h("tr", {}, h("td", {}, token(found.words[other].text)), h("td", { class: "soft" }, found.words[other].sentence + 1),
      h("td", { class: "number", "data-other": other, "data-value": this.cosine(word, other) }, number(this.cosine(word, other), 6)),
      h("td", { class: "number" }, chance === undefined ? "" : signed(this.cosine(word, other) - chance))));
    this.readout.replaceChildren(
      h("p", {}, h("b", { "data-word": word }, token(text)), ` in sentence ${sentence + 1}`, tokens.length > 1 ? soft(` (mean of ${tokens.length} tokens)`) : "", ", at ",
        h("span", { class: "number", "data-x": spot.x, "data-y": spot.y }, `${number(spot.x, 4)}, ${number(spot.y, 4)}`)),
      table(["nearest", "in", "cosine", "above random"], rows));
  }

  #nearest(word, count) {
    return this.found.words.map((_, i) => i).filter((i) => i !== word).sort((one, two) => this.cosine(word, two) - this.cosine(word, one)).slice(0, count);
  }

  // ------------------------------------------------------------------------------------------------------------- pairs

  #pairs() {
    const { chart, found, layers, at } = this, every = chart.word === null;
    const pairs = every ? this.#nearest(at, ASIDE).map((other) => [at, other]) : chart.places.flatMap((one, i) => chart.places.slice(i + 1).map((two) => [one, two]));
    const x = Array.from({ length: layers }, (_, i) => i), values = pairs.map(([one, two]) => x.map((layer) => this.cosine(one, two, layer)));
    const statics = pairs.map(([one, two]) => this.static.data[one * this.count + two]), middle = median(statics);
    const title = every ? `${short(found, at)} and its nearest, layer by layer` : `Each two of ${clean(chart.word)}, layer by layer`;
    const named = pairs.map(([one, two]) => `${short(found, one)} – ${short(found, two)}`);
    const few = pairs.length <= MOST_LINES;
    const series = few ? named.map((label, i) => ({ name: label, values: values[i], kind: `c${i % 7}${i > 6 ? " dashed" : ""}` }))
      : [{ name: "median", values: x.map((layer) => median(values.map((each) => each[layer]))), kind: "c0" }];
    const band = few ? null : { low: x.map((layer) => quantile(values, layer, 0.25)),
      high: x.map((layer) => quantile(values, layer, 0.75)), name: `half of ${pairs.length} pairs` };
    series.push({ name: pairs.length > 1 ? "static vectors (median)" : "static vectors", values: x.map(() => middle), kind: "static" });
    if (chart.chance) series.push({ name: "random other words", values: chart.chance.layers, kind: "chance" });
    const holder = h("div");
    this.below.replaceChildren(h("section", { class: "pairs" }, h("h2", {}, title), h("div", { class: "pair" }, holder, this.#table(pairs, named, values, statics))));
    holder.append(lines({ id: "bylayer", label: title, x, series, band,
      across: "layers passed (0: embeddings and positions)", room: Math.max(holder.clientWidth, 280), mark: this.layer,
      hint: "Cosines. Point at a layer, or use ← and →." }));
  }

  #table(pairs, named, values, statics) {
    const { chart, layers, layer } = this, columns = Array.from({ length: layers }, (_, i) => i);
    const cell = (value, i) => h("td", { class: `number${i === layer ? " now" : ""}`, "data-value": value }, number(value));
    const order = pairs.map((_, i) => i).sort((one, two) => values[two][layer] - values[one][layer]).slice(0, 100);
    const rows = order.map((i) => h("tr", { "data-pair": pairs[i].join("-") }, h("th", { scope: "row" }, named[i]),
      h("td", { class: "number", "data-static": statics[i] }, number(statics[i])),
      ...columns.map((each) => cell(values[i][each], each))));
    if (chart.chance) rows.push(h("tr", { class: "chance", "data-pair": "random" },
      h("th", { scope: "row" }, "random other words"),
      h("td", { class: "number", "data-static": chart.chance.static }, number(chart.chance.static)),
      ...columns.map((each) => cell(chart.chance.layers[each], each))));
    return table(["pair", "static", ...columns.map((each) => (each ? `layer ${each - 1}` : "embedded"))], rows, "Cosines by layer");
  }
}

function name(layer, layers) {
  return layer ? `after layer ${layer - 1} of 0 to ${layers - 2}` : "embeddings + positions";
}

function where(layer) {
  return layer ? `after layer ${layer - 1}` : "before the first layer";
}

function short({ words }, number) {
  const letters = [...clean(words[number].text)];
  return `${words[number].sentence + 1} \u2068${letters.length > 14 ? `${letters.slice(0, 13).join("")}…` : letters.join("")}\u2069`;
}

function median(values) {
  const sorted = [...values].sort((one, two) => one - two), half = (sorted.length - 1) / 2;
  return (sorted[Math.floor(half)] + sorted[Math.ceil(half)]) / 2;
}

function quantile(values, layer, share) {
  const sorted = values.map((each) => each[layer]).sort((one, two) => one - two), at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}
