"""The four families as wholes: shapes, ties, layouts, caches, precision and reproducibility."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import family_cases as cases
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.blocks import recording
from regard.blocks import settings as blocks
from regard.blocks.layout import Packed, Padded
from regard.errors import InputError
from regard.models import settings
from regard.models.build import Model, build
from regard.models.families import Decoder, shared_dropout

TIGHT = {"rtol": 0.0, "atol": 1e-11}
by_family = pytest.mark.parametrize("family", cases.FAMILIES)
by_position = pytest.mark.parametrize("position", cases.TEXT_POSITIONS)
LENGTHS = [5, 1, 7, 3]
SOURCE_LENGTHS = [2, 6, 4, 1]


def exact(model: settings.ModelSettings) -> Any:
    return cases.unsettled(build(model, dtype=torch.float64))


def answer(model: Model, seed: int = 0) -> Tensor:
    """What a model makes of a small batch."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    tokens = torch.randint(0, cases.VOCABULARY, (2, 4), generator=generator)
    if model.settings.kind == "encoder-decoder":
        return model(tokens, tokens[:, :3])
    if model.settings.kind == "vision":
        return model(torch.randn(2, 2, 8, 12, generator=generator).to(dtype))
    return model(tokens)


MATRICES = ("source", "target", "output")
TIES = [(), *itertools.combinations(MATRICES, 2), MATRICES]
by_tie = pytest.mark.parametrize("tied", TIES, ids=lambda tied: "+".join(tied) or "none")


def matrices(model: Any) -> dict[str, nn.Parameter]:
    """The matrix behind each name, as the forward pass uses it."""
    output = model.output.weight if model.output.weight is not None else model.output._tied[0].weight
    return {"source": model.source.tokens.weight, "target": model.target.tokens.weight, "output": output}


@by_tie
def test_ties_share_parameters(tied: tuple[str, ...]) -> None:
    model = build(cases.encoder_decoder(tied=tied))
    found = matrices(model)
    for one, other in itertools.combinations(MATRICES, 2):
        assert (found[one] is found[other]) is ({one, other} <= set(tied))
    in_model = [p for p in model.parameters() if p.shape == (cases.VOCABULARY, 16)]
    assert len(in_model) == 3 - max(len(tied) - 1, 0)
    assert {id(p) for p in found.values()} == {id(p) for p in in_model}
    model.load_state_dict(build(cases.encoder_decoder(tied=tied)).state_dict())
    loaded = matrices(model.to(torch.float64))
    for one, other in itertools.combinations(MATRICES, 2):
        assert (loaded[one] is loaded[other]) is ({one, other} <= set(tied))


@by_tie
def test_gradients_of_all_uses_meet_in_a_shared_matrix(tied: tuple[str, ...]) -> None:
    """The gradient of a shared matrix is the sum of those that separate, equal matrices get."""
    model, apart = exact(cases.encoder_decoder(tied=tied)), exact(cases.encoder_decoder(tied=()))
    state = model.state_dict()
    for name, matrix in matrices(model).items():
        state[{"output": "output.weight"}.get(name, f"{name}.tokens.weight")] = matrix.detach()
    apart.load_state_dict(state)
    out, wanted = answer(model), answer(apart)
    assert_close(out, wanted, **TIGHT)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    (wanted * weights).sum().backward()
    separate = {name: matrix.grad for name, matrix in matrices(apart).items()}
    for name, matrix in matrices(model).items():
        sharing = tied if name in tied else (name,)
        assert_close(matrix.grad, sum(separate[other] for other in sharing), rtol=0, atol=1e-9)


@by_position
@pytest.mark.parametrize("widths", [[None, None], [9, 11], [6, 8]], ids=["no rows", "wide rows", "narrow rows"])
def test_a_packed_encoder_decoder_equals_a_padded_one(position: str, widths: list[int | None]) -> None:
    """Two packed sides of two widths: cross-attention joins sequence s of one side with sequence s of the other."""
    model = exact(cases.encoder_decoder(position=cases.TEXT_POSITIONS[position]))
    sources, targets = cases.sentences(SOURCE_LENGTHS, 1), cases.sentences(LENGTHS, 2)
    source, target = cases.padded(sources), cases.padded(targets)
    wanted = target.take(model(source.tokens, target.tokens, source.layout, target.layout))
    source, target = cases.packed(sources, targets, widths=widths)
    out = model(source.tokens, target.tokens, source.layout, target.layout)
    assert out.shape == (target.layout.tokens, cases.VOCABULARY)
    for got, other in zip(target.take(out), wanted, strict=True):
        assert_close(got, other, **TIGHT)


@by_position
@pytest.mark.parametrize("width", [None, 8])
def test_a_packed_decoder_and_encoder_with_heads_equal_padded_ones(position: str, width: int | None) -> None:
    sentences = cases.sentences(LENGTHS)
    one, other = cases.padded(sentences), cases.packed(sentences, widths=[width])[0]
    for attention in (NEAR, ALTERNATING):
        model = exact(cases.decoder(position=cases.TEXT_POSITIONS[position], attention=attention))
        wanted, got = one.take(model(one.tokens, one.layout)), other.take(model(other.tokens, other.layout))
        for a, b in zip(wanted, got, strict=True):
            assert_close(b, a, **TIGHT)
    model = exact(cases.encoder(position=cases.TEXT_POSITIONS[position]))
    hidden = [model(laid.tokens, laid.layout, segments=laid.tokens % 2) for laid in (one, other)]
    for wanted, got in zip(one.take(hidden[0]), other.take(hidden[1]), strict=True):
        assert_close(got, wanted, **TIGHT)
    for name, head in model.heads.items():
        wanted, got = head(hidden[0], one.layout), head(hidden[1], other.layout)
        if name in ("next", "class", "vector"):
            assert_close(got[other.sequences], wanted, **TIGHT)
        else:
            for a, b in zip(one.take(wanted), other.take(got), strict=True):
                assert_close(b, a, **TIGHT)


@by_position
def test_each_sentence_is_answered_as_if_it_were_alone(position: str) -> None:
    """However much padding there is, whatever it holds, and in whichever order the batch comes."""
    chosen = cases.TEXT_POSITIONS[position]
    pair, reader, writer = (exact(f(position=chosen)) for f in (cases.encoder_decoder, cases.encoder, cases.decoder))
    sources, targets = cases.sentences(SOURCE_LENGTHS, 1), cases.sentences(LENGTHS, 2)
    order = [2, 0, 3, 1]
    for room, junk in ((0, 1), (3, 5)):
        source = cases.padded([sources[s] for s in order], room, junk)
        target = cases.padded([targets[s] for s in order], room, junk)
        crossed = target.take(pair(source.tokens, target.tokens, source.layout, target.layout))
        read = target.take(reader(target.tokens, target.layout))
        written = target.take(writer(target.tokens, target.layout))
        for i, s in enumerate(order):
            alone = torch.tensor([targets[s]])
            assert_close(crossed[i], pair(torch.tensor([sources[s]]), alone)[0], **TIGHT)
            assert_close(read[i], reader(alone)[0], **TIGHT)
            assert_close(written[i], writer(alone)[0], **TIGHT)


def influence(call: Callable[[], Tensor], watched: nn.Module) -> Tensor:
    """`[B, T, B, S]`: whether output token (b, t) depends on token (c, s) of what a module gives, by gradients."""
    between: list[Tensor] = []
    hook = watched.register_forward_hook(lambda *given: between.append(given[-1]))
    out = call()
    hook.remove()
    rows = [torch.autograd.grad(o.square().sum(), between[0], retain_graph=True)[0] for o in out.flatten(0, 1)]
    return torch.stack([(row != 0).any(-1) for row in rows]).unflatten(0, out.shape[:2])


def test_who_depends_on_whom_in_an_encoder_decoder() -> None:
    """Each target token on the whole of its own source, and on the targets before it; on nothing else."""
    model = exact(cases.encoder_decoder())
    source, target = cases.padded(cases.sentences([2, 4], 1)), cases.padded(cases.sentences([3, 2], 2))
    call = lambda: model(source.tokens, target.tokens, source.layout, target.layout)
    on_source, on_target = influence(call, model.source), influence(call, model.target)
    on_memory = influence(call, model.encoder)
    for b, t in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        wanted = torch.zeros(2, 4, dtype=torch.bool)
        wanted[b, : [2, 4][b]] = True
        assert torch.equal(on_source[b, t], wanted)
        assert torch.equal(on_memory[b, t], wanted)
        wanted = torch.zeros(2, 3, dtype=torch.bool)
        wanted[b, : t + 1] = True
        assert torch.equal(on_target[b, t], wanted)


def test_who_depends_on_whom_in_an_encoder_and_a_decoder() -> None:
    """Two layers with a window of 2 reach two tokens far, or all if one layer sees everything."""
    reader, writer = exact(cases.encoder()), exact(cases.decoder())
    near = exact(cases.decoder(attention=blocks.Attention(heads=4, window=2)))
    mixed = exact(cases.decoder(attention=blocks.Attention(heads=4, window=2, pattern=("full", "window"))))
    late = exact(cases.encoder(depth=3, attention=blocks.Attention(heads=4, window=2, pattern=("window",) * 3)))
    tokens = torch.tensor(cases.sentences([5, 5]))
    for model, sees in (
        (reader, lambda t, s: True),
        (writer, lambda t, s: s <= t),
        (near, lambda t, s: t - 2 <= s <= t),
        (mixed, lambda t, s: s <= t),
        (late, lambda t, s: abs(t - s) <= 3),
    ):
        found = influence(lambda model=model: model(tokens), model.embedding)
        wanted = torch.tensor([[sees(t, s) for s in range(5)] for t in range(5)])
        for b in range(2):
            assert torch.equal(found[b, :, b], wanted)
            assert not found[b, :, 1 - b].any()


NEAR = blocks.Attention(heads=4, kv_heads=2, window=3)
ALTERNATING = NEAR.changed({"pattern": ["window", "full"]})


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_the_pattern_repeats_over_the_layers(family: str) -> None:
    """Each layer's weights are zero outside its window, and nowhere else."""
    for pattern in (["full", "window", "window"], ["window", "full"], ["window"], "none"):
        attention = NEAR.changed({"pattern": pattern})
        model = exact(cases.FAMILIES[family](depth=4, attention=attention))
        with recording.record(model, "*.attention.weights") as seen:
            model(torch.tensor(cases.sentences([7])))
        apart = torch.arange(7)[:, None] - torch.arange(7)
        for layer, weights in enumerate(seen.values()):
            has_window = pattern == "none" or pattern[layer % len(pattern)] == "window"
            visible = apart.abs() < 3 if has_window else apart.abs() < 7
            visible = visible & (apart >= 0) if family == "decoder" else visible
            assert torch.equal((weights > 0), visible.expand(weights.shape)), (pattern, layer)


LATENT = blocks.Attention(heads=4, head_size=10, value_size=6, latent=blocks.Latent(rank=5, rotary=4))


def test_latent_attention_in_every_layout() -> None:
    """Padded, packed and cached (growing and fixed) agree; a cache holds rank + rotary values of each token."""
    sentences = cases.sentences([n + 3 for n in LENGTHS])
    one, other = cases.padded(sentences), cases.packed(sentences, widths=[11])[0]
    prompts = cases.padded([s[:n] for s, n in zip(sentences, LENGTHS, strict=True)])
    for changes in ({}, {"window": 3}, {"latent.query_rank": 7, "sinks": True, "bias": False}):
        attention = LATENT.changed(changes)
        model = exact(cases.decoder(position=blocks.Rotary(order="interleaved"), attention=attention))
        wanted = one.take(model(one.tokens, one.layout))
        for got, row in zip(other.take(model(other.tokens, other.layout)), wanted, strict=True):
            assert_close(got, row, **TIGHT)
        for cache in (model.new_cache(batch=4), model.new_cache(batch=4, steps=3)):
            with torch.no_grad():
                out = prompts.take(model(prompts.tokens, prompts.layout, cache=cache))
                for step in range(3):
                    new = torch.tensor([[s[n + step]] for s, n in zip(sentences, LENGTHS, strict=True)])
                    out = [torch.cat([rows, row]) for rows, row in zip(out, model(new, cache=cache), strict=True)]
            for got, row in zip(out, wanted, strict=True):
                assert_close(got, row, **TIGHT)
            for layer in cache.layers:
                assert sum(x[0, 0].numel() for x in (layer.k_BCGE, layer.v_BCGV)) == 5 + 4
        with recording.record(model, "*.q", "*.k", "*.v", "*.weights") as seen:
            model(one.tokens, one.layout)
        shapes = {name.rpartition(".")[2]: tuple(value.shape) for name, value in seen.items()}
        batch, time = one.tokens.shape
        heads = {"q": (batch, time, 4, 10), "k": (batch, time, 4, 10), "v": (batch, time, 4, 6)}
        assert shapes == {**heads, "weights": (batch, 4, time, time)}
    found = influence(lambda: model(one.tokens[:2, :3]), model.embedding)
    assert torch.equal(found[0, :, 0], torch.ones(3, 3, dtype=torch.bool).tril())
    assert not found[0, :, 1].any()


def test_layers_with_a_window_have_their_own_rotary_base() -> None:
    """One layer with the window base equals a model of that base; scaling is for layers that see everything."""
    rotary = blocks.Rotary(base=1e4, window_base=50.0, scaling=blocks.LinearScaling(factor=3.0))
    tokens = torch.tensor(cases.sentences([6]))
    for pattern, alone in (
        (["window", "full"], blocks.Rotary(base=50.0)),
        (["full", "window"], blocks.Rotary(base=1e4, scaling=rotary.scaling)),
    ):
        attention = NEAR.changed({"pattern": pattern})
        model = exact(cases.decoder(depth=1, attention=attention, position=rotary))
        other = exact(cases.decoder(depth=1, attention=attention, position=alone))
        other.load_state_dict(model.state_dict())
        assert_close(model(tokens), other(tokens), **TIGHT)


@by_position
def test_an_encoder_decoder_writes_step_by_step(position: str) -> None:
    """Sources of different lengths; the first step reads two tokens, each of the others one."""
    for changes in ({}, {"attention": NEAR}, {"attention": ALTERNATING}):
        model = exact(cases.encoder_decoder(position=cases.TEXT_POSITIONS[position], **changes))
        source = cases.padded(cases.sentences(SOURCE_LENGTHS, 1))
        target = torch.tensor(cases.sentences([7] * 4, 2))
        wanted = model(source.tokens, target, source.layout)
        cache, calls = model.new_cache(batch=4), []
        model.decoder[1].cross.k.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        memory = model.encode(source.tokens, source.layout)
        steps = [target[:, :2], *target[:, 2:].split(1, dim=1)]
        out = [model.output(model.states(new, memory, source.layout, cache=cache)) for new in steps]
        assert_close(torch.cat(out, dim=1), wanted, **TIGHT)
        assert calls == [1], "the memory is projected once"


@by_position
def test_a_decoder_continues_prompts_of_different_lengths(position: str) -> None:
    for changes in ({}, {"attention": NEAR}, {"attention": ALTERNATING}):
        model = exact(cases.decoder(position=cases.TEXT_POSITIONS[position], **changes))
        sentences = cases.sentences([n + 3 for n in LENGTHS])
        whole = cases.padded(sentences)
        wanted = whole.take(model(whole.tokens, whole.layout))
        prompts = cases.padded([s[:n] for s, n in zip(sentences, LENGTHS, strict=True)])
        for cache in (model.new_cache(batch=4), model.new_cache(batch=4, steps=3)):  # growing and fixed
            with torch.no_grad():
                out = prompts.take(model(prompts.tokens, prompts.layout, cache=cache))
                for step in range(3):
                    new = torch.tensor([[s[n + step]] for s, n in zip(sentences, LENGTHS, strict=True)])
                    scores = model(new, cache=cache)
                    out = [torch.cat([rows, row]) for rows, row in zip(out, scores, strict=True)]
            for got, other in zip(out, wanted, strict=True):
                assert_close(got, other, **TIGHT)


@by_family
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_computes_in_its_own_precision(family: str, dtype: torch.dtype) -> None:
    model = cases.unsettled(build(cases.FAMILIES[family](norm_place="pre"), dtype=torch.float64))
    wanted = answer(model)
    out = answer(copy.deepcopy(model).to(dtype))
    assert out.dtype == dtype
    error = (out.double() - wanted).abs().max() / wanted.abs().max()
    assert error <= {torch.float64: 0.0, torch.float16: 0.02, torch.bfloat16: 0.1}[dtype]


@by_family
def test_a_model_on_meta_has_shapes_and_takes_weights(family: str) -> None:
    made, shell = build(cases.FAMILIES[family]()), build(cases.FAMILIES[family](), device="meta")
    assert {p.device.type for p in shell.parameters()} == {"meta"}
    shapes = {name: p.shape for name, p in made.named_parameters()}
    assert {name: p.shape for name, p in shell.named_parameters()} == shapes
    shell.load_state_dict(made.state_dict(), assign=True)
    assert torch.equal(answer(shell.eval()), answer(made.eval()))
    assert {p.dtype for p in build(cases.FAMILIES[family](), dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


@by_family
def test_lists_are_not_tensors(family: str) -> None:
    model = build(cases.FAMILIES[family]())
    inputs = [[[1, 2]], [[1]]] if family == "encoder-decoder" else [[[1, 2]]]
    with pytest.raises(InputError, match=r"is of type list, expected a tensor; write torch\.tensor"):
        model(*inputs)


@by_family
def test_nothing_is_random_in_evaluation(family: str) -> None:
    changes = {
        "dropout": 0.3,
        "stochastic_depth": 0.3,
        "attention": blocks.Attention(heads=4, dropout=0.3),
        "ffn": blocks.Dense(hidden=24, dropout=0.3),
    }
    model = build(cases.FAMILIES[family](**changes))
    calm = build(cases.FAMILIES[family](attention=blocks.Attention(heads=4), ffn=blocks.Dense(hidden=24)))
    calm.load_state_dict(model.state_dict())
    assert not torch.equal(answer(model), answer(model))
    assert torch.equal(answer(model.eval()), answer(calm))


@pytest.mark.parametrize("packed", [True, False])
def test_dropout_that_sequences_share(packed: bool) -> None:
    """All tokens of a sequence lose the same channels, those of another one lose others, and the mean stays."""
    layout = Packed(400, torch.tensor([0, 100, 300, 400]), 200) if packed else Padded(4, 100)
    x = torch.ones(*layout.shape, 500)
    found = shared_dropout(x, 0.4, layout, training=True)
    sequences = layout.sequences(x.device)
    for sequence in range(layout.count):
        rows = found[sequences == sequence]
        assert (rows == rows[0]).all()
        assert torch.isin(rows[0], torch.tensor([0.0, 1 / 0.6])).all()
    assert (found[sequences == 0][0] != found[sequences == 1][0]).any()
    assert found.mean() == pytest.approx(1, abs=0.1)
    assert shared_dropout(x, 0.4, layout, training=False) is x


def test_word_dropout_removes_a_token_wherever_it_occurs() -> None:
    model = build(
        settings.Decoder(
            vocabulary=50, dropout=0.0, width=8, depth=1, attention=blocks.Attention(heads=2), word_dropout=0.5
        )
    )
    assert isinstance(model, Decoder)
    tokens, read = torch.arange(50).repeat(2, 1), []
    model.embedding.register_forward_hook(lambda _, __, x: read.append(x))
    model.train().states(tokens)
    model.eval().states(tokens)
    dropped, whole = read
    position = whole - model.embedding.tokens(tokens)
    kept = (dropped - position).abs().sum(-1) > 1e-6
    assert (kept[0] == kept[1]).all()
    assert 10 < kept[0].sum() < 40
    assert torch.allclose((dropped - position)[kept], 2 * model.embedding.tokens(tokens)[kept], atol=1e-6)
