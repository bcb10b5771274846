// Where the data come from: the server that gave this page, or, of a page in a file, what was put into it.

export function open() {
  const inlined = document.getElementById("inlined");
  return inlined ? new Inlined(JSON.parse(inlined.textContent)) : new Server();
}

class Server {
  live = true;
  state = {};
  about() { return this.#get("api/about").then((answer) => answer.json()); }
  run(asked) { return this.#ask("api/run", asked); }
  output(run) { return this.#ask("api/output", { run }); }
  notes(run) { return this.#ask("api/notes", { run }); }
  patches(asked) { return this.#ask("api/patches", asked); }
  occlude(asked) { return this.#ask("api/occlude", asked); }
  walk(asked) { return this.#ask("api/walk", asked); }
  steps(asked) { return this.#ask("api/steps", asked); }
  tree(asked) { return this.#ask("api/tree", asked); }
  vectors(asked) { return this.#ask("api/vectors", asked); }
  positions(asked) { return this.#ask("api/positions", asked); }
  lens(asked) { return this.#ask("api/lens", asked); }
  compare(asked) { return this.#ask("api/compare", asked); }
  control(asked) { return this.#ask("api/control", asked); }

  async tensor(run, name) {
    const answer = await this.#get(`api/tensor?${new URLSearchParams({ run, name })}`);
    const shape = answer.headers.get("X-Shape").split(",").map(Number);
    return { shape, data: floats(await answer.arrayBuffer()) };
  }

  async #get(path) {
    return good(await fetch(path));
  }

  async #ask(path, asked) {
    const headers = { "Content-Type": "application/json" };
    return (await good(await fetch(path, { method: "POST", headers, body: JSON.stringify(asked) }))).json();
  }
}

class Inlined {
  live = false;
  constructor(data) {
    this.data = data;
    this.state = Object.fromEntries(Object.entries(data.state).filter(([, value]) => value));
  }
  async about() { return this.data.about; }
  async run() { return this.data.run; }
  async output() { return this.data.output; }

  async tensor(run, name) {
    const kept = this.data.tensors[name];
    const bytes = Uint8Array.from(atob(kept.data), (letter) => letter.charCodeAt(0));
    return { shape: kept.shape, data: floats(bytes.buffer) };
  }
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
