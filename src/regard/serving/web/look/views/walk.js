// The path of one input, step by step, with the recorded numbers.

import { h, number, picker, short, token } from "../dom.js";

export function trust() {
  return "These are the numbers of this model for this input, recorded in one pass. A corner of each tensor is shown; minimum, maximum and mean are of the whole tensor. Formulas are those of Vaswani et al. (2017), adapted to this model.";
}

export async function show(root, page) {
  const { about, state } = page, kinds = about.attentions;
  const place = kinds.find((each) => `${each.stack}.${each.kind}` === state.at) ?? kinds[0];
  const layer = Math.min(Number(state.layer) || 0, place.layers - 1), head = Math.min(Number(state.head) || 0, place.heads - 1);
  const choose = (key) => (value) => { page.set({ [key]: value }); page.show().then(() => document.querySelector(`select[aria-label="${labels[key]}"]`)?.focus()); };
  const labels = { at: "Attention", layer: "Layer", head: "Head" };
  const counted = (count, word) => Array.from({ length: count }, (_, i) => [i, `${word} ${i + 1}`]);
  const back = h("button", { type: "button", disabled: true, onclick: () => go(at - 1) }, "← Back"), on = h("button", { type: "button", class: "main", disabled: true, onclick: () => go(at + 1) }, "Next →");
  const bar = h("div", { class: "bar" },
    picker("Attention", kinds.map((each) => [`${each.stack}.${each.kind}`, each.label]), `${place.stack}.${place.kind}`, choose("at")),
    picker("Layer", counted(place.layers, "Layer"), layer, choose("layer")), picker("Head", counted(place.heads, "Head"), head, choose("head")),
    back, on, h("span", { class: "hint" }, "← and → step through."));
  root.append(bar);
  const { steps } = await page.source.walk({ run: page.run.run, stack: place.stack, kind: place.kind, layer, head });
  const buttons = steps.map((step, i) => h("button", { type: "button", tabindex: -1, onclick: () => go(i) }, `${i + 1}. ${step.title}`));
  const panel = h("div", { "aria-live": "polite" });
  const body = h("div", { class: "walk" }, h("ol", { "aria-label": "Steps" }, ...buttons.map((button) => h("li", {}, button))), panel);
  root.append(body);
  let at = -1;
  function go(to, focus = true) {
    at = Math.min(Math.max(to, 0), steps.length - 1);
    page.set({ step: at });
    buttons.forEach((button, i) => {
      if (i === at) button.setAttribute("aria-current", "step"); else button.removeAttribute("aria-current");
      button.tabIndex = i === at ? 0 : -1;
    });
    back.disabled = at === 0;
    on.disabled = at === steps.length - 1;
    panel.replaceChildren(...caption(steps[at]));
    if (focus && body.contains(document.activeElement)) buttons[at].focus();
    buttons[at].scrollIntoView({ block: "nearest" });
  }
  root.addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT") return;
    const turn = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!turn) return;
    event.preventDefault();
    go(at + turn);
  });
  go(Number(state.step) || 0, false);
  root.dataset.ready = "true";
}

function caption(step) {
  const parts = [h("h2", {}, step.title), h("p", { class: "formula" }, step.formula), h("p", {}, step.text)];
  if (step.words) parts.push(words(step));
  if (step.numbers) parts.push(...numbers(step));
  return parts;
}

function words(step) {
  const rows = step.words.slice(0, 200).map((row) => h("tr", {}, ...row.slice(0, 200).map((text) => h("td", {}, token(text)))));
  return h("div", { class: "corner words scroll", tabindex: 0, role: "region", "aria-label": step.title }, h("table", {}, h("tbody", {}, ...rows)));
}

function numbers({ name, numbers: found }) {
  const [rows, columns] = found.shape, more = columns > found.corner[0].length;
  const names = found.corner[0].map((_, i) => (found.columns.length ? short(found.columns[i], 12) : i + 1));
  const head = h("tr", {}, h("td"), ...names.map((text) => h("th", { scope: "col" }, text)), more ? h("th", {}, "…") : null);
  const body = found.corner.map((row, i) => h("tr", {}, h("th", { scope: "row" }, short(found.rows[i] ?? i + 1, 16)),
    ...row.map((value) => h("td", { "data-value": value }, number(value))), more ? h("td", {}, "…") : null));
  if (rows > found.corner.length) body.push(h("tr", {}, h("th", { scope: "row" }, "⋮")));
  const fact = (label, text) => h("span", {}, `${label} `, h("span", { class: "number" }, text));
  return [h("div", { class: "corner", tabindex: 0, role: "region", "aria-label": "Corner of the tensor" }, h("table", {}, h("thead", {}, head), h("tbody", {}, ...body))),
    h("p", { class: "facts" }, fact("shape", found.shape.join(" × ")), fact("least", number(found.least)), fact("most", number(found.most)), fact("mean", number(found.mean)), fact("name", name))];
}
