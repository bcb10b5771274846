// The source of the data: the server of this page or, in a saved file, the answers inside it.

export function open() {
  const inlined = document.getElementById("inlined");
  return inlined ? new Inlined(JSON.parse(inlined.textContent)) : new Server();
}

// The requests of the views.
class Source {
  run(asked) { return this.ask("run", asked); }
  output(run) { return this.ask("output", { run }); }
  walk(asked) { return this.ask("walk", asked); }
  steps(asked) { return this.ask("steps", asked); }
  tree(asked) { return this.ask("tree", asked); }
  notes(asked) { return this.ask("notes", asked); }
  patches(asked) { return this.ask("patches", asked); }
  occlude(asked) { return this.ask("occlude", asked); }
  task(asked) { return this.ask("task", asked); }
  deletion(asked) { return this.ask("deletion", asked); }
  lens(asked) { return this.ask("lens", asked); }
  vectors(asked) { return this.ask("vectors", asked); }
  positions(asked) { return this.ask("positions", asked); }
  compare(asked) { return this.ask("compare", asked); }
  control(asked) { return this.ask("control", asked); }
}

class Server extends Source {
  live = true;
  state = {};
  rounded = 0;
  #run = null; // the latest input, for a server that was restarted
  about() { return this.#get("api/about").then((answer) => answer.json()); }

  async ask(path, asked) {
    if (path === "run") this.#run = asked;
    return (await this.#again(() => this.#post(path, asked), path)).json();
  }

  async tensor(run, name) {
    const answer = await this.#again(() => this.#get(`api/tensor?${new URLSearchParams({ run, name })}`));
    const shape = answer.headers.get("X-Shape").split(",").map(Number);
    return { shape, data: floats(await answer.arrayBuffer()) };
  }

  async alive() {
    try { return (await fetch("api/about")).ok; } catch { return false; }
  }

  // A restarted server does not know the run; the same input gives the same run.
  async #again(send, path) {
    try { return await send(); } catch (error) {
      if (path === "run" || !this.#run || !/no longer kept/.test(error.message)) throw error;
      await this.#post("run", this.#run);
      return send();
    }
  }

  #post(path, asked) {
    return reached(fetch(`api/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) })).then(good);
  }

  #get(path) { return reached(fetch(path)).then(good); }
}

// An error of a server that cannot be reached is marked as lost.
async function reached(answer) {
  try { return await answer; } catch { throw lost(); }
}

export function lost(more = {}) {
  return Object.assign(new Error("The server does not answer. Start regard look again, on the same port; this page then continues."), { lost: true, ...more });
}

// The answers of a saved file, decompressed on demand.
class Inlined extends Source {
  live = false;
  #kept;
  #answers;

  constructor(kept) {
    super();
    this.#kept = kept;
    this.state = kept.state;
    this.rounded = kept.rounded; // the largest rounding error of weights
    this.#answers = new Map(kept.answers.map((each) => [this.#key(each.path, each.asked), each]));
    this.pixels = kept.answers.find((each) => each.path === "run").asked.image;
  }

  async about() { return this.#kept.about; }

  async ask(path, asked) {
    return JSON.parse(new TextDecoder().decode(await unpacked(this.#found(path, asked).packed)));
  }

  async tensor(run, name) {
    const { shape, size, packed } = this.#found("tensor", { run, name });
    const bytes = await unpacked(packed), count = bytes.length / size;
    if (size === 2) {
      const data = new Float32Array(count);
      for (let i = 0; i < count; i++) data[i] = (bytes[i] + 256 * bytes[count + i]) * 2 * this.rounded;
      return { shape, data };
    }
    const whole = new Uint8Array(bytes.length);
    for (let part = 0; part < size; part++) for (let i = 0; i < count; i++) whole[i * size + part] = bytes[part * count + i];
    return { shape, data: floats(whole.buffer) };
  }

  #key(path, asked) { return JSON.stringify([path, sorted({ ...this.#kept.defaults[path], ...asked })]); }

  #found(path, asked) {
    const found = this.#answers.get(this.#key(path, asked));
    if (found?.error) throw new Error(found.error);
    if (found) return found;
    const { name, views } = this.#kept.about;
    throw new Error(`This file holds only some answers (${views.join(", ")}, for one input), and not this one. For more, run: regard look ${name}`);
  }
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
}

async function unpacked(text) {
  if (!globalThis.DecompressionStream) throw new Error("This browser cannot unpack the file; a newer one can.");
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function floats(buffer) {
  const view = new DataView(buffer);
  if (new Uint8Array(new Uint16Array([1]).buffer)[0]) return new Float32Array(buffer);
  return Float32Array.from({ length: buffer.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

async function good(answer) {
  if (answer.ok) return answer;
  let why = `the server answered ${answer.status}`;
  try { why = (await answer.json()).error ?? why; } catch { /* no reason was given */ }
  throw new Error(why);
}
