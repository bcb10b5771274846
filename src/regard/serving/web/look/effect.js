// The output of the model, and how silent heads change it.

import { h, meter, number, soft, table, token } from "./dom.js";

export function effect(page, { output, plain }) {
  const before = plain ?? output, after = plain ? output : null;
  const root = h("section", { class: "effect", "aria-label": "Output" });
  root.append(h("h2", {}, after ? "Change of the output" : "Output"));
  if (before.written !== null) root.append(texts(before.written, after?.written, page.state.mean === "1"));
  before.answers.forEach((answer, i) => root.append(rows(page, answer, after?.answers[i])));
  return root;
}

export function headName(head) {
  const [, stack, layer, kind, number, change] = /^(\w+)\.(\d+)\.(\w+)\.(\d+)(.*)$/.exec(head) ?? [null, head, 0, "", 0, ""];
  return `${stack}${kind === "cross" ? " cross" : ""}, layer ${layer}, head ${number}${change.replace("*", " × ").replace("=", ": ")}`;
}

function texts(before, after, mean) {
  const list = h("dl", { class: "facts-list" });
  if (after === undefined) list.append(h("dt", {}, "The model writes"), h("dd", {}, token(before)));
  else {
    list.append(h("dt", {}, "With all heads"), h("dd", { class: "before" }, token(before)));
    const same = before === after;
    list.append(h("dt", {}, mean ? "With heads at their mean" : "With heads silent"), h("dd", { class: "after" }, same ? token(after) : marked(before, after)));
    if (same) list.append(h("dt", {}, ""), h("dd", { class: "soft" }, "The same words; the probabilities below have changed."));
  }
  return list;
}

// Marks words that the other text does not have in the same order.
export function marked(before, after) {
  const a = before.split(/\s+/).slice(0, 200), b = after.split(/\s+/).slice(0, 200);
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const words = [];
  for (let i = 0, j = 0; j < b.length; ) {
    if (i < a.length && a[i] === b[j]) { words.push(token(b[j])); i++; j++; }
    else if (i < a.length && common[i + 1][j] >= common[i][j + 1]) i++;
    else words.push(h("mark", {}, token(b[j++])));
    words.push(" ");
  }
  return h("span", {}, ...words);
}

function rows(page, answer, after) {
  const stack = page.run.sides.decoder ? "decoder" : "encoder", tokens = page.run.sides[stack].tokens;
  const writes = answer.name === "output";
  const head = [answer.each ? (writes ? "after" : "at") : "", writes ? "comes" : "is", "probability",
    ...(after ? ["silent", "change"] : []), answer.rows.some((row) => row.actual) ? "most probable" : ""];
  const body = answer.rows.flatMap((row, i) => {
    const then = after?.rows[i];
    const shown = row.actual ? [[row.actual, then?.actual]] : row.candidates.map((each) => [each, then?.candidates.find((other) => other.id === each.id)]);
    return shown.map(([one, two], place) => h("tr", {},
      h("td", {}, place || !answer.each ? "" : token(tokens[i].text)),
      h("td", {}, token(one.text)),
      h("td", {}, meter(one.chance, after ? two?.chance ?? 0 : undefined)),
      h("td", { class: "number" }, number(one.chance)),
      ...(after ? [h("td", { class: "number" }, two ? number(two.chance) : "<"), h("td", { class: "number" }, two ? signed(two.chance - one.chance) : "")] : []),
      h("td", {}, row.actual ? other(row, then) : "")));
  });
  head.splice(3, 0, "");
  const total = answer.rows.filter((row) => row.actual).reduce((sum, row) => sum + Math.log(row.actual.chance), 0);
  const moved = after?.rows.filter((row) => row.actual).reduce((sum, row) => sum + Math.log(row.actual.chance), 0);
  const sum = answer.rows.some((row) => row.actual) && writes
    ? h("p", { class: "soft" }, `Log-probability of the whole: ${number(total)}`, after ? ` → ${number(moved)} with the heads silent` : "") : null;
  return h("div", {}, writes ? null : h("h3", {}, answer.name), sum, table(head, body, "Probabilities"));
}

function other(row, then) {
  const best = (then ?? row).candidates[0];
  return best.id === row.actual.id ? "" : soft(token(best.text), ` ${number(best.chance)}`);
}

export function signed(value) {
  return (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(4);
}
