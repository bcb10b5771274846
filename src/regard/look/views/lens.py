"""Lens view: the logit lens (nostalgebraist 2020), the output that each layer would give if the model ended there.

The residual stream after each layer goes through the last norm and the model's output: over a vocabulary, or a head
of an encoder. Early layers were not trained for this: it shows roughly when an answer appears, not what a layer knows.

L: layers, with the embeddings first; A: followed tokens or classes; positions are `[B, T]`, `[N]` for a packed batch,
or `[B]` for a head with one answer for a whole sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.layout import Layout
from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.look.input import class_name, class_names, token_name
from regard.look.pictures import draw_lens
from regard.look.study import Study, StudyRun
from regard.look.views.heads import BatchPart, entropy
from regard.look.views.view import Answer, PageQuestion, PageView, RunRequest, SavedPage, StoredAnswer, Text
from regard.models.families import Decoder, Encoder, EncoderDecoder, MaskedHead, SequenceHead
from regard.models.settings import Classification, Masked, NextSentence, Tagging
from regard.use.model import Loaded

TOP = 5
"""Most probable tokens that are kept."""
MAX_LOGITS = 2**24
"""Logits that are computed at once: those of a long text over a large vocabulary would take gigabytes."""
WRITTEN = "output"
"""The output over a vocabulary, in models that write text."""


class Lens(NamedTuple):
    """The output of each layer at each position."""

    names: list[str]
    """Where the residual stream was read; `decoder.residual` (the embeddings) is first."""
    tokens: Tensor
    """`[L, ..., top]`: the most probable tokens, or classes."""
    probabilities: Tensor
    """`[L, ..., top]`"""
    entropies: Tensor
    """`[L, ...]`, in nats."""
    answers: Tensor
    """`[..., A]`: the followed tokens; by default one, the model's own answer."""
    answer_probabilities: Tensor
    """`[L, ..., A]`"""
    ranks: Tensor
    """`[L, ..., A]`: number of tokens that are more probable; 0 is the first."""


class Readout(NamedTuple):
    """The end of a model: turns the residual stream of a stack into logits."""

    stack: str
    norm: nn.Module | None
    score: Callable[[Tensor, Layout | None], Tensor]
    whole: bool = False
    """One answer for a whole sequence."""

    def logits(self, stream: Tensor, layout: Layout | None = None) -> Tensor:
        """`[..., C]` from a stream `[..., D]`; `[B, C]` for a whole sequence."""
        return self.score(stream if self.norm is None else self.norm(stream), layout)

    def read(self, stream: Tensor, answers: Tensor | None, top: int, layout: Layout | None) -> tuple[Tensor, ...]:
        """Tokens, probabilities, entropies, answers, their probabilities and ranks, as in `Lens`, of one layer."""
        if self.whole:
            return _read(self.logits(stream, layout), answers, top)
        flat, wanted = stream.flatten(0, -2), None if answers is None else answers.flatten(0, -2)
        size = max(MAX_LOGITS // self.logits(flat[:1]).shape[-1], 1)
        parts = []
        for start in range(0, len(flat), size):
            piece = slice(start, start + size)
            parts.append(_read(self.logits(flat[piece]), None if wanted is None else wanted[piece], top))
        joined = (torch.cat(column) for column in zip(*parts, strict=True))
        return tuple(each.reshape(*stream.shape[:-1], *each.shape[1:]) for each in joined)


def _read(logits: Tensor, answers: Tensor | None, top: int) -> tuple[Tensor, ...]:
    logits = logits.float()
    chances = logits.softmax(-1)
    best, tokens = chances.topk(min(top, chances.shape[-1]), -1)
    answers = tokens[..., :1] if answers is None else answers
    bars = logits.gather(-1, answers)
    ranks = torch.stack([(logits > bar).sum(-1, dtype=torch.int32) for bar in bars[..., None].unbind(-2)], -1)
    return tokens, best, entropy(chances), answers, chances.gather(-1, answers), ranks


def outputs_of(model: nn.Module | Loaded) -> list[str]:
    """The outputs that layers can be read with: `output` for a model that writes, else the names of its heads."""
    network = network_of(model)
    if isinstance(network, Decoder | EncoderDecoder):
        return [WRITTEN]
    kinds = Masked | NextSentence | Classification | Tagging
    return [name for name, head in network.settings.heads.items() if isinstance(head, kinds)]


def readout_of(model: nn.Module | Loaded, head: str | None = None) -> Readout:
    """Reads the layers of a model. `head` is needed where there are several and not one for masked tokens."""
    network, known = network_of(model), outputs_of(model)
    if not known:
        raise InputError(
            f"the lens of a model of kind {network.settings.kind} needs a masked, classification or tagging head"
        )
    if head is not None and head not in known:
        raise InputError(f"head ({head[:40]}) must be {' or '.join(known)}")
    if isinstance(network, Decoder | EncoderDecoder):
        return Readout("decoder", network.decoder.norm, lambda x, layout: network.output(x))
    masked = [name for name in known if isinstance(network.heads[name], MaskedHead)]
    if head is None and len(masked or known) > 1:
        raise InputError(f"the model has {len(known)} heads; choose one: head={known[0]!r}")
    chosen = network.heads[head or (masked or known)[0]]
    return Readout("encoder", network.encoder.norm, chosen, isinstance(chosen, SequenceHead))


def streams_of(model: nn.Module | Loaded, stack: str) -> list[str]:
    """The names of the residual stream between the layers: `decoder.residual`, `decoder.0.residual`, …"""
    names = [name for name in names_of(model) if name.startswith(f"{stack}.") and name.endswith(".residual")]
    return [name for name in names if name.count(".") <= 2]


def lens(
    model: nn.Module | Loaded,
    *batch: BatchPart,
    answers: Tensor | None = None,
    top: int = TOP,
    head: str | None = None,
) -> Lens:
    """The output of each layer. `batch` holds the arguments of the model's forward.

    `answers`, `[..., A]` or `[...]`, are tokens (or classes) whose probability is followed through the layers. `head`
    names the head of an encoder that has several.
    """
    network, readout = network_of(model), readout_of(model, head)
    names = streams_of(network, readout.stack)
    layout = batch[1] if isinstance(network, Encoder) and len(batch) > 1 else None
    assert layout is None or not isinstance(layout, Tensor)
    with torch.no_grad(), record(model, *names, grad=True) as seen:  # with grad, tensors stay on their device
        network(*batch)
    streams = [seen.calls(name)[0] for name in names]
    if answers is not None and answers.dim() < streams[0].dim() - readout.whole:
        answers = answers[..., None]
    return _lens(readout, names, streams, answers, top, layout)


def _lens(
    readout: Readout,
    names: list[str],
    streams: Sequence[Tensor],
    answers: Tensor | None,
    top: int,
    layout: Layout | None = None,
) -> Lens:
    with torch.no_grad():
        if answers is None:  # the model's own
            answers = readout.read(streams[-1], None, 1, layout)[3]
        followed = answers.to(streams[0].device)
        each = [readout.read(stream, followed, top, layout) for stream in streams]
    tokens, chances, entropies, _, answer_chances, ranks = (
        torch.stack(column).cpu() for column in zip(*each, strict=True)
    )
    return Lens(names, tokens, chances, entropies, followed.cpu(), answer_chances, ranks)


class LensRequest(RunRequest):
    """The output of each layer."""

    output: Text | None = None
    """The output that layers are read with. None: the first."""


def lens_answer(study: Study, run: StudyRun, output: str | None = None, top: int = TOP) -> dict[str, Any]:
    """The lens of a run as the page shows it: guesses, agreement with the model, and the baseline of a constant."""
    known = outputs_of(study.loaded)
    output = known[0] if output is None and known else output
    readout = readout_of(study.loaded, output)
    names = streams_of(study.loaded, readout.stack)
    like = next(study.network.parameters())
    streams = [study.tensor(run.key, name)[None].to(like.device, like.dtype) for name in names]
    final = _lens(readout, names[-1:], streams[-1:], None, 1).answers.flatten()
    heads = getattr(study.network, "heads", {})
    over_tokens = output not in heads or isinstance(heads[output], MaskedHead)
    actual: list[int | None] = [None] * len(final)
    if over_tokens:
        actual = run.read.follows if output == WRITTEN else [*run.sides["encoder"].ids]
    asked_P2 = torch.stack([final, torch.tensor([0 if token is None else token for token in actual])], -1)
    found = _lens(readout, names, streams, asked_P2 if readout.whole else asked_P2[None], top)
    guesses, guess_chances, entropies, _, followed_chances, followed_ranks = (
        each if readout.whole else each[:, 0] for each in found[1:]
    )
    agree_LP = guesses[..., 0] == final
    known_at = [i for i, token in enumerate(actual) if token is not None]
    layers = []
    for i, name in enumerate(names):
        chances, ranks = followed_chances[i].tolist(), followed_ranks[i].tolist()
        right_P = guesses[i, :, 0] == asked_P2[:, 1]
        layers.append(
            {
                "name": name,
                "tokens": guesses[i].tolist(),
                "chances": guess_chances[i].tolist(),
                "entropy": entropies[i].tolist(),
                "final_chance": [chance for chance, _ in chances],
                "final_rank": [rank for rank, _ in ranks],
                "actual_chance": [None if t is None else c for t, (_, c) in zip(actual, chances, strict=True)],
                "actual_rank": [None if t is None else r for t, (_, r) in zip(actual, ranks, strict=True)],
                "agrees": float(agree_LP[i].float().mean()),
                "right": float(right_P[known_at].float().mean()) if known_at else None,
            }
        )
    real = [token for token in actual if token is not None]
    shown = sorted({*final.tolist(), *real, *guesses.flatten().tolist()})
    classes = [] if over_tokens else class_names(study.loaded, output or "")
    return {
        "output": output or "",
        "stack": readout.stack,
        "each": not readout.whole,
        "layers": layers,
        "texts": {i: token_name(study.loaded, i) if over_tokens else class_name(classes, i) for i in shown},
        "final": final.tolist(),
        "actual": actual,
        "first": agree_LP.int().argmax(0).tolist(),
        "settled": (len(names) - agree_LP.flip(0).int().cumprod(0).sum(0)).tolist(),
        "choices": readout.logits(streams[-1][:, :1]).shape[-1],
        "constant": _most_frequent(final.tolist()),
        "constant_right": _most_frequent(real) if real else None,
    }


def _most_frequent(answers: list[int]) -> float:
    return Counter(answers).most_common(1)[0][1] / len(answers)


def _answer(study: Study, request: LensRequest) -> Answer:
    return lens_answer(study, study.known(request.run), request.output)


QUESTION = PageQuestion("lens", LensRequest, _answer)


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    for number, output in enumerate(outputs_of(page.study.loaded)):
        yield page.ask(QUESTION, LensRequest(run=page.run.key, output=output), number == 0)


def _draw(study: Study, run: StudyRun, at: str) -> Any:
    found = lens_answer(study, run)
    return draw_lens(found, run.sides[found["stack"]].names)


LENS = PageView("lens", (QUESTION,), _stored, fits=lambda study: bool(outputs_of(study.loaded)), draw=_draw)
