// The path of one input through a layer, step by step: formula, operands and result as tiles, and the scores of one
// query against every key.

import { bound, clean, counted, h, meter, number, opening, picker, raised, region, short, soft, table, token } from "../dom.js";
import { joints, leaves, seconds, written } from "../formulas.js";
import { unpacked } from "../packed.js";
import { tiles } from "../tiles.js";
import { Tip } from "../tip.js";

const ROWS = 48; // tokens in an answer
const SCORES = ["product", "scale", "cap", "alibi", "bias", "relative", "mask", "softmax"];

export async function show(root, page) {
  await new Walk(root, page).draw();
}

// A matrix with its rows as columns: Kᵀ.
function turned(each) {
  const [high, wide] = each.tile.shape, data = new Float32Array(high * wide);
  for (let i = 0; i < high; i++) for (let j = 0; j < wide; j++) data[j * high + i] = each.tile.data[i * wide + j];
  return { ...each, symbol: `${each.symbol}ᵀ`, shape: [...each.shape].reverse(), tile: { shape: [wide, high], data }, names: null, keys: each.names, first: 0 };
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
    this.layer = bound(state.layer, this.layers);
    this.head = bound(state.head, this.heads);
    this.tokens = run.sides[this.stack].tokens;
    if (!page.source.live) this.tokens = this.tokens.slice(0, ROWS); // a saved file has these
    this.query = bound(Number.isNaN(parseInt(state.token)) ? opening(this.tokens) : state.token, this.tokens.length);
    this.first = Math.floor(this.query / ROWS) * ROWS;
  }

  async draw() {
    const { page, root } = this, again = (changes, label) => page.again(changes, `select[aria-label="${label}"]`);
    const stacks = Object.keys(page.run.sides), back = h("button", { disabled: true, onclick: () => this.go(this.at - 1) }, "← Back");
    const on = h("button", { class: "main", disabled: true, onclick: () => this.go(this.at + 1) }, "Next →");
    Object.assign(this, { back, on });
    const words = this.tokens.map((each, i) => [i, `${i}: ${short(each.text, 18)}`]);
    root.append(h("div", { class: "bar" },
      ...(stacks.length > 1 ? [picker("Stack", stacks.map((name) => [name, name === "encoder" ? "Encoder" : "Decoder"]),
        this.stack, (stack) => again({ at: `${stack}.attention`, token: null }, "Stack"))] : []),
      picker("Layer", counted(this.layers, "Layer"), this.layer, (layer) => again({ layer }, "Layer")),
        picker("Head", counted(this.heads, "Head"), this.head, (head) => again({ head }, "Head")),
      h("label", { class: "given hint" }, page.about.image ? "Patch" : "Token",
        picker("Token", words, this.query, (chosen) => again({ token: chosen }, "Token"))),
        back, on, h("span", { class: "hint" }, "← and → step through.")));
    const found = await page.source.ask("walk", { run: page.run.run, stack: this.stack, layer: this.layer, head: this.head, first: this.first });
    if (!root.isConnected) return;
    this.steps = found.steps;
    const values = Object.fromEntries(this.steps.filter((step) => step.value).map((step) => [step.name, step.value]));
    for (const value of Object.values(values)) value.tile = unpacked(value.tile);
    for (const { operands } of this.steps) for (const each of Object.values(operands)) each.tile = each.tile ? unpacked(each.tile) : values[each.name].tile;
    this.buttons = this.steps.map((step, i) => h("button", { tabindex: -1, "data-step": step.name, onclick: () => this.go(i) }, step.title));
    this.panel = h("div", { class: "panel", "aria-live": "polite" });
    this.tip = new Tip(root);
    const parts = [...new Set(this.steps.map((step) => step.part))];
    this.list = h("div", { class: "path-list" },
      ...parts.map((part) => h("section", {}, h("p", { class: "part-name" }, part),
        h("ol", { "aria-label": part },
          ...this.buttons.filter((_, i) => this.steps[i].part === part).map((button) => h("li", {}, button))))));
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
    this.go(named < 0 ? page.state.step : named, false);
    root.dataset.ready = "true";
  }

  go(to, focus = true) {
    this.at = bound(to, this.steps.length);
    if (focus) this.page.set({ step: this.steps[this.at].name }); // an address may name a kind of step
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
    const { symbol } = step;
    // x ← x + y: the new value has the symbol of an operand.
    if (step.tree) return `${symbol} ${leaves(step.tree).includes(symbol) ? "←" : "="} ${written(step.tree, step.operands)}`;
    const layers = { earlier: `x = layer ${this.layer - 1}( … )`, later: `x = layer ${this.layers - 1}( … )`,
      tokens: "text → t₀ … tₙ", ids: "tᵢ → idᵢ", patches: "image → p₀ … pₙ", memory: "m = encoder(source)" };
    return layers[step.kind] ?? (step.value ? `${symbol} = ${step.kind}(x)` : "");
  }

  #describe(step) {
    const { title, symbol, text } = step, word = this.tokens[this.query].text;
    const scope = ["q", "k", "v", "softmax", "head"].includes(step.kind) ? ` · layer ${this.layer}, head ${this.head}` : "";
    const formula = step.kind === "text" ? "" : h("p", { class: "formula" }, ...raised(this.formula(step)));
    const parts = [h("h2", {}, title, soft(scope)), formula, h("p", {}, text, ...this.#more(step))];
    const drawn = step.words && step.kind !== "answer" ? [this.#words(step)] : [];
    if (step.kind === "answer") drawn.push(this.#answers(step));
    if (step.value) drawn.push(this.#equation(step, symbol));
    if (SCORES.includes(step.kind)) drawn.push(this.#scores(step, word));
    if (["product", "scale", "softmax"].includes(step.kind)) drawn.push(this.#byHand());
    if (step.kind === "add") drawn.push(this.#running(step));
    if (drawn.length) parts.push(h("div", { class: "drawn" }, ...drawn));
    if (step.value) {
      const fact = (label, value) => h("span", {}, `${label} `, h("span", { class: "number" }, value));
      parts.push(h("p", { class: "facts" }, fact("shape", step.value.shape.join(" × ")),
        fact("least", number(step.value.min)), fact("most", number(step.value.max)),
        fact("mean", number(step.value.mean)), fact("name", step.name)));
    }
    this.panel.replaceChildren(...parts);
  }

  #more(step) {
    const { factor, mean } = step.operands;
    if (step.kind === "head" && mean) return [h("b", {}, " This head gives its mean output over the input instead.")];
    if (step.kind === "head" && factor) return [h("b", {}, factor.tile.data[0] ? ` This head is scaled by ${factor.tile.data[0]}.` : " This head is silenced.")];
    if (step.kind === "concat") return [` Columns ${this.head * this.#size(step)} to ${(this.head + 1) * this.#size(step) - 1} are head ${this.head}.`];
    if (step.kind === "mask") { let count = 0;
      for (const value of step.value.tile.data) if (value === -Infinity) count++;
      return [` Here ${count} of ${step.value.tile.data.length} pairs are masked.`]; }
    return [];
  }

  #size(step) { return step.value.shape[1] / this.heads; }

  // Operands and result as tiles, with a sign between them.
  #equation(step, symbol) {
    const signs = joints(step.tree ?? ""), second = seconds(step.tree ?? "");
    let shown = leaves(step.tree ?? "").filter((name) => step.operands[name]?.shape.length);
    if (shown.length > 8) shown = [...shown.slice(0, 6), shown.at(-1)];
    const matrices = shown.map((name) => this.#matrix(step, name, second.get(name)));
    const own = { ...step.value, symbol: symbol || "x", names: step.rows, keys: step.columns.length ? step.columns : null };
    matrices.push({ ...own, row: this.#place(step.rows, step.value.first), label: step.title });
    const scores = SCORES.includes(step.kind), cell = document.body.classList.contains("lecture") && !scores ? 17 : 14;
    const most = step.kind === "product" ? 10 : scores ? 14 : 16, many = matrices.length > 5, broad = matrices.filter((each) => !each.written).length;
    const labels = matrices.map((each, i) => [each.names && (!i || (!scores && (i === shown.length || each.at))), each.keys && scores]);
    const room = (this.panel.clientWidth || 800) - 72 * labels.filter(([rows]) => rows).length - (many ? 14 : 34) * matrices.length;
    const fits = Math.floor((room - (scores && broad < 3 ? 430 : 0)) / broad / cell);
    const across = Math.min(Math.max(fits, 5), scores ? (broad > 2 ? 12 : 16) : 24);
    const parts = matrices.map((each, i) => this.#tile(each, most, across, cell, labels[i]));
    parts.at(-1).classList.add("result");
    const sign = (i) => h("span", { class: "sign", "aria-hidden": "true" }, i === shown.length ? "→" : signs[shown[i]] ?? ",");
    return h("div", { class: `equation${many ? " many" : ""}` }, ...parts.flatMap((part, i) => (i ? [sign(i), part] : [part])));
  }

  // The row of the chosen token among these names, if they are the tokens of this stack.
  #place(names, first = 0) {
    return names.every((name, i) => name === this.tokens[first + i]?.text) ? this.query - first : undefined;
  }

  // An operand as a matrix with names. The second factor of a product has no row of its own for the chosen token.
  #matrix(step, symbol, second) {
    const each = step.operands[symbol], from = this.steps.find((other) => other.name === each.name && other.value);
    const first = from?.value.first ?? each.first ?? 0, found = { ...each, symbol, first, label: `Operand ${symbol}` };
    if (each.at) return { ...found, names: each.at.map(String), row: each.places[this.query - step.value.first] };
    if (from || each.first !== undefined) found.names = from?.rows ?? step.rows;
    if (from?.columns.length) found.keys = from.columns;
    if (found.names && !second) found.row = this.#place(found.names, first);
    if (each.shape.length === 1 && found.names) return { ...found, written: true };
    return second === "dot" ? turned(found) : found;
  }

  // The part of a matrix around the chosen token.
  #tile(each, most, across, cell, labelled) {
    const [high, wide] = each.tile.shape.length > 1 ? each.tile.shape : each.written ? [each.tile.shape[0], 1] : [1, each.tile.shape[0]];
    const rows = Math.min(high, most), columns = Math.min(wide, across), data = new Float32Array(rows * columns);
    const from = Math.min(Math.max((each.row ?? 0) - Math.floor(rows / 2), 0), high - rows);
    const own = each.keys && this.#place(each.keys) !== undefined ? this.query : 0;
    const left = Math.min(Math.max(own - Math.floor(columns / 2), 0), wide - columns);
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) data[i * columns + j] = each.tile.data[(from + i) * wide + left + j];
    return tiles({ ...each, data, rows, columns, first: (each.first ?? 0) + from, cell, labelled, tip: this.tip,
      names: each.names?.slice(from, from + rows), keys: each.keys?.slice(left, left + columns),
      row: each.row === undefined ? undefined : each.row - from });
  }

  // One query against every key: each step of the scores so far, and the weights as bars.
  #scores(step, word) {
    const attention = step.name.split(".").slice(0, 3).join("."), kinds = this.steps.filter((each) => each.name.startsWith(`${attention}.`) && SCORES.includes(each.kind));
    const now = kinds.indexOf(step), row = this.query - (step.value.first ?? 0), keys = step.columns;
    const cells = kinds.map((each) => { const wide = each.value.tile.shape[1]; return each.value.tile.data.subarray(row * wide, (row + 1) * wide); });
    const long = keys.length > 11, order = keys.map((_, k) => k); // in a long list, the largest are visible without scrolling
    if (long) order.sort((one, two) => cells[now][two] - cells[now][one] || one - two);
    const body = order.map((k) => h("tr", { "data-key": k }, h("th", { scope: "row" }, token(short(keys[k], 18)), soft(` ${k}`)), ...kinds.map((each, i) => {
      const value = cells[i][k], told = i <= now ? (Number.isFinite(value) ? number(value, 4) : "−∞") : "";
      if (each.kind !== "softmax" || i > now) return h("td", { class: `number${i === now ? " now" : ""}`, "data-value": i <= now ? value : null }, told);
      return h("td", { class: "number now", "data-value": value }, meter(value), told);
    })));
    const names = kinds.map((each) => ({ product: "q · k",
      scale: written(["over", "S", "√dₖ"],
        each.operands).includes("S") && each.tree[0] === "over" ? `÷ ${written("√dₖ", each.operands)}` : "scaled",
      softmax: "softmax" }[each.kind] ?? each.title.toLowerCase()));
    return h("section", { class: "one-query" }, h("h3", {}, token(word), ` (${this.query}) against every key`),
      table([long ? "key, best first" : "key",
        ...names.map((name, i) => h("th", { scope: "col", class: i === now ? "now" : "" }, name))],
        body, "Scores of the chosen token"));
  }

  // The lecture's example, Thinking Machines: scores 112 and 96 with keys of size 64. The numbers can be changed.
  #byHand() {
    const scores = h("input", { name: "scores", value: "112, 96", size: 14, "aria-label": "Scores" }),
      size = h("input", { name: "size", value: "64", size: 4, "aria-label": "Size of keys" }), out = h("tbody");
    const compute = () => {
      const q = scores.value.split(/[,;\s]+/).filter(Boolean).map(Number),
        s = q.map((value) => value / Math.sqrt(Number(size.value) || 1)), most = Math.max(...s),
        powers = s.map((value) => Math.exp(value - most)), sum = powers.reduce((a, b) => a + b, 0);
      const row = (name, values, digits) => h("tr", {}, h("th", { scope: "row" }, name),
        ...values.map((value) => h("td", { class: "number" },
          String(Number(value.toFixed(digits))).replace("-", "−"))));
      out.replaceChildren(row("q · k", q, 4), row(`÷ √${clean(size.value)}`, s, 4), row("softmax", powers.map((value) => value / sum), 2));
    };
    for (const field of [scores, size]) field.addEventListener("input", compute);
    compute();
    return h("details", { class: "by-hand" }, h("summary", {}, "By hand: Thinking Machines"),
      h("p", { class: "bar" }, h("label", { class: "hint" }, "q · k ", scores),
        h("label", { class: "hint" }, "dₖ ", size)),
      h("table", {}, out));
  }

  // The residual stream of the chosen token: what each sublayer has added so far.
  #running(step) {
    const adds = this.steps.slice(0, this.at + 1).filter((each) => each.kind === "add");
    const length = (each) => { const tile = each.tile, wide = tile.shape[1], row = this.query - this.first; let sum = 0;
      for (let j = 0; j < wide; j++) sum += tile.data[row * wide + j] ** 2; return Math.sqrt(sum); };
    const rows = [["before this layer", adds[0].operands.x],
      ...adds.map((each) => [`+ ${each.part.toLowerCase()}`, each.operands.y])].map(([name, each]) => [name,
        length(each)]);
    rows.push(["sum", length(step.value)]);
    const most = Math.max(...rows.map(([, value]) => value), 1e-9);
    return h("section", {}, h("h3", {}, "The running sum of ", token(this.tokens[this.query].text)),
      h("table", {}, h("tbody", {}, ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name),
      h("td", {}, meter(value / most)), h("td", { class: "number" }, number(value, 3)))))),
    h("p", { class: "hint" }, "Length of each vector, over the channels that are shown."));
  }

  #answers(step) {
    const rows = step.words.map(([name, ...found], i) => h("tr", { class: i === this.query - this.first ? "now" : "" },
      h("th", { scope: "row" }, token(short(name, 20))), ...found.map((text) => h("td", {}, token(text)))));
    return region("Most probable", h("table", {}, h("tbody", {}, ...rows)), "words");
  }

  #words(step) {
    const wide = 200,
      rows = step.words.map((row) => h("tr", {},
        ...row.slice(0,
          wide).map((text, i) => h("td", { class: row.length > 1 && i === this.query ? "now" : "" }, token(text)))));
    return region(clean(step.title), h("table", {}, h("tbody", {}, ...rows)), "corner words");
  }
}
