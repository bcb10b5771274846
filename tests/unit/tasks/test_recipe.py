"""A recipe with its overrides becomes a job, or one sentence that says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from settings_cases import to_toml

from regard.blocks.settings import Learned, Rotary
from regard.data.settings import Digits, Parallel, RawText
from regard.errors import SettingsError
from regard.models.presets import preset, preset_names
from regard.models.settings import Decoder, EncoderDecoder
from regard.settings import read_overrides, read_toml
from regard.shipped import MODELS, place_of, recipes
from regard.tasks.masked import Masked
from regard.tasks.recipe import (
    PARTS,
    TokenizerFile,
    TrainingJob,
    data_settings,
    find_recipe,
    is_recipe,
    job_model,
    make_job,
    model_settings,
    read_job,
    read_recipe,
    with_vocabulary,
)
from regard.tasks.translate import Translate
from regard.text.settings import Bpe, ByteBpe, WordPiece
from regard.training.settings import AdamW, Cosine, Linear, Muon
from regard.weights.directory import read_config

PAIRS: dict[str, Any] = {
    "task": "translate",
    "data": {"train": ["a.en", "a.de"]},
    "model": {"preset": "transformer-tiny"},
    "train": {"steps": 5},
}
TEXT = {**PAIRS, "task": "language", "data": {"train": ["a.txt"]}, "model": {"preset": "llama-tiny"}}
IMAGES = {"task": "image", "data": {"kind": "digits"}, "model": {"preset": "vit-28"}, "train": {"steps": 5}}


def job(recipe: dict[str, Any], *overrides: str) -> TrainingJob:
    return make_job("name", recipe, read_overrides(overrides))


def refused(recipe: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        job(recipe, *overrides)
    return str(caught.value)


def test_a_task_is_a_name_or_a_table() -> None:
    assert job(PAIRS).task == job({**PAIRS, "task": {"kind": "translate"}}).task == Translate()
    assert job({**PAIRS, "task": {"kind": "translate", "smoothing": 0.0}}).task == Translate(smoothing=0.0)
    assert job(PAIRS, "task.smoothing=0.2").task == Translate(smoothing=0.2)
    masked = job({**TEXT, "task": {"kind": "language", "context": 64}}, "task=masked", "model.preset=bert-tiny")
    assert masked.task == Masked(), "another task has settings of its own"


def test_each_task_has_its_usual_data_and_text() -> None:
    assert isinstance(job(PAIRS).data, Parallel)
    named = {**PAIRS, "data": {"kind": "parallel", **PAIRS["data"]}}
    assert data_settings(PAIRS, {"kind": "text"}) == RawText(train=("a.en", "a.de")), "the recipe names no kind"
    assert data_settings(named, {"kind": "text"}) == RawText(), "another kind resets the table"
    assert isinstance(job(TEXT).data, RawText)
    assert isinstance(job(IMAGES).data, Digits)
    assert [job(PAIRS).text, job(TEXT).text] == [Bpe(), ByteBpe()]
    assert job(TEXT, "task=masked", "model.preset=bert-tiny").text == WordPiece()
    assert job(IMAGES).text is None
    assert job(PAIRS, "text.size=300").text == Bpe(size=300)
    assert job({**PAIRS, "text": {"kind": "bpe", "size": 300}}, "text.kind=byte-bpe").text == ByteBpe()
    assert job(PAIRS, "text.kind=file", "text.path=old").text == TokenizerFile(path="old")


def test_weights_to_start_from_bring_their_tokenizer_and_their_model() -> None:
    bare = {key: value for key, value in PAIRS.items() if key != "model"}
    assert job(bare, "train.start=runs/old").text is None
    assert job(bare, "train.start=runs/old", "text.size=300").text == Bpe(size=300)
    old = EncoderDecoder(width=32, depth=3)
    assert job_model(job(bare, "train.start=runs/old"), old) == old
    changed = job_model(job(bare, "train.start=runs/old", "model.dropout=0.3"), old)
    assert changed == old.changed({"dropout": 0.3})
    preset = job_model(job(PAIRS, "train.start=runs/old"), old)
    assert preset.width == 128, "a preset is taken at its word"


def test_overrides_are_laid_over_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(
        'task = "translate"\n[data]\ntrain = ["a.en", "a.de"]\n[model]\npreset = "transformer-tiny"\ndropout = 0.3\n'
        "[train]\nsteps = 5\n[reference]\nloss = [[10, 3.0]]\n"
    )
    found = read_job(path, read_overrides(["model.dropout=0.1", "train.steps=7", "data.root=DIR"]))
    assert (found.name, found.directory) == ("pairs", Path("runs/pairs"))
    assert (found.train.steps, found.data.root, job_model(found).dropout) == (7, "DIR", 0.1)  # type: ignore[union-attr]
    assert found.reference == {"loss": [[10, 3.0]]}
    assert read_job(path, {"train": {"directory": "elsewhere"}}).directory == Path("elsewhere")


def test_what_has_a_usual_kind_need_not_name_it() -> None:
    """`train.optimizer.rate=1e-3` is what people try first."""
    rate = job(PAIRS, "train.optimizer.rate=2e-3", "train.schedule.warmup=7").train
    assert (rate.optimizer, rate.schedule) == (AdamW(rate=2e-3), Linear(warmup=7))
    assert job(PAIRS).train.schedule == Linear(warmup=0.05)
    written = job({**PAIRS, "train": {"steps": 5, "schedule": {"kind": "linear"}}}).train
    assert written.schedule == Linear(), "a kind that is written down has its own defaults"
    muon = {**PAIRS, "train": {"steps": 5, "optimizer": {"kind": "muon", "rate": 0.01}}}
    assert job(muon, "train.optimizer.rest.rate=2e-3").train.optimizer == Muon(rate=0.01, rest=AdamW(rate=2e-3))
    assert job(muon, "train.schedule.kind=cosine").train.schedule == Cosine()


def test_errors_name_the_setting_and_the_nearest_one() -> None:
    for override, *words in (
        ("trian.steps=5", "trian", "did you mean train?"),
        ("train.minuts=5", "train.minuts", "did you mean minutes?"),
        ("train.optimizer.raet=5", "train.optimizer.raet", "did you mean rate?"),
        ("train.schedule.kind=cosin", "train.schedule.kind (cosin)", "did you mean cosine?"),
        ("train.steps=0", "train.steps (0)"),
        ("train.steps=none", "train.minutes", "train.steps"),
        ("train.micro=0", "train.micro (0)"),
        ("train=5", "train (5)"),
        ("task=translat", "task.kind (translat)", "did you mean translate?"),
        ("task.context=5", "task.context"),
        ("text.kind=bpee", "text.kind (bpee)", "did you mean bpe?"),
        ("data.trian=5", "data.trian", "did you mean train?"),
        ("model.dropuot=0.1", "model.dropuot", "did you mean dropout?"),
        ("model.preset=gtp2", "gtp2", "did you mean gpt2?"),
        ("model.preset=gpt2", "model.kind (decoder)", "translate", "encoder-decoder"),
        ("model=gpt2", "model ('gpt2') must be a table"),
        ("model.preset=3", "model.preset (3) must be a name"),
        ("task=language", "model.kind (encoder-decoder)", "language", "decoder"),
    ):
        message = refused(PAIRS, override)
        assert all(word in message for word in words), (override, message)


def test_missing_tables_are_errors() -> None:
    without = {part: {key: value for key, value in PAIRS.items() if key != part} for part in PAIRS}
    for part, words in (("task", "names no task"), ("model", "model needs a preset"), ("train", "train has no budget")):
        assert words in refused(without[part])
    assert "data needs a kind" in refused({**IMAGES, "data": {}})
    assert "the task image reads no text" in refused(IMAGES, "text.kind=bpe")


def test_a_model_has_the_vocabularies_of_its_tokenizers() -> None:
    """Two vocabularies of the same size are different too: token 7 of one language is not token 7 of the other."""

    def fitted(sizes: tuple[int, int], shared: bool, model: EncoderDecoder | None = None) -> EncoderDecoder:
        found = with_vocabulary(model or EncoderDecoder(), sizes, shared, named=False)
        assert isinstance(found, EncoderDecoder)
        return found

    model = fitted((300, 300), shared=True)
    assert (model.vocabulary, model.target_vocabulary, model.tied) == (300, None, ("source", "target", "output"))
    assert with_vocabulary(Decoder(), (300, 300), shared=True, named=False) == Decoder(vocabulary=300)
    for target in (400, 300):
        model = fitted((300, target), shared=False)
        assert (model.vocabulary, model.target_size, model.tied) == (300, target, ("target", "output"))
        assert fitted((300, target), shared=False, model=EncoderDecoder(tied=("source", "target"))).tied == ()
        again = fitted((500, 500), shared=True, model=model)
        assert (again.vocabulary, again.target_size) == (500, 500), "the start had two vocabularies"
    large = Decoder(vocabulary=512)
    assert with_vocabulary(large, (300, 300), shared=True, named=True) == large
    with pytest.raises(SettingsError, match=r"model.vocabulary \(200\) is less than the tokenizer's 300; leave it out"):
        with_vocabulary(Decoder(vocabulary=200), (300, 300), shared=True, named=True)
    two = EncoderDecoder(vocabulary=300, target_vocabulary=350, tied=())
    with pytest.raises(SettingsError, match=r"model.target_vocabulary \(350\) is less than the tokenizer's 400"):
        with_vocabulary(two, (300, 400), shared=False, named=True)


def test_removed_settings_of_older_runs_are_ignored_at_their_defaults() -> None:
    """The shipped model was trained by an older version."""
    config = {part: table for part, table in read_config(place_of(MODELS["de-en"])).items() if part in PARTS}
    assert make_job("old", config, {}).data.both  # type: ignore[union-attr]
    assert refused({**PAIRS, "data": {**PAIRS["data"], "variants": 4}}).startswith("unknown setting data.variants")
    muon = {"kind": "muon", "iterations": 5, "adjust": "original"}
    assert make_job("old", {**PAIRS, "train": {"steps": 1, "optimizer": muon}}, {})
    changed = {"steps": 1, "optimizer": {**muon, "iterations": 6}}
    assert refused({**PAIRS, "train": changed}).startswith("unknown setting train.optimizer.iterations")


def test_the_model_of_a_recipe() -> None:
    """Its preset, then its table, then overrides. A kind resets its table only if it differs."""
    longer = preset("gpt2", position=Learned(length=77))
    for model, override, expected in (
        (
            'preset = "gpt2"\ndropout = 0.2\nattention.heads = 6',
            [],
            preset("gpt2", dropout=0.2, attention={"heads": 6}),
        ),
        ('kind = "decoder"\nvocabulary = 9\nposition.kind = "rotary"', [], Decoder(vocabulary=9, position=Rotary())),
        ('preset = "gpt2"\ndropout = 0.2\ndepth = 3', ["dropout=0.3"], preset("gpt2", dropout=0.3, depth=3)),
        ('preset = "gpt2"\ndropout = 0.2', ["preset=llama-tiny"], preset("llama-tiny", dropout=0.2)),
        ('preset = "gpt2"\nposition.length = 77', ["position.kind=learned"], longer),
        ('preset = "gpt2"\nposition.length = 77', ["position.kind=rotary"], preset("gpt2", position=Rotary())),
        ('preset = "gpt2"\nposition.length = 77', ["kind=decoder"], longer),
    ):
        assert model_settings(read_toml(f"[model]\n{model}"), read_overrides(override)) == expected


def test_recipe_files(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    with pytest.raises(SettingsError, match=r"recipe \(.*model.toml\) does not exist"):
        read_recipe(path)
    for content, message in (
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"[model", r"recipe \(.*model.toml\) is not valid TOML"),
        (b"[dta]\ntrain = []\n", r"recipe \(.*model.toml\): unknown setting dta \(did you mean data\?\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            read_recipe(path)
    path.write_text(to_toml(preset("gpt2")), encoding="utf-8")
    assert model_settings(read_recipe(path)) == preset("gpt2")
    path.write_text('preset = "gpt2"\ndropout = 0.0\n', encoding="utf-8")
    assert model_settings(read_recipe(path)) == preset("gpt2", dropout=0.0)


def test_shipped_recipes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, path in recipes().items():
        assert find_recipe(name) == path
        assert is_recipe(name)
        assert name not in preset_names()  # `regard count` takes both
    Path("mine.toml").write_text('task = "language"', encoding="utf-8")
    assert find_recipe("mine.toml") == Path("mine.toml")
    Path("digits").mkdir()  # images of the user: `regard data digits` reads them
    assert not is_recipe("digits")
    assert find_recipe("digits") == recipes()["digits"]
    for name, message in (
        ("grammer", "did you mean grammar"),
        ("recipes/grammar.toml", "has the name grammar"),
        (str(tmp_path), "is a directory"),
    ):
        with pytest.raises(SettingsError, match=message):
            find_recipe(name)


def test_a_recipe_builds_on_another(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "grammar"\n[train]\nsteps = 7\n[model]\ndepth = 3\n')
    (tmp_path / "more.toml").write_text(
        'base = "mine.toml"\n[data]\ntrain_pairs = 50\n[train.optimizer]\nkind = "adamw"\n'
    )
    grammar, mine, more = (read_job(name) for name in ("grammar", tmp_path / "mine.toml", tmp_path / "more.toml"))
    assert (mine.name, mine.train.steps, mine.model["depth"]) == ("mine", 7, 3)
    assert mine.data == grammar.data
    assert (mine.train.tokens, mine.train.optimizer) == (grammar.train.tokens, grammar.train.optimizer)
    assert grammar.reference
    assert not mine.reference  # the curve of another job
    assert (more.train.steps, more.train.optimizer, more.task) == (7, AdamW(), grammar.task)
    for base, words in (('"nothing"', "does not exist"), ("3", "must be a recipe"), ('"wrong.toml"', "builds on it")):
        (tmp_path / "wrong.toml").write_text(f"base = {base}\n")
        with pytest.raises(SettingsError, match=words):
            read_job(tmp_path / "wrong.toml")
