"""Word alignment: weights of cross-attention, weights of words by hand, and links between words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding_cases import END, ENDS, START, inputs, translator

import regard
from regard.blocks.settings import Attention, RmsNorm
from regard.decoding.alignment import (
    Look,
    cross_weights,
    head_weights,
    look_at,
    usual_look,
    word_alignment,
    word_weights,
    written_spans,
)
from regard.decoding.settings import Ends
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
        model.output(model.states(target, memory))
        handle.remove()
        (weights,) = cross_weights(model, SOURCES[:1], TARGETS[:1], ENDS, look_at(model, layer))
        mixed = cross.out(torch.from_numpy(weights).double() @ cross.v(memory[0]))
        assert torch.allclose(mixed, seen[0][0, : len(TARGETS[0])], atol=1e-5)


def test_a_row_is_of_the_step_that_writes_a_token_or_of_the_one_that_reads_it() -> None:
    model = translator()
    (writing,) = cross_weights(model, SOURCES[:1], [[*TARGETS[0], 2]], ENDS)
    (reading,) = cross_weights(model, SOURCES[:1], [TARGETS[0]], ENDS, look_at(model, 0, consumed=True))
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
    for depth, layer in ((1, 0), (2, 1), (3, 1), (6, 4)):
        model = build(EncoderDecoder(vocabulary=6, width=8, depth=depth, attention=Attention(heads=2)), device="meta")
        assert usual_look(model) == Look(((layer, 0), (layer, 1)))
        assert look_at(model, -1) == look_at(model, depth - 1)


def test_some_heads_of_several_layers() -> None:
    torch.manual_seed(0)
    model = build(EncoderDecoder(vocabulary=6, width=8, depth=2, attention=Attention(heads=4))).eval()
    each = head_weights(model, SOURCES, TARGETS, ENDS, [0, 1])
    found = cross_weights(model, SOURCES, TARGETS, ENDS, Look(((1, 3), (0, 2))))
    for weights_LHTS, weights_TS in zip(each, found, strict=True):
        assert np.allclose(weights_TS, (weights_LHTS[1, 3] + weights_LHTS[0, 2]) / 2)
        assert not np.allclose(weights_TS, weights_LHTS.mean((0, 1)), atol=1e-3)


def test_looks_that_do_not_exist_raise() -> None:
    model = translator()
    with pytest.raises(InputError, match=r"layer \(1\)"):
        cross_weights(model, SOURCES, TARGETS, ENDS, Look(((1, 0),)))
    with pytest.raises(InputError, match=r"head \(9\)"):
        cross_weights(model, SOURCES, TARGETS, ENDS, Look(((0, 9),)))
    with pytest.raises(InputError, match="4 targets for 5 inputs"):
        cross_weights(model, SOURCES, TARGETS[:4], ENDS)
    with pytest.raises(InputError, match=r"Ends.start"):
        cross_weights(model, SOURCES, TARGETS, Ends())


def test_a_recording_of_the_caller_still_hears_the_pass() -> None:
    model = translator()
    with regard.record(model, "decoder.*.cross.weights") as recording:
        (weights,) = cross_weights(model, SOURCES[:1], TARGETS[:1], ENDS)
    found = recording["decoder.0.cross.weights"]
    assert np.allclose(found[0].mean(0)[:-1], weights, atol=1e-6)


def test_where_written_tokens_stand() -> None:
    assert written_spans(["Der", "Der Hu", "Der Hund", "Der Hund."], "Der Hund.") == [(0, 3), (4, 6), (6, 8), (8, 9)]
    half = ["a\ufffd", "aä", "aä b"]  # a character of two bytes, in two tokens
    assert written_spans(half, "aä b") == [(0, 1), (1, 2), (3, 4)]
    assert written_spans([], "") == []


def test_weights_of_words_by_hand() -> None:
    """ "ab cd" in three tokens and an end; "x yz" in three: y looks at both halves of cd, z at a."""
    tokens = np.array([[0.5, 0.1, 0.1, 0.3], [0.1, 0.4, 0.4, 0.1], [0.8, 0.1, 0.0, 0.1]], np.float32)
    source = [(0, 2), (3, 4), (4, 5), (0, 0)], [(0, 2), (3, 5)]
    target = [(0, 1), (2, 3), (3, 4)], [(0, 1), (2, 4)]
    assert np.allclose(word_weights(tokens, source, target), [[0.5, 0.2], [0.45, 0.45]])
    found = word_weights(np.ones((1, 1), np.float32), ([(0, 3)], [(0, 1), (1, 3)]), ([(0, 1)], [(0, 1)]))
    assert np.allclose(found, [[0.5, 0.5]]), "a token in two words counts half for each"


def test_links_between_words() -> None:
    for weights, links in (
        ([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]], [(0, 0), (1, 2), (2, 1)]),
        # Both look at the last word most; the second one is nearly all that looks at the first.
        ([[0.1, 0.9], [0.45, 0.55]], [(0, 1), (1, 0)]),
        # A source word that nobody took joins where it was looked at, as "to the" becomes "zur".
        ([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [(0, 0), (1, 0), (2, 1)]),
        ([[0.5, 0.2], [0.1, 0.6], [0, 0]], [(0, 0), (1, 1)]),  # the last target word looks at nothing
    ):
        assert word_alignment(np.array(weights, np.float32)) == links
    for shape in ((0, 3), (2, 0), (2, 3)):
        assert word_alignment(np.zeros(shape, np.float32)) == []
