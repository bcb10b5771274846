// Creates elements. Texts always become text nodes.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, given = {}, ...children) {
  return filled(document.createElement(name), name === "button" ? { type: "button", ...given } : given, children);
}

export function svg(name, given = {}, ...children) {
  return filled(document.createElementNS(SVG, name), given, children);
}

function filled(element, given, children) {
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("aria-") && value !== undefined && value !== null) {
      element.setAttribute(key, String(value)); // "false" must be written
      continue;
    }
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces control and directional characters by visible ones.
export function clean(text) {
  let found = "";
  for (const letter of String(text)) {
    const code = letter.codePointAt(0);
    if (code === 0x0a) found += "↵";
    else if (code < 0x20) found += String.fromCodePoint(0x2400 + code);
    else if (code === 0x7f) found += "\u2421";
    else if ((code > 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
      (code >= 0x2060 && code <= 0x206f) || code === 0xfeff || code === 0xad || code === 0x61c) found += "\ufffd";
    else found += letter;
  }
  return found;
}

// Text in which ^ raises the word or bracket after it.
export function raised(text) {
  return text.split(/\^(\([^()]*\)|[\p{L}\p{N}−]+)/u).map((part, i) => (i % 2 ? h("sup", {}, part.replace(/^\(|\)$/g, "")) : part));
}

const PRONOUNS = /^␣?(it|es|er|sie|ihn|its)$/i; // the decks' sentence is about "it"

export const content = (text) => /[\p{L}\p{N}]/u.test(text) && !/^[<[].*[>\]]$/u.test(text);

// The number of the token to begin with: the last pronoun, since a decoder's words see only those before, or the last word.
export function opening(tokens) {
  const it = tokens.findLastIndex((each) => PRONOUNS.test(each.text));
  return Math.max(it < 0 ? tokens.findLastIndex((each) => content(each.text)) : it, 0);
}

export const soft = (...parts) => h("span", { class: "soft" }, ...parts);

export function token(text) {
  return h("bdi", {}, clean(text));
}

export function short(text, most = 24) {
  const letters = [...clean(text)];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

export function number(value, digits = 4) {
  if (value === null) return "−∞";
  if (value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  const text = size >= 1e5 || (size > 0 && size < 1e-4) ? value.toExponential(3) : value.toFixed(digits);
  return text.replace("-", "−");
}

export function meter(before, after) {
  const bars = [svg("rect", { width: Math.max(120 * before, 0), height: after === undefined ? 12 : 5, rx: 1 })];
  if (after !== undefined) bars.push(svg("rect", { class: "after", y: 7, width: Math.max(120 * after, 0), height: 5, rx: 1 }));
  return svg("svg", { class: "meter", viewBox: "0 0 120 12", "aria-hidden": "true" }, ...bars);
}

// The options of a picker: Layer 0, Layer 1, …
export const counted = (count, word) => Array.from({ length: count }, (_, i) => [i, `${word} ${i}`]);

// A row of radio buttons: one tab stop, arrow keys choose.
export function choices(label, options, chosen, choose) {
  const group = h("div", { class: "choices", role: "radiogroup", "aria-label": label });
  const buttons = options.map(([value, text]) =>
    h("button", { role: "radio", "aria-checked": value === chosen, tabindex: value === chosen ? 0 : -1,
      onclick: () => choose(value) }, text));
  group.addEventListener("keydown", (event) => {
    const turn = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!turn) return;
    event.preventDefault();
    const next = (buttons.indexOf(event.target) + turn + buttons.length) % buttons.length;
    choose(options[next][0]);
  });
  group.append(...buttons);
  return group;
}

// A part that scrolls, and can be reached with the keyboard.
export function region(label, content, kind = "") {
  return h("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, content);
}

// A table with names of columns, which scrolls if it has a label.
export function table(heads, rows, label) {
  const made = h("table", {},
    h("thead", {},
      h("tr", {},
        ...heads.map((head) => (head instanceof Node ? head : head === "" ? h("td") : h("th", { scope: "col" },
          head))))),
    h("tbody", {}, ...rows));
  return label ? region(label, made) : made;
}

export const TURNS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };

export function bound(value, count) { return Math.min(Math.max(parseInt(value) || 0, 0), count - 1); }

// A grid of buttons, one for each head of an attention: rows are layers. Arrow keys go to another one with select(layer, head).
export function headGrid(place, kind, label, at, button, select, other = () => {}) {
  const grid = h("div", { class: kind, role: "grid", "aria-label": label }), name = (text, role) => h("span", { class: "name", role }, text);
  const buttons = Array.from({ length: place.layers }, (_, layer) => Array.from({ length: place.heads }, (_, head) => button(layer, head)));
  grid.style.setProperty("--heads", place.heads);
  grid.append(h("div", { role: "row" }, name(h("span", { class: "hidden" }, "layer"), "columnheader"),
    ...buttons[0].map((_, i) => name(i, "columnheader"))),
    ...buttons.map((row, layer) => h("div", { role: "row" }, name(layer, "rowheader"), ...row)));
  grid.addEventListener("keydown", (event) => {
    const turn = TURNS[event.key], { layer, head } = at;
    if (turn) { event.preventDefault(); select(bound(layer + turn[0], place.layers), bound(head + turn[1], place.heads)); } else other(event);
  });
  return [grid, buttons];
}

// Marks the chosen head.
export function markHead(buttons, { layer, head }, shown = true) {
  buttons.forEach((row, i) => row.forEach((button, j) => {
    const chosen = i === layer && j === head;
    button.setAttribute("aria-selected", chosen && shown);
    button.tabIndex = chosen ? 0 : -1;
  }));
}

export function picker(label, options, chosen, choose) {
  const made = h("select", { "aria-label": label, onchange: () => choose(made.value) },
    ...options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
  return made;
}
