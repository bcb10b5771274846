// A cache of tensors, limited in size.

const MOST = 6e7; // bytes

export class Tensors {
  #source;
  #kept = new Map();

  constructor(source) { this.#source = source; }

  async get(run, name) {
    const key = `${run} ${name}`;
    if (!this.#kept.has(key)) {
      const held = () => [...this.#kept.values()].reduce((sum, each) => sum + each.data.byteLength, 0);
      while (this.#kept.size > 2 && held() > MOST) this.#kept.delete(this.#kept.keys().next().value);
      this.#kept.set(key, await this.#source.tensor(run, name));
    }
    return this.#kept.get(key);
  }
}
