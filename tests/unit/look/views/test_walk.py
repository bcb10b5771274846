"""Walk view: every step's output follows from its inputs by the formula that is shown, recomputed in NumPy."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_cases import IMAGE_POSITIONS, TEXT_POSITIONS, decoder, encoder, encoder_decoder, unsettled, vision
from study_cases import run_of, token_run

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.input import Input
from regard.look.study import Study, StudyRun
from regard.look.views.walk import KEYS, QUESTION, ROWS, WalkRequest, WalkStep, walk
from regard.models import settings
from regard.models.presets import all_presets
from regard.use.model import Loaded

INPUTS = {
    "text",
    "tokens",
    "ids",
    "patches",
    "memory",
    "earlier",
    "later",
    "router",
    "Experts",
    "q-given",
    "k-given",
    "v-given",
}
"""Steps without a formula: they are input, or stand for many."""


def _apart(x: Any) -> Any:
    return np.arange(x.shape[0])[:, None] - np.arange(x.shape[1])


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _by_distance(table: Any) -> Any:
    count = (table.shape[-1] + 1) // 2
    row = (lambda i: table) if table.ndim == 1 else (lambda i: table[i])
    return np.array([[row(i)[i - j + count - 1] for j in range(count)] for i in range(count)])


def _hidden(x: Any, causal: Any, window: Any) -> Any:
    out = x.copy()
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if (causal and j > i) or (window and abs(i - j) >= window):
                out[i, j] = -np.inf
    return out


def _rotated(halves: bool) -> Any:
    def turned(x: Any, angles: Any, factor: Any) -> Any:
        out, pairs = x.copy(), angles.shape[1]
        for pair in range(pairs):
            one, two = (pair, pair + pairs) if halves else (2 * pair, 2 * pair + 1)
            cos, sin = factor * np.cos(angles[:, pair]), factor * np.sin(angles[:, pair])
            out[:, one], out[:, two] = x[:, one] * cos - x[:, two] * sin, x[:, two] * cos + x[:, one] * sin
        return out

    return turned


def _waves(halves: bool) -> Any:
    def encoded(places: Any, base: Any, width: Any) -> Any:
        out = np.zeros((len(places), int(width)))
        half = math.ceil(width / 2)
        for channel in range(int(width)):
            pair, cosine = (channel % half, channel >= half) if halves else divmod(channel, 2)
            out[:, channel] = (np.cos if cosine else np.sin)(places / base ** (2 * pair / width))
        return out

    return encoded


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _standard(x: Any, scale: Any, eps: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * scale


OURS = {
    "add": lambda a, b: a + b,
    "times": lambda a, b: a * b,
    "over": lambda a, b: a / b,
    "matmul": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b.T,
    "lookup": lambda a, b: a[b.astype(int)],
    "prepend": lambda a, b: np.concatenate([a if a.ndim == 2 else np.broadcast_to(a, (1, b.shape[1])), b]),
    "columns": lambda a, first, end: a[:, int(first) : int(end)],
    "join": lambda a, b: np.concatenate([a, b], -1),
    "concat": lambda *heads: np.concatenate(heads, -1),
    "softmax": _softmax,
    "sink": lambda a, s: np.exp(a) / (np.exp(a).sum(-1, keepdims=True) + np.exp(s)),
    "layer-norm": _standard,
    "rms-norm": lambda a, g, e: a / np.sqrt((a**2).mean(-1, keepdims=True) + e) * g,
    "relu": lambda a: np.maximum(a, 0),
    "relu2": lambda a: np.maximum(a, 0) ** 2,
    "gelu": _gelu,
    "gelu-tanh": lambda a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu-quick": lambda a: a / (1 + np.exp(-1.702 * a)),
    "tanh": np.tanh,
    "cap": lambda a, c: c * np.tanh(a / c),
    "alibi": lambda a, m: a - m * abs(_apart(a)),
    "distance": _by_distance,
    "mask": _hidden,
    "rotate-halves": _rotated(True),
    "rotate-interleaved": _rotated(False),
    "waves-halves": _waves(True),
    "waves-interleaved": _waves(False),
    "class": lambda a: a[:1],
    "last": lambda a: a[-1:],
    "mean": lambda a: a.mean(0, keepdims=True),
    "max": lambda a: a.max(0, keepdims=True),
}


def computed(tree: Any, operands: dict[str, Any]) -> Any:
    if isinstance(tree, str):
        return operands[tree]
    return OURS[tree[0]](*(computed(each, operands) for each in tree[1:]))


def close(found: Any, wanted: Any) -> bool:
    found, wanted = np.broadcast_to(found, wanted.shape), np.asarray(wanted)
    finite = np.isfinite(wanted)
    size = max(np.abs(wanted[finite]).max(initial=0), 1e-3)
    return bool((np.isfinite(found) == finite).all() and np.abs(found[finite] - wanted[finite]).max() <= 3e-5 * size)


def check(study: Study, run: StudyRun) -> None:
    """All steps through every layer: numbers, operands and names agree."""
    for stack in run.sides:
        for layer in range(len(getattr(study.network, stack))):
            steps = walk(study, run, f"{stack}.{layer}", head=layer % study.loaded.settings.attention.heads)
            check_steps(study, run, steps)


def check_steps(study: Study, run: StudyRun, steps: list[WalkStep]) -> None:
    before: dict[str, Any] = {}
    parameters = dict(study.network.named_parameters())
    recorded = study.values(run, [step.name for step in steps if step.name in study.names])
    for step in steps:
        assert (step.tree is None) == (step.kind in INPUTS), (step.name, step.kind)
        operands = {symbol: operand.value.double().numpy() for symbol, operand in step.operands.items()}
        for symbol, (name, value) in step.operands.items():
            if name in before:  # the output of an earlier step, or of some tokens of it
                assert torch.equal(value, before[name][: len(value)]), (step.name, symbol)
            elif name in parameters and value.dim():
                assert np.isin(value.numpy(), parameters[name].detach().numpy()).all(), (step.name, symbol)
        if step.tree is not None:
            assert step.value is not None
            assert close(computed(step.tree, operands), step.value.double().numpy()), (step.name, step.tree)
        if step.value is not None:
            before[step.name] = step.value
        if step.name in recorded and recorded[step.name].dim() == 2:
            assert close(recorded[step.name].numpy(), step.value.numpy()), step.name
    stream = [step.name for step in steps if step.name.endswith(".residual")]
    wanted = [name for name in study.names if name.startswith(f"{stream[-1].split('.')[0]}.") and ".residual" in name]
    assert set(stream) <= set(wanted), "the residual stream is followed through every sublayer"


def studied(model: Any, *sides: list[int], seed: int = 0) -> tuple[Study, StudyRun]:
    torch.manual_seed(seed)
    network = unsettled(regard.build(model))
    if isinstance(model, settings.Vision):
        study = Study(Loaded("tiny", Path(), network, None, {}))
        shape = (model.channels, *model.image)
        image = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
        return study, study.run(Input(image=image))
    return token_run(network, *sides)


IDS = [3, 1, 4, 1, 5, 9, 2]


def small(preset: settings.ModelSettings, width: int, depth: int) -> settings.ModelSettings:
    """The preset at a smaller size, with everything else as it is."""
    attention = preset.attention
    heads = 4 if attention.kv_heads is None else max(attention.heads // attention.kv_heads, 1) * 2
    changes: dict[str, Any] = {"width": width, "depth": depth, "ffn": {"hidden": 3 * width}}
    changes["attention"] = {"heads": heads}
    for name in ("head_size", "value_size"):
        if getattr(attention, name) is not None:
            changes["attention"][name] = width // 4 + 4
    if attention.kv_heads is not None:
        changes["attention"]["kv_heads"] = 2
    if attention.latent is not None:
        changes["attention"]["latent"] = {
            "rank": 6,
            "rotary": 4,
            "query_rank": 6 if attention.latent.query_rank else None,
        }
    for name in ("decoder_depth", "embedding_width"):
        if getattr(preset, name, None) is not None:
            changes[name] = 2 if name == "decoder_depth" else width // 2
    if isinstance(preset, settings.Vision):
        changes |= {"image": (8, 12), "patch": 4}
    else:
        changes["vocabulary"] = 31
        if getattr(preset, "target_vocabulary", None):
            changes["target_vocabulary"] = 31
    return preset.changed(changes)


def test_formulas_of_every_preset_at_two_sizes() -> None:
    seen = set()
    for preset in all_presets():
        if not isinstance(preset.settings, blocks.Body):
            continue
        for width, depth in ((16, 1), (32, 2)):
            model = small(preset.settings, width, depth)
            if (text := model.model_dump_json()) in seen:
                continue
            seen.add(text)
            sides = [IDS, IDS[:4]] if model.kind == "encoder-decoder" else [IDS]
            check(*studied(model, *([] if model.kind == "vision" else sides)))
    assert len(seen) > 30


def test_formulas_of_every_setting_that_changes_them() -> None:
    bodies: list[dict[str, Any]] = [
        {"norm_place": place, "norm": norm, "layer_scale": scale}
        for place, norm, scale in (
            ("pre", blocks.RmsNorm(unit_offset=True), None),
            ("sandwich", blocks.LayerNorm(bias=False), 0.5),
            ("output", blocks.RmsNorm(), None),
            ("post", blocks.RmsNorm(), None),
        )
    ]
    bodies += [
        {"attention": blocks.Attention(heads=2, **changes)}
        for changes in (
            {"bias": False, "soft_cap": 3.0, "scale": 0.7},
            {"qk_norm": blocks.RmsNorm(), "window": 3},
            {"sinks": True},
        )
    ]
    bodies += [{"ffn": blocks.Gated(hidden=20, activation=name)} for name in ("silu", "gelu-tanh", "relu2")]
    bodies += [{"ffn": blocks.Gated(hidden=20, activation="gelu", bias=True)}]
    bodies += [{"parallel": True, "norm_place": "pre"}, {"ffn": blocks.Experts(experts=4, active=2, hidden=8)}]
    joint = blocks.Attention(heads=4, kv_heads=2, qk_norm=blocks.RmsNorm(), qk_norm_joint=True)
    bodies += [{"attention": joint, "position": blocks.Rotary()}]
    latent = blocks.Attention(heads=2, head_size=8, latent=blocks.Latent(rank=6, rotary=4))
    bodies += [{"attention": latent, "position": blocks.Rotary()}]
    ids = IDS
    for changes in bodies:
        check(*studied(decoder(**changes), ids))
    for position in TEXT_POSITIONS.values():
        check(*studied(encoder(position=position, embedding_norm=True, embedding_scale=True, embedding_width=8), ids))
        check(*studied(encoder_decoder(position=position, output_bias=True, output_scale=0.3), ids, ids[:5]))
        check(
            *studied(
                decoder(position=position, attention=blocks.Attention(heads=4, kv_heads=2, qk_norm=blocks.LayerNorm())),
                ids,
            )
        )
    for position in (
        blocks.Rotary(fraction=0.5),
        blocks.Rotary(scaling=blocks.YarnScaling(factor=4.0, original_length=8)),
    ):
        check(*studied(decoder(position=position), ids))
    for position in IMAGE_POSITIONS.values():
        for class_token in (True, False):
            heads = {"label": settings.Classification(classes=3, pooling="mean", dense=True)}
            update = {"heads": heads, "class_token": class_token, "registers": 0 if class_token else 2}
            model = vision(position=position).model_copy(update=update)
            check(*studied(model))


@pytest.mark.slow
def test_formulas_of_the_shipped_models() -> None:
    for name, text in (("de-en", "Ein Hund läuft."), ("en-de", "A dog runs."), ("encoder", "The [MASK] of the river.")):
        study = Study(regard.load(name, "cpu"))
        check(study, study.run(Input(text)))


def test_changed_heads_are_in_the_formula(studies: dict[str, Study]) -> None:
    for change, operation in (("", "times"), ("*0.5", "times"), ("=mean", "add")):
        study, run = run_of(studies, "decoder", ablated=(f"decoder.0.attention.1{change}",))
        steps = {step.name: step for step in walk(study, run, "decoder.0", 1)}
        assert steps["decoder.0.attention.head"].tree[0] == operation
        check_steps(study, run, list(steps.values()))
        other = {step.name: step for step in walk(study, run, "decoder.0", 0)}
        assert other["decoder.0.attention.head"].tree[0] == "matmul"


def test_the_worked_softmax() -> None:
    """112 and 96 with keys of size 64 are 14 and 12, and give 0.88 and 0.12 (the decks' Thinking Machines)."""
    model = settings.Decoder(vocabulary=4, width=64, depth=1, attention=blocks.Attention(heads=1), dropout=0.0)
    study, run = studied(model, [0, 1])
    steps = {step.kind: step for step in walk(study, run, "decoder.0", 0)}
    products = np.array([[112.0, 96.0]])
    root = steps["scale"].operands["√dₖ"].value.double().numpy()
    scaled = computed(steps["scale"].tree, {"S": products, "√dₖ": root})
    assert scaled.tolist() == [[14, 12]]
    assert computed(("softmax", "S"), {"S": scaled}).round(2).tolist() == [[0.88, 0.12]]


def test_the_last_step_shows_the_answers(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    last = walk(study, run, "decoder.1", 0)[-1]
    best = run.answers[0].rows[-1].candidates[0]
    assert last.words is not None
    assert last.words[-1][1] == f"{best.text}  {best.chance:.4f}"
    assert float(last.value[-1, best.id]) == pytest.approx(best.chance, abs=1e-5)
    for layer, head in (("encoder.0", 0), ("decoder.9", 0), ("decoder.0", 2)):
        with pytest.raises(InputError, match="is not in this model"):
            walk(study, run, layer, head)


def test_long_inputs_are_sent_in_part(studies: dict[str, Study]) -> None:
    """Every token can be reached, and an answer stays small."""
    study, run = run_of(studies, "decoder", "ein Hund läuft " * 30)
    count = len(run.sides["decoder"].tokens)
    assert count > 2 * ROWS
    for first in (0, count - 3):
        answer = QUESTION.answer(study, WalkRequest(run=run.key, stack="decoder", first=first))
        for step in answer["steps"]:
            if step["value"] is not None:
                shape, tile = step["value"]["shape"], step["value"]["tile"]["shape"]
                assert tile == [min(ROWS, count - first), min(KEYS if step["columns"] else 32, shape[1])], step["name"]
                assert step["rows"] == run.sides["decoder"].names[first : first + ROWS]


def test_operands_are_sent_for_the_tokens_of_the_answer(studies: dict[str, Study]) -> None:
    """Rows that are looked up, ids and heads belong to the tokens that are shown, also in a long text."""
    study, run = run_of(studies, "decoder", "ein Hund läuft " * 30)
    ids, first = run.sides["decoder"].ids, ROWS + 5
    answer = QUESTION.answer(study, WalkRequest(run=run.key, stack="decoder", first=first))
    steps = {step["kind"]: step for step in answer["steps"]}
    shown, operands = ids[first : first + ROWS], steps["embeddings"]["operands"]
    assert operands["E"]["at"] == sorted(set(shown))
    assert [operands["E"]["at"][place] for place in operands["E"]["places"]] == shown
    table = study.network.embedding.tokens.weight.detach()[operands["E"]["at"], :32]
    assert np.allclose(unpacked(operands["E"]["tile"]), table.numpy())
    assert unpacked(operands["id"]["tile"]).tolist() == shown
    heads = steps["concat"]["operands"]
    assert list(heads) == ["head₀", "head₁"]
    for number, each in enumerate(heads.values()):
        assert each["first"] == first
        size = each["shape"][1]
        joined = unpacked(steps["concat"]["value"]["tile"])[:, number * size : (number + 1) * size]
        assert np.allclose(unpacked(each["tile"]), joined)


def test_keys_of_a_short_source_are_shown_for_late_tokens(studies: dict[str, Study]) -> None:
    study = studies["translator"]
    run = study.run(Input("ein Hund", " ".join(["a dog runs"] * 20), "en"))
    source = run.sides["encoder"].names
    assert len(source) < ROWS < len(run.sides["decoder"].names) - 1
    answer = QUESTION.answer(study, WalkRequest(run=run.key, stack="decoder", first=ROWS))
    (keys,) = (step for step in answer["steps"] if step["name"] == "decoder.0.cross.k")
    assert keys["rows"] == source
    assert keys["value"]["tile"]["shape"][0] == len(source)


def unpacked(tile: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(tile["data"]), "<f4").reshape(tile["shape"])
