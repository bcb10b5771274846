"""Weights of cross-attention, derived beside the fused kernels, and the words that belong together by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding_cases import END, ENDS, START, inputs, translator

from regard.blocks.settings import Attention, RmsNorm
from regard.decoding.attention import cross_weights, usual_layer, word_alignment, word_weights, written_spans
from regard.decoding.request import Ends
from regard.errors import InputError
from regard.models.build import build
from regard.models.settings import EncoderDecoder

SOURCES, TARGETS = inputs(5), [tokens[:-1] for tokens in inputs(5, seed=1)]


def test_weights_are_those_that_the_layer_mixed_its_values_with() -> None:
    """With one head, weights times values, projected, are what the layer itself gave out."""
    attention = Attention(heads=1, qk_norm=RmsNorm(), soft_cap=3.0)
    model = build(EncoderDecoder(vocabulary=6, width=8, depth=3, attention=attention)).double().eval()
    source, target = torch.tensor([SOURCES[0]]), torch.tensor([[START, *TARGETS[0]]])
    for layer in range(3):
        cross = model.decoder[layer].cross
        seen = []
        handle = cross.register_forward_hook(lambda module, given, out, seen=seen: seen.append(out))
        memory = model.encode(source)
        model.decode(target, memory)
        handle.remove()
        (weights,) = cross_weights(model, SOURCES[:1], TARGETS[:1], ENDS, layer)
        mixed = cross.out(torch.from_numpy(weights).double() @ cross.v(memory[0]))
        assert torch.allclose(mixed, seen[0][0, : len(TARGETS[0])], atol=1e-5)


def test_a_row_is_of_the_step_that_writes_a_token_or_of_the_one_that_reads_it() -> None:
    model = translator()
    (writing,) = cross_weights(model, SOURCES[:1], [[*TARGETS[0], 2]], ENDS)
    (reading,) = cross_weights(model, SOURCES[:1], [TARGETS[0]], ENDS, consumed=True)
    assert np.allclose(writing[1:], reading, atol=1e-6)


def test_neither_the_batch_nor_the_other_sentences_matter() -> None:
    model = translator()
    together = cross_weights(model, SOURCES, TARGETS, ENDS)
    assert [each.shape for each in together] == [(len(t), len(s)) for s, t in zip(SOURCES, TARGETS, strict=True)]
    for each, source, target in zip(together, SOURCES, TARGETS, strict=True):
        assert np.allclose(each.sum(1), 1, atol=1e-6)
        (alone,) = cross_weights(model, [source], [target], ENDS, batch_tokens=1)
        assert np.allclose(each, alone, atol=1e-6)
    assert cross_weights(model, [[END]], [[]], ENDS)[0].shape == (0, 1)


def test_the_usual_layer() -> None:
    assert [usual_layer(depth) for depth in (1, 2, 3, 6)] == [0, 1, 1, 4]


def test_what_cannot_be_looked_at() -> None:
    model = translator()
    with pytest.raises(InputError, match=r"layer \(1\) is not there: the decoder has 1, from 0 to 0; choose one"):
        cross_weights(model, SOURCES, TARGETS, ENDS, 1)
    with pytest.raises(InputError, match="5 inputs and 4 outputs do not match; give one output for each"):
        cross_weights(model, SOURCES, TARGETS[:4], ENDS)
    with pytest.raises(InputError, match=r"an encoder-decoder needs Ends.start"):
        cross_weights(model, SOURCES, TARGETS, Ends())


# ---------------------------------------------------------------------------------------------------------------- words


def test_weights_of_words_by_hand() -> None:
    """ "ab cd" in three tokens and an end; "x yz" in three: y looks at both halves of cd, z at a."""
    tokens = np.array([[0.5, 0.1, 0.1, 0.3], [0.1, 0.4, 0.4, 0.1], [0.8, 0.1, 0.0, 0.1]], np.float32)
    source = [(0, 2), (3, 4), (4, 5), (0, 0)], [(0, 2), (3, 5)]
    target = [(0, 1), (2, 3), (3, 4)], [(0, 1), (2, 4)]
    found = word_weights(tokens, source, target)
    assert np.allclose(found, [[0.5, 0.2], [0.45, 0.45]])
    assert word_alignment(np.array([[0.5, 0.2], [0.1, 0.6], [0, 0]], np.float32)) == [(0, 0), (1, 1)]
    assert word_alignment(np.zeros((0, 3), np.float32)) == []


def test_a_token_in_two_words_counts_for_both_in_half() -> None:
    found = word_weights(np.ones((1, 1), np.float32), ([(0, 3)], [(0, 1), (1, 3)]), ([(0, 1)], [(0, 1)]))
    assert np.allclose(found, [[0.5, 0.5]])


def test_where_written_tokens_stand() -> None:
    assert written_spans(["Der", "Der Hu", "Der Hund", "Der Hund."], "Der Hund.") == [(0, 3), (4, 6), (6, 8), (8, 9)]
    half = ["a\ufffd", "aä", "aä b"]  # a character of two bytes, in two tokens
    assert written_spans(half, "aä b") == [(0, 1), (1, 2), (3, 4)]
    assert written_spans([], "") == []
