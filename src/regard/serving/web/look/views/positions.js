// Positions: their vectors, the similarity of these, and scores by distance.

import { bound, choices, h, number, soft } from "../dom.js";
import { field, rangeOf } from "../field.js";
import { lines } from "../lines.js";
import { once, unpacked } from "../packed.js";
import { Tip } from "../tip.js";

const SIDES = { encoder: "Encoder", decoder: "Decoder" };
const NAMES = { sinusoidal: "sinusoidal", learned: "learned", relative: "relative, in buckets (T5)", "transformer-xl": "relative, of sinusoids (Transformer-XL)",
  rotary: "rotary", alibi: "ALiBi", none: "none", "sinusoidal-2d": "sinusoidal, of column and row",
    "learned-2d": "learned, one for each patch", "rotary-2d": "rotary, by column and row" };

export const more = () => h("span", { id: "measured" });

export async function show(root, page) {
  await new Positions(root, page).draw();
}

class Positions {
  constructor(root, page) {
    Object.assign(this, { root, page });
    this.body = h("div", { class: "positions" });
    this.busy = this.more = false;
  }

  get asked() {
    const { places, side } = this.page.state;
    return { part: side && this.page.about.translates ? side : null, length: Number(places) || null };
  }

  async draw() {
    const found = await this.#first();
    this.root.append(this.#bar(found), this.body);
    this.#shown(found);
    this.root.dataset.ready = "true";
  }

  // The address may ask for a part that the model lacks: report it, and show the default.
  async #first() {
    const { page } = this;
    try {
      return await once(page, "positions", this.asked);
    } catch (error) {
      if (page.state.places === undefined && page.state.side === undefined) throw error;
      page.set({ places: null, side: null });
      page.say(error.message, true);
      return once(page, "positions", this.asked);
    }
  }

  #bar(found) {
    const { page } = this, parts = [h("span", { id: "kind" }, "Positions: ", h("b", {}, NAMES[found.kind] ?? found.kind))];
    if (found.parts.length > 1) parts.push(choices("Side", found.parts.map((part) => [part, SIDES[part]]), found.part,
      (side) => page.again({ side }, '.choices [aria-checked="true"]')));
    if (!page.about.image && found.kind !== "none") {
      const caption = h("output", {}, found.length);
      const input = h("input", { type: "range", name: "places", min: 2, max: found.longest, value: found.length, disabled: !page.source.live, oninput: () => {
        caption.textContent = input.value;
        page.set({ places: input.value });
        this.#again();
      } });
      parts.push(h("label", { class: "slid" }, "Places ", input, caption));
    }
    return h("div", { class: "bar" }, ...parts);
  }

  // One request at a time; of the lengths that a slider passes meanwhile, only the last.
  async #again() {
    if (this.busy) { this.more = true; return; }
    this.busy = true;
    try {
      do {
        this.more = false;
        const found = await once(this.page, "positions", this.asked);
        if (this.root.isConnected) this.#shown(found);
      } while (this.more);
    } catch (error) { this.page.say(error.message, true); } finally { this.busy = false; }
  }

  #shown(found) {
    this.found = found;
    this.parts = {};
    this.tip ??= new Tip(this.root);
    const measured = this.root.parentElement?.querySelector("#measured");
    if (measured) measured.textContent = baseline(found);
    const drawn = found.encodings || found.scores;
    const parts = [drawn ? h("div", { class: "formula worked" }, ...formula(found, this.page.about))
      : h("p", { id: "nothing" }, nothing(this.page.about))];
    if (found.encodings) parts.push(...this.#vectors(found));
    if (found.scores) parts.push(...this.#scores(found));
    this.body.replaceChildren(...parts);
    this.body.dataset.length = found.length;
    this.fill();
  }

  // Charts that depend on their width are drawn after they are inserted.
  fill() {
    for (const holder of this.body.querySelectorAll("[data-part]")) this.parts[holder.dataset.part](holder, Math.max(holder.clientWidth, 200));
  }

  #holder(name, title, ...more) {
    return h("section", {}, h("div", { class: "bar" }, h("h2", {}, title), ...more), h("div", { "data-part": name }));
  }

  say(words, value, ...more) {
    this.tip.near(...this.place, ...words, " = ", h("b", { class: "number", "data-value": value }, number(value, 6)), ...more);
  }

  // A field whose tip is filled by read(cell).
  field(given) {
    return field({ ...given, read: (cell, ...place) => { this.place = place; given.read(cell); }, leave: () => this.tip.hide() });
  }

  get tall() { return Math.min(Math.max(this.page.room(this.body, 260, 190), 200), 420); }

  // ----------------------------------------------------------------------------------------------------------- vectors

  #vectors(found) {
    const { page } = this, given = found.encodings, far = given.first < 0 ? "distance" : "position";
    this.matrix = unpacked(given.matrix);
    this.angles = given.angles && unpacked(given.angles);
    this.cosines = unpacked(given.cosines);
    this.dots = given.dots && unpacked(given.dots);
    const measure = this.dots && page.state.measure === "dot" ? "dot" : "cosine";
    Object.assign(this.parts, {
      encodings: (holder, room) => this.#encodings(holder, room),
      similarity: (holder, room) => (given.grid ? this.#grid(holder, room) : this.#similarity(holder, room, measure)),
      near: (holder, room) => this.#near(holder, room, given),
      waves: (holder, room) => this.#waves(holder, room, given),
    });
    const pick = this.dots ? choices("Measure", [["cosine", "Cosine"], ["dot", "Dot product"]], measure, (value) => {
      page.set({ measure: value === "cosine" ? null : value });
      this.#shown(found);
      document.querySelector('[aria-label="Measure"] [aria-checked="true"]')?.focus();
    }) : null;
    const title = this.angles ? `Sine and cosine of each angle, by ${given.grid ? "patch" : far}` : `The vector of each ${given.grid ? "patch" : far}`;
    return [h("div", { class: "pair" }, this.#holder("encodings", title),
      this.#holder("similarity", given.grid ? "Similarity to one patch" : `Similarity of ${far}s`, pick)),
      h("div", { class: "pair waves" }, this.#holder("waves", "Some channels, as curves"), this.#holder("near", "Similarity by distance"))];
  }

  // All sines before all cosines, which is easier to read than in turn.
  #order() {
    const [, width] = this.matrix.shape, given = this.found.encodings, channels = Array.from({ length: width }, (_, i) => i);
    return given.order === "interleaved" ? [...channels.filter((i) => i % 2 === 0), ...channels.filter((i) => i % 2)] : channels;
  }

  #encodings(holder, room) {
    const [rows, columns] = this.matrix.shape, order = this.#order(), { grid, first } = this.found.encodings;
    const data = new Float32Array(rows * columns);
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) data[i * columns + j] = this.matrix.data[i * columns + order[j]];
    const sorted = this.found.encodings.order === "interleaved";
    const made = this.field({ id: "encodings", label: `Encodings: ${rows} by ${columns}`, rows, columns, data,
      range: rangeOf(data, this.found.kind.startsWith("learned") ? 0.99 : 1), room, tall: this.tall,
      first: [grid ? 0 : first, 0],
      axes: `rows: ${grid ? "patches" : first < 0 ? "distances" : "places"}; columns: channels${sorted ? ", sines before cosines, the fastest first" : ""}`,
        columnName: (column) => order[column],
      read: ([row, column]) => this.#cell(row, order[column], data[row * columns + column]) });
    holder.replaceChildren(made.element);
  }

  #cell(row, channel, value) {
    const { kind, base, encodings } = this.found, [, width] = this.matrix.shape, place = row + encodings.first;
    if (encodings.grid) { this.say(["patch ", h("b", {}, patch(row, encodings.grid)), `, channel ${channel}`], value, ...this.#angle(row, channel)); return; }
    if (kind === "learned") { this.say([`P(${place}, ${channel})`], value); return; }
    if (kind === "rotary") { this.say([`${channel % 2 ? "cos" : "sin"} of the angle of pair ${channel >> 1} at position ${place}`],
      value, ...this.#angle(row, channel));
      return; }
    const half = Math.ceil(width / 2), halves = encodings.order === "halves";
    const pair = halves ? channel % half : channel >> 1, name = (halves ? channel >= half : channel % 2) ? "cos" : "sin";
    const angle = place / base ** ((2 * pair) / width);
    this.say([`PE(${number(place, 0)}, ${channel}) = ${name}(${number(place, 0)} / ${base}`,
      h("sup", {}, `${2 * pair}/${width}`), `) = ${name}(${number(angle, 4)})`],
      value,
      soft(` · this channel repeats after ${Number((2 * Math.PI * base ** ((2 * pair) / width)).toPrecision(4)).toLocaleString("en")} places`));
  }

  #angle(row, channel) {
    if (!this.angles) return [];
    const angle = this.angles.data[row * this.angles.shape[1] + (channel >> 1)];
    return [soft(` · turned by ${number(angle, 4)} radians`)];
  }

  #similarity(holder, room, measure) {
    const { data, shape: [size] } = measure === "dot" ? this.dots : this.cosines, first = this.found.encodings.first;
    const made = this.field({ id: "similarity", label: `${measure === "dot" ? "Dot products" : "Cosines"} of each two, ${size} by ${size}`, rows: size, columns: size, data,
      range: rangeOf(data), room, tall: this.tall, square: true, first: [first, first], axes: `rows and columns: ${first < 0 ? "distances" : "places"}`,
      read: ([row, column]) => {
        const at = row * size + column, name = first < 0 ? "R" : this.found.kind === "learned" ? "P" : "PE",
          [one, two] = [row, column].map((each) => number(each + first, 0));
        const other = measure === "dot" ? ["cosine ", this.cosines.data[at]] : ["dot product ", this.dots.data[at]];
        this.say([measure === "dot" ? `${name}(${one}) · ${name}(${two})` : `cos(${name}(${one}), ${name}(${two}))`], data[at],
          soft(` · ${other[0]}`), h("span", { class: "number", "data-other": other[1] }, number(other[1], 6)), soft(` · ${Math.abs(row - column)} apart`));
      } });
    holder.replaceChildren(made.element);
  }

  #grid(holder, room) {
    const { page } = this, [rows, columns] = this.found.encodings.grid, size = rows * columns;
    const chosen = bound(page.state.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2), size);
    const data = this.cosines.data.subarray(chosen * size, (chosen + 1) * size), at = (cell) => cell[0] * columns + cell[1];
    const made = this.field({ id: "similarity",
      label: `Cosine of every patch to the one in ${patch(chosen, [rows, columns])}`, rows, columns, data,
      range: rangeOf(this.cosines.data), room, tall: this.tall, square: true,
      first: [0, 0], mark: [Math.floor(chosen / columns), chosen % columns], axes: `rows and columns of patches; chosen: ${patch(chosen, [rows, columns])}`,
      read: (cell) => this.say([`cos(patch ${patch(chosen, [rows, columns])}, patch ${patch(at(cell), [rows, columns])})`], data[at(cell)]),
      choose: (cell) => {
        page.set({ patch: at(cell) });
        this.#grid(holder, room);
        holder.querySelector("canvas").focus();
        this.tip.hide();
      } });
    holder.replaceChildren(made.element, h("p", { class: "hint" }, "A click, or Enter, chooses another patch."));
  }

  #near(holder, room, given) {
    const { mean, least, most } = given.near, x = mean.map((_, i) => i), spread = mean.some((value, i) => most[i] - least[i] > 1e-5);
    const kept = (value) => mean.map(() => value);
    holder.replaceChildren(lines({ id: "near", label: "Cosine by distance", x, room, across: given.grid ? "patches apart (rounded)" : "places apart",
      series: [{ name: spread ? "mean cosine" : "cosine", values: mean, kind: "c0" }, { name: "any two, in the mean", values: kept(given.near.whole), kind: "static" },
        { name: `random vectors, ± ${number(this.found.deviation, 3)}`, values: kept(0), kind: "chance" }],
      band: spread ? { low: least, high: most, name: "least to most" } : null }));
  }

  // Channels of different wavelengths, position by position.
  #waves(holder, room, given) {
    const { shape: [places, width], data } = this.matrix, x = Array.from({ length: places }, (_, i) => i + given.first);
    const step = given.order === "halves" ? 1 : 2, pairs = [0, 1, 2, 3].map((i) => step * Math.floor((i * width) / 16));
    const series = [...new Set(pairs)].map((channel, i) => (
      { name: `channel ${channel}`, kind: `c${i}`, values: x.map((_, place) => data[place * width + channel]) }));
    holder.replaceChildren(lines({ id: "waves", label: "Some channels", x, room, across: given.grid ? "patch" : "position", series }));
  }

  // ------------------------------------------------------------------------------------------------------------ scores

  #scores(found) {
    const values = unpacked(found.scores.values), [heads, count] = values.shape, { distances } = found.scores, perLayer = this.page.about.attentions[0].heads;
    const name = (head) => (found.kind === "transformer-xl" ? `layer ${Math.floor(head / perLayer)}, head ${head % perLayer}` : `head ${head}`);
    Object.assign(this.parts, {
      scores: (holder,
        room) => holder.replaceChildren(this.field({ id: "scores",
          label: `Scores: ${heads} heads by ${count} distances`, rows: heads, columns: count, data: values.data,
          range: rangeOf(values.data),
        room, tall: Math.min(Math.max(22 * heads, 160), 380), first: [0, distances[0]],
          axes: `rows: heads${found.kind === "transformer-xl" ? ", one layer after the other" : ""}; columns: how far the key lies before its query`,
        read: ([head, at]) => this.say([`${name(head)}, key ${apart(distances[at])}: added to the score`], values.data[head * count + at],
          soft(` · its weight is multiplied by ${number(Math.exp(values.data[head * count + at]), 4)}, all else equal`)) }).element),
      curves: (holder,
        room) => holder.replaceChildren(lines({ id: "curves", label: "Score by distance", x: distances, room,
          across: "how far the key lies before its query",
        series: Array.from({ length: Math.min(heads, 14) },
          (_,
            head) => ({ name: name(head), kind: `c${head % 7}${head > 6 ? " dashed" : ""}`,
              values: [...values.data.subarray(head * count, (head + 1) * count)] })) })) });
    return [h("div", { class: "pair" }, this.#holder("scores", "Added to scores, by distance"),
      this.#holder("curves", heads > 14 ? "The same, of the first 14 heads" : "The same, as curves"))];
  }
}

// -------------------------------------------------------------------------------------------------------------- words

function patch(number, [, columns]) {
  return `row ${Math.floor(number / columns)}, column ${number % columns}`;
}

function apart(distance) {
  if (!distance) return "at the query's own position";
  return `${Math.abs(distance)} ${distance > 0 ? "before" : "behind"} its query`;
}

function nothing(about) {
  const order = about.family === "decoder" ? "it knows order only by what each token may see: those before it" : "its tokens, or patches, are a set to it, in no order";
  return `This model has no positions (position.kind is none): ${order}. There is nothing to draw.`;
}

// The paper's formula, for this model.
function formula({ kind, base, encodings }, about) {
  const power = (text) => h("sup", {}, text), line = (...parts) => h("div", {}, ...parts);
  const width = encodings?.matrix.shape[1];
  const waves = (name, at) => [line(`${name}(${at}, 2i) = sin(${at} / ${base}`, power("2i/d"), ")"),
    line(`${name}(${at}, 2i+1) = cos(${at} / ${base}`, power("2i/d"), `),  d = ${width}`)];
  switch (kind) {
    case "sinusoidal": return encodings.order === "halves" ? [line(`PE(pos, i) = sin(pos / ${base}`, power("2i/d"),
      ")"),
      line(`PE(pos, i + d/2) = cos(pos / ${base}`, power("2i/d"), `),  d = ${width}`)] : waves("PE", "pos");
    case "learned": return [line(`x = E(token) + P(pos),  P learned, of width ${width}`)];
    case "rotary": return [line("q′ = R(pos) q,  k′ = R(pos) k"),
      line(`pair i of channels is turned by pos · θ`, h("sub", {}, "i"), `,  θ`, h("sub", {}, "i"), ` = ${base}`,
        power("−2i/d"), ` before any scaling,  d = ${width}`)];
    case "sinusoidal-2d": return [line("PE(x, y) = [PE(x), PE(y)]"), line(`PE(x, 2i) = sin(x / ${base}`, power("2i/d"), `),  d = ${width / 2}`)];
    case "learned-2d": return [line(`x = E(patch) + P(row, column),  P learned, of width ${width}`)];
    case "rotary-2d": return [line("q′ = R(x, y) q,  k′ = R(x, y) k"),
      line(`half of the pairs turn with x, half with y, by ${base}`, power("−2i/d"), ` a step,  d = ${width / 2}`)];
    case "alibi": return [line("score = q · k / √d − m |i − j|"),
      line("m = 2", power("−8h/H"), ` for head h of H = ${about.attentions[0].heads} (where H is a power of two)`)];
    case "relative": return [line("score = q · k × scale + b(bucket(i − j))"), line("b learned, one number for each head and bucket")];
    case "transformer-xl": return [line("score = ((q + u) · k + (q + v) · W R(i − j)) / √d"),
      line(`R(a, i), R(a, i + d/2): sine and cosine of a / ${base}`, power("2i/d"), "; drawn are R and v · W R alone")];
    default: return [];
  }
}

function baseline({ encodings, scores, deviation, untrained, kind }) {
  if (!encodings && !scores) return "This model has no positions.";
  const parts = [];
  if (encodings) {
    const { mean, whole } = encodings.near, random = kind.startsWith("learned") ? "an untrained table, like any random vectors," : "random vectors of this width";
    const what = `${encodings.matrix.shape[0]} ${encodings.grid ? "patches" : encodings.first < 0 ? "distances" : "places"}`;
    const next = mean.length > 1 ? `neighbours have a cosine of ${number(mean[1], 3)}, ` : "";
    parts.push(`Neighbours: ${next}any two of these ${what} ${number(whole, 3)}, ${random} 0 ± ${number(deviation, 3)}.`);
  }
  if (scores && untrained !== null) parts.push(`Learned scores start at random values, 0 ± ${number(untrained, 3)}: smaller values may have no meaning.`);
  else if (scores && kind === "alibi") parts.push("These scores are not learned; −0.69 halves a weight.");
  else if (scores) parts.push("These scores are 0 before training. They do not include the part that depends on the query.");
  return parts.join(" ");
}
