// What the heads of an encoder predict, at the tokens that they read.

import { clean, h, meter, token } from "../dom.js";

export async function show(root, page) {
  const found = await page.source.ask("task", { run: page.run.run });
  if (!root.isConnected) return;
  const tokens = page.run.sides.encoder.tokens;
  for (const head of found.heads) root.append(section(head, found, tokens, head.kind === "masked" && page.source.live ? masking(page, found.segments) : null));
  root.dataset.ready = "true";
}

const NAMES = { classification: "Classes", "next-sentence": "Does the second text follow the first?", tagging: "Tags", spans: "Answer", masked: "Masked tokens" };

// mask(i) runs the text with the mask token in place of token i, or is null where this cannot be done.
function masking(page, segments) {
  const { text, tokens } = page.run.sides.encoder, mask = page.about.special.find((each) => /mask/i.test(each)), letters = [...text];
  return (i) => {
    const [begin, end] = tokens[i].span ?? [0, 0];
    if (!mask || segments[i] || end <= begin || tokens[i].text === mask) return null;
    const space = letters[begin] === " " ? " " : "";
    return () => page.write(letters.slice(0, begin).join("") + space + mask + letters.slice(end).join(""));
  };
}

function section(head, { segments }, tokens, mask) {
  const { under, marked, after } = PARTS[head.kind](head, tokens);
  const words = tokens.map((each, i) => h("li", { class: `segment-${segments[i]}${marked(i) ? " marked" : ""}`, "data-place": i }, word(each, mask?.(i)), ...under(i)));
  const both = Math.max(...segments) > 0;
  return h("section", { "data-head": head.name, class: "task" }, h("h2", {}, `${NAMES[head.kind]} (${clean(head.name)})`),
    h("ol", { class: "row-of-tokens", "aria-label": "Tokens" }, ...words),
    both ? h("p", { class: "hint" }, h("span", { class: "segment-0 sample" }, "first segment"), " ",
      h("span", { class: "segment-1 sample" }, "second segment")) : null,
      ...after);
}

function word(each, mask) {
  return mask ? h("button", { class: "word", "aria-label": `Mask ${clean(each.text)}`, onclick: mask }, token(each.text)) : token(each.text);
}

const value = (share) => h("span", { "data-value": share }, share.toFixed(3));

function table(label, rows) {
  return h("table", { "aria-label": label },
    ...rows.map(([name, share]) => h("tr", {}, h("th", { scope: "row" }, token(name)), h("td", {}, meter(share)),
      h("td", {}, value(share)))));
}

function classes(head) {
  const at = { class: (i) => i === 0, last: (i, count) => i === count - 1 }[head.pooling] ?? (() => true);
  return (_, tokens) => ({
    under: () => [],
    marked: (i) => at(i, tokens.length),
    after: [h("p", { class: "hint" },
      head.pooling === "class" ? "The head reads the marked class token." : `The head reads the ${clean(head.pooling)} of the marked tokens.`),
      head.classes ? table("Classes", head.classes) : h("p", {}, "Number: ", value(head.number))],
  });
}

const PARTS = {
  classification: (head, tokens) => classes(head)(head, tokens),
  "next-sentence": (head, tokens) => classes(head)(head, tokens),
  tagging: (head) => {
    const tags = new Map(head.tags.map(([place, ...rest]) => [place, rest]));
    return {
      under: (i) => (tags.has(i) ? [h("span", { class: "tag" }, token(tags.get(i)[0])), value(tags.get(i)[1])] : []),
      marked: (i) => tags.has(i) && tags.get(i)[0] !== "O",
      after: [h("p", { class: "hint" }, "The first token of each word has the word's tag.")],
    };
  },
  spans: (head) => ({
    under: (i) => [meter(head.start[i], head.end[i]), h("span", { class: "number" }, value(head.start[i]), " ", value(head.end[i]))],
    marked: (i) => head.best.length && head.best[0] <= i && i <= head.best[1],
    after: [h("p", { class: "hint" },
      "Upper bar: the answer starts here; lower bar: it ends here. The most probable span is marked."),
      h("p", { id: "answer" }, token(head.text))],
  }),
  masked: (head) => ({
    under: () => [],
    marked: (i) => head.masks.some(([place]) => place === i),
    after: head.masks.length ? head.masks.map(([place, best]) => table(`Candidates for token ${place}`, best)) : [h("p",
      { class: "hint" }, "Click a token to mask it: the model then fills the gap.")],
  }),
};
