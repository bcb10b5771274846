"""Two on one input: figures against arithmetic on the scores of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import TEXTS, write_translator

import regard
from regard.blocks.edits import Ablate, Scale
from regard.errors import InputError
from regard.look.compare import compare, control, divergence, names_of_both
from regard.look.drawn_comparison import Maps, compare_picture
from regard.look.reading import Input
from regard.look.study import Study
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

pytestmark = pytest.mark.slow

TEXT = "ein Hund läuft"
WRITERS = {"translator": write_translator, "decoder": write_decoder, "encoder": write_encoder, "vision": write_vision}


def noisy(directory: Path) -> Path:
    """The same with other weights."""
    loaded = regard.load(directory, "cpu")
    with torch.no_grad():
        for parameter in loaded.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    save_model(
        loaded.network,
        directory,
        tables={name: loaded.config[name] for name in ("task", "data") if name in loaded.config},
    )
    return directory


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    found = {}
    for name, write in WRITERS.items():
        other = noisy(write(tmp_path_factory.mktemp(f"other-{name}")))
        loaded = regard.load(write(tmp_path_factory.mktemp(name)), "cpu")
        found[name] = Study(loaded, beside=regard.load(other, "cpu"))
    return found


def given(family: str, **more: Any) -> Input:
    if family == "vision":
        return Input(image=np.arange(64, dtype=np.uint8).reshape(1, 8, 8), **more)
    return Input(TEXT, to="en" if family == "translator" else None, **more)


def kl(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    p, q = one.double().softmax(-1), two.double().softmax(-1)
    return (p * (p / q).log()).sum(-1)


def test_divergence_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = torch.randn(7, 11), torch.randn(7, 11)
    monkeypatch.setattr("regard.look.compare.AT_ONCE", 30)
    assert torch.allclose(divergence(one, two).double(), kl(one, two), atol=1e-6)
    assert torch.equal(divergence(one, one), torch.zeros(7))


@pytest.mark.parametrize("change", ["", "*0.5", "=mean"])
def test_a_changed_head(studies: dict[str, Study], change: str) -> None:
    study = studies["decoder"]
    run = study.run(given("decoder"))
    found = compare(study, run, [f"decoder.0.attention.1{change}"])
    network: Any = study.network
    tokens = torch.tensor([run.sides["decoder"].ids])
    names = ["decoder.residual", "decoder.0.residual", "decoder.1.residual"]
    with torch.no_grad(), regard.record(network, "decoder.0.attention.heads", *names) as plain:
        first = network(tokens)[0]
    mean = plain["decoder.0.attention.heads"][0].mean(0)
    edit = {"": Ablate([1]), "*0.5": Scale([1], 0.5), "=mean": Ablate([1], mean)}[change]
    with torch.no_grad(), regard.record(network, *names, edit={"decoder.0.attention.heads": edit}) as changed:
        second = network(tokens)[0]
    (answer,) = found.answers
    expected = kl(first, second)
    assert [row.divergence for row in answer.rows] == pytest.approx(expected.tolist(), abs=1e-5)
    assert answer.figures.divergence == pytest.approx(float(expected.mean()), abs=1e-5)
    assert answer.figures.flipped == pytest.approx(float((first.argmax(-1) != second.argmax(-1)).double().mean()))
    follows = tokens[0, 1:]
    logs = [scores.log_softmax(-1)[range(len(follows)), follows] for scores in (first, second)]
    assert answer.figures.lost == pytest.approx(float((logs[0] - logs[1]).mean()), abs=1e-5)
    for row, before, after in zip(answer.rows, *(log.exp().tolist() for log in logs), strict=False):
        assert row.actual is not None
        assert (row.actual.before, row.actual.after) == pytest.approx((before, after), abs=1e-6)
    best = second[0].softmax(-1).max()
    assert answer.rows[0].best.after == pytest.approx(float(best), abs=1e-6)
    for each in found.streams:
        cosines = torch.cosine_similarity(plain[each.name][0], changed[each.name][0], dim=-1)
        assert each.cosine == pytest.approx(float(cosines.mean()), abs=1e-5)
        assert each.least == pytest.approx(float(cosines[each.place]), abs=1e-5)
    assert [each.name for each in found.streams] == names
    assert study.known(found.other).plain is run


@pytest.mark.parametrize("family", list(WRITERS))
def test_another_model(studies: dict[str, Study], family: str) -> None:
    study = studies[family]
    run = study.run(given(family))
    found = compare(study, run)
    assert found.same
    assert study.beside is not None
    other = study.beside
    assert study.holding(found.other) is other
    theirs = other.known(found.other)
    assert theirs.sides == run.sides
    for answer, own, others in zip(found.answers, run.answers, theirs.answers, strict=True):
        for row, mine, yours in zip(answer.rows, own.rows, others.rows, strict=True):
            assert row.candidates[0].before == pytest.approx(mine.candidates[0].chance, abs=1e-6)
            assert row.best.after == pytest.approx(yours.candidates[0].chance, abs=1e-6)
            assert row.divergence > 0
    if family == "translator":
        assert found.written == [run.written, other.run(run.given).written]
    else:
        assert (found.written[0] is None) == (family != "decoder")
    assert {each.name for each in found.streams} == {
        name for name in study.names if name.endswith(".residual") and name.count(".") <= 2 and name[-10].isdigit()
    } | {f"{stack}.residual" for stack in run.sides}


def test_random_heads_beside(studies: dict[str, Study]) -> None:
    study = studies["decoder"]
    run = study.run(given("decoder"))
    chosen = "decoder.0.attention.1*0.5"
    found = control(study, run, [chosen], draws=3)
    assert found == control(study, run, [chosen], draws=3)
    heads = [draw[0] for draw in found.heads]
    assert len({*heads}) == 3
    assert chosen not in heads
    assert all(head.endswith("*0.5") for head in heads)
    each = [compare(study, run, [head]) for head in heads]
    values = [one.answers[0].figures.divergence for one in each]
    spread = found.answers["output"]["divergence"]
    assert (spread.mean, spread.least, spread.most) == pytest.approx((sum(values) / 3, min(values), max(values)))
    cosines = [one.streams[-1].cosine for one in each]
    assert found.cosines["decoder.1.residual"].mean == pytest.approx(sum(cosines) / 3)
    alone = control(study, run)
    assert len(alone.heads) == 4  # all there are
    with pytest.raises(InputError, match="fewer than half"):
        control(study, run, [f"decoder.{layer}.attention.{head}" for layer in (0, 1) for head in (0, 1)])


def test_silent_heads_of_the_page_do_not_count(studies: dict[str, Study]) -> None:
    study = studies["decoder"]
    silent = study.run(given("decoder", ablated=("decoder.1.attention.0",)))
    assert compare(study, silent, ["decoder.0.attention.0"]) == compare(
        study, study.run(given("decoder")), ["decoder.0.attention.0"]
    )


def test_other_tokens(tmp_path: Path) -> None:
    loaded = regard.load(write_encoder(tmp_path / "one"), "cpu")
    other = write_encoder(tmp_path / "two")
    TokenizerPair.of(train_tokenizer(ByteBpe(size=300), [*TEXTS[2:], "zzz"])).save(other)
    study = Study(loaded, beside=regard.load(other, "cpu"))
    found = compare(study, study.run(given("encoder")))
    assert not found.same
    assert "different tokens" in found.why
    assert [answer.name for answer in found.answers] == ["label"]
    assert found.streams == []


def test_what_cannot_be_compared(tmp_path: Path, studies: dict[str, Study]) -> None:
    decoder, encoder = studies["decoder"].loaded, studies["encoder"].loaded
    with pytest.raises(InputError, match=r"is of kind encoder, and .* is of kind decoder"):
        Study(decoder, beside=encoder)
    from regard.blocks.settings import Attention
    from regard.models.settings import Classification, Vision

    heads = {"label": Classification(classes=3)}
    wide = Vision(image=(8, 8), patch=2, channels=1, width=16, depth=1, attention=Attention(heads=2), heads=heads)
    save_model(regard.build(wide), tmp_path)
    with pytest.raises(InputError, match="in patches of 2, and"):
        Study(studies["vision"].loaded, beside=regard.load(tmp_path, "cpu"))
    alone = Study(decoder)
    with pytest.raises(InputError, match="no model stands beside"):
        compare(alone, alone.run(given("decoder")))


@pytest.mark.parametrize(
    ("family", "ending", "begin"), [("translator", "png", b"\x89PNG"), ("vision", "svg", b"<?xml")]
)
def test_pictures(studies: dict[str, Study], tmp_path: Path, family: str, ending: str, begin: bytes) -> None:
    study = studies[family]
    run = study.run(given(family))
    found = compare(study, run)
    name = next(name for name in study.names if name.endswith(".weights"))
    tokens = [f"${each.text}" for each in run.sides[name.partition(".")[0]].tokens]
    both = (study.tensor(run.key, name)[0], study.holding(found.other).tensor(found.other, name)[0])
    file = tmp_path / f"a.{ending}"
    compare_picture(found, file, control(study, run, draws=1), Maps(*both, tokens, tokens), "a $title")
    assert file.read_bytes().startswith(begin)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ("runs/a/best", "runs/b/best", ["a/best", "b/best"]),
        ("/far/away/mine", "/far/away/yours", ["mine", "yours"]),
        ("de-en", "elsewhere/de-en", ["de-en", "de-en"]),
        ("same", "same", ["same", "same"]),
    ],
)
def test_names_tell_two_models_apart_and_no_more(one: str, other: str, names: list[str]) -> None:
    assert names_of_both(one, other) == names
