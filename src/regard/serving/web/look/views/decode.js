// Decoding step by step with its candidates, and the tree of a beam search.

import { bound, clean, h, number, region, short, soft, svg, table, token } from "../dom.js";

const SLIDERS = [
  ["temperature", "Temperature", 0.1, 2, 0.05, 1],
  ["top_k", "Top-k (0: all)", 0, 50, 1, 0],
  ["top_p", "Top-p", 0.05, 1, 0.01, 1],
  ["frequency", "Frequency penalty", 0, 2, 0.05, 0],
  ["presence", "Presence penalty", 0, 2, 0.05, 0],
];
const BEAM = [
  ["beam", "Beam", 1, 8, 1, 4],
  ["alpha", "Length penalty α", 0, 2, 0.05, 0.6],
];
const STEP = { width: 116, height: 34, box: 96 };

export async function show(root, page) {
  const { state } = page, fixed = !page.source.live;
  const value = ([key, , , , , usual]) => (state[key] === undefined ? usual : Number(state[key]));
  const steps = h("section", { "aria-label": "Step by step" }), tree = h("section", { class: "search", "aria-label": "Beam search" });
  const slider = (each) => {
    const [key, label, least, most, by, usual] = each, caption = h("output", {}, value(each));
    const input = h("input", { type: "range", name: key, min: least, max: most, step: by, value: value(each), disabled: fixed, oninput: () => {
      caption.textContent = Number(input.value);
      page.set({ [key]: Number(input.value) === usual ? null : input.value });
      if (!BEAM.includes(each)) askSteps();
      if (BEAM.includes(each) || key === "frequency" || key === "presence") askTree();
    } });
    return h("label", {}, label, caption, input);
  };
  const draws = h("input",
    { type: "checkbox", name: "draws", disabled: fixed, checked: state.draws === "1",
      onchange: () => { page.set({ draws: draws.checked ? 1 : null }); askSteps(); } });
  const again = h("button",
    { disabled: fixed,
      onclick: () => { page.set({ seed: (Number(state.seed) || 0) + 1, draws: 1 }); draws.checked = true; askSteps();
        } },
    "Draw again");
  const sliders = h("form", { class: "sliders", "aria-label": "How tokens are chosen", onsubmit: (event) => event.preventDefault() },
    fixed ? h("p", { class: "hint" }, `Sliders and other tokens need the model, which is not in this file. Run: regard look ${clean(page.about.name)}`) : null,
    h("h2", {}, "Each step"), ...SLIDERS.map(slider), h("label", { class: "check" }, draws, "Draw at random"), again, h("h2", {}, "Beam search"), ...BEAM.map(slider));
  root.append(h("div", { class: "decode" }, sliders, h("div", {}, steps, tree)));

  const prefix = () => (state.prefix ?? "").split(",").filter(Boolean).map(Number);
  const asked = (some) => Object.fromEntries(some.map((each) => [each[0], value(each)]));
  const penalties = SLIDERS.slice(3);
  const askSteps = latest(page,
    () => page.source.ask("steps",
      { run: page.run.run, ...asked(SLIDERS), draws: state.draws === "1", seed: Number(state.seed) || 0,
        prefix: prefix() }),
    (found) => drawSteps(steps, found, fixed ? null : force, prefix().length, page));
  const askTree = latest(page,
    () => page.source.ask("tree", { run: page.run.run, ...asked(BEAM), ...asked(penalties), prefix: prefix() }),
    (found) => drawTree(tree, found, prefix().length));
  function force(tokens) {
    page.set({ prefix: tokens.join(",") });
    askSteps();
    askTree();
  }
  await Promise.all([askSteps(), askTree()]);
  root.dataset.ready = "true";
}

// Sends one request at a time; of those made meanwhile, only the last.
function latest(page, ask, draw) {
  let busy = false, more = false;
  return async function again() {
    if (busy) { more = true; return; }
    busy = true;
    try {
      do { more = false; draw(await ask()); } while (more);
      page.say("");
    } catch (error) { page.failed(error); } finally { busy = false; }
  };
}

// The steps so far as rows of candidates; the chosen step before and after temperature, top-k, top-p and penalties.
function drawSteps(root, found, force, forced, page) {
  const tokens = found.steps.map((step) => step.token.id), last = found.steps.length - 1;
  const focused = document.activeElement?.closest?.(".options button")?.dataset.place;
  let at = bound(page.state.chosen, last + 1), timer = null, playing = false;
  const choose = (i) => { at = bound(i, last + 1); page.set({ chosen: at }); mark(); };
  const rows = found.steps.map((step, i) => h("tr", { "data-row": i },
    h("th", { scope: "row" }, h("button", { class: "quiet", "aria-label": `Step ${i}`, onclick: () => choose(i) }, i)),
    h("td", {}, h("div", { class: "options" }, ...withToken(step).map((option, j) => {
      const chosen = option.id === step.token.id;
      const bar = svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: option.chance, height: 1 }));
      return h("button",
        { class: `${chosen ? "chosen" : ""}${chosen && step.forced ? " forced" : ""}${option.chance === 0 && !(chosen && step.forced) ? " cut" : ""}`,
          "data-place": `${i}.${j}`, "aria-pressed": chosen && step.forced, disabled: !force,
        title: `model ${number(option.model, 6)}, here ${number(option.chance, 6)}${chosen && step.forced ? ", forced" : ""}`,
          onclick: () => force([...tokens.slice(0, i), option.id]) },
      bar, h("span", {}, token(short(option.text, 14))),
        h("span", { class: "number" },
          chosen && step.forced ? `forced, ${number(option.model)}` : option.chance ? number(option.chance) : "cut"));
    }))), h("td", { class: "number soft left" }, step.kept > 99 ? "" : `${step.kept} left`)));
  const sum = (steps) => steps.reduce((total, step) => total + Math.log(step.token.model), 0), own = found.steps.filter((step) => step.forced);
  const total = h("p", { class: "soft", id: "total" }, "Log-probability of the text under the model: ",
    h("b", { class: "number", "data-total": sum(found.steps) }, number(sum(found.steps))),
    own.length ? `, of which ${number(sum(own))} for ${own.length} forced tokens` : "");
  const reset = forced ? h("button", { onclick: () => force([]) }, "Follow the model again") : null;
  const written = h("p", { class: "written" }), panel = h("section", { class: "chosen-step" });
  const play = h("button",
    { onclick: () => { if (timer) { clearInterval(timer); timer = null; } else { playing = true;
      if (at === last) choose(0);
      timer = setInterval(() => { if (!root.isConnected || at === last) { clearInterval(timer); timer = null;
        playing = false; } else choose(at + 1);
        mark(); },
        800);
      } mark();
      } },
    "▶ Play");
  const step = (turn, label) => h("button", { onclick: () => choose(at + turn) }, label);
  function mark() {
    rows.forEach((row, i) => { row.classList.toggle("now", i === at); row.classList.toggle("later", playing && i > at); });
    play.textContent = timer ? "⏸ Pause" : "▶ Play";
    const so = found.steps.slice(0, at + 1).map((each) => each.token.text);
    written.replaceChildren(at === last || !playing ? token(found.text) : token(so.join("").replaceAll("␣",
      " ").trim()),
      (at === last || !playing) && !found.finished ? soft(" … (cut)") : "");
    panel.replaceChildren(...beforeAfter(found.steps[at], at, Number(page.state.top_p ?? 1)));
  }
  root.replaceChildren(h("h2", {}, "Step by step"), written, total,
    h("div", { class: "bar" }, step(-1, "← Step"), play, step(1, "Step →"),
      h("span", { class: "hint" },
        force ? "Choose another token, and the model continues from there." : "Each row is a step with its candidates."),
      reset ?? ""),
    h("div", { class: "stepwise" }, region("Steps and their candidates", h("table", {}, h("tbody", {}, ...rows)), "steps"), panel));
  mark();
  root.querySelector(".scroll").style.maxHeight = `${Math.min(page.room(root.querySelector(".scroll"), 240), 460)}px`;
  if (focused) root.querySelector(`[data-place="${focused}"]`)?.focus();
}

// The candidates, with the token that was written even if it is improbable.
function withToken(step) {
  return step.options.some((option) => option.id === step.token.id) ? step.options : [...step.options.slice(0, -1), step.token];
}

// Bars of the model's probability and of the one that is drawn from, and the cumulative line that top-p cuts.
function beforeAfter(step, at, topP) {
  const options = [...withToken(step)].sort((one, two) => two.warm - one.warm), high = 22, left = 96, wide = 190,
    most = Math.max(...options.map((each) => Math.max(each.model, each.chance, each.warm)), 1e-9);
  let sum = 0;
  const points = options.map((each, i) => { sum += each.warm; return [left + wide * Math.min(sum, 1), 4 + (i + 0.5) * high]; });
  const height = options.length * high + 22, x = (share) => left + wide * share;
  const picture = svg("svg",
    { class: "bars", viewBox: `0 0 ${left + wide + 56} ${height}`, width: left + wide + 56, role: "img",
      "aria-label": `Step ${at}: probabilities before and after` },
    ...options.flatMap((each,
      i) => [svg("text",
        { x: left - 6, y: 17 + i * high, "text-anchor": "end", class: each.id === step.token.id ? "chosen" : "" },
        `\u2068${short(each.text, 12)}\u2069`),
      svg("rect", { class: "before", x: left, y: 5 + i * high, width: (wide * each.model) / most, height: 8 }),
        svg("rect", { class: "after", x: left, y: 13 + i * high, width: (wide * each.chance) / most, height: 6 }),
      svg("text", { x: left + wide + 6, y: 17 + i * high, class: "value" }, each.chance ? number(each.chance, 3) : "cut")]),
    svg("path", { class: "sum", d: points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("") }),
    topP < 1 ? svg("line", { class: "limit", x1: x(topP), x2: x(topP), y1: 0, y2: height - 18 }) : null,
    svg("text", { x: left, y: height - 4, class: "value" }, topP < 1 ? `line: cumulative, cut at ${topP}` : "line: cumulative (0 to 1)"));
  return [h("h3", {}, `Step ${at}: before and after`), picture,
    h("p", { class: "hint" }, h("span", { class: "key before" }), " the model  ", h("span", { class: "key after" }),
      " after penalties, temperature, top-k and top-p")];
}

function drawTree(root, { nodes, found }, forced) {
  const columns = new Map();
  const places = nodes.map((node) => {
    const rank = columns.get(node.step) ?? 0;
    columns.set(node.step, rank + 1);
    return { x: 70 + node.step * STEP.width, y: 20 + rank * STEP.height };
  });
  const best = bestPath(nodes, found[0]);
  const start = { x: 10, y: 20 }, width = 70 + columns.size * STEP.width, height = 24 + Math.max(1, ...columns.values()) * STEP.height;
  const edges = nodes.map((node, i) => {
    const from = node.parent === null ? { x: start.x + 44 - STEP.box, y: start.y } : places[node.parent], to = places[i], x = from.x + STEP.box, bend = (to.x - x) / 2;
    return [best.has(i),
      svg("path",
        { class: best.has(i) ? "best" : node.fate,
          d: `M${x} ${from.y + 10}C${x + bend} ${from.y + 10} ${to.x - bend} ${to.y + 10} ${to.x} ${to.y + 10}` })];
  });
  edges.sort((a, b) => a[0] - b[0]);
  const boxes = nodes.map((node, i) => {
    const { x, y } = places[i],
      caption = `${short(node.text, 40)}: ${node.step < forced ? "forced" : `${number(node.chance)} for the token`}, ${number(node.total)} in all, ${node.fate}${node.score === null ? "" : `, score ${number(node.score)}`}`;
    return svg("g",
      { class: `${node.fate}${best.has(i) ? " best" : ""}`, role: "img", "aria-label": caption,
        transform: `translate(${x} ${y - 4})` },
      svg("title", {}, caption),
      svg("rect", { width: STEP.box, height: 28, rx: 5 }),
        svg("text", { x: 7, y: 12 }, `\u2068${short(node.text, 13)}\u2069`),
        svg("text", { class: "score", x: 7, y: 23 },
          node.score === null ? number(node.total, 3) : `= ${number(node.score, 3)}`));
  });
  const picture = svg("svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": `Beam search, ${nodes.length} continuations` },
    ...edges.map(([, edge]) => edge),
    svg("g", { transform: `translate(${start.x} ${start.y - 4})` }, svg("rect", { width: 44, height: 28, rx: 5 }), svg("text", { x: 8, y: 18 }, "start")), ...boxes);
  const rows = found.map((each, i) => h("tr", {}, h("td", {}, i + 1), h("td", { class: "number" }, number(each.score)),
    h("td", {}, token(each.text), each.finished ? "" : soft(" … (cut)"))));
  root.replaceChildren(h("h2", {}, "Beam search"),
    h("p", { class: "hint" },
      "A column for each step, the most probable on top, with the total log-probability; a finished hypothesis (=) has its score with length penalty. Dropped hypotheses are paler.",
      forced ? ` The first ${forced} tokens are forced; the search counts only what follows.` : ""),
    h("div", { class: "tree", tabindex: 0, role: "region", "aria-label": "Tree of the search" }, picture),
    table(["", "score", "found"], rows));
}

function bestPath(nodes, first) {
  const path = new Set();
  if (!first) return path;
  let at = nodes.findLastIndex((node, i) => node.fate === "finished" && Math.abs(node.score - first.score) < 1e-6);
  if (at < 0) at = nodes.findLastIndex((node) => node.fate === "open");
  for (let node = at; node !== null && node >= 0; node = nodes[node].parent) path.add(node);
  return path;
}
