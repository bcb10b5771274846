"""The worked numbers on decoding: temperature, teacher forcing, step-by-step inference, and the penalties' formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding_cases import ENDS, START, inputs, translator

from regard.decoding.decode import decode, score
from regard.decoding.rules import RuleBook, shaped
from regard.decoding.settings import Absolute, Beam, Job, Paper, Power, Rules, Sampling, ToSource


def test_temperature() -> None:
    """softmax(z / T): T → 0 is the argmax, T → ∞ uniform."""
    z = torch.tensor([[2.0, 1.0, 0.1]], dtype=torch.float64)
    assert shaped(z, Sampling(temperature=1e-3)).softmax(-1)[0].tolist() == pytest.approx([1, 0, 0], abs=1e-12)
    assert shaped(z, Sampling(temperature=1e6)).softmax(-1)[0].tolist() == pytest.approx([1 / 3] * 3, abs=1e-6)
    halved = [math.exp(2 * value) for value in (2.0, 1.0, 0.1)]
    assert shaped(z, Sampling(temperature=0.5)).softmax(-1)[0].tolist() == pytest.approx(
        [x / sum(halved) for x in halved]
    )


@torch.no_grad()
def test_teacher_forcing() -> None:
    """One pass over the shifted target gives every step's loss at once: as one pass for each step does."""
    model, (source,), target = translator(), inputs(1), [2, 5, 3]
    (at_once,) = score(model, [source], [target], ENDS)
    shifted = [START, *target]
    for step, token in enumerate([*target, ENDS.end]):
        scores = model(torch.tensor([source]), torch.tensor([shifted[: step + 1]]))[0, -1]
        assert at_once[step] == pytest.approx(scores.log_softmax(-1)[token].item())


def test_the_encoder_runs_once_and_a_step_reads_one_token() -> None:
    model, (source,) = translator(), inputs(1)
    seen: dict[str, list[tuple[int, ...]]] = {"encoder": [], "decoder": [], "keys": []}
    handles = [
        model.encoder.register_forward_hook(lambda _, given, out: seen["encoder"].append(tuple(given[0].shape))),
        model.decoder.register_forward_hook(lambda _, given, out: seen["decoder"].append(tuple(given[0].shape))),
        model.decoder[0].cross.k.register_forward_hook(lambda _, given, out: seen["keys"].append(tuple(out.shape))),
    ]
    rules = Rules(longest=Absolute(tokens=5), shortest=5)
    decode(model, [source], ENDS, Beam(size=3), rules)
    for handle in handles:
        handle.remove()
    assert seen["encoder"] == [(1, len(source), 8)]
    assert seen["decoder"] == [(1, 1, 8)] + [(1, 3, 8)] * 4
    assert seen["keys"] == [(1, len(source), 8)]  # projected once, for all beams


def test_openai_s_penalties() -> None:
    """mu[j] − c[j] · frequency − (c[j] > 0) · presence."""
    model: Any = SimpleNamespace(device=torch.device("cpu"), reads_source=True, vocabulary=3)
    book = RuleBook(Rules(frequency=0.5, presence=0.25), [Job(0, [])], model, ENDS)
    changed = book.apply(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1, 1, 2]]), 3)
    assert changed[0].tolist() == pytest.approx([1.0, 1.0 - 2 * 0.5 - 0.25, 1.0 - 0.5 - 0.25])


def test_length_penalties() -> None:
    """Wu et al. (2016), equation 14: ((5 + length) / 6)^alpha, with the paper's alpha of 0.6."""
    assert Paper().divisor(1) == 1
    assert Paper().divisor(13) == pytest.approx(3**0.6)
    assert Power(alpha=0.5).divisor(16) == 4
    assert Power(alpha=0.0).divisor(16) == 1


def test_the_paper_s_longest_translation() -> None:
    """Vaswani et al. (2017), section 6.1: input length + 50."""
    assert ToSource().of(20) == 70
    assert Beam().size == 4
    assert Beam().length == Paper(alpha=0.6)
