// One training step on the input: teacher forcing next to inference, the loss of each token, the gradient of each part,
// and updates of a copy of the model.

import { choices, clean, h, meter, number, picker, region, short, soft, table, token } from "../dom.js";
import { maskOf } from "../heat.js";
import { lines } from "../lines.js";
import { once } from "../packed.js";
import { tiles } from "../tiles.js";
import { Tip } from "../tip.js";

const RATES = ["0.0001", "0.001", "0.01", "0.1", "1"], MOST = 20, SHOWN = 16;

export async function show(root, page) {
  const { state, source, run, about } = page, steps = Math.min(Number(state.steps) || 0, MOST), optimizer = state.optimizer === "adamw" ? "adamw" : "sgd";
  const masked = (state.masked ?? "").split(",").filter(Boolean).map(Number), rate = Number(RATES.find((each) => each === state.rate) ?? 0.01);
  const found = await once(page, "training", { run: run.run, steps, optimizer, rate, masked, answer: state.answer === undefined ? null : Number(state.answer) });
  if (!root.isConnected) return;
  const { losses, rows, free } = found, live = source.live, after = steps > 0, stack = Object.keys(run.sides).at(-1), writes = about.translates || stack === "decoder";
  const go = (to, text, id) => h("button",
    { id, class: id === "step" ? "main" : null, disabled: to === steps || to > MOST || (!live && to > 1),
      onclick: () => page.again({ steps: to || null }, `#${id}`) },
    text);
  const told = after ? [h("b", { class: "number", "data-loss": losses[0] }, number(losses[0])), " → ",
    h("b", { class: "number", "data-loss": losses[steps] }, number(losses[steps])),
    ` after ${steps} step${steps > 1 ? "s" : ""}`,
    steps > 1 ? "" : soft("; the gradient predicts ",
      h("span", { "data-expected": found.expected }, number(losses[0] + found.expected)))] : [h("b",
      { class: "number", "data-loss": losses[0] }, number(losses[0]))];
  root.append(h("div", { class: "bar" }, go(steps + 1, "One step", "step"), go(0, "Back to the model", "reset"),
    choices("Optimizer", [["sgd", "SGD"], ["adamw", "AdamW"]], optimizer,
      (value) => live && page.again({ optimizer: value }, '[aria-label="Optimizer"] [aria-checked=true]')),
    h("label", { class: "given hint" }, "Learning rate",
      picker("Learning rate", RATES.map((each) => [each, each]), String(rate),
        (value) => page.again({ rate: value }, '[aria-label="Learning rate"]'))),
    h("p", { class: "outcome" }, "Mean loss ", ...told)));
  if (!live) root.querySelector("select").disabled = true;
  const shown = writes ? forced(found, run.sides[stack], after) : found.classes.length ? classed(rows,
    after) : hidden(found, run.sides.encoder.tokens, after,
    (places) => live && page.again({ masked: places.join(",") }, ".forcing button"));
  const main = region("Loss of each token", shown, "forcing"), tip = new Tip(root), side = h("div", { class: "side" });
  if (found.classes.length) main.prepend(h("label", { class: "given hint" }, "True class",
    picker("True class", found.classes.map((name, i) => [i, clean(name)]), rows[0].id,
      (value) => page.again({ answer: value }, '[aria-label="True class"]'))));
  root.append(h("div", { class: "training" }, main, side));
  main.style.maxHeight = `${page.room(main, 300)}px`;
  const group = about.attentions.find((each) => each.stack === stack && each.kind === "attention"), seen = group && maskOf(group, 0);
  side.append(parts(found.parts, after));
  if (seen) side.append(mask(run.sides[stack].tokens.map((each) => each.text), seen, tip));
  const { curve } = found;
  if (curve) side.append(h("section", {}, h("h2", {}, "The run's training"),
    lines({ id: "curve", label: "Loss by step", x: curve.steps, across: "step", room: Math.max(side.clientWidth, 280),
      tall: 190,
    series: [{ name: "training", values: curve.train, kind: "c0" }, ...(curve.valid ? [{ name: "validation", values: curve.valid, kind: "c1" }] : [])] })));
  root.dataset.ready = "true";
}

// The loss of a prediction, before and after.
function losses({ before, after }, both) {
  const bar = (loss) => Math.min(loss / 4, 1);
  return [h("td", {}, both ? meter(bar(before.loss), bar(after.loss)) : meter(bar(before.loss))),
    h("td", { class: "number", "data-before": before.loss, "data-after": both ? after.loss : null },
      number(before.loss, 3), both ? ` → ${number(after.loss, 3)}` : "")];
}

function guess({ before, after, id }, both) {
  const last = both ? after : before;
  return h("td", { class: last.id === id ? "" : "wrong" }, token(last.guess), soft(` ${number(last.chance, 2)}`));
}

function forced({ rows, free }, side, both) {
  const first = rows.find((row) => free[row.place] && free[row.place].id !== row.id)?.place; // from here on inference reads another text
  const body = rows.map((row) => {
    const own = free[row.place], before = free[row.place - 1], astray = row.place === first;
    return h("tr", { "data-place": row.place }, h("th", { scope: "row" }, token(side.tokens[row.place].text)),
      h("td", {}, token(row.truth)), guess(row, both), ...losses(row, both),
      h("td", { class: "own" }, row.place === 0 ? token(side.tokens[0].text) : before ? token(before.text) : ""),
        h("td", { class: astray ? "wrong" : "" }, own ? [token(own.text), soft(` ${number(own.chance, 2)}`)] : ""));
  });
  const made = table(["reads", "must predict", "predicts", "loss", "", h("th", { scope: "col", class: "own" }, "reads"), "writes"], body);
  made.tHead.prepend(h("tr", {}, h("th", { scope: "colgroup", colspan: 5 }, "Training: teacher forcing"),
    h("th", { scope: "colgroup", colspan: 2, class: "own" }, "Inference")));
  return made;
}

function hidden({ rows }, tokens, both, choose) {
  const at = new Map(rows.map((row) => [row.place, row]));
  return table(["token", "reads", "predicts", "loss", ""], tokens.map(({ text, span }, i) => {
    const row = at.get(i),
      button = h("button",
        { "aria-pressed": Boolean(row), disabled: !span[1],
          onclick: () => choose(row ? [...at.keys()].filter((place) => place !== i) : [...at.keys(), i]) },
        row ? "hidden" : "shown");
    return h("tr", { "data-place": i }, h("th", { scope: "row" }, token(text)), h("td", {}, button),
      ...(row ? [guess(row, both), ...losses(row, both)] : [h("td"), h("td"), h("td")]));
  }));
}

function classed(rows, both) {
  return table(["true class", "predicts", "loss", ""], rows.map((row) => h("tr", {}, h("th", { scope: "row" }, token(row.truth)), guess(row, both), ...losses(row, both))));
}

// Norms of the gradient and, after updates, of the change of each part.
function parts(found, both) {
  const most = Math.max(...found.map((part) => part.gradient), 1e-12), far = Math.max(...found.map((part) => part.change), 1e-12);
  return h("section", {}, h("h2", {}, "Gradient of each part"), table(["part", "", "norm", ...(both ? ["change", "% of its weights"] : [])], found.map((part) =>
    h("tr", {}, h("th", { scope: "row" }, part.name),
      h("td", {}, both ? meter(part.gradient / most, part.change / far) : meter(part.gradient / most)),
      h("td", { class: "number", "data-part": part.name, "data-value": part.gradient }, number(part.gradient)),
      ...(both ? [h("td", { class: "number", "data-change": part.change }, number(part.change)),
        h("td", { class: "number" }, number((100 * part.change) / part.weights, 3))] : []))),
        "Gradient of each part"));
}

// Which tokens each token sees, of the first ones.
function mask(words, hides, tip) {
  const count = Math.min(words.length, SHOWN), data = Float32Array.from({ length: count * count }, (_, i) => (hides(Math.floor(i / count), i % count) ? -Infinity : 1));
  return h("section", { class: "mask" }, h("h2", {}, "Mask: what each token reads"),
    tiles({ symbol: "M", shape: [words.length, words.length], data, rows: count, columns: count, first: 0, names: words,
      keys: words.map((word) => short(word, 16)), tip, label: "Mask", cell: 10, wide: 10 }));
}
