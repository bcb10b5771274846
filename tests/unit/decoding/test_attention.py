"""Weights of cross-attention, derived beside the fused kernels, and the words that belong together by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoding_cases import END, ENDS, START, inputs, translator

from regard.blocks.settings import Attention, RmsNorm
from regard.decoding.attention import Look, cross_weights, head_weights, look_at, usual_look
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


def test_what_cannot_be_looked_at() -> None:
    model = translator()
    with pytest.raises(InputError, match=r"layer \(1\) is not there: the decoder has 1, from 0 to 0; choose one"):
        cross_weights(model, SOURCES, TARGETS, ENDS, Look(((1, 0),)))
    with pytest.raises(InputError, match=r"head \(9\) is not there: layer 0 has 2, from 0 to 1; choose one"):
        cross_weights(model, SOURCES, TARGETS, ENDS, Look(((0, 9),)))
    with pytest.raises(InputError, match="5 inputs and 4 outputs do not match; give one output for each"):
        cross_weights(model, SOURCES, TARGETS[:4], ENDS)
    with pytest.raises(InputError, match=r"an encoder-decoder needs Ends.start"):
        cross_weights(model, SOURCES, TARGETS, Ends())
