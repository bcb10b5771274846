// How much each input token adds to an output, by integrated gradients.

import { clean, h, number, picker, short, soft, token } from "../dom.js";
import { inkOn, twoColours } from "../heat.js";
import { once } from "../packed.js";
import { Tip } from "../tip.js";

export async function show(root, page) {
  const { state, run, about, source } = page, live = source.live, writes = about.translates || run.sides.decoder, sides = Object.entries(run.sides);
  // By default the output at the last word.
  const last = writes ? run.sides.decoder.tokens.findLastIndex(({ text,
    span }) => span[1] && /[\p{L}\p{N}]/u.test(text)) - 1 : -1,
    chosen = (key) => (state[key] === undefined || !live ? null : Number(state[key]));
  const asked = { run: run.run, output: live ? state.output ?? null : null, place: chosen("place") ?? (live && last >= 0 ? last : null), answer: chosen("answer") };
  page.say("Integrating …");
  const found = await once(page, "attribution",
    asked).catch((error) => { if (state.place === undefined) throw error; page.set({ place: null, answer: null });
      return once(page, "attribution", { ...asked, place: null, answer: null }); });
  if (!root.isConnected) return;
  page.say("");
  const { outputs, output, place, places, answers } = found, again = (changes, label) => page.again(changes, `[aria-label="${label}"]`);
  const at = sides.at(-1)[1],
    name = (i) => (writes ? `${i}: ${clean(at.writes[i] ?? "next token")}` : places === 1 ? "the whole input" : `${i}: ${short(at.tokens[i].text)}`);
  const tip = new Tip(root), best = answers.find(([id]) => id === found.answer),
    most = Math.max(...sides.flatMap(([stack]) => found.stacks[stack].scores.map(Math.abs)), 1e-12);
  const field = (label, ...given) => h("label", { class: "given hint" }, label, picker(label, ...given));
  root.append(h("div", { class: "bar" },
    outputs.length > 1 ? field("Output", outputs.map((each) => [each, each]), output,
      (value) => again({ output: value, place: null, answer: null }, "Output")) : "",
    field("Position", Array.from({ length: places }, (_, i) => [i, name(i)]), place, (value) => again({ place: value, answer: null }, "Position")),
    field("Answer", answers.map(([id, text, share]) => [id, `${clean(text)} (${number(share, 3)})`]), found.answer, (value) => again({ place, answer: value }, "Answer"))));
  if (!live) for (const each of root.querySelectorAll("select")) each.disabled = true;
  const drawn = sides.map(([stack, side]) => {
    const { scores, value, baseline, error, start } = found.stacks[stack];
    const cells = side.tokens.map(({ text, id }, i) => {
      const score = scores[i], told = () => [h("b", { class: "number", "data-value": score }, number(score, 6)), soft(` from ${clean(text)} at ${i}`)];
      const cell = h("li",
        { tabindex: 0, "data-score": score, onfocus: () => tip.near(cell, 0, cell.offsetHeight, ...told()),
          onpointermove: (event) => tip.at(event.clientX, event.clientY, ...told()), onpointerleave: () => tip.hide(),
          onblur: () => tip.hide() },
        token(short(text)), h("span", { class: "number" }, score.toFixed(2).replace("-", "−")));
      const shade = twoColours(score / most);
      Object.assign(cell.style, { background: `rgb(${shade})`, color: inkOn(shade) });
      if (about.image && id < 0) cell.style.gridColumn = "1 / -1"; // the class token is not on the grid
      return cell;
    });
    const row = h("ol", { class: "scores", "aria-label": `Scores of the ${stack}` }, ...cells);
    if (about.image) row.style.gridTemplateColumns = `repeat(${about.image[2] / about.patch}, minmax(0, 64px))`;
    return h("section", {}, h("h2", {}, sides.length > 1 ? (stack === "encoder" ? "Source" : "Target, as far as it is read") : "Input"), row,
      h("p", { class: "hint" }, "log P ", h("span", { class: "number", "data-log": value }, number(value, 3)),
        `, with ${start === "zero" ? "zero vectors" : `${clean(start)} at every position`} `,
        h("span", { class: "number", "data-log": baseline }, number(baseline, 3)), "; the scores add up to ",
        h("span", { class: "number", "data-sum": scores.reduce((a, b) => a + b, 0) },
          number(scores.reduce((a, b) => a + b, 0), 3)),
        `. ${found.stacks[stack].steps === 1 ? "Gradient × input only, since the input is long. " : ""}Error: ${number(100 * error, 1)} % of the largest score.`));
  });
  root.append(h("div", { class: `attribution${about.image ? " grid" : ""}` },
    h("p", {}, "What makes ", h("b", {}, token(best[1])),
      ` (${number(best[2], 3)}) more probable (orange) or less (blue)?`),
    ...drawn));
  root.dataset.ready = "true";
}
