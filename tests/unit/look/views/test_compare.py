"""Compare view: differences against arithmetic on the logits of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from study_cases import given, run_of
from tiny_models import WRITERS, write_encoder
from tiny_translator import TEXTS

import regard
from regard.blocks.edits import Ablate, Scale
from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.compare import compare_runs, control, names_of_both
from regard.models.settings import Classification, Vision
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

pytestmark = pytest.mark.slow


def noisy(directory: Path) -> Path:
    """The same model with other weights."""
    loaded = regard.load(directory, "cpu")
    with torch.no_grad():
        for parameter in loaded.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    tables = {name: loaded.config[name] for name in ("task", "data") if name in loaded.config}
    save_model(loaded.network, directory, tables=tables)
    return directory


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, studies: dict[str, Study]) -> dict[str, Study]:
    """Each study with a second model."""
    return {
        name: Study(studies[name].loaded, against=regard.load(noisy(write(tmp_path_factory.mktemp(name))), "cpu"))
        for name, write in WRITERS.items()
    }


def kl(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    p, q = one.double().softmax(-1), two.double().softmax(-1)
    return (p * (p / q).log()).sum(-1)


def test_changed_heads(pairs: dict[str, Study], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.views.compare.MAX_LOGITS", 30)  # in parts
    study, run = run_of(pairs, "decoder")
    network: Any = study.network
    tokens = torch.tensor([run.sides["decoder"].ids])
    names = ["decoder.residual", "decoder.0.residual", "decoder.1.residual"]
    with torch.no_grad(), regard.record(network, "decoder.0.attention.heads", *names) as plain:
        first = network(tokens)[0]
    mean = plain["decoder.0.attention.heads"][0].mean(0)
    for change, edit in {"": Ablate([1]), "*0.5": Scale([1], 0.5), "=mean": Ablate([1], mean)}.items():
        found = compare_runs(study, run, [f"decoder.0.attention.1{change}"])
        with torch.no_grad(), regard.record(network, *names, edit={"decoder.0.attention.heads": edit}) as changed:
            second = network(tokens)[0]
        (answer,) = found["answers"]
        expected = kl(first, second)
        assert [row["divergence"] for row in answer["rows"]] == pytest.approx(expected.tolist(), abs=1e-5)
        assert answer["figures"]["divergence"] == pytest.approx(float(expected.mean()), abs=1e-5)
        assert answer["figures"]["flipped"] == pytest.approx(
            float((first.argmax(-1) != second.argmax(-1)).double().mean())
        )
        follows = tokens[0, 1:]
        logs = [logits.log_softmax(-1)[range(len(follows)), follows] for logits in (first, second)]
        assert answer["figures"]["lost"] == pytest.approx(float((logs[0] - logs[1]).mean()), abs=1e-5)
        for row, before, after in zip(answer["rows"], *(log.exp().tolist() for log in logs), strict=False):
            assert (row["actual"]["before"], row["actual"]["after"]) == pytest.approx((before, after), abs=1e-6)
        assert answer["rows"][0]["best"]["after"] == pytest.approx(float(second[0].softmax(-1).max()), abs=1e-6)
        assert [each["name"] for each in found["streams"]] == names
        for each in found["streams"]:
            cosines = torch.cosine_similarity(plain[each["name"]][0], changed[each["name"]][0], dim=-1)
            assert each["cosine"] == pytest.approx(float(cosines.mean()), abs=1e-5)
            assert each["least"] == pytest.approx(float(cosines[each["place"]]), abs=1e-5)
        assert study.known(found["other"]).plain is run
    silent = study.run(given("decoder", ablated=("decoder.1.attention.0",)))
    change = ["decoder.0.attention.0"]
    assert compare_runs(study, silent, change) == compare_runs(study, run, change), "other silent heads do not count"


def test_another_model(pairs: dict[str, Study]) -> None:
    for family in WRITERS:
        study, run = run_of(pairs, family)
        found, other = compare_runs(study, run), study.against
        assert found["same"]
        assert other is not None
        assert study.holding(found["other"]) is other
        theirs = other.known(found["other"])
        assert theirs.sides == run.sides
        for answer, own, others in zip(found["answers"], run.answers, theirs.answers, strict=True):
            for row, mine, yours in zip(answer["rows"], own.rows, others.rows, strict=True):
                assert row["candidates"][0]["before"] == pytest.approx(mine.candidates[0].chance, abs=1e-6)
                assert row["best"]["after"] == pytest.approx(yours.candidates[0].chance, abs=1e-6)
                assert row["divergence"] > 0
        if family == "translator":
            assert found["written"] == [run.written, other.run(run.given).written]
        else:
            assert (found["written"][0] is None) == (family != "decoder")
        assert {each["name"].partition(".")[0] for each in found["streams"]} == set(run.sides)


def test_control_by_random_heads(pairs: dict[str, Study]) -> None:
    study, run = run_of(pairs, "decoder")
    chosen = "decoder.0.attention.1*0.5"
    found = control(study, run, [chosen], draws=3)
    assert found == control(study, run, [chosen], draws=3)
    heads = [draw[0] for draw in found["heads"]]
    assert len({*heads}) == 3
    assert chosen not in heads
    assert all(head.endswith("*0.5") for head in heads)
    each = [compare_runs(study, run, [head]) for head in heads]
    values = [one["answers"][0]["figures"]["divergence"] for one in each]
    spread = found["answers"]["output"]["divergence"]
    assert tuple(spread[name] for name in ("mean", "least", "most")) == pytest.approx(
        (sum(values) / 3, min(values), max(values))
    )
    cosines = [one["streams"][-1]["cosine"] for one in each]
    assert found["cosines"]["decoder.1.residual"]["mean"] == pytest.approx(sum(cosines) / 3)
    assert len(control(study, run)["heads"]) == 4, "all heads of the model"
    with pytest.raises(InputError, match="1 to 2 heads"):
        control(study, run, [f"decoder.{layer}.attention.{head}" for layer in (0, 1) for head in (0, 1)])


def test_models_that_differ(tmp_path: Path, studies: dict[str, Study]) -> None:
    other = write_encoder(tmp_path / "two")
    TokenizerPair.of(train_tokenizer(ByteBpe(size=300), [*TEXTS[2:], "zzz"])).save(other)
    study = Study(studies["encoder"].loaded, against=regard.load(other, "cpu"))
    found = compare_runs(study, study.run(given("encoder")))
    assert not found["same"]
    assert "different tokenizers" in found["why"]
    assert [answer["name"] for answer in found["answers"]] == ["label"]
    assert found["streams"] == []
    with pytest.raises(InputError, match="kind encoder, expected kind decoder"):
        Study(studies["decoder"].loaded, against=studies["encoder"].loaded)
    heads = {"label": Classification(classes=3)}
    wide = Vision(image=(8, 8), patch=2, channels=1, width=16, depth=1, attention=Attention(heads=2), heads=heads)
    save_model(regard.build(wide), tmp_path / "wide")
    with pytest.raises(InputError, match=r"patch 2, expected kind vision.*patch 4"):
        Study(studies["vision"].loaded, against=regard.load(tmp_path / "wide", "cpu"))
    with pytest.raises(InputError, match="no second model"):
        compare_runs(*run_of(studies, "decoder"))
    assert names_of_both("runs/a/best", "runs/b/best") == ["a/best", "b/best"]
    assert names_of_both("/far/away/mine", "/far/away/yours") == ["mine", "yours"]
