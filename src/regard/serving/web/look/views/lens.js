// The output of each layer: a grid of layers by tokens, and one cell in detail.

import { TURNS, bound, choices, clean, h, meter, number, region, short, soft, token } from "../dom.js";
import { colour, inkOn, legend } from "../heat.js";
import { Tip } from "../tip.js";

const WIDE = 84, SIDE = 190, MARGIN = 6; // widths of a column and of the names, in pixels; columns drawn beyond what is seen

export async function show(root, page) {
  const { about, state } = page;
  const output = about.outputs.includes(state.output) ? state.output : about.outputs[0];
  const found = await page.source.ask("lens", { run: page.run.run, output });
  if (!root.isConnected) return;
  const parts = about.outputs.length > 1 ? [choices("Output", about.outputs.map((name) => [name, clean(name)]), output,
    (value) => page.again({ output: value, row: null, column: null }, '.choices [aria-checked="true"]'))] : [];
  root.append(h("div", { class: "bar" }, ...parts,
    h("span", { class: "hint" },
      "Rows are layers, columns are tokens; bold is the model's answer, and a frame marks the first layer that gives it. Point at a cell, or use the arrow keys.")));
  new Grid(root, page, found).draw();
  root.dataset.ready = "true";
}

class Grid {
  constructor(root, page, found) {
    Object.assign(this, { root, page, found });
    this.tokens = page.run.sides[found.stack].tokens;
    this.places = found.final.length;
    this.wide = found.each ? WIDE : 200;
    this.at = [bound(page.state.row ?? found.layers.length, found.layers.length), bound(page.state.column, this.places)];
  }

  text(id) { return this.found.texts[id] ?? String(id); }
  layer(i) { return i === 0 ? "Embeddings" : `Layer ${i - 1}${i === this.found.layers.length - 1 ? ", output" : ""}`; }

  draw() {
    const { found } = this, scale = h("canvas", { "aria-hidden": "true" });
    this.box = h("div",
      { class: "lens", id: "lens", tabindex: 0, role: "grid", "aria-label": "Output of each layer",
        "aria-rowcount": found.layers.length + 1, "aria-colcount": this.places });
    this.inner = h("div");
    this.inner.style.width = `${SIDE + this.places * this.wide}px`;
    this.box.append(this.inner);
    this.caption = h("div", { class: "reading", "aria-live": "polite" });
    const places = this.places === 1 ? "one position" : `${this.places} positions`;
    const same = found.each
      ? [`A constant guess, the most frequent of the model's answers, agrees at `, share(found.constant, "constant"),
        ` of the ${places}; a random one at ${percent(1 / found.choices)}.`]
      : [`With one position there is no share; a random guess is right once in ${found.choices}.`];
    this.tip = new Tip(this.root);
    this.root.append(this.box,
      h("div", { class: "legend" }, "0", scale, "1", h("span", {}, "probability of the first guess")),
      h("p", { class: "hint", id: "baseline" }, ...same), this.caption);
    legend(scale);
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.#window()));
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("pointermove", (event) => {
      const cell = event.target.closest?.("[data-cell]")?.dataset.cell.split(".").map(Number);
      if (!cell) { this.tip.hide(); return; }
      if (cell[0] !== this.at[0] || cell[1] !== this.at[1]) this.#move(...cell, false);
      const layer = found.layers[cell[0]], id = layer.tokens[cell[1]][0];
      this.tip.at(event.clientX, event.clientY, h("b", {}, token(this.text(id))), " ",
        h("b", { class: "number", "data-value": layer.chances[cell[1]][0] }, number(layer.chances[cell[1]][0], 6)),
        soft(` ${this.layer(cell[0])}`));
    });
    this.box.addEventListener("pointerleave", () => this.tip.hide());
    new ResizeObserver(() => this.#window()).observe(this.box);
    this.box.style.maxHeight = `${Math.max(this.page.room(this.box) * 0.55, 240)}px`;
    this.#window(true);
    this.#move(...this.at);
  }

  // Only visible columns are created, since a long text has thousands of cells.
  #window(force = false) {
    const first = Math.max(Math.floor(this.box.scrollLeft / this.wide) - MARGIN, 0);
    const last = Math.min(Math.ceil((this.box.scrollLeft + Math.max(this.box.clientWidth, 300)) / this.wide) + MARGIN, this.places);
    if (!force && first === this.first && last === this.last) return;
    Object.assign(this, { first, last });
    const range = Array.from({ length: last - first }, (_, i) => first + i), { found } = this;
    const row = (name, cells, kind) => {
      cells[0].style.marginLeft = `${first * this.wide}px`;
      for (const cell of cells) cell.style.width = `${this.wide}px`;
      return h("div", { role: "row", class: kind }, name, ...cells);
    };
    const writes = found.output === "output";
    const head = row(h("div", { class: "name", role: "columnheader" },
      found.each ? (writes ? "after → comes" : "at") : ""),
      range.map((t) => h("div",
        { role: "columnheader", title: clean(found.each ? this.tokens[t].text : "the whole input") },
      found.each ? token(short(this.tokens[t].text)) : "the whole input",
        writes ? h("div", { class: "soft" },
          found.actual[t] === null ? "?" : token(short(this.text(found.actual[t])))) : null)),
        "head");
    const rows = found.layers.map((layer,
      i) => row(h("div", { class: "name", role: "rowheader" }, this.layer(i),
        found.each ? share(layer.agrees, "agrees") : null),
      range.map((t) => {
      const id = layer.tokens[t][0], shade = colour(layer.chances[t][0]), agrees = id === found.final[t];
      const cell = h("div",
        { role: "gridcell", id: `cell-${i}-${t}`, "data-cell": `${i}.${t}`,
          class: `${agrees ? "agrees" : ""}${found.first[t] === i ? " first" : ""}` },
        token(short(this.text(id), 18)));
      cell.style.background = `rgb(${shade})`;
      cell.style.color = inkOn(shade);
      return cell;
    })));
    this.inner.replaceChildren(head, ...rows);
    this.#mark();
  }

  #key(event) {
    const turn = { ...TURNS, Home: [0, -this.places], End: [0, this.places] }[event.key];
    if (!turn) return;
    event.preventDefault();
    const [layer, place] = this.at;
    this.#move(bound(layer + turn[0], this.found.layers.length), bound(place + turn[1], this.places));
  }

  #move(layer, place, scrolls = true) {
    this.at = [layer, place];
    this.page.set({ row: layer, column: place });
    if (scrolls) {
      const { box } = this, left = place * this.wide;
      if (left < box.scrollLeft) box.scrollLeft = left;
      else if (left + this.wide + SIDE > box.scrollLeft + box.clientWidth) box.scrollLeft = left + this.wide + SIDE - box.clientWidth;
      this.#window();
    }
    this.#mark();
    this.#describe();
  }

  #mark() {
    const [layer, place] = this.at;
    this.inner.querySelector(".at")?.classList.remove("at");
    this.inner.querySelector(`#cell-${layer}-${place}`)?.classList.add("at");
    this.box.setAttribute("aria-activedescendant", `cell-${layer}-${place}`);
  }

  #describe() {
    const { found, at: [i, t] } = this, layer = found.layers[i], id = found.final[t], actual = found.actual[t];
    const where = found.each ? [found.output === "output" ? " after " : " at ", token(short(this.tokens[t].text, 40)), soft(` at ${t}`)] : [];
    const guesses = layer.tokens[t].map((each, k) => h("tr", {}, h("td", {}, token(short(this.text(each), 32))),
      h("td", {}, meter(layer.chances[t][k])),
      h("td", { class: "number", "data-value": layer.chances[t][k] }, number(layer.chances[t][k], 6))));
    const fact = (name, what, chance, rank) => [h("dt", {}, name),
      h("dd", { "data-fact": name }, h("b", {}, token(short(this.text(what), 32))), " ",
        h("span", { class: "number", "data-value": chance }, number(chance, 6)),
        soft(`, rank ${rank + 1} of ${found.choices}`))];
    const facts = h("dl", { class: "facts-list" }, ...fact("Model's answer", id, layer.final_chance[t], layer.final_rank[t]),
      ...(actual === null ? [] : fact(found.output === "output" ? "Actual next token" : "Actual token", actual, layer.actual_chance[t], layer.actual_rank[t])),
      h("dt", {}, "Entropy"),
        h("dd", { "data-fact": "Entropy" },
          h("span", { class: "number", "data-value": layer.entropy[t] }, number(layer.entropy[t])),
          soft(` nats, of ${number(Math.log(found.choices), 2)} at the most`)),
      h("dt", {}, "First layer with this answer"),
        h("dd", {}, this.layer(found.first[t]).replace(", output", ""),
          found.settled[t] === found.first[t] ? soft(", and it stays") : soft(`; it stays from ${this.layer(found.settled[t]).replace(", output", "").toLowerCase()}`)));
    const path = found.layers.map((each, k) => h("tr", { class: k === i ? "here" : "" },
      h("th", { scope: "row" }, this.layer(k)), h("td", {}, meter(each.final_chance[t])),
      h("td", { class: "number" }, number(each.final_chance[t], 4)),
      h("td", { class: "number soft" }, `rank ${each.final_rank[t] + 1}`)));
    this.caption.replaceChildren(
      h("section", {}, h("h2", {}, this.layer(i), ...where), h("table", { "aria-label": "Most probable" }, h("tbody", {}, ...guesses)), facts),
      h("section", {}, h("h2", {}, "How ", token(short(this.text(id), 24)), " grows from layer to layer"),
        region("Layer by layer", h("table", { class: "path" }, h("tbody", {}, ...path)))));
  }
}

function percent(value) {
  return `${number(100 * value, value > 0 && value < 0.001 ? 3 : 1)} %`;
}

function share(value, name) {
  return h("span", { class: "number", [`data-${name}`]: value }, percent(value));
}
