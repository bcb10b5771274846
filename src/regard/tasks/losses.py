"""Cross-entropy as sums, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.layout import Layout
from regard.data.columns import IGNORED
from regard.errors import DataError, SettingsError
from regard.settings import did_you_mean
from regard.training.step import Loss


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    training: bool,
    weights: Tensor | None = None,
    factors: Tensor | None = None,
) -> Loss:
    """The loss of `[..., classes]` logits for `[...]` labels; labels that are `IGNORED` do not count.

    With label smoothing, the total is the smoothed loss and the sum `plain` is the loss without smoothing. `weights`
    are factors of the classes in training; they change the weight of the loss too. Correct answers are counted
    (`right`) in evaluation only, because the argmax reads all logits again. `factors` are those of the labels.
    """
    labels = labels.flatten()
    counted = labels != IGNORED
    log_shares = _log_shares(logits)
    plain = -log_shares.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    share = counted if weights is None or not training else counted * weights[labels.clamp(min=0)]
    share = share if factors is None else share * factors
    plain = (torch.where(counted, plain, 0) * share).sum()
    total, sums = plain, {}
    if smoothing:
        even = (torch.where(counted, -log_shares.mean(-1), 0) * share).sum()
        total = (1 - smoothing) * plain + smoothing * even
        sums["plain"] = plain.detach()
    if not training:
        sums["right"] = ((log_shares.argmax(-1) == labels) & counted).sum()
    return Loss(total, share.sum(), sums)


def classification_loss(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    training: bool,
    weights: Tensor | None = None,
    factors: Tensor | None = None,
) -> Loss:
    """The cross-entropy of `[B, classes]` logits. A class that the training data lacks counts as a mistake only.

    Such labels are at least the number of classes: see `LabelColumn`.
    """
    unseen = labels >= logits.shape[-1]
    loss = cross_entropy(logits, torch.where(unseen, IGNORED, labels), smoothing, training, weights, factors)
    if not training:
        loss.sums["unseen"] = unseen.sum()
    return loss


def both_losses(loss: Loss, other: Loss, name: str) -> Loss:
    """The mean of one loss plus the mean of another: both sums are divided by the weight of the first.

    The sums of the other one, and its weight, are named after it.
    """
    sums = {f"{name}.{key}": value for key, value in {**other.sums, "weight": other.weight}.items()}
    total = loss.total + other.total * (loss.weight / other.weight.clamp(min=1))
    return Loss(total, loss.weight, {**loss.sums, **sums})


def language_losses(logits: Tensor, tokens: Tensor, layout: Layout) -> Tensor:
    """`[S]`: for each sequence, the mean cross-entropy of its tokens, each after those before it. One token has 0."""
    flat, device = tokens.flatten(), tokens.device
    sequences = layout.sequences(device).flatten()
    places = layout.places(device).expand(layout.shape).flatten()
    follows = (sequences[1:] == sequences[:-1]) & (places[1:] == places[:-1] + 1)
    each = -_log_shares(logits)[:-1].gather(-1, flat[1:, None])[:, 0]
    sums, counts = (
        each.new_zeros(layout.count).index_add(0, sequences[1:], part)
        for part in (torch.where(follows, each, 0), follows.to(each.dtype))
    )
    return sums / counts.clamp(min=1)


def class_weights(
    weights: Literal["balanced"] | Mapping[str, float], names: Sequence[str], counts: Sequence[int]
) -> list[float]:
    """The factor of each class: as given by name, or balanced, so that all classes together count the same."""
    if isinstance(weights, Mapping):
        return [weights.get(name, 1.0) for name in names]
    return [sum(counts) / (len(names) * max(count, 1)) for count in counts]


def check_classes(names: Sequence[str], weights: object) -> None:
    """Raises an error for a single class, and for weights of unknown classes."""
    if len(names) == 1:
        raise DataError(f'every training example has the label "{names[0]}"; a classifier needs at least two classes')
    for name in weights if isinstance(weights, Mapping) else ():
        if name not in names:
            raise SettingsError(f"task.weights names the unknown class {name}{did_you_mean(name, names)}")


def divergence(logits: Tensor, others: Tensor, labels: Tensor) -> Tensor:
    """The sum of KL(softmax(logits) ‖ softmax(others)) over the labels that count; gradients flow through both."""
    labels, log_p, log_q = labels.flatten(), _log_shares(logits), _log_shares(others)
    each = (log_p.exp() * (log_p - log_q)).sum(-1)
    return torch.where(labels != IGNORED, each, 0).sum()


def _log_shares(logits: Tensor) -> Tensor:
    # At least float32, whatever type the products have: sums of exponentials need it.
    scores = logits.flatten(0, -2)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return functional.log_softmax(scores, dim=-1)


def cross_entropy_metrics(total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
    """Loss in nats, perplexity and accuracy from the sums of `cross_entropy`; `objective` is the smoothed loss."""
    if not weight:  # nothing was predicted: a loss of 0 would be the best possible one
        return {"loss": math.nan, **({"perplexity": math.nan, "accuracy": 0.0} if "right" in sums else {})}
    loss = sums.get("plain", total) / weight
    found = {"loss": loss}
    if "plain" in sums:
        found["objective"] = total / weight
    if "right" in sums:
        found["perplexity"] = math.exp(min(loss, 700.0))
        found["accuracy"] = sums["right"] / weight
    return found


def classification_metrics(total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
    found = cross_entropy_metrics(total, weight, sums)
    if "right" in sums:
        found["accuracy"] = sums["right"] / max(weight + sums.get("unseen", 0.0), 1.0)
    found.pop("perplexity", None)
    return found
