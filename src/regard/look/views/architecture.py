"""Architecture view: the parts of a model in the layout of the paper's figure 1, with shapes, parameters and FLOPs.

The FLOPs are those of a forward pass over the current input, counted as in `regard.count`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from torch import nn

from regard.blocks.embedding import PatchEmbedding
from regard.blocks.experts import Experts
from regard.blocks.layers import ACTIVATIONS, Attention, FeedForward
from regard.look.study import Study, StudyRun
from regard.look.views.view import Answer, PageQuestion, PageView, RunRequest, for_run, is_transformer

_ADDED = {"pre": ("norm", "", "add"), "post": ("", "", "add-norm"), "sandwich": ("norm", "norm", "add")}
_ADDED["output"] = ("", "norm", "add")


def architecture(study: Study, run: StudyRun) -> Answer:
    """The model as stacks of parts, from input to output.

    A stack has parts before its layers, `groups` of equal layers (`first`, `count`, the parts of one layer), and parts
    after them. A part has a `kind`, a `label` and a `detail`, `parameters` and `flops` of one layer, the `shape` of its
    output, and the name of its `step` in the walk, with `{}` for the number of the layer.
    """
    return {"stacks": [_Stack(study, run, stack).answer() for stack in run.sides]}


class _Stack:
    def __init__(self, study: Study, run: StudyRun, name: str) -> None:
        self.network: Any = study.network
        self.name, self.layers = name, getattr(self.network, name)
        self.lengths = {stack: len(side.tokens) for stack, side in run.sides.items()}
        self.tokens, self.two = self.lengths[name], len(run.sides) > 1
        self.width = study.loaded.settings.width
        self.windows = next((each.windows for each in study.attentions if each.stack == name), ())

    def answer(self) -> Answer:
        numbered = [(i, list(self._layer(i))) for i in range(len(self.layers))]
        groups = []
        for _, equal in groupby(numbered, key=lambda each: each[1]):
            same = list(equal)
            groups.append({"first": same[0][0], "count": len(same), "parts": same[0][1]})
        before, after = list(self._before()), list(self._after())
        return {"name": self.name, "tokens": self.tokens, "before": before, "after": after, "groups": groups}

    def part(self, kind: str, label: str, step: str, module: nn.Module | None = None, **more: Any) -> Answer:
        parameters = 0 if module is None else sum(each.numel() for each in module.parameters())
        found = {"kind": kind, "label": label, "step": step, "parameters": parameters, "flops": 0, "detail": ""}
        return found | {"shape": [self.tokens, self.width]} | more

    def _before(self) -> Iterator[Answer]:
        path = ("source" if self.name == "encoder" else "target") if self.two else "embedding"
        module, kind = getattr(self.network, path), self.network.settings.position.kind
        position = sum(each.numel() for each in module.position.parameters())
        whole = self.part("embedding", "Embedding", f"{path}.tokens", module)
        if isinstance(module, PatchEmbedding):
            patches = module.patches
            whole |= {"label": "Patches", "detail": f"{module.patch} × {module.patch} pixels → {self.width}"}
            rows, columns = self.network.settings.grid
            whole["flops"] = 2 * patches.weight.numel() * rows * columns
        else:
            whole["detail"] = f"{module.tokens.num_embeddings:,} × {module.tokens.embedding_dim}"
            if module.project is not None:
                whole["flops"] = 2 * module.project.weight.numel() * self.tokens
        whole["parameters"] -= position
        if path == "target" and module.tokens is self.network.source.tokens:
            whole["parameters"] -= module.tokens.weight.numel()
            whole["detail"] = "shared with the source"
        yield whole
        inside = f"{self.name}.{{}}.attention.scores" if len(module.taps) == 1 else ""
        if kind != "none":
            position += sum(each.numel() for each in self.layers.position.parameters())
            part = self.part("positions", "Positions", inside or f"{path}.positions", parameters=position)
            yield part | {"detail": f"{kind}{', in the attention' if inside else ''}"}

    def _layer(self, number: int) -> Iterator[Answer]:
        layer = self.layers[number]
        for name in ("attention", "cross", "ffn"):
            module, residual = getattr(layer, name, None), getattr(layer, f"{name}_residual", None)
            if module is None or residual is None:
                continue
            at = f"{self.name}.{{}}.{name}"
            before, inside, end = _ADDED[residual.place]
            if before:
                yield self.part("norm", "Norm", f"{at}.input", residual.norm)
            yield self._sublayer(name, module, at, number)
            if inside:
                yield self.part("norm", "Norm", f"{at}.after", residual.after or residual.norm)
            norm = residual.norm if end == "add-norm" else None
            step = f"{self.name}.{{}}.residual" if name == "ffn" else f"{at}.residual"
            yield self.part(end, "Add & norm" if norm is not None else "Add", step, norm)

    def _sublayer(self, name: str, module: nn.Module, at: str, number: int) -> Answer:
        part = self.part(name, {"cross": "Cross-attention"}.get(name, "Feed-forward"), f"{at}.out", module)
        linear = {path: each for path, each in module.named_modules() if isinstance(each, nn.Linear)}
        source = self.lengths.get("encoder", 0)
        times = {path: source if name == "cross" and path in ("k", "v") else self.tokens for path in linear}
        if isinstance(module, Attention):
            keys, window = source if name == "cross" else self.tokens, None
            if name == "attention":
                part["label"] = f"{'Masked self' if self.layers.causal else 'Self'}-attention"
                window = self.windows[number]
            if window is not None:
                keys = min(keys, window if self.layers.causal else 2 * window - 1)
            part["flops"] = 2 * module.heads * (module.head_size + module.value_size) * self.tokens * keys
            distances = keys if self.layers.causal else 2 * keys - 1
            if module.relative is not None:
                times["relative.project"] = distances
                part["flops"] += 2 * module.heads * module.head_size * self.tokens * distances
            shared = "" if module.kv_heads == module.heads else f", {module.kv_heads} of keys"
            near = "" if window is None else f", window {window}"
            part |= {"detail": f"{module.heads} heads of {module.head_size}{shared}{near}", "heads": module.heads}
        elif isinstance(module, FeedForward):
            activation = next(key for key, each in ACTIVATIONS.items() if each is module.activation)
            gate = ", gated" if module.gate is not None else ""
            part["detail"] = f"{self.width} → {module.up.out_features} → {self.width}, {activation}{gate}"
        elif isinstance(module, Experts):
            part["detail"] = f"{module.routing.active} of {module.routing.experts} experts for each token"
            part["flops"] = 2 * self.tokens * (part["parameters"] - module.inactive)
            times = {}
        part["flops"] += sum(2 * linear[path].weight.numel() * count for path, count in times.items())
        return part

    def _after(self) -> Iterator[Answer]:
        if self.layers.norm is not None:
            yield self.part("norm", "Norm", f"{self.name}.out", self.layers.norm)
        if self.name == "encoder" and self.two:
            return
        output = getattr(self.network, "output", None)
        if output is not None:
            size, tied = output.matrix.shape[0], "" if output.weight is not None else "tied to the embedding, "
            more = {"flops": 2 * output.matrix.numel() * self.tokens, "shape": [self.tokens, size]}
            yield self.part("linear", "Linear", "output.logits", output, detail=f"{tied}{size:,} tokens", **more)
            yield self.part("softmax", "Softmax", "answer.output", shape=[self.tokens, size])
            return
        for name, head in self.network.heads.items():
            linear = [each for each in head.modules() if isinstance(each, nn.Linear)]
            flops = sum(2 * each.weight.numel() for each in linear)
            kind = self.network.settings.heads[name].kind
            step = f"heads.{name}.logits" if kind != "masked" else f"heads.{name}.output.logits"
            yield self.part("linear", f"Head {name}", step, head, detail=kind, flops=flops)


QUESTION = PageQuestion("architecture", RunRequest, lambda study, asked: architecture(study, study.known(asked.run)))
ARCHITECTURE = PageView("architecture", (QUESTION,), for_run(QUESTION), is_transformer)
