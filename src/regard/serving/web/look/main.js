// The page: input, views, theme, and the state in the address.

import { clean, h, token } from "./dom.js";
import { save } from "./save.js";
import { open } from "./source.js";

// A view is a module that exports show(root, page) and trust(page), a note on how to read it.
const VIEWS = {
  image: { label: "Image", load: () => import("./views/image.js") },
  heads: { label: "Heads", load: () => import("./views/heads.js") },
  walk: { label: "Walk", load: () => import("./views/walk.js") },
  decode: { label: "Decode", load: () => import("./views/decode.js") },
  vectors: { label: "Vectors", load: () => import("./views/vectors.js") },
  positions: { label: "Positions", load: () => import("./views/positions.js") },
  task: { label: "Task", load: () => import("./views/task.js") },
  lens: { label: "Lens", load: () => import("./views/lens.js") },
  compare: { label: "Compare", load: () => import("./views/compare.js") },
};
const SAMPLES = { de: "Ein Hund läuft durch den Schnee.", en: "A dog is running through the snow." };
const ids = ["model", "theme", "input", "tabs", "status", "view"];
const $ = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));

class Page {
  source = open();
  state = { ...this.source.state, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  run = null;
  #asked = 0;
  #shown = 0;
  #output = null;

  async begin() {
    this.about = await this.source.about();
    const { name, family, attentions, width, parameters } = this.about;
    const layers = attentions.filter((each) => each.kind === "attention").map((each) => each.layers).join(" + ");
    const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} M` : parameters.toLocaleString("en");
    $.model.textContent =
      `${clean(name)} · ${family} · ${layers} layers of ${attentions[0].heads} heads · width ${width} · ${size} parameters`;
    document.title = `${clean(name)} · Regard`;
    if (!this.about.views.includes(this.state.view)) this.state.view = this.about.views[0];
    this.#form();
    this.#tabs();
    await this.look();
  }

  // The changes of heads as the server reads them.
  #changes() { return this.state.mean === "1" ? this.ablated.map((head) => `${head}=mean`) : this.ablated; }

  get ablated() { return (this.state.off ?? "").split(",").filter(Boolean); }

  // Changes the state and the address; null removes a part.
  set(changes) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === "") delete this.state[key];
      else this.state[key] = String(value);
    }
    try { history.replaceState(null, "", `#${new URLSearchParams(this.state)}`); } catch { /* a frame has no address */ }
  }

  say(text, error = false) {
    $.status.textContent = clean(text);
    $.status.classList.toggle("error", error);
  }

  // Runs the input and shows the view again.
  async look() {
    const asked = ++this.#asked;
    this.say("The model is running …");
    try {
      const wanted = this.about.image ? { image: this.pixels } : { text: this.state.text ?? "" };
      if (this.about.translates || this.about.pairs) wanted.target = this.state.target ?? null;
      if (this.about.translates) wanted.to = this.state.to ?? null;
      const run = await this.source.run({ ...wanted, ablated: this.#changes() });
      if (asked !== this.#asked) return;
      this.run = run;
      this.#output = null;
      this.say("");
      await this.show();
    } catch (error) {
      if (asked === this.#asked) this.say(error.message, true);
    }
  }

  // The output of the model, requested once for each run.
  output() {
    this.#output ??= this.source.output(this.run.run);
    return this.#output;
  }

  async silence(heads) {
    this.set({ off: heads.join(",") });
    await this.look();
  }

  async show() {
    if (!this.run) return;
    const shown = ++this.#shown;
    const view = await VIEWS[this.state.view].load();
    if (shown !== this.#shown) return;
    const root = h("div");
    this.say("");
    $.view.replaceChildren(h("p", { class: "trust" }, view.trust(this)), root, ...this.#saving(root));
    $.view.setAttribute("aria-labelledby", `tab-${this.state.view}`);
    try { await view.show(root, this); } catch (error) { if (shown === this.#shown) this.say(error.message, true); }
  }

  // Buttons that save the view as a picture. A frame of a notebook may not download files.
  #saving(root) {
    if (window !== window.parent) return [];
    const name = `${clean(this.about.name).split("/").pop()}-${this.state.view}`;
    const button = (format) => h("button", { type: "button", onclick: () => save(root, name, format).catch(() => this.say("This browser cannot save the view as a picture.", true)) }, `Save as ${format.toUpperCase()}`);
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
    parts.push(h("button", { class: "main", type: "submit" }, "Look"));
    if (!this.source.live) parts.splice(0, parts.length, ...this.#kept());
    $.input.replaceChildren(...parts);
    const from = about.directions.find(([, to]) => to === state.to)?.[0] ?? about.directions[0]?.[0];
    if (!about.image) this.set({ text: state.text ?? SAMPLES[from] ?? SAMPLES.en });
    for (const name of ["text", "target", "to"]) if ($.input.elements[name]) $.input.elements[name].value = state[name] ?? "";
    if (about.image) this.pixels = this.source.pixels ?? about.picture?.pixels ?? base64(sample(about.image));
    $.input.addEventListener("submit", (event) => { event.preventDefault(); this.#submitted(); });
    $.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && event.target.tagName === "TEXTAREA") { event.preventDefault(); this.#submitted(); }
    });
    $.input.elements.to?.addEventListener("change", () => this.#submitted());
    $.input.elements.image?.addEventListener("change", () => this.#submitted());
  }

  // A saved file has one input and no model.
  #kept() {
    const { about, state } = this, texts = [state.text, state.target].filter(Boolean).map((text) => h("p", { class: "kept" }, token(text)));
    return [...texts, h("p", { class: "hint" }, `A saved file with one input. For others, run: regard look ${clean(about.name)}`)];
  }

  async #submitted() {
    const fields = $.input.elements;
    if (fields.image?.files[0] && !(await this.#read(fields.image.files[0]))) return;
    if (fields.text) this.set({ text: fields.text.value, prefix: null });
    if (fields.target) this.set({ target: fields.target.value || null });
    if (fields.to) this.set({ to: fields.to.value });
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

  #tabs() {
    const known = this.about.views.filter((name) => VIEWS[name]);
    const choose = (name) => { this.set({ view: name }); mark(); this.show(); };
    const buttons = known.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "view",
      onclick: () => choose(name) }, VIEWS[name].label));
    const mark = () => known.forEach((name, i) => {
      buttons[i].setAttribute("aria-selected", name === this.state.view);
      buttons[i].tabIndex = name === this.state.view ? 0 : -1;
    });
    $.tabs.addEventListener("keydown", (event) => {
      const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!turn) return;
      const next = (buttons.indexOf(event.target) + turn + buttons.length) % buttons.length;
      choose(known[next]);
      buttons[next].focus();
    });
    $.tabs.replaceChildren(...buttons);
    mark();
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
addEventListener("hashchange", () => location.reload()); // the user has entered another address
page.begin().catch((error) => page.say(error.message, true));
