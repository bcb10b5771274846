// The source of the data: the server of this page or, in a saved file, the answers inside it.

import { bytesOf, floats } from "./packed.js";

export function open() {
  const inlined = document.getElementById("inlined");
  return inlined ? new Inlined(JSON.parse(inlined.textContent)) : new Server();
}

class Server {
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
class Inlined {
  live = false;
  #kept;
  #answers;

  constructor(kept) {
    this.#kept = kept;
    this.state = kept.state;
    this.rounded = kept.rounded; // the largest rounding error of weights
    this.#answers = new Map(kept.answers.map((each) => [this.#key(each.path, each.asked), each]));
    this.pixels = kept.answers.find((each) => each.path === "run").asked.image;
  }

  async about() { return this.#kept.about; }

  async ask(path, asked) {
    const { shared } = this.#kept; // tensors, by their numbers
    return JSON.parse(new TextDecoder().decode(await unpacked(this.#found(path, asked).packed)),
      (key, value) => (key === "data" && Number.isInteger(value) ? shared[value] : value));
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
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function good(answer) {
  if (answer.ok) return answer;
  let why = `the server answered ${answer.status}`;
  try { why = (await answer.json()).error ?? why; } catch { /* no reason was given */ }
  throw new Error(why);
}
