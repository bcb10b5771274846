// The page: input, views, theme, and the state in the address.

import { bound, clean, h, soft, token } from "./dom.js";
import { headName } from "./effect.js";
import { save } from "./save.js";
import { lost, open } from "./source.js";

// A view is a module that exports show(root, page), and may export more(page), a note for this model. views.toml has its texts.
const VIEWS = {
  architecture: () => import("./views/architecture.js"),
  image: () => import("./views/image.js"),
  heads: () => import("./views/heads.js"),
  words: () => import("./views/words.js"),
  walk: () => import("./views/walk.js"),
  decode: () => import("./views/decode.js"),
  training: () => import("./views/training.js"),
  vectors: () => import("./views/vectors.js"),
  positions: () => import("./views/positions.js"),
  task: () => import("./views/task.js"),
  lens: () => import("./views/lens.js"),
  attribution: () => import("./views/attribution.js"),
  compare: () => import("./views/compare.js"),
};
const SAMPLES = { de: "Ein Hund läuft durch den Schnee.", en: "A dog is running through the snow." };
const ids = ["model", "theme", "lecture", "input", "tabs", "status", "edits", "view", "chapter"];
const RUN = ["text", "target", "to", "off", "mean"]; // parts of the state that need a new run
const $ = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));

class Page {
  source = open();
  state = { ...this.source.state, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  run = null;
  #asked = 0;
  #shown = 0;
  #output = null;
  #waiting = false;

  async begin() {
    this.about = await this.source.about();
    const { name, family, attentions, width, parameters } = this.about;
    const layers = attentions.filter((each) => each.kind === "attention").map((each) => each.layers).join(" + ");
    const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} M` : parameters.toLocaleString("en");
    $.model.textContent =
      `${clean(name)} · ${family} · ${layers && `${layers} layers of ${attentions[0].heads} heads · `}width ${width} · ${size} parameters`;
    document.title = `${clean(name)} · Regard`;
    if (!this.about.views.includes(this.state.view)) this.state.view = this.about.views[0];
    this.#form();
    this.#tabs();
    this.#lecture();
    if (this.state.chapter !== undefined && this.source.live) await this.#turn(this.state.chapter, false);
    else await this.look();
  }

  // ---------------------------------------------------------------------------------------------------------- lecture

  // Chapters are states of the page. → and ← turn them, whatever the view does with the arrow keys otherwise.
  #lecture() {
    const { chapters } = this.about, live = this.source.live && chapters?.length;
    $.lecture.hidden = !live;
    if (!live) return;
    $.lecture.addEventListener("click", () => (this.state.chapter === undefined ? this.#turn(0) : this.#leave()));
    document.addEventListener("keydown", (event) => {
      const turn = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
      if (this.state.chapter === undefined || event.target.closest?.("textarea, select, input")) return;
      if (event.key === "Escape") { this.#leave(); return; }
      if (!turn) return;
      event.preventDefault();
      event.stopPropagation();
      const next = Number(this.state.chapter) + turn;
      if (next >= 0 && next < chapters.length) this.#turn(next);
    }, true);
  }

  async #turn(number, push = true) {
    const { chapters, family, views } = this.about, at = bound(number, chapters.length), chapter = chapters[at];
    const base = this.about.main || family, other = chapter.family === base ? "" : chapter.model ?? "";
    if (other !== (this.about.main ? this.about.name : "")) { location.href = `${this.about.main ? "../" : ""}${other && `${other}/`}#chapter=${at}`; return; }
    const [stack] = this.about.attentions.map((each) => each.stack),
      filled = Object.fromEntries(Object.entries(chapter.state).map(([key, value]) => [key,
        value.replaceAll("{stack}", stack)]));
    const fits = (!chapter.family || chapter.family === family) && views.includes(filled.view);
    const kept = Object.fromEntries(Object.keys(this.state).filter((key) => !["text", "to"].includes(key)).map((key) => [key, null]));
    const now = () => `${this.state.text}\n${this.state.target}`, before = now();
    filled.text ??= chapters.slice(0, at).findLast((each) => each.state.text)?.state.text ?? this.state.text ?? ""; // a chapter keeps the text of those before
    if (this.about.image) delete filled.text;
    filled.target = ((this.about.translates || this.about.pairs) && filled.target) || null;
    this.set({ ...kept, view: this.state.view, ...(fits ? filled : { target: null }), chapter: at }, push);
    document.body.classList.add("lecture");
    $.lecture.setAttribute("aria-pressed", true);
    const go = (turn, text) => h("button", { disabled: at + turn < 0 || at + turn >= chapters.length, onclick: () => this.#turn(at + turn) }, text);
    $.chapter.hidden = false;
    $.chapter.replaceChildren(go(-1, "←"), h("p", { class: "number" }, `${at + 1} / ${chapters.length}`), h("h2", {}, clean(chapter.title)), h("p", {}, clean(chapter.text),
      fits ? "" : soft(` This needs another model (${chapter.family ?? filled.view}): regard look MODEL --lecture.`)),
        go(1, "→"), h("button", { onclick: () => this.#leave() }, "Leave"));
    this.#fill();
    this.#mark();
    if (before !== now() || !this.run || this.ablated.length) await this.look(); else await this.show();
  }

  #leave() {
    this.set({ chapter: null });
    document.body.classList.remove("lecture");
    $.lecture.setAttribute("aria-pressed", false);
    $.chapter.hidden = true;
    this.show();
  }

  // The changes of heads as the server reads them.
  #changes() { return this.state.mean === "1" ? this.ablated.map((head) => `${head}=mean`) : this.ablated; }

  get ablated() { return (this.state.off ?? "").split(",").filter(Boolean); }

  // Changes the state and the address; null removes a part. With `push`, Back returns to the state before.
  set(changes, push = false) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === "") delete this.state[key];
      else this.state[key] = String(value);
    }
    const address = `#${new URLSearchParams(this.state)}`;
    try { if (push) history.pushState(null, "", address); else history.replaceState(null, "", address); } catch { /* a frame has no address */ }
  }

  // The address has changed: by Back, by Forward, or by hand.
  async restore() {
    const before = this.state, after = { ...this.source.state, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
    if (!this.about.views.includes(after.view)) after.view = this.about.views[0];
    this.state = after;
    this.#fill();
    this.#mark();
    if (after.chapter !== undefined) { await this.#turn(after.chapter, false); return; }
    if (before.chapter !== undefined) this.#leave();
    if (RUN.some((key) => before[key] !== after[key])) await this.look(); else await this.show();
  }

  say(text, error = false) {
    $.status.textContent = clean(text);
    $.status.classList.toggle("error", error);
  }

  // Runs the input and shows the view again.
  async look() {
    const asked = ++this.#asked;
    this.#old();
    this.say("The model is running …");
    try {
      const wanted = this.about.image ? { image: this.pixels } : { text: this.state.text ?? "" };
      if (this.about.translates || this.about.pairs) wanted.target = this.state.target ?? null;
      if (this.about.translates) wanted.to = this.state.to ?? null;
      const run = await this.source.ask("run", { ...wanted, ablated: this.#changes() });
      if (asked !== this.#asked) return;
      this.run = run;
      this.#output = null;
      this.say("");
      await this.show();
    } catch (error) {
      if (asked === this.#asked) this.failed(error);
    }
  }

  // Reports an error. If the server is gone, the page waits for it and continues.
  failed(error) {
    this.say(error.message, true);
    if (!error.lost || this.#waiting) return;
    this.#waiting = true;
    const again = async () => {
      if (!(await this.source.alive())) { setTimeout(again, 1500); return; }
      this.#waiting = false;
      if (error.reload) location.reload(); // a module that failed once is not loaded again
      else await this.look();
    };
    setTimeout(again, 1500);
  }

  // The output of the model, requested once for each run.
  output() {
    this.#output ??= this.source.ask("output", { run: this.run.run });
    return this.#output;
  }

  // What stands there is no longer the answer to the state.
  #old() { delete $.view.querySelector("[data-ready]")?.dataset.ready; }

  async silence(heads) {
    this.set({ off: heads.join(",") });
    await this.look();
  }

  async show() {
    if (!this.run) return;
    this.#old();
    const shown = ++this.#shown;
    let view;
    try { view = await VIEWS[this.state.view](); } catch { this.failed(lost({ reload: true })); return; }
    if (shown !== this.#shown) return;
    const root = h("div");
    this.say("");
    const { hint, reading } = this.about.texts[this.state.view];
    $.view.replaceChildren(h("details", { class: "trust" },
      h("summary", {}, hint, h("span", { class: "more" }, " How to read it")),
      h("p", {}, reading, " ", view.more?.(this) ?? "")),
      root, ...this.#saving(root));
    $.view.setAttribute("aria-labelledby", `tab-${this.state.view}`);
    this.#edits();
    try { await view.show(root, this); this.#reveal(root); } catch (error) { if (shown === this.#shown) this.failed(error); }
  }

  // A chapter names the part of a view that it is about.
  #reveal(root) {
    const part = this.state.part && root.querySelector(`.${CSS.escape(this.state.part)}`);
    if (part?.tagName === "DETAILS") part.open = true;
    $.view.classList.remove("below");
    if (this.state.chapter === undefined) return;
    scrollTo(0, 0);
    const hidden = part ? part.getBoundingClientRect().bottom - innerHeight : 0;
    $.view.classList.toggle("below", hidden > 100); // room to scroll it to the top
    if (hidden > 0) part.scrollIntoView({ block: hidden > 100 ? "start" : "nearest" });
  }

  // The heads that are changed in every view, and the way back.
  #edits() {
    const heads = this.ablated, { changed } = this.about.texts[this.state.view];
    $.edits.hidden = !heads.length;
    if (!heads.length) { $.edits.replaceChildren(); return; }
    const chip = (label, text, left) => h("button", { "aria-label": label, disabled: !this.source.live, onclick: () => this.silence(left) }, text);
    const what = this.state.mean === "1" ? "Heads that give their mean" : heads.length > 1 ? "Silent heads" : "Silent head";
    $.edits.replaceChildren(h("b", {}, `${what}:`),
      ...heads.map((head) => chip(`Restore ${headName(head)}`, `${headName(head)} ×`,
        heads.filter((other) => other !== head))),
      ...(heads.length > 1 ? [chip("Restore all heads", "Restore all heads", [])] : []),
      h("span", { class: "hint" }, changed ? "All numbers of this view are those of the changed model." : "This view shows the model without this change."));
  }

  // Pixels from the top of an element to the lower edge of the window.
  room(element, least = 260, below = 16) {
    return Math.max(innerHeight - element.getBoundingClientRect().top - scrollY - below, least);
  }

  // Buttons that save the view as a picture. A frame of a notebook may not download files.
  #saving(root) {
    if (window !== window.parent) return [];
    const name = `${clean(this.about.name).split("/").pop()}-${this.state.view}`;
    const button = (format) => h("button",
      { onclick: () => save(root, name,
        format).catch(() => this.say("This browser cannot save the view as a picture.", true)) },
      `Save as ${format.toUpperCase()}`);
    return [h("p", { class: "saving" }, button("svg"), " ", button("png"))];
  }

  #form() {
    const { about, state } = this;
    const field = (name, label, hint) => h("label", {}, label,
      h("textarea", { name, rows: 1, placeholder: hint, maxlength: 20000, spellcheck: "false", dir: "auto" }));
    const parts = [];
    if (about.directions.length > 1) {
      const names = about.directions.map(([from, to]) => h("option", { value: to }, `${from} → ${to}`));
      parts.push(h("label", { class: "narrow" }, "Direction", h("br"), h("select", { name: "to" }, ...names)));
      state.to ??= about.directions[0][1];
    }
    if (about.image) parts.push(h("label", {}, about.picture ? `Image (at first: ${clean(about.picture.name)})` : "Image", h("br"),
      h("input", { type: "file", name: "image", accept: "image/*" })));
    else parts.push(field("text", about.translates ? "Source" : "Text", "Write something"));
    if (about.translates) parts.push(field("target", "Target", "empty: what the model writes"));
    if (about.pairs) parts.push(field("target", "Second text", "empty: the first text alone"));
    parts.push(h("button", { class: "main", type: "submit" }, "Look"), h("p", { id: "unsent", class: "hint", role: "status" }));
    if (about.special.length) parts.splice(-2, 0, this.#special());
    if (!this.source.live) parts.splice(0, parts.length, ...this.#kept());
    $.input.replaceChildren(...parts);
    const from = about.directions.find(([, to]) => to === state.to)?.[0] ?? about.directions[0]?.[0];
    if (!about.image) this.set({ text: state.text ?? SAMPLES[from] ?? SAMPLES.en });
    this.#fill();
    if (about.image) this.pixels = this.source.pixels ?? about.picture?.pixels ?? base64(sample(about.image));
    $.input.addEventListener("submit", (event) => { event.preventDefault(); this.#submitted(); });
    $.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && event.target.tagName === "TEXTAREA") { event.preventDefault(); this.#submitted(); }
    });
    $.input.addEventListener("input", () => this.#unsent());
    $.input.elements.to?.addEventListener("change", () => this.#submitted());
    $.input.elements.image?.addEventListener("change", () => this.#submitted());
  }

  #fill() {
    for (const name of ["text", "target", "to"]) if ($.input.elements[name]) $.input.elements[name].value = this.state[name] ?? "";
    this.#unsent();
  }

  // Marks a text that the model has not read yet.
  #unsent() {
    const fields = $.input.elements, changed = ["text", "target"].some((name) => fields[name] && fields[name].value !== (this.state[name] ?? ""));
    $.input.classList.toggle("unsent", changed);
    const note = $.input.querySelector("#unsent");
    if (note) note.textContent = changed ? "Changed, and not run yet: press Enter or Look." : "";
  }

  // Buttons that write special tokens, such as [MASK], at the cursor.
  #special() {
    const insert = (text) => { const field = $.input.elements.text;
      field.setRangeText(text, field.selectionStart, field.selectionEnd, "end"); field.focus(); this.#unsent(); };
    return h("span", { class: "special", role: "group", "aria-label": "Special tokens" },
      ...this.about.special.map((text) => h("button", { onclick: () => insert(text) }, clean(text))));
  }

  // A saved file has one input and no model.
  #kept() {
    const { about, state } = this, texts = [state.text, state.target].filter(Boolean).map((text) => h("p", { class: "kept" }, token(text)));
    return [...texts, h("p", { class: "hint" }, `A saved file with one input. For others, run: regard look ${clean(about.name)}`)];
  }

  // Runs another text, as if it had been typed.
  async write(text) {
    $.input.elements.text.value = text;
    await this.#submitted();
  }

  async #submitted() {
    const fields = $.input.elements;
    if (fields.image?.files[0] && !(await this.#read(fields.image.files[0]))) return;
    if (fields.text) this.set({ text: fields.text.value, prefix: null, token: null, from: null }, fields.text.value !== this.state.text);
    if (fields.target) this.set({ target: fields.target.value || null });
    if (fields.to) this.set({ to: fields.to.value });
    this.#unsent();
    await this.look();
  }

  async #read(file) {
    try {
      this.pixels = base64(await (await import("./pixels.js")).pixelsOf(file, this.about.image));
      return true;
    } catch {
      this.say(`${file.name} cannot be read as an image; choose another file`, true);
      return false;
    }
  }

  // Changes the state, shows the view again, and puts the focus back.
  async again(changes, focus) {
    this.set(changes);
    await this.show();
    document.querySelector(focus)?.focus();
  }

  // Opens a view. Back returns to the one before.
  async open(changes) {
    this.set(changes, true);
    this.#mark();
    await this.show();
  }

  #mark() {
    for (const button of $.tabs.children) {
      button.setAttribute("aria-selected", button.id === `tab-${this.state.view}`);
      button.tabIndex = button.id === `tab-${this.state.view}` ? 0 : -1;
    }
    document.getElementById(`tab-${this.state.view}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #tabs() {
    const known = this.about.views.filter((name) => VIEWS[name]);
    // After a click the arrow keys belong to the view; with the arrow keys the tabs keep the focus.
    const choose = (name,
      event) => (name === this.state.view && !$.status.classList.contains("error") ? Promise.resolve() : this.open({ view: name })).then(() => { if (event?.detail) $.view.focus({ preventScroll: true });
        });
    const buttons = known.map((name) => h("button", { role: "tab", id: `tab-${name}`, "aria-controls": "view",
      onclick: (event) => choose(name, event) }, this.about.texts[name].label));
    $.tabs.addEventListener("keydown", (event) => {
      const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!turn) return;
      event.stopPropagation();
      const next = (buttons.indexOf(event.target) + turn + buttons.length) % buttons.length;
      choose(known[next]);
      buttons[next].focus();
    });
    $.tabs.replaceChildren(...buttons);
    addEventListener("resize", () => this.#mark()); // the chosen tab stays in sight
    this.#mark();
  }
}

// ------------------------------------------------------------------------------------------------------------- images

function sample([channels, height, width]) {
  const bytes = new Uint8Array(channels * height * width);
  for (let i = 0; i < bytes.length; i++) {
    const x = (i % width) / width - 0.5, y = (Math.floor(i / width) % height) / height - 0.5;
    bytes[i] = 255 * Math.exp(-12 * (x * x + y * y));
  }
  return bytes;
}

function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

// -------------------------------------------------------------------------------------------------------------- theme

function theme(page) {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const keep = (value) => { try { localStorage.setItem("theme", value); } catch { /* a file may have no storage */ } };
  try { const kept = localStorage.getItem("theme"); if (kept) root.dataset.theme = kept; } catch { /* as above */ }
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => { $.theme.textContent = isDark() ? "Light" : "Dark"; $.theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`); };
  $.theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; keep(root.dataset.theme); name(); page.show(); });
  dark.addEventListener("change", () => { name(); page.show(); });
  name();
}

const page = new Page();
theme(page);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $.view.focus(); });
if (!page.source.live) addEventListener("unhandledrejection", (event) => { event.preventDefault(); page.say(event.reason.message, true); }); // not in the file
addEventListener("popstate", () => page.restore());
page.begin().catch((error) => page.failed(error));
