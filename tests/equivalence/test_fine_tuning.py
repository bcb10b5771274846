"""Fine-tuning starts where a Hugging Face model is: the same loss, its tokens and its tokenizer, and back again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hub_directories as hub
import pytest
import tomli_w
import torch
import transformers
from hub_directories import SENTENCES
from transformers import AutoTokenizer

import regard
from regard.errors import SettingsError
from regard.text.tokenizer import TokenizerPair
from regard.training.loop import Trained
from regard.training.report import Display
from regard.use.translator import Translator
from regard.weights.convert import convert
from regard.weights.directory import load_model, read_config
from regard.weights.location import find_model

pytestmark = pytest.mark.slow
CASES: dict[str, tuple[Callable[..., Path], Any]] = {
    "opus": (partial(hub.write_opus, drop=0), transformers.MarianMTModel),
    "t5": (hub.write_t5, transformers.T5ForConditionalGeneration),
    "bart": (hub.write_bart, transformers.BartForConditionalGeneration),
}


@pytest.fixture(autouse=True)
def _pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)
    for language, lines in SENTENCES.items():
        Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def recipe(start: str, **data: Any) -> dict[str, Any]:
    files = {"train": ["train.en", "train.de"], "valid": ["train.en", "train.de"], **data}
    return {"task": "translate", "data": files, "train": {"start": start, "steps": 3, "tokens": 512}}


def trained(name: str, table: dict[str, Any], changes: dict[str, Any]) -> Trained:
    Path(f"{name}.toml").write_text(tomli_w.dumps(table))
    return regard.train(f"{name}.toml", changes, device="cpu", threads=1, display=Display(quiet=True))


def their_loss(directory: Path, kind: Any) -> float:
    """The mean over all target tokens, one pair at a time."""
    model, pair = kind.from_pretrained(directory).eval(), TokenizerPair.load(directory)
    total = weight = 0.0
    for source, target in zip(*SENTENCES.values(), strict=True):
        labels = pair.target.encode(target).ids
        with torch.no_grad():
            read = torch.tensor([pair.source.encode(source).ids])
            loss = model(input_ids=read, labels=torch.tensor([labels])).loss
        total, weight = total + float(loss) * len(labels), weight + len(labels)
    return total / weight


@pytest.mark.parametrize("name", CASES)
def test_from_their_directory_and_back(name: str) -> None:
    write, kind = CASES[name]
    expected = their_loss(write(Path(name)), kind)
    still = trained("still", recipe(name), {"train.steps": 1, "train.optimizer.rate": 1e-12})
    assert still.scores["loss"] == pytest.approx(expected, rel=1e-5)
    run = trained("run", recipe(name), {"train.steps": 40, "train.optimizer.rate": 3e-3})
    assert run.scores["loss"] < 0.8 * expected
    assert load_model(run.directory).settings.vocabulary == load_model(name).settings.vocabulary
    theirs, ours = TokenizerPair.load(name), TokenizerPair.load(run.directory)
    assert ours.source.ids(SENTENCES["en"]) == theirs.source.ids(SENTENCES["en"])
    assert ours.target.ids(SENTENCES["de"]) == theirs.target.ids(SENTENCES["de"])
    convert(run.directory, "back", "huggingface")
    assert their_loss(Path("back"), kind) == pytest.approx(run.scores["loss"], rel=1e-4)
    model, tokenizer = kind.from_pretrained("back").eval(), AutoTokenizer.from_pretrained("back")
    search = {"num_beams": 1, "do_sample": False, "max_new_tokens": 40}
    found = []
    for text in SENTENCES["en"]:
        ids = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        assert ids["input_ids"][0].tolist() == theirs.source.encode(text).ids
        found.append(tokenizer.decode(model.generate(**ids, **search)[0], skip_special_tokens=True))
    options: dict[str, Any] = {"beam": 1, "rules": {"longest": {"kind": "absolute", "tokens": 40}}}
    assert regard.load("back", "cpu").translate(SENTENCES["en"], **options) == found
    # A run never writes special tokens; this model might.
    assert sum(map(str.__eq__, regard.load(run.directory, "cpu").translate(SENTENCES["en"], **options), found)) > 2
    resumed = regard.resume(run.directory, {"train.steps": 41}, device="cpu", threads=1, display=Display(quiet=True))
    assert resumed.step == 41


def test_the_shipped_model_by_its_name() -> None:
    run = trained("mine", recipe("en-de"), {"train.steps": 1, "train.optimizer.rate": 1e-12})
    data = read_config(run.directory)["data"]
    assert (data["tagged"], tuple(data["languages"])) == (True, ("en", "de"))
    translator, shipped = regard.load(run.directory, "cpu"), regard.load("en-de", "cpu")
    assert isinstance(translator, Translator)
    assert translator.directions == [("en", "de")]
    assert translator.inputs(SENTENCES["en"]) == shipped.inputs(SENTENCES["en"], "de")
    assert translator.translate(SENTENCES["en"][:2]) == shipped.translate(SENTENCES["en"][:2])
    convert(run.directory, "out", "huggingface")
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert tokenizer(SENTENCES["en"][0])["input_ids"] == translator.inputs(SENTENCES["en"][:1])[0]


def test_a_start_with_tags_needs_the_languages() -> None:
    hub.write_opus(Path("many"), codes=(">>fr<<", ">>de<<"))
    first = trained("plain", recipe("many"), {"train.steps": 1})
    assert not read_config(first.directory)["data"]["tagged"]  # texts can have the code themselves
    second = trained("named", recipe("many", languages=["en", "de"]), {"train.steps": 1})
    translator = regard.load(second.directory, "cpu")
    assert isinstance(translator, Translator)
    code = translator.tokenizers.source.id(">>de<<")
    assert translator.inputs(["A bird"])[0][0] == code
    convert(find_model("german-english")[0], "both", "regard")
    with pytest.raises(SettingsError, match=r"train\.start \(both\) needs the target language.*data\.languages"):
        trained("third", recipe("both"), {"train.steps": 1})
