// The path of one input through a layer, step by step: formula, operands and result as tiles, and the scores of one
// query against every key.

import { clean, counted, h, meter, number, opening, picker, raised, region, short, table, token } from "../dom.js";
import { leaves, written } from "../formulas.js";
import { unpacked } from "../packed.js";
import { tiles } from "../tiles.js";
import { Tip } from "../tip.js";

const ROWS = 48; // tokens in an answer
// Kind of a step: [title, symbol of its result, sentence].
const KINDS = {
  text: ["Text", "", "The input as it was written."],
  tokens: ["Tokens", "", "The tokenizer cuts the text into tokens. ␣ is a space."],
  ids: ["Ids", "", "Each token has a number in the vocabulary."],
  patches: ["Patches", "p", "The image is cut into patches; each is a row of numbers."],
  embeddings: ["Embeddings", "e", "The row of the embedding matrix for each id."],
  "patch-embeddings": ["Embeddings", "e", "A linear map of each patch. A class token c, if there is one, comes first."],
  segments: ["Segments", "s", "One learned vector for each segment. A single text is segment 0."],
  positions: ["Positions", "p", "Added to each embedding, so that the model knows the order. Positions are counted from 0."],
  sum: ["Residual stream", "x", "The sum. Positions that are not added here enter in the attention, if there are any."],
  norm: ["Norm", "x̂", "Each token by itself: its channels are normed, then scaled by learned factors."],
  project: ["Projection", "x", "From the size of the embeddings to the width of the model."],
  earlier: ["Earlier layers", "x", "The layers before this one have the same steps, with other weights."],
  memory: ["Memory", "m", "The output of the encoder. Keys and values come from it; choose the encoder to see its steps."],
  q: ["Queries", "Q", "What each token asks for."],
  k: ["Keys", "K", "What each token can be found by."],
  v: ["Values", "V", "What each token passes on."],
  "q-norm": ["Queries, normed", "Q", "Over the channels of the head."],
  "k-norm": ["Keys, normed", "K", "Over the channels of the head."],
  "q-rotated": ["Queries, rotated", "Q", "Pairs of channels are turned by an angle that grows with the position."],
  "k-rotated": ["Keys, rotated", "K", "Pairs of channels are turned by an angle that grows with the position."],
  "q-columns": ["Queries of the head", "Q", "The norm is over all heads; from here on one head is shown."],
  "k-columns": ["Keys of the head", "K", "The norm is over all heads; from here on one head is shown."],
  "q-given": ["Queries", "Q", "What each token asks for, from a small vector of each token (latent attention)."],
  "k-given": ["Keys", "K", "What each token can be found by, from a small vector of each token and a rotated key that all heads share."],
  "v-given": ["Values", "V", "What each token passes on, from the same small vector."],
  router: ["Router", "s", "The score of each expert. Each token goes through the few experts with the best scores."],
  product: ["Query · key", "S", "How well each query fits each key: one dot product for each pair."],
  scale: ["Scale", "S", "Scores of wide heads would be large, and the softmax would saturate."],
  cap: ["Soft cap", "S", "Scores are limited smoothly."],
  alibi: ["Position bias", "S", "ALiBi: a penalty for each position of distance."],
  bias: ["Position bias", "S", "A learned score for the distance of query and key, by buckets (T5)."],
  relative: ["Position bias", "S", "The query meets the encoded distance of each key (Transformer-XL)."],
  mask: ["Mask", "S", "A masked pair gets −∞, so its weight will be 0."],
  softmax: ["Softmax", "A", "Each row becomes a distribution: how much each query takes from each key. Checked with the output of the attention kernel."],
  head: ["Output of the head", "head", "For each query, the mean of the values, weighted by its row of A."],
  concat: ["Heads side by side", "c", "The outputs of all heads in one row."],
  out: ["Output projection", "y", "One matrix mixes the heads."],
  "layer-scale": ["Layer scale", "y", "A learned factor for each channel."],
  add: ["Add", "x", "The output is added to the residual stream: a running sum that every layer reads and adds to."],
  hidden: ["Hidden layer", "h", "Each token by itself: a wider layer with an activation."],
  "feed-forward": ["Feed-forward", "y", "Back to the width of the model."],
  later: ["Later layers", "x", "The layers after this one have the same steps, with other weights."],
  "final-norm": ["Final norm", "z", "The norm after the last layer."],
  "stack-out": ["Output of the stack", "z", "The residual stream after the last layer."],
  logits: ["Logits", "ℓ", "A score for each token of the vocabulary. With E it is the product with the token's embedding."],
  "class-logits": ["Logits", "ℓ", "A score for each class."],
  "head-dense": ["Head: dense", "d", "The head for masked tokens has a layer of its own."],
  "head-norm": ["Head: norm", "d", "Its output is normed."],
  pool: ["Pooling", "g", "One vector for the whole input."],
  pooler: ["Pooler", "g", "A layer with an activation."],
  answer: ["Probabilities", "P", "The most probable answers."],
};
const SCORES = ["product", "scale", "cap", "alibi", "bias", "relative", "mask", "softmax"];

export function trust({ run }) {
  return `Every formula follows from the settings of this model, and a test recomputes each step from its inputs by the formula that is shown. Numbers are the model's own${run.plain ? ", with the changed heads" : ""}; steps that are not recorded are computed from those that are. Of large matrices a part is shown.`;
}

export async function show(root, page) {
  await new Walk(root, page).draw();
}

class Walk {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const { state, about, run } = page, stacks = Object.keys(run.sides);
    const [stack] = (state.at ?? "").split(".");
    this.stack = stacks.includes(stack) ? stack : stacks[stacks.length - 1];
    const own = about.attentions.filter((each) => each.stack === this.stack);
    this.layers = Math.max(...own.map((each) => each.layers), 1);
    this.heads = Math.max(...own.map((each) => each.heads), 1);
    this.layer = Math.min(Number(state.layer) || 0, this.layers - 1);
    this.head = Math.min(Number(state.head) || 0, this.heads - 1);
    this.tokens = run.sides[this.stack].tokens;
    if (!page.source.live) this.tokens = this.tokens.slice(0, ROWS); // a saved file has these
    this.query = Math.min(Number.isNaN(Number(state.token ?? NaN)) ? opening(this.tokens) : Math.max(Number(state.token), 0), this.tokens.length - 1);
    this.first = Math.floor(this.query / ROWS) * ROWS;
  }

  async draw() {
    const { page, root } = this, again = (changes, label) => page.again(changes, `select[aria-label="${label}"]`);
    const stacks = Object.keys(page.run.sides), back = h("button", { type: "button", disabled: true, onclick: () => this.go(this.at - 1) }, "← Back");
    const on = h("button", { type: "button", class: "main", disabled: true, onclick: () => this.go(this.at + 1) }, "Next →");
    Object.assign(this, { back, on });
    const words = this.tokens.map((each, i) => [i, `${i}: ${short(each.text, 18)}`]);
    root.append(h("div", { class: "bar" },
      ...(stacks.length > 1 ? [picker("Stack", stacks.map((name) => [name, name === "encoder" ? "Encoder" : "Decoder"]), this.stack, (stack) => again({ at: `${stack}.attention`, token: null }, "Stack"))] : []),
      picker("Layer", counted(this.layers, "Layer"), this.layer, (layer) => again({ layer }, "Layer")), picker("Head", counted(this.heads, "Head"), this.head, (head) => again({ head }, "Head")),
      h("label", { class: "given hint" }, page.about.image ? "Patch" : "Token", picker("Token", words, this.query, (chosen) => again({ token: chosen }, "Token"))), back, on, h("span", { class: "hint" }, "← and → step through.")));
    const found = await page.source.ask("walk", { run: page.run.run, stack: this.stack, layer: this.layer, head: this.head, first: this.first });
    if (!root.isConnected) return;
    this.steps = found.steps;
    const values = Object.fromEntries(this.steps.filter((step) => step.value).map((step) => [step.name, step.value]));
    for (const value of Object.values(values)) value.tile = unpacked(value.tile);
    for (const { operands } of this.steps) for (const each of Object.values(operands)) each.tile = each.tile ? unpacked(each.tile) : values[each.name].tile;
    this.buttons = this.steps.map((step, i) => h("button", { type: "button", tabindex: -1, "data-step": step.name, onclick: () => this.go(i) }, this.kind(step)[0]));
    this.panel = h("div", { class: "panel", "aria-live": "polite" });
    this.tip = new Tip(root);
    const parts = [...new Set(this.steps.map((step) => step.part))];
    this.list = h("div", { class: "path-list" }, ...parts.map((part) => h("section", {}, h("p", { class: "part-name" }, part), h("ol", { "aria-label": part }, ...this.buttons.filter((_, i) => this.steps[i].part === part).map((button) => h("li", {}, button))))));
    this.body = h("div", { class: "walk" }, this.list, this.panel);
    root.append(this.body);
    this.list.style.maxHeight = `${page.room(this.list, 300)}px`;
    this.onKey = (event) => {
      if (!root.isConnected) { document.removeEventListener("keydown", this.onKey); return; }
      const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!turn || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("select, textarea, input, [role=tablist], [role=radiogroup], #chapter")) return;
      event.preventDefault();
      this.go(this.at + turn);
    };
    document.addEventListener("keydown", this.onKey);
    const named = this.steps.findIndex((step) => [step.name, step.kind].includes(page.state.step));
    this.go(named < 0 ? Number(page.state.step) || 0 : named, false);
    root.dataset.ready = "true";
  }

  // Title, symbol and sentence of a step. Of a module that is not known here: its name.
  kind(step) { return KINDS[step.kind] ?? [step.kind, "y", `The output of ${step.kind}, as the model computes it.`]; }

  go(to, focus = true) {
    this.at = Math.min(Math.max(to, 0), this.steps.length - 1);
    this.page.set({ step: this.steps[this.at].name });
    this.buttons.forEach((button, i) => {
      if (i === this.at) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
      button.tabIndex = i === this.at ? 0 : -1;
    });
    this.back.disabled = this.at === 0;
    this.on.disabled = this.at === this.steps.length - 1;
    this.tip.hide();
    this.#describe(this.steps[this.at]);
    if (focus && this.list.contains(document.activeElement)) this.buttons[this.at].focus();
    const { offsetTop, offsetHeight } = this.buttons[this.at], { scrollTop, clientHeight } = this.list;
    if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) this.list.scrollTop = offsetTop - clientHeight / 2;
  }

  formula(step) {
    const [, symbol] = this.kind(step);
    if (step.tree) return `${symbol} = ${written(step.tree, step.operands)}`;
    const layers = { earlier: `x = layer ${this.layer - 1}( … )`, later: `x = layer ${this.layers - 1}( … )`, tokens: "text → t₀ … tₙ", ids: "tᵢ → idᵢ", patches: "image → p₀ … pₙ", memory: "m = encoder(source)" };
    return layers[step.kind] ?? (step.value ? `${symbol} = ${step.kind}(x)` : "“…”");
  }

  #describe(step) {
    const [title, symbol, text] = this.kind(step), word = this.tokens[this.query].text;
    const scope = ["q", "k", "v", "softmax", "head"].includes(step.kind) ? ` · layer ${this.layer}, head ${this.head}` : "";
    const parts = [h("h2", {}, title, h("span", { class: "soft" }, scope)), h("p", { class: "formula" }, ...raised(this.formula(step))), h("p", {}, text, ...this.#more(step))];
    if (step.words && step.kind !== "answer") parts.push(this.#words(step));
    const drawn = [];
    if (step.kind === "answer") drawn.push(this.#answers(step));
    if (step.value) drawn.push(this.#equation(step, symbol));
    if (SCORES.includes(step.kind)) drawn.push(this.#scores(step, word));
    if (["product", "scale", "softmax"].includes(step.kind)) drawn.push(this.#byHand());
    if (step.kind === "add") drawn.push(this.#running(step));
    if (drawn.length) parts.push(h("div", { class: "drawn" }, ...drawn));
    if (step.value) {
      const fact = (label, value) => h("span", {}, `${label} `, h("span", { class: "number" }, value));
      parts.push(h("p", { class: "facts" }, fact("shape", step.value.shape.join(" × ")), fact("least", number(step.value.min)), fact("most", number(step.value.max)), fact("mean", number(step.value.mean)), fact("name", step.name)));
    }
    this.panel.replaceChildren(...parts);
  }

  #more(step) {
    const { factor, mean } = step.operands;
    if (step.kind === "head" && mean) return [h("b", {}, " This head gives its mean output over the input instead.")];
    if (step.kind === "head" && factor) return [h("b", {}, factor.tile.data[0] ? ` This head is scaled by ${factor.tile.data[0]}.` : " This head is silenced.")];
    if (step.kind === "concat") return [` Columns ${this.head * this.#size(step)} to ${(this.head + 1) * this.#size(step) - 1} are head ${this.head}.`];
    if (step.kind === "mask") { let count = 0; for (const value of step.value.tile.data) if (value === -Infinity) count++; return [` Here ${count} of ${step.value.tile.data.length} pairs are masked.`]; }
    return [];
  }

  #size(step) { return step.value.shape[1] / this.heads; }

  #row(step, each) { return each.shape.length > 1 && each.shape[0] === step.value.shape[0] ? this.query - (step.value.first ?? 0) : undefined; }

  // Operands and result as tiles, with a sign between them.
  #equation(step, symbol) {
    const shown = leaves(step.tree ?? "").filter((name) => step.operands[name]?.shape.length);
    const rows = step.rows, tile = (name, each, label, keys, names) => {
      const [high, wide] = each.tile.shape.length > 1 ? each.tile.shape : [1, each.tile.shape[0]];
      const limit = Math.min(high, 14), from = Math.min(Math.max((this.#row(step, each) ?? 0) - 7, 0), high - limit), across = Math.min(wide, keys?.length ? 32 : shown.length > 2 ? 12 : 20);
      const data = new Float32Array(limit * across);
      for (let i = 0; i < limit; i++) for (let j = 0; j < across; j++) data[i * across + j] = each.tile.data[(from + i) * wide + j];
      const row = this.#row(step, each);
      return tiles({ symbol: name, shape: each.shape, data, rows: limit, columns: across, first: (each.first ?? 0) + from, names: names?.slice(from), keys, row: row === undefined ? undefined : row - from, tip: this.tip, label });
    };
    const parts = shown.map((name) => tile(name, step.operands[name], `Operand ${name}`, null, this.#row(step, step.operands[name]) === undefined ? null : rows));
    const result = tile(symbol || "x", step.value, this.kind(step)[0], step.columns, rows);
    result.classList.add("result");
    return h("div", { class: "equation" }, ...parts.flatMap((part, i) => (i ? [h("span", { class: "sign", "aria-hidden": "true" }, ","), part] : [part])), parts.length ? h("span", { class: "sign", "aria-hidden": "true" }, "→") : null, result);
  }

  // One query against every key: each step of the scores so far, and the weights as bars.
  #scores(step, word) {
    const attention = step.name.split(".").slice(0, 3).join("."), kinds = this.steps.filter((each) => each.name.startsWith(`${attention}.`) && SCORES.includes(each.kind));
    const now = kinds.indexOf(step), row = this.query - (step.value.first ?? 0), keys = step.columns;
    const cells = kinds.map((each) => { const wide = each.value.tile.shape[1]; return each.value.tile.data.subarray(row * wide, (row + 1) * wide); });
    const long = keys.length > 11, order = keys.map((_, k) => k); // in a long list, the largest are visible without scrolling
    if (long) order.sort((one, two) => cells[now][two] - cells[now][one] || one - two);
    const body = order.map((k) => h("tr", { "data-key": k }, h("th", { scope: "row" }, token(short(keys[k], 18)), h("span", { class: "soft" }, ` ${k}`)), ...kinds.map((each, i) => {
      const value = cells[i][k], told = i <= now ? (Number.isFinite(value) ? number(value, 4) : "−∞") : "";
      if (each.kind !== "softmax" || i > now) return h("td", { class: `number${i === now ? " now" : ""}`, "data-value": i <= now ? value : null }, told);
      return h("td", { class: "number now", "data-value": value }, meter(value), told);
    })));
    const names = kinds.map((each) => ({ product: "q · k", scale: written(["over", "S", "√dₖ"], each.operands).includes("S") && each.tree[0] === "over" ? `÷ ${written("√dₖ", each.operands)}` : "scaled", softmax: "softmax" }[each.kind] ?? KINDS[each.kind][0].toLowerCase()));
    return h("section", { class: "one-query" }, h("h3", {}, token(word), ` (${this.query}) against every key`), table([long ? "key, best first" : "key", ...names.map((name, i) => h("th", { scope: "col", class: i === now ? "now" : "" }, name))], body, "Scores of the chosen token"));
  }

  // The lecture's example, Thinking Machines: scores 112 and 96 with keys of size 64. The numbers can be changed.
  #byHand() {
    const scores = h("input", { name: "scores", value: "112, 96", size: 14, "aria-label": "Scores" }), size = h("input", { name: "size", value: "64", size: 4, "aria-label": "Size of keys" }), out = h("tbody");
    const compute = () => {
      const q = scores.value.split(/[,;\s]+/).filter(Boolean).map(Number), s = q.map((value) => value / Math.sqrt(Number(size.value) || 1)), most = Math.max(...s), powers = s.map((value) => Math.exp(value - most)), sum = powers.reduce((a, b) => a + b, 0);
      const row = (name, values, digits) => h("tr", {}, h("th", { scope: "row" }, name), ...values.map((value) => h("td", { class: "number" }, String(Number(value.toFixed(digits))).replace("-", "−"))));
      out.replaceChildren(row("q · k", q, 4), row(`÷ √${clean(size.value)}`, s, 4), row("softmax", powers.map((value) => value / sum), 2));
    };
    for (const field of [scores, size]) field.addEventListener("input", compute);
    compute();
    return h("details", { class: "by-hand" }, h("summary", {}, "By hand: Thinking Machines"), h("p", { class: "bar" }, h("label", { class: "hint" }, "q · k ", scores), h("label", { class: "hint" }, "dₖ ", size)), h("table", {}, out));
  }

  // The residual stream of the chosen token: what each sublayer has added so far.
  #running(step) {
    const adds = this.steps.slice(0, this.at + 1).filter((each) => each.kind === "add");
    const length = (each) => { const tile = each.tile, wide = tile.shape[1], row = this.query - this.first; let sum = 0; for (let j = 0; j < wide; j++) sum += tile.data[row * wide + j] ** 2; return Math.sqrt(sum); };
    const rows = [["before this layer", adds[0].operands.x], ...adds.map((each) => [`+ ${each.part.toLowerCase()}`, each.operands.y])].map(([name, each]) => [name, length(each)]);
    rows.push(["sum", length(step.value)]);
    const most = Math.max(...rows.map(([, value]) => value), 1e-9);
    return h("section", {}, h("h3", {}, "The running sum of ", token(this.tokens[this.query].text)), h("table", {}, h("tbody", {}, ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name),
      h("td", {}, meter(value / most)), h("td", { class: "number" }, number(value, 3)))))),
    h("p", { class: "hint" }, "Length of each vector, over the channels that are shown."));
  }

  #answers(step) {
    const rows = step.words.map(([name, ...found], i) => h("tr", { class: i === this.query - this.first ? "now" : "" }, h("th", { scope: "row" }, token(short(name, 20))), ...found.map((text) => h("td", {}, token(text)))));
    return region("Most probable", h("table", {}, h("tbody", {}, ...rows)), "words");
  }

  #words(step) {
    const wide = 200, rows = step.words.map((row) => h("tr", {}, ...row.slice(0, wide).map((text, i) => h("td", { class: row.length > 1 && i === this.query ? "now" : "" }, token(text)))));
    return region(clean(this.kind(step)[0]), h("table", {}, h("tbody", {}, ...rows)), "corner words");
  }
}
