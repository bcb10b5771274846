"""Walk view: the path of one input through a model, from text to probabilities, with the formula of each step.

Formulas follow from the model's modules, and so do the numbers; `formulas.py` has the trees. T: tokens, K: keys,
E: size of a head, V: size of its values.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import positions
from regard.blocks.embedding import PatchEmbedding, TextEmbedding
from regard.blocks.layers import ACTIVATIONS, Attention, FeedForward, Residual, RmsNorm
from regard.blocks.layout import Padded
from regard.blocks.visibility import Visibility
from regard.errors import InputError
from regard.look.heads import change_named
from regard.look.study import Study, StudyRun
from regard.look.views import view
from regard.look.views.formulas import Operand, Tree, distances, formula_value
from regard.models.families import MaskedHead, Output, PoolingHead, SequenceHead, TokenHead
from regard.tasks.image import to_input

ROWS, CHANNELS, KEYS = 48, 32, 1024
"""Rows, channels and keys of a tensor that are sent. `first` of a request selects the rows."""
PARAMETERS = (16, 32)
"""Rows and columns of an operand that is not the output of a step."""
_SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class WalkRequest(view.RunRequest):
    """The path of a run through one layer, with one head of its attentions."""

    stack: view.Text = "encoder"
    layer: view.Count = 0
    head: view.Count = 0
    first: view.Count = 0
    """The first token that is sent."""


Formula: TypeAlias = tuple[Tree, dict[str, Operand]]
NamedFormula: TypeAlias = tuple[str, Tree, dict[str, Operand]]
"""The kind of a step with its formula."""


class WalkStep(NamedTuple):
    """A step: a table of texts (`words`), or a tensor `[rows, columns]` and the formula that gives it.

    `kind` says what it is (`embeddings`, `softmax`), `part` where (`Cross-attention`). `tree` is None where a step is
    input or stands for many: other layers, a module that is not known here.
    """

    name: str
    kind: str
    part: str
    tree: Tree | None
    operands: Mapping[str, Operand]
    value: Tensor | None
    rows: Sequence[str]
    columns: Sequence[str]
    words: list[list[str]] | None


def walk(study: Study, run: StudyRun, layer: str, head: int, first: int = 0) -> list[WalkStep]:
    """The steps from text to answer through one layer (`decoder.1`), and one head of each of its attentions.

    The logits are those of `ROWS` tokens from `first` on.
    """
    stack, _, number = layer.partition(".")
    heads = [each.heads for each in study.attentions if each.stack == stack]
    if f"{layer}.residual" not in study.names or head >= max(heads, default=1):
        raise InputError(f"{layer}, head {head}, is not in this model; choose another")
    embedding = "embedding"
    if "encoder" in run.sides and "decoder" in run.sides:
        embedding = "source" if stack == "encoder" else "target"
    before, last = int(number) - 1, len(getattr(study.network, stack)) - 1
    wanted = [name for name in study.names if name.startswith((f"{embedding}.", f"{layer}."))]
    wanted += [f"{stack}.residual", f"{stack}.{max(before, 0)}.residual", f"{stack}.{last}.residual", f"{stack}.out"]
    wanted += ["encoder.out"] * any(".cross." in name for name in wanted)
    if study.cache.get("walk", (None, None))[0] != (run.key, layer):  # the heads of a layer often follow each other
        study.cache["walk"] = ((run.key, layer), study.values(run, list(dict.fromkeys(wanted))))
    path = _Path(study, run, stack, int(number), head, study.cache["walk"][1])
    with torch.inference_mode():
        path.input(embedding)
        path.layer()
        path.output(first)
    return path.steps


class _Path:
    """Collects the steps. `at` is the name of the latest step of the residual stream."""

    def __init__(
        self, study: Study, run: StudyRun, stack: str, number: int, head: int, seen: Mapping[str, Tensor]
    ) -> None:
        self.study, self.run, self.stack, self.number, self.head, self.seen = study, run, stack, number, head, seen
        self.network: Any = study.network
        self.layers: Any = self.network.get_submodule(stack)
        self.tokens = run.sides[stack].names
        self.steps: list[WalkStep] = []
        self.values: dict[str, Tensor] = {}
        self.part, self.at = "Input", ""

    def add(
        self,
        name: str,
        kind: str,
        tree: Tree | None = None,
        operands: Mapping[str, Operand] | None = None,
        value: Tensor | None = None,
        axes: Sequence[Sequence[str]] = (),
        words: list[list[str]] | None = None,
    ) -> str:
        """A step whose value is given, recorded, or follows from its formula. `axes` names its rows and columns."""
        value = self.seen.get(name) if value is None else value
        if value is None and tree is not None:
            value = formula_value(tree, operands or {})
        if value is not None:
            self.values[name] = value
        rows, columns = [*axes, *[self.tokens, ()][len(axes) :]]
        self.steps.append(WalkStep(name, kind, self.part, tree, operands or {}, value, rows, columns, words))
        return name

    def of(self, step: str) -> Operand:
        return Operand(step, self.values[step])

    def parameter(self, name: str, value: Tensor | None = None) -> Operand:
        """A parameter by its path in the model, or a part of it (`value`)."""
        found = self.network.get_parameter(name) if value is None else value
        return Operand(name, found.detach().to("cpu", torch.float32))

    def linear(self, symbol: str, x: Operand, path: str, mark: str = "", rows: slice | None = None) -> Formula:
        """x W + b of a linear layer, or of some of its outputs. `mark` follows the symbols W and b."""
        module, rows = self.network.get_submodule(path), rows or slice(None)
        tree: Tree = ("matmul", symbol, f"W{mark}")
        operands = {symbol: x, f"W{mark}": self.parameter(f"{path}.weight", module.weight[rows].mT)}
        if module.bias is not None:
            tree, operands[f"b{mark}"] = ("add", tree, f"b{mark}"), self.parameter(f"{path}.bias", module.bias[rows])
        return tree, operands

    def norm(self, x: str, path: str) -> Formula:
        """The norm of a symbol, whose operand is not included."""
        module = self.network.get_submodule(path)
        operands = {"γ": self.parameter(f"{path}.weight"), "ε": _constant(module.eps)}
        if isinstance(module, RmsNorm):
            scale = ("add", "1", "γ") if module.unit_offset else "γ"
            return ("rms-norm", x, scale, "ε"), operands | {"1": _constant(1)} if module.unit_offset else operands
        if module.bias is None:
            return ("layer-norm", x, "γ", "ε"), operands
        return ("add", ("layer-norm", x, "γ", "ε"), "β"), operands | {"β": self.parameter(f"{path}.bias")}

    def normed(self, path: str, name: str, kind: str = "norm", symbol: str = "x") -> str:
        """A step: the norm of the latest one."""
        tree, operands = self.norm(symbol, path)
        return self.add(name, kind, tree, operands | {symbol: self.of(self.at)})

    # ---------------------------------------------------------------------------------------------------------- input

    def input(self, embedding: str) -> None:
        """From text or image to the residual stream before the layer."""
        side, module = self.run.sides[self.stack], self.network.get_submodule(embedding)
        if side.text:
            self.add("text", "text", words=[[side.text]])
        if isinstance(module, PatchEmbedding):
            self._patches(embedding, module)
        else:
            assert isinstance(module, TextEmbedding)
            count = [str(i) for i in range(len(self.tokens))]
            self.add("tokens", "tokens", words=[count, self.tokens])
            self.add("ids", "ids", words=[count, self.tokens, [str(each) for each in side.ids]])
            self._embeddings(embedding, module)
        self.at = f"{self.stack}.residual"
        if self.number:
            self.at = self.add(f"{self.stack}.{self.number - 1}.residual", "earlier")

    def _patches(self, path: str, module: PatchEmbedding) -> None:
        assert self.run.read.pixels is not None
        images = to_input(self.run.read.pixels[None].to(module.patches.weight.device), self.network)
        patches_NP = functional.unfold(images, module.patch, stride=module.patch)[0].mT.float().cpu()
        self.add("patches", "patches", value=patches_NP, axes=[self.tokens[-len(patches_NP) :]])
        weight = self.parameter(f"{path}.patches.weight", module.patches.weight.flatten(1).mT)
        operands = {"p": self.of("patches"), "W": weight}
        tree: Tree = ("matmul", "p", "W")
        if module.patches.bias is not None:
            tree, operands["b"] = ("add", tree, "b"), self.parameter(f"{path}.patches.bias")
        if module.registers is not None:
            tree, operands["R"] = ("prepend", "R", tree), self.parameter(f"{path}.registers")
        if module.class_token is not None:
            tree, operands["c"] = ("prepend", "c", tree), self.parameter(f"{path}.class_token")
        terms = {"e": self.of(self.add(f"{path}.tokens", "patch-embeddings", tree, operands))}
        tree = "e"
        if f"{path}.positions" in self.seen:
            tree, terms["p"] = ("add", "e", "p"), self.of(self._grid_positions(path, module))
        self.at = self.add(f"{self.stack}.residual" if module.norm is None else f"{path}.sum", "sum", tree, terms)
        if module.norm is not None:
            self.normed(f"{path}.norm", f"{self.stack}.residual")

    def _grid_positions(self, path: str, module: PatchEmbedding) -> str:
        name, position, grid = f"{path}.positions", module.position, self.network.settings.grid
        tree: Tree = None
        operands = {}
        if isinstance(position, positions.LearnedGridPosition) and position.grid == grid:
            tree, operands["P"] = "P", self.parameter(f"{path}.position.weight")
        elif isinstance(position, positions.SinusoidalGridPosition):
            wave = (f"waves-{position.position.order}", "base", "d")
            tree = ("join", *((wave[0], place, *wave[1:]) for place in ("column", "row")))
            places = zip(("column", "row"), positions.places_2d(grid), strict=True)
            operands = {place: Operand(place, each.float()) for place, each in places}
            operands |= {"base": _constant(position.position.base), "d": _constant(position.width // 2)}
        if tree is not None and position.registers:
            tree, operands["0"] = ("prepend", "0", tree), Operand("0", torch.zeros(position.registers, position.width))
        if tree is not None and position.class_token:
            first = getattr(position, "first", None)
            operands["P₀"] = _constant(0) if first is None else self.parameter(f"{path}.position.first")
            tree = ("prepend", "P₀", tree)
        return self.add(name, "positions", tree, operands)

    def _embeddings(self, path: str, module: TextEmbedding) -> None:
        ids = Operand("ids", torch.tensor(self.run.sides[self.stack].ids))
        operands, tree = {"E": self.parameter(f"{path}.tokens.weight"), "id": ids}, ("lookup", "E", "id")
        if module.scale != 1:
            tree, operands["√d"] = ("times", tree, "√d"), _constant(module.scale)  # type: ignore[assignment]
        terms = {"e": self.of(self.add(f"{path}.tokens", "embeddings", tree, operands))}
        if module.segments is not None:
            two = module.segments.num_embeddings > 1 and self.run.read.segments
            numbers = two or [0] * len(self.tokens)
            given = {"G": self.parameter(f"{path}.segments.weight"), "seg": Operand("seg", torch.tensor(numbers))}
            terms["s"] = self.of(self.add(f"{path}.segments", "segments", ("lookup", "G", "seg"), given))
        if f"{path}.positions" in self.seen:
            terms["p"] = self.of(self._positions(path, module.position))
        total: Tree = "e"
        for symbol in list(terms)[1:]:
            total = ("add", total, symbol)
        rest = [each for each in ("norm", "project") if getattr(module, each) is not None]
        names = [*(f"{path}.{each}" for each in ("sum", *rest)[: len(rest)]), f"{self.stack}.residual"]
        self.at = self.add(names[0], "sum", total, terms)
        for each, name in zip(rest, names[1:], strict=True):
            if each == "norm":
                self.at = self.normed(f"{path}.norm", name)
            else:
                self.at = self.add(name, "project", *self.linear("x", self.of(self.at), f"{path}.project"))

    def _positions(self, path: str, position: nn.Module) -> str:
        operands = {"pos": Operand("pos", torch.arange(len(self.tokens)))}
        tree: Tree = None
        if isinstance(position, positions.LearnedPosition):
            place: Tree = "pos"
            if offset := position.position.offset:
                place, operands["offset"] = ("add", "pos", "offset"), _constant(offset)
            tree, operands["P"] = ("lookup", "P", place), self.parameter(f"{path}.position.weight")
        elif isinstance(position, positions.SinusoidalPosition):
            tree = (f"waves-{position.position.order}", "pos", "base", "d")
            operands |= {"base": _constant(position.position.base), "d": _constant(position.width)}
        return self.add(f"{path}.positions", "positions", tree, operands if tree else {})

    # ---------------------------------------------------------------------------------------------------------- layer

    def layer(self) -> None:
        """Every sublayer of the layer, each with its norms and its residual connection."""
        path = f"{self.stack}.{self.number}"
        names = {"attention": "Self-attention", "cross": "Cross-attention", "ffn": "Feed-forward"}
        start = self.at
        for name, self.part in names.items():
            sublayer, residual = (getattr(self.layers[self.number], each, None) for each in (name, f"{name}_residual"))
            if sublayer is None or not isinstance(residual, Residual):
                continue
            at, before = f"{path}.{name}", self.at
            if name == "ffn" and self.layers[self.number].parallel:
                self.at = start
            if residual.place in ("pre", "sandwich"):
                self.at = self.normed(f"{at}_residual.norm", f"{at}.input")
            if isinstance(sublayer, Attention):
                out = self._attention(at, sublayer)
            elif type(sublayer) is FeedForward:
                out = self._feed_forward(at, sublayer)
            else:
                if f"{at}.router" in self.seen:
                    self.add(f"{at}.router", "router")
                out = self.add(f"{at}.out", type(sublayer).__name__)
            self._add_and_norm(at, residual, before, out, f"{path}.residual" if name == "ffn" else f"{at}.residual")
        if self.at != f"{path}.residual":
            self.at = self.add(f"{path}.residual", type(self.layers[self.number]).__name__)

    def _add_and_norm(self, at: str, residual: Residual, before: str, out: str, end: str) -> None:
        if residual.place in ("sandwich", "output"):
            self.at = out
            out = self.normed(f"{at}_residual.{'after' if residual.after else 'norm'}", f"{at}.after", symbol="y")
        if residual.scale is not None:
            given = {"y": self.of(out), "λ": self.parameter(f"{at}_residual.scale")}
            out = self.add(f"{at}.rescaled", "layer-scale", ("times", "y", "λ"), given)
        terms, post = {"x": self.of(before), "y": self.of(out)}, residual.place == "post"
        self.at = self.add(f"{at}.sum" if post else end, "add", ("add", "x", "y"), terms)
        if post:
            self.at = self.normed(f"{at}_residual.norm", end)

    def _feed_forward(self, at: str, module: FeedForward) -> str:
        activation = next(name for name, each in ACTIVATIONS.items() if each is module.activation)
        x = self.of(self.at)
        tree, operands = self.linear("x", x, f"{at}.up", "₁")
        if module.gate is None:
            tree = (activation, tree)
        else:
            gate, more = self.linear("x", x, f"{at}.gate", "₃")
            tree, operands = ("times", (activation, gate), tree), operands | more
        hidden = self.of(self.add(f"{at}.hidden", "hidden", tree, operands))
        return self.add(f"{at}.out", "feed-forward", *self.linear("h", hidden, f"{at}.down", "₂"))

    def _attention(self, at: str, module: Attention) -> str:
        group, x, source = self.head * module.kv_heads // module.heads, self.at, self.at
        keys = self.run.sides["encoder" if at.endswith(".cross") else self.stack].names
        if at.endswith(".cross"):
            source = self.add("encoder.out", "memory", axes=[keys])
        q = self._projected(at, module, "q", self.head, x, self.tokens)
        k = self._projected(at, module, "k", group, source, keys)
        scores = self._scores(at, module, q, k, keys)
        weights_TK = self.seen[f"{at}.weights"][self.head]
        tree: Tree = ("softmax", "S")
        given = {"S": self.of(scores)}
        if module.sinks is not None:
            tree, given["s"] = ("sink", "S", "s"), self.parameter(f"{at}.sinks", module.sinks[self.head])
        weights = self.add(f"{at}.weights", "softmax", tree, given, weights_TK, [self.tokens, keys])
        v = self._projected(at, module, "v", group, source, keys)
        tree, given = self._edited(at)
        heads_THV = self.seen[f"{at}.heads"]
        given |= {"A": self.of(weights), "V": self.of(v)}
        self.add(f"{at}.head", "head", tree, given, heads_THV[:, self.head])
        given = {f"head{i}".translate(_SUBSCRIPT): Operand(f"{at}.heads", heads_THV[:, i]) for i in range(module.heads)}
        joined = self.of(self.add(f"{at}.concat", "concat", ("concat", *given), given))
        return self.add(f"{at}.out", "out", *self.linear("c", joined, f"{at}.out", "ᴼ"))

    def _edited(self, at: str) -> Formula:
        """The formula of the head with the changes of the run."""
        tree: Tree = ("matmul", "A", "V")
        given: dict[str, Operand] = {}
        for change in (change_named(self.study.loaded, text) for text in self.run.given.ablated):
            if (change.head.attention, change.head.number) != (at, self.head):
                continue
            if change.mean:
                tree, given["0"] = ("add", ("times", tree, "0"), "mean"), _constant(0)
                given["mean"] = Operand("mean", self.run.means[at][self.head].cpu().float())
            else:
                tree, given["factor"] = ("times", tree, "factor"), Operand("factor", torch.tensor(change.factor or 0.0))
        return tree, given

    def _projected(self, at: str, module: Attention, part: str, number: int, x: str, names: Sequence[str]) -> str:
        """Queries, keys or values of one head: projected, then normed and rotated if the model does so."""
        name, symbol, value = f"{at}.{part}", part.upper(), self.seen[f"{at}.{part}"][:, number]
        if type(module) is not Attention:  # latent attention has other projections
            return self.add(name, f"{part}-given", value=value, axes=[names])
        rows = slice(number * value.shape[1], (number + 1) * value.shape[1])
        norm = getattr(module, f"{part}_norm", None)
        joint = norm is not None and module.joint
        steps = [(part, *self.linear("x", self.of(x), name, f"^{symbol}", None if joint else rows))]
        if norm is not None:
            steps.append((f"{part}-norm", *self.norm(symbol, f"{name}_norm")))
        if joint:  # over all heads, of which one is shown from here on
            columns = {"first": _constant(rows.start), "end": _constant(rows.stop)}
            steps.append((f"{part}-columns", ("columns", symbol, "first", "end"), columns))
        if part != "v" and not at.endswith(".cross") and (turn := self._rotation()) is not None:
            # Angles beyond a full turn are given without it. Scaling may multiply all by a factor.
            angles = torch.atan2(turn.sin, turn.cos).reshape(len(self.tokens), -1).float()
            turned = {"θ": Operand("θ", angles), "m": _constant(float(turn.sin.hypot(turn.cos).mean()))}
            steps.append((f"{part}-rotated", (f"rotate-{turn.order}", symbol, "θ", "m"), turned))
        done = ""
        for step, (kind, tree, operands) in enumerate(steps):
            last, given = step == len(steps) - 1, operands | ({symbol: self.of(done)} if done else {})
            done = self.add(name if last else f"{name}.{kind}", kind, tree, given, value if last else None, [names])
        return done

    def _rotation(self) -> positions.Rotation | None:
        embedding, layout = getattr(self.network, "embedding", None), Padded(1, len(self.tokens))
        cpu, dtype = torch.device("cpu"), torch.float64
        if isinstance(embedding, PatchEmbedding):
            return embedding.position.rotation(self.network.settings.grid, cpu, dtype)
        if not isinstance(self.layers.position, positions.RotaryPosition):
            return None
        found: positions.Rotation | None = self.layers.position.signals(Visibility(layout, layout), cpu, dtype).rotation
        return found

    def _scores(self, at: str, module: Attention, q: str, k: str, keys: Sequence[str]) -> str:
        """From queries and keys to the input of the softmax: product, scale; cap, bias and mask if there are any."""
        scores_TK, size = self.seen[f"{at}.scores"][self.head], module.head_size
        usual = abs(module.scale - size**-0.5) < 1e-9
        scale = ("over", "√dₖ", _constant(math.sqrt(size))) if usual else ("times", "s", _constant(module.scale))
        product, given = ("dot", "Q", "K"), {"Q": self.of(q), "K": self.of(k)}
        if module.relative is not None:
            product = ("dot", ("add", "Q", "u"), "K")  # type: ignore[assignment]
            given["u"] = self.parameter(f"{at}.relative.content", module.relative.content[self.head])
        steps: list[NamedFormula] = [("product", product, given)]
        steps.append(("scale", (scale[0], "S", scale[1]), {scale[1]: scale[2]}))
        if module.soft_cap is not None:
            steps.append(("cap", ("cap", "S", "c"), {"c": _constant(module.soft_cap)}))
        if not at.endswith(".cross"):
            steps += self._bias(at, module, q, scale)
        if bool((scores_TK == -torch.inf).any()):
            steps.append(("mask", *_masking(scores_TK == -torch.inf)))
        done = ""
        for number, (kind, tree, operands) in enumerate(steps):
            last, given = number == len(steps) - 1, operands | ({"S": self.of(done)} if done else {})
            name, value = (f"{at}.scores", scores_TK) if last else (f"{at}.{kind}", None)
            done = self.add(name, kind, tree, given, value, [self.tokens, keys])
        return done

    def _bias(self, at: str, module: Attention, q: str, scale: tuple[str, str, Operand]) -> Iterator[NamedFormula]:
        """What positions add to scores."""
        position, layout = self.layers.position, Padded(1, len(self.tokens))
        if isinstance(position, positions.AlibiPosition):
            slope = _constant(float(positions.alibi_slopes(module.heads)[self.head]))
            yield "alibi", ("alibi", "S", "m"), {"m": slope}
            return
        device = next(self.layers.parameters()).device
        signals = position.signals(Visibility(layout, layout), device, torch.float32)
        if signals.bias is not None:
            table = self.parameter(f"{self.stack}.position.weight", signals.bias.table[self.head])
            yield "bias", ("add", "S", ("distance", "b")), {"b": table}
        elif signals.distances is not None and (relative := module.relative) is not None:
            weight = relative.project.weight.view(*relative.distance.shape, -1)[self.head].mT
            given = {
                "Q": self.of(q),
                "v": self.parameter(f"{at}.relative.distance", relative.distance[self.head]),
                "r": Operand("distances", signals.distances[0].float().cpu()),
                "Wʳ": self.parameter(f"{at}.relative.project.weight", weight),
                scale[1]: scale[2],
            }
            table_TR = (scale[0], ("dot", ("add", "Q", "v"), ("matmul", "r", "Wʳ")), scale[1])
            yield "relative", ("add", "S", ("distance", table_TR)), given

    # --------------------------------------------------------------------------------------------------------- output

    def output(self, first: int) -> None:
        """From the layer to the answers."""
        self.part = "Output"
        if self.number < len(self.layers) - 1:
            self.at = self.add(f"{self.stack}.{len(self.layers) - 1}.residual", "later")
        if self.layers.norm is not None:
            self.at = self.normed(f"{self.stack}.norm", f"{self.stack}.out", "final-norm")
        else:
            self.at = self.add(f"{self.stack}.out", "stack-out", "x", {"x": self.of(self.at)})
        if self.stack == "encoder" and "decoder" in self.run.sides:
            return
        rows = slice(first, first + ROWS)
        z = Operand(self.at, self.values[self.at][rows])
        names = self.tokens[rows]
        if isinstance(getattr(self.network, "output", None), Output):
            self._answer("output", self._logits("output", "z", z, names), rows)
            return
        for name, head in self.network.heads.items():
            path = f"heads.{name}"
            if isinstance(head, MaskedHead):
                activation = next(key for key, each in ACTIVATIONS.items() if each is head.activation)
                tree, operands = self.linear("z", z, f"{path}.dense")
                dense = self.add(f"{path}.dense", "head-dense", (activation, tree), operands, None, [names])
                tree, operands = self.norm("d", f"{path}.norm")
                given = operands | {"d": self.of(dense)}
                normed = self.of(self.add(f"{path}.norm", "head-norm", tree, given, None, [names]))
                self._answer(name, self._logits(f"{path}.output", "d", normed, names), rows)
            elif isinstance(head, TokenHead):
                formula = self.linear("z", z, f"{path}.output")
                self._answer(name, self.add(f"{path}.logits", "class-logits", *formula, None, [names]), rows)
            elif isinstance(head, PoolingHead):
                self._pooled(path, head)

    def _pooled(self, path: str, head: PoolingHead) -> None:
        one = [["all tokens"]]
        pooled = self.of(self.add(f"{path}.vector", "pool", (head.pooling, "z"), {"z": self.of(self.at)}, None, one))
        if head.pool is not None:
            tree, operands = self.linear("g", pooled, f"{path}.pool", "ᴾ")
            activation = next(name for name in ("tanh", "gelu", "relu") if name in head.activation.__name__)
            pooled = self.of(self.add(f"{path}.pooled", "pooler", (activation, tree), operands, None, one))
        if isinstance(head, SequenceHead):
            formula = self.linear("g", pooled, f"{path}.output")
            logits = self.add(f"{path}.logits", "class-logits", *formula, None, one)
            self._answer(path.partition(".")[2], logits, slice(None))

    def _logits(self, path: str, symbol: str, x: Operand, names: Sequence[str]) -> str:
        module = self.network.get_submodule(path)
        matrix = "W" if module.weight is not None else "E"
        operands = {symbol: x, matrix: self.parameter(f"{path}.weight", module.matrix)}
        tree: Tree = ("dot", symbol, matrix)
        if module.scale is not None:
            tree, operands["s"] = ("dot", ("times", symbol, "s"), matrix), _constant(module.scale)
        if module.bias is not None:
            tree, operands["b"] = ("add", tree, "b"), self.parameter(f"{path}.bias")
        return self.add(f"{path}.logits", "logits", tree, operands, None, [names])

    def _answer(self, name: str, logits: str, rows: slice) -> None:
        for answer in (each for each in self.run.answers if each.name == name):
            words = [[f"{each.text}  {each.chance:.4f}" for each in row.candidates] for row in answer.rows[rows]]
            names = self.tokens[rows] if answer.each else ["all tokens"]
            table = [[token, *row] for token, row in zip(names, words, strict=True)]
            self.add(f"answer.{name}", "answer", ("softmax", "ℓ"), {"ℓ": self.of(logits)}, None, [names], table)


def _constant(value: float) -> Operand:
    return Operand(f"{value:g}", torch.tensor(float(value)))


def _masking(hidden_TK: Tensor) -> Formula:
    """The mask as causal and window or, if it is another one, as it is."""
    apart_TK = distances(*hidden_TK.shape)
    causal = bool(hidden_TK[apart_TK < 0].all())
    far = apart_TK[hidden_TK & (apart_TK > 0)]
    given = {"causal": _constant(causal), "window": _constant(int(far.min()) if len(far) else 0)}
    tree = ("mask", "S", "causal", "window")
    if torch.equal(formula_value(tree, given | {"S": Operand("", torch.zeros(hidden_TK.shape))}) < 0, hidden_TK):
        return tree, given
    return ("add", "S", "M"), {"M": Operand("mask", torch.zeros(hidden_TK.shape).masked_fill(hidden_TK, -torch.inf))}


def _answer(study: Study, asked: WalkRequest) -> view.Answer:
    steps = walk(study, study.known(asked.run), f"{asked.stack}.{asked.layer}", asked.head, asked.first)
    known = {each.name for each in steps if each.value is not None}
    return {"steps": [_sent(step, asked.first, known) for step in steps]}


def _sent(step: WalkStep, first: int, known: set[str]) -> view.Answer:
    """A step as the page gets it: its formula, and a part of its tensors. Those of other steps are sent with them."""
    count = 0 if step.value is None else len(step.value)
    rows = slice(first, first + ROWS) if first < count else slice(ROWS)
    used = dict(_looked_up(step.tree, step.operands))
    operands: view.Answer = {}
    for symbol, (name, value) in step.operands.items():
        flat = value.flatten(1) if value.dim() > 2 else value
        each: view.Answer = {"name": name, "shape": list(flat.shape), "tile": None}
        if symbol in used and len(flat) > ROWS:  # the rows that are looked up, in the order of the matrix
            at, places = torch.unique(used[symbol][rows], return_inverse=True)
            each |= {"at": at.tolist(), "places": places.tolist(), "tile": view.packed(flat[at, : PARAMETERS[1]])}
        elif name not in known and flat.dim() and len(flat) == count:  # a row, or a number, for each token
            shown = flat[rows] if flat.dim() == 1 else flat[rows, : PARAMETERS[1]]
            each |= {"first": rows.start or 0, "tile": view.packed(shown)}
        elif name not in known:
            part = (slice(PARAMETERS[0]), slice(PARAMETERS[1]))[-flat.dim() :] if flat.dim() else ()
            each["tile"] = view.packed(flat[part])
        operands[symbol] = each
    numbers: view.Answer | None = None
    if step.value is not None:
        finite = step.value[step.value != -torch.inf]
        numbers = dict[str, Any]((name, float(getattr(finite, name)())) for name in ("min", "max", "mean"))
        tile = step.value[rows, : KEYS if step.columns else CHANNELS]
        numbers |= {"shape": list(step.value.shape), "first": rows.start or 0, "tile": view.packed(tile)}
    names = {"rows": list(step.rows)[rows], "columns": list(step.columns)[:KEYS]}
    return {**step._asdict(), **words_of(step.kind), **names, "operands": operands, "value": numbers}


@cache
def words_of(kind: str) -> dict[str, str]:
    """Title, symbol and sentence of a kind of step; of a module that is not known here, its name."""
    known: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "steps.toml").read_text("utf-8"))
    other = {"title": kind, "symbol": "y", "text": f"The output of {kind}, as the model computes it."}
    return {"symbol": ""} | known.get(kind, other)


def _looked_up(tree: Tree, operands: Mapping[str, Operand]) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a formula of which rows are looked up, with the numbers of these rows."""
    if isinstance(tree, tuple):
        if tree[0] == "lookup":
            yield tree[1], formula_value(tree[2], operands).long()
        for each in tree[1:]:
            yield from _looked_up(each, operands)


QUESTION = view.PageQuestion("walk", WalkRequest, _answer)


def _stored(page: view.SavedPage) -> Iterator[view.StoredAnswer]:
    chosen, number, first = page.location(0)
    for group, layer in page.layers(0):
        if group.kind == "attention":  # a layer's cross-attention is in the same walk
            for head in view.first_of(first, group.heads):
                request = WalkRequest(run=page.run.key, stack=group.stack, layer=layer, head=head)
                yield page.ask(QUESTION, request, (group.stack, layer, head) == (chosen.stack, number, first))


WALK = view.PageView("walk", (QUESTION,), _stored, view.is_transformer)
