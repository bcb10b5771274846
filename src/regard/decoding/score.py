"""Log-probabilities of given sequences, and the most likely alternatives to a token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.decoding.decode import BATCH_TOKENS, pair_batches
from regard.decoding.model import Model, padded, padded_pairs, wide
from regard.decoding.settings import Ends
from regard.errors import InputError
from regard.models.families import EncoderDecoder


def score(
    model: Model,
    inputs: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    ends: Ends,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[float]]:
    """Log-probability of each token of each target and of the end, by teacher forcing, without rules.

    Their sum is the log-probability of the target. Without `Ends.end`, targets have no end.
    """
    tail = [] if ends.end is None else [ends.end]
    results: list[list[float]] = [[] for _ in inputs]
    for index, tokens in enumerate(inputs):
        if not len(tokens):
            raise InputError(f"inputs[{index}] is empty; give at least one token")
    with torch.inference_mode():
        for batch in pair_batches(inputs, targets, batch_tokens):
            wanted = [[*targets[index], *tail] for index in batch]
            scores_BTV = _scores(model, [inputs[index] for index in batch], wanted, ends)
            for index, target, scores_TV in zip(batch, wanted, scores_BTV, strict=True):
                start = _skip(model, inputs[index])
                token_T1 = torch.tensor(target, dtype=torch.long, device=scores_TV.device)[:, None]
                results[index] = scores_TV[start : start + len(target)].gather(1, token_T1)[:, 0].tolist()
    return results


def alternatives(
    model: Model, tokens: Sequence[int], prefix: Sequence[int], ends: Ends, count: int = 5
) -> list[tuple[int, float]]:
    """The most likely next tokens after an input and a written prefix, with their log-probabilities."""
    if not len(tokens):
        raise InputError("tokens is empty; give at least one token")
    with torch.inference_mode():
        # The token to predict is not read, so any will do.
        scores = _scores(model, [tokens], [[*prefix, 0]], ends)
        best = scores[0, len(prefix) + _skip(model, tokens)].topk(min(count, scores.shape[-1]))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _skip(model: Model, tokens: Sequence[int]) -> int:
    """Positions before the one that predicts the first written token: those of a prompt but its last."""
    return 0 if isinstance(model, EncoderDecoder) else len(tokens) - 1


def _scores(
    model: Model, sources: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], ends: Ends
) -> torch.Tensor:
    """`[B, T, V]`: log-probabilities of the token after each position."""
    if model.training:
        raise InputError("a model in training mode would score with dropout; call model.eval() first")
    if isinstance(model, EncoderDecoder):
        given = padded_pairs(model, sources, [target[:-1] for target in wanted], ends)
        return wide(model(*given)).log_softmax(-1)
    rows = [[*source, *target[:-1]] for source, target in zip(sources, wanted, strict=True)]
    return wide(model(*padded(rows, model.embedding.tokens.weight.device))).log_softmax(-1)
