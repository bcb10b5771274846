"""Lens view: the logit lens (nostalgebraist 2020), the output that each layer would give if the model ended there.

The residual stream after each layer goes through the last norm and the model's output: over a vocabulary, or a head
of an encoder. Early layers were not trained for this: it shows roughly when an answer appears, not what a layer knows.

L: layers, with the embeddings first; T: tokens; P: positions with an answer, T or 1; C: vocabulary or classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.recording import names_of, network_of
from regard.errors import InputError
from regard.look.input import names_in
from regard.look.pictures import draw_lens
from regard.look.study import Study, StudyRun
from regard.look.views.heads import entropy
from regard.look.views.view import PageQuestion, PageView, RunRequest, SavedPage, StoredAnswer, Text, is_transformer
from regard.models.families import Decoder, EncoderDecoder, MaskedHead, SequenceHead
from regard.models.settings import Classification, Masked, NextSentence, Tagging
from regard.use.model import Loaded

TOP = 5
"""Most probable tokens that are kept."""
MAX_LOGITS = 2**24
"""Logits that are computed at once: those of a long text over a large vocabulary would take gigabytes."""
WRITTEN = "output"
"""The output over a vocabulary, in models that write text."""


def outputs_of(model: nn.Module | Loaded) -> list[str]:
    """The outputs that layers can be read with: `output` for a model that writes, else the names of its heads."""
    network = network_of(model)
    if isinstance(network, Decoder | EncoderDecoder):
        return [WRITTEN]
    kinds = Masked | NextSentence | Classification | Tagging
    return [name for name, head in network.settings.heads.items() if isinstance(head, kinds)]


def streams_of(model: nn.Module | Loaded, stack: str) -> list[str]:
    """The names of the residual stream between the layers: `decoder.residual`, `decoder.0.residual`, …"""
    names = [name for name in names_of(model) if name.startswith(f"{stack}.") and name.endswith(".residual")]
    return [name for name in names if name.count(".") <= 2]


def lens(study: Study, run: StudyRun, output: str | None = None) -> dict[str, Any]:
    """The output of each layer for a run. `output` names the head of an encoder, by default the first.

    `texts` names the tokens or classes. For each position, `final` is the model's answer, `actual` the true one if
    known, `first` the first layer whose guess is the answer, and `settled` the layer from which on it stays. Each of
    `layers` has the most probable `tokens` and their `chances`, the `entropy` in nats, probability and rank of both
    answers, and the share of positions that agree with the model. A guess that is always the most frequent answer
    reaches `constant`.
    """
    known = outputs_of(study.loaded)
    if (output or next(iter(known), "")) not in known:
        raise InputError(f"output ({output}) must be {' or '.join(known)}; the lens needs a head for tokens or classes")
    output = output or known[0]
    logits, over_tokens, whole = _readout(study.network, output)
    stack = "decoder" if hasattr(study.network, "decoder") else "encoder"
    names, like = streams_of(study.loaded, stack), next(study.network.parameters())
    streams = [study.tensor(run.key, name).to(like.device, like.dtype) for name in names]
    with torch.no_grad():
        choices = logits(streams[-1][:1]).shape[-1]
        size = len(streams[-1]) if whole else max(MAX_LOGITS // choices, 1)
        final_P = torch.cat([logits(part).argmax(-1) for part in torch.split(streams[-1], size)]).cpu()
        actual: list[int | None] = [None] * len(final_P)
        if over_tokens:
            actual = run.read.follows if stack == "decoder" else [*run.sides["encoder"].ids]
        asked_P2 = torch.stack([final_P, torch.tensor([0 if token is None else token for token in actual])], -1)
        found = []
        for stream_TD in streams:
            parts = zip(torch.split(stream_TD, size), torch.split(asked_P2.to(like.device), size), strict=True)
            each = [_read(logits(part).float(), asked) for part, asked in parts]
            found.append([torch.cat(column).cpu() for column in zip(*each, strict=True)])
    agree_LP = torch.stack([tokens[:, 0] == final_P for tokens, *_ in found])
    layers = [
        {
            "name": name,
            "tokens": tokens.tolist(),
            "chances": best.tolist(),
            "entropy": entropies.tolist(),
            "final_chance": chances[:, 0].tolist(),
            "final_rank": ranks[:, 0].tolist(),
            "actual_chance": [None if t is None else float(c) for t, c in zip(actual, chances[:, 1], strict=True)],
            "actual_rank": [None if t is None else int(r) for t, r in zip(actual, ranks[:, 1], strict=True)],
            "agrees": float(agree_P.float().mean()),
        }
        for name, agree_P, (tokens, best, entropies, chances, ranks) in zip(names, agree_LP, found, strict=True)
    ]
    real = {token for token in actual if token is not None}
    shown = sorted({*final_P.tolist(), *real, *(i for tokens, *_ in found for i in tokens.flatten().tolist())})
    name_of = names_in(study.loaded, output)
    return {
        "output": output,
        "stack": stack,
        "each": not whole,
        "layers": layers,
        "texts": {i: name_of(i) for i in shown},
        "final": final_P.tolist(),
        "actual": actual,
        "first": agree_LP.int().argmax(0).tolist(),
        "settled": (len(names) - agree_LP.flip(0).int().cumprod(0).sum(0)).tolist(),
        "choices": choices,
        "constant": Counter(final_P.tolist()).most_common(1)[0][1] / len(final_P),
    }


def _readout(network: Any, output: str) -> tuple[Callable[[Tensor], Tensor], bool, bool]:
    """The end of a model: `[P, C]` from a stream `[T, D]`; whether C are tokens; whether it reads all T together."""
    writes = isinstance(network, Decoder | EncoderDecoder)
    norm, head = (network.decoder.norm, network.output) if writes else (network.encoder.norm, network.heads[output])
    over_tokens, whole = writes or isinstance(head, MaskedHead), isinstance(head, SequenceHead)

    def logits(stream_TD: Tensor) -> Tensor:
        normed_TD = stream_TD if norm is None else norm(stream_TD)
        found: Tensor = head(normed_TD[None] if whole else normed_TD)
        return found

    return logits, over_tokens, whole


def _read(logits_PC: Tensor, asked_P2: Tensor) -> tuple[Tensor, ...]:
    """The most probable tokens, their probabilities, the entropy, and probabilities and ranks of two answers."""
    chances_PC = logits_PC.softmax(-1)
    best, tokens = chances_PC.topk(min(TOP, chances_PC.shape[-1]), -1)
    bars_P2 = logits_PC.gather(-1, asked_P2)
    ranks_P2 = torch.stack([(logits_PC > bar_P[:, None]).sum(-1) for bar_P in bars_P2.unbind(-1)], -1)
    return tokens, best, entropy(chances_PC), chances_PC.gather(-1, asked_P2), ranks_P2


class LensRequest(RunRequest):
    """The output of each layer."""

    output: Text | None = None
    """The output that layers are read with. None: the first."""


QUESTION = PageQuestion("lens", LensRequest, lambda study, asked: lens(study, study.known(asked.run), asked.output))


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    for number, output in enumerate(outputs_of(page.study.loaded)):
        yield page.ask(QUESTION, LensRequest(run=page.run.key, output=output), number == 0)


def _draw(study: Study, run: StudyRun, at: str) -> Any:
    found = lens(study, run)
    return draw_lens(found, run.sides[found["stack"]].names)


LENS = PageView(
    "lens", (QUESTION,), _stored, lambda study: is_transformer(study) and bool(outputs_of(study.loaded)), _draw
)
