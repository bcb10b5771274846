// Writes the trees of formulas as text: ["add", ["matmul", "x", "W"], "b"] is x W + b. A symbol that has a role in the
// text only (√dₖ, ε, base) is written with its number.

const NAMES = { relu: "ReLU", gelu: "GELU", "gelu-tanh": "GELUₜₐₙₕ", silu: "SiLU", "gelu-quick": "GELU_quick", tanh: "tanh", softmax: "softmax" };
const POOLS = { class: (a) => `${a}₀`, last: (a) => `${a}ₙ`, mean: (a) => `mean(${a}₀ … ${a}ₙ)`, max: (a) => `max(${a}₀ … ${a}ₙ)` };

const weak = (text) => /( [+−/] )/.test(text.replace(/\([^()]*\)/g, "()")); // a sum outside of brackets
const inner = (text) => (weak(text) ? `(${text})` : text);

// operands: { symbol: { shape, value } }; value is the number of a constant.
export function written(tree, operands) {
  const plain = (symbol) => {
    const found = operands[symbol];
    if (!found || found.shape.length) return symbol;
    const value = Number(found.tile.data[0].toPrecision(4));
    if (/^[0-9]/.test(symbol)) return symbol;
    if (symbol === "√dₖ") return `√${Math.round(value * value)}`;
    if (symbol === "√d") return `√${Math.round(value * value)}`;
    return String(value).replace("e-", "·10^−").replace("-", "−");
  };
  const go = (each) => {
    if (typeof each === "string") return plain(each);
    const [name, ...given] = each, parts = given.map(go), [a, b] = parts;
    switch (name) {
      case "add": return `${a} + ${b}`;
      case "times": return /^[−0-9.]/.test(b) || b.startsWith("√") ? `${b} · ${inner(a)}` : `${inner(a)} ⊙ ${inner(b)}`;
      case "over": return `${inner(a)} / ${b}`;
      case "matmul": return `${inner(a)} ${inner(b)}`;
      case "dot": return `${inner(a)} ${inner(b)}ᵀ`;
      case "lookup": return `${a}[${b}]`;
      case "prepend": return `[${a}; ${b}]`;
      case "join": return `[${a}, ${b}]`;
      case "columns": return `columns ${b} to ${Number(parts[2]) - 1} of ${a}`;
      case "concat": return `concat(${parts.length > 3 ? `${a}, …, ${parts.at(-1)}` : parts.join(", ")})`;
      case "sink": return `exp(${a}) / (Σ exp(${a}) + exp(${b}))`;
      case "layer-norm": return `(${a} − μ) / √(σ² + ${parts[2]}) ⊙ ${inner(b)}`;
      case "rms-norm": return `${a} / √(mean(${a}²) + ${parts[2]}) ⊙ ${inner(b)}`;
      case "relu2": return `ReLU(${a})²`;
      case "cap": return `${b} · tanh(${inner(a)} / ${b})`;
      case "alibi": return `${a} − ${b} · |i − j|`;
      case "distance": return `${inner(a)}[i − j]`;
      case "mask": return `${a} + M,  M = −∞ where ${hidden(Number(b), Number(parts[2]))}`;
      case "rotate-halves":
      case "rotate-interleaved": return `${parts[2] === "1" ? "" : `${parts[2]} · `}R(${b}) ${a}`;
      case "waves-interleaved": return `PE,  PE(${a}, 2i) = sin(${a} / ${b}^(2i/${parts[2]})),  PE(${a}, 2i+1) = cos(${a} / ${b}^(2i/${parts[2]}))`;
      case "waves-halves": return `PE,  PE(${a}, i) = sin(${a} / ${b}^(2i/${parts[2]})),  PE(${a}, i + ${parts[2]}/2) = cos(${a} / ${b}^(2i/${parts[2]}))`;
      default: return POOLS[name] ? POOLS[name](a) : `${NAMES[name] ?? name}(${a})`;
    }
  };
  return go(tree);
}

function hidden(causal, window) {
  return [causal ? "key > query" : "", window ? `${causal ? "query − key" : "|query − key|"} ≥ ${window}` : ""].filter(Boolean).join(" or ");
}

// The operands of a tree that are tensors, in the order in which they are written.
export function leaves(tree, found = []) {
  if (typeof tree === "string") { if (!found.includes(tree)) found.push(tree); } else tree.slice(1).forEach((each) => leaves(each, found));
  return found;
}

const SIGNS = { matmul: "×", dot: "×", add: "+", times: "⊙", "layer-norm": "⊙", "rms-norm": "⊙" };

// The sign before each operand, where the order of the operands is that of the formula.
export function joints(tree, found = {}) {
  if (typeof tree === "string") return found;
  const [name, ...given] = tree, all = leaves(tree), count = given.flatMap((each) => leaves(each)).length;
  given.forEach((each) => joints(each, found));
  if (count > all.length) return {}; // an operand is used twice
  if (SIGNS[name] && given.length > 1) found[leaves(given[1])[0]] = SIGNS[name];
  return found;
}

// The operands that are the second factor of a product of matrices.
export function seconds(tree, found = new Map()) {
  if (typeof tree === "string") return found;
  const [name, ...given] = tree;
  if (["matmul", "dot"].includes(name)) for (const each of leaves(given[1])) found.set(each, name);
  given.forEach((each) => seconds(each, found));
  return found;
}
