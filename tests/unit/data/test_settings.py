"""Settings of data: TOML in both directions, and messages for mistakes."""

from __future__ import annotations

import pytest
from settings_cases import from_toml, to_toml

from regard.data.settings import AnyData, Columns, Data, FromFiles, Grammar, LabelledTsv, Parallel, ParallelTsv
from regard.errors import SettingsError
from regard.settings import parse, to_table, variants

KINDS = variants(AnyData)


def test_toml_gives_back_an_equal_value() -> None:
    one = LabelledTsv(header=True, text="a", second=3, label="b", labels="absent", unseen="keep", longest=5)
    two = ParallelTsv().changed({"filters": {"ratio": 2.5, "duplicates": "pair"}})
    three = Grammar(direction="de-en", train_pairs=7)
    for settings in (one, two, three, Columns(document_mark="", tag=2), *(cls() for cls in KINDS.values())):
        changes = {"train": ["a", "b"], "root": "x", "bad": "stop"} if isinstance(settings, FromFiles) else {}
        changed = settings.changed(changes)
        assert isinstance(changed, Data)
        assert from_toml(type(changed), to_toml(changed)) == changed
        assert parse(AnyData, to_table(changed)) == changed


def test_mistakes_name_the_setting() -> None:
    for table, named in [
        (
            {"kind": "parallel", "train": ["a.en", "a.de", "b.en"]},
            "data: train has 3 files, expected pairs that belong together",
        ),
        ({"kind": "text", "train": "a.txt"}, r'data\.train: must be a list of files; write \["a\.txt"\]'),
        ({"kind": "labelled-tsv", "text": 0}, r"data\.text: 0 is not a column"),
        ({"kind": "labelled-tsv", "label": "sentiment"}, r"data: label \(sentiment\)"),
        ({"kind": "text", "document": "file", "filters": {"duplicates": True}}, 'data: filters need document = "line"'),
        ({"kind": "parallel", "too_long": "split"}, r"data\.too_long \(split\)"),
        ({"kind": "npz", "pixles": "x"}, r"data\.pixles \(did you mean pixels\?\)"),
        ({"kind": "parallel", "both": True}, r"both = true needs two different languages"),
    ]:
        with pytest.raises(SettingsError, match=named):
            parse(AnyData, table, "data")


def test_settings_of_older_run_directories() -> None:
    """Removed settings are ignored where they had no effect, and refused where they had one."""
    old = {"script_share": 0.5, "source_scripts": [], "target_scripts": [], "source_language": "none"}
    assert parse(AnyData, {"kind": "parallel", "filters": old}, "data") == Parallel()
    assert parse(AnyData, {"kind": "grammar", "seed": 1, "constructions": []}, "data") == Grammar()
    for table, named in [
        ({"kind": "parallel", "filters": {"source_language": "en"}}, r"data\.filters\.source_language"),
        ({"kind": "grammar", "seed": 2}, r"data\.seed"),
    ]:
        with pytest.raises(SettingsError, match=named):
            parse(AnyData, table, "data")
