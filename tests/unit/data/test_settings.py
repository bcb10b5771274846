"""Settings of data: TOML both ways, and what they say about mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.data.base_settings import SPLITS, Data, FromFiles
from regard.data.settings import (
    AnyData,
    Columns,
    Digits,
    Grammar,
    LabelledTsv,
    Parallel,
    ParallelTsv,
    PythonLibrary,
    RawText,
)
from regard.errors import SettingsError
from regard.settings import Settings, from_toml, parse, read_toml, to_table, to_toml, variants
from regard.tasks.recipe import USUAL_KINDS, data_settings

KINDS = variants(AnyData)


def message(action: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_toml_gives_back_an_equal_value(kind: str) -> None:
    changes = {"train": ["a", "b"], "root": "x", "bad": "stop"} if issubclass(KINDS[kind], FromFiles) else {}
    settings = KINDS[kind]().changed(changes)
    assert from_toml(type(settings), to_toml(settings)) == settings
    assert parse(AnyData, to_table(settings)) == settings


def test_changed_values_survive_too() -> None:
    one = LabelledTsv(header=True, text="a", second=3, label="b", labels="absent", unseen="keep", longest=5)
    two = ParallelTsv().changed({"filters": {"source_scripts": ["han", "latin"], "ratio": 2.5, "duplicates": "pair"}})
    three = Grammar(direction="de-en", train_pairs=7)
    for settings in (one, two, three, Columns(document_mark="", tag=2)):
        assert from_toml(type(settings), to_toml(settings)) == settings


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"kind": "parallel", "train": ["a.en", "a.de", "b.en"]},
            "data: train (['a.en', 'a.de', 'b.en']) must name files by twos, the one before the other: 3 cannot be "
            "paired",
        ),
        (
            {"kind": "parallel", "train": ["-", "-"]},
            'data: "-" is named twice, but standard input can be read only once; give files',
        ),
        ({"kind": "text", "train": "a.txt"}, 'data.train: must be a list of files; write ["a.txt"]'),
        (
            {"kind": "labelled-tsv", "text": 0},
            "data.text: 0 is no column; give its number, counted from 1, or its name in the header",
        ),
        (
            {"kind": "labelled-tsv", "label": "sentiment"},
            "data: label (sentiment) names a column, but header is false; set header = true, or give a number",
        ),
        (
            {"kind": "text", "filters": {"min_words": 5, "max_words": 4}},
            "data.filters: min_words (5) must not be above max_words (4); nothing would be left",
        ),
        (
            {"kind": "text", "document": "file", "filters": {"duplicates": True}},
            'data: filters judge lines or paragraphs, but document is "file"; drop the one or the other',
        ),
        (
            {"kind": "text", "filters": {"language": "eng"}},
            "data.filters.language (eng) is not known (did you mean en?); choose one of de, en, es, fr, it, nl",
        ),
        ({"kind": "parallel", "too_long": "split"}, "data.too_long (split) is not known; choose one of skip, truncate"),
        (
            {"kind": "npz", "pixles": "x"},
            "unknown setting data.pixles (did you mean pixels?); known here: bad, kind, label, pixels, root, test, "
            "train, unseen, valid",
        ),
    ],
)
def test_mistakes_name_value_rule_and_remedy(table: dict[str, Any], expected: str) -> None:
    assert message(lambda: parse(AnyData, table, "data")) == expected


# ------------------------------------------------------------------------------------------------------------- recipes

RECIPE = 'task = "translate"\n[data]\ntrain = ["train.en.gz", "train.de.gz"]\n'


def test_a_task_has_its_usual_kind() -> None:
    assert data_settings(read_toml(RECIPE)) == Parallel(train=("train.en.gz", "train.de.gz"))
    assert set(USUAL_KINDS.values()) <= set(KINDS)


def test_a_kind_may_be_given() -> None:
    recipe = read_toml('task = "translate"\n[data]\nkind = "parallel-tsv"\ntrain = ["a.tsv"]\n')
    assert data_settings(recipe) == ParallelTsv(train=("a.tsv",))


def test_changes_come_last() -> None:
    found = data_settings(read_toml(RECIPE), {"root": "/data", "filters": {"ratio": 2.0}})
    assert found.root == "/data"
    assert isinstance(found, Parallel)
    assert found.filters.ratio == 2.0


def test_another_kind_resets_the_table_only_where_the_recipe_names_one() -> None:
    files = ("train.en.gz", "train.de.gz")
    assert data_settings(read_toml(RECIPE), {"kind": "text"}) == RawText(train=files)
    assert data_settings(read_toml(RECIPE + 'kind = "parallel"'), {"kind": "text"}) == RawText()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "data needs a kind, which says how its files are written; choose one of parallel, parallel-tsv"),
        ('task = "classify"\n[data]\ntrain = ["a.tsv"]', "data needs a kind"),
        ('data = "a.tsv"', "data ('a.tsv') must be a table; write [data] and, below it, train = [\"FILE\"]"),
        ('task = "translate"\n[data]\ntrian = ["a", "b"]', "unknown setting data.trian (did you mean train?)"),
        ('[data]\nkind = "paralel"', "data.kind (paralel) is not known (did you mean parallel?)"),
    ],
)
def test_bad_recipes(text: str, expected: str) -> None:
    assert message(lambda: data_settings(read_toml(text))).startswith(expected)


def test_the_splits_that_there_are() -> None:
    assert RawText(train=("a",), test=("b",)).splits == ("train", "test")
    assert RawText().splits == ()
    assert Grammar().splits == Digits().splits == SPLITS
    assert PythonLibrary().splits == ("train", "valid")


def test_an_embedded_corpus_needs_no_files() -> None:
    recipe = read_toml('task = "translate"\n[data]\nkind = "grammar"\ntrain_pairs = 50\n')
    assert data_settings(recipe) == Grammar(train_pairs=50)
    assert data_settings(recipe, {"direction": "de-en"}) == Grammar(train_pairs=50, direction="de-en")
    assert data_settings({"task": "image"}, {"kind": "digits"}) == Digits()


def test_every_kind_is_a_kind_of_data() -> None:
    assert all(issubclass(kind, Data) and issubclass(kind, Settings) for kind in KINDS.values())
