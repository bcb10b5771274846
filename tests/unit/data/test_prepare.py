"""Prepared data and learned tokenizers: their content, and when they are made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from data_cases import texts_of
from hypothesis import given
from hypothesis import strategies as st
from text_cases import CORPUS, settings_of, trained

from regard.data import prepare as preparing
from regard.data import readers
from regard.data.columns import LABELS, Column, LabelColumn, TokenColumn, TokenLabelColumn
from regard.data.examples import Located, Pair, Tagged, Text
from regard.data.prepare import _Shaper, learn_tokenizers, prepare
from regard.data.settings import (
    AnyData,
    Columns,
    DataSettings,
    Grammar,
    LabelledTsv,
    Npz,
    Parallel,
    RawText,
)
from regard.data.source import Source
from regard.data.store import Ragged, Store
from regard.errors import DataError, RegardError, SettingsError
from regard.models.settings import EncoderDecoder
from regard.settings import parse
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.tasks.translate import Translate, TranslateTask
from regard.text.settings import AnyTokenizer, Bytes, Words
from regard.text.tokenizer import SOURCE_FILE, Tokenizer, TokenizerPair, tag
from regard.text.train import train_tokenizer

BPE = trained("bpe")
START, END, UNKNOWN = (BPE.roles[role] for role in ("start", "end", "unknown"))
PAIR = TokenizerPair.of(BPE)
SOURCES, TARGETS = CORPUS[:50], CORPUS[50:100]
PAIRS: dict[str, Column] = {
    "source": TokenColumn(BPE.size, last=END, unknown=UNKNOWN),
    "target": TokenColumn(BPE.size, first=START, last=END, unknown=UNKNOWN, predict=True),
}
DOCUMENT: dict[str, Column] = {"text": TokenColumn(BPE.size, first=START, last=END, unknown=UNKNOWN, predict=True)}
STREAM: dict[str, Column] = {"text": TokenColumn(BPE.size, last=END, unknown=UNKNOWN, predict=True, window=8)}


def framed(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
    return BPE.ids(sources, end=True), [[START, *ids] for ids in BPE.ids(targets, end=True)]


def encode_pairs(examples: Sequence[Pair]) -> Mapping[str, Any]:
    return {
        "source": BPE.ids([example.source for example in examples]),
        "target": BPE.ids([example.target for example in examples]),
    }


def encode_texts(examples: Sequence[Text], tokenizer: Tokenizer = BPE) -> Mapping[str, Any]:
    return {"text": tokenizer.ids([example.text for example in examples])}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    write_lines("train.en", SOURCES)
    write_lines("train.de", TARGETS)


def write_lines(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def pairs(**changes: object) -> Parallel:
    return Parallel(train=("train.en", "train.de")).changed(changes)


def prepared(settings: DataSettings, **options: Any) -> Store:
    return prepare(Source(settings, "train"), PAIRS, encode_pairs, {"tokenizer": BPE.checksum}, **options)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories of what is made, and not found."""
    directories: list[Path] = []
    plain = preparing._make

    def counted(*arguments: Any) -> None:
        directories.append(arguments[3])
        plain(*arguments)

    monkeypatch.setattr(preparing, "_make", counted)
    return directories


texts = st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3).map(" ".join) | st.just("Ω")
limits = st.none() | st.integers(3, 30)
sizes = st.integers(1, 5)


def shaped(
    columns: Mapping[str, Column], examples: Sequence[Any], longest: int | None, way: str, chunk: int
) -> tuple[dict[str, list[list[int]]], int]:
    """What is stored of examples that come in chunks, and how many were too long."""
    shaper = _Shaper(columns, longest, way, {})
    found: dict[str, list[list[int]]] = {name: [] for name in columns}
    located = [Located(example, "a.txt", number) for number, example in enumerate(examples, 1)]
    for start in range(0, len(located), chunk):
        part = list(located[start : start + chunk])
        encode = encode_pairs if "source" in columns else encode_texts
        encoded = {name: Ragged.of(ids) for name, ids in encode([each.example for each in part]).items()}
        for name, ragged in shaper.shape(part, encoded).items():
            found[name] += [tokens.tolist() for tokens in ragged.parts()]
    for name in found:
        assert shaper.unknown[name] == sum(tokens.count(UNKNOWN) for tokens in found[name])
    return found, sum(each["count"] for each in shaper.too_long.values())


@given(
    st.lists(st.builds(Pair, texts, texts, st.none()), max_size=6), limits, st.sampled_from(["skip", "truncate"]), sizes
)
def test_pairs(pairs: list[Pair], longest: int | None, way: str, chunk: int) -> None:
    expected: dict[str, list[list[int]]] = {"source": [], "target": []}
    over = 0
    for pair in pairs:
        ((source,), (target,)) = framed([pair.source], [pair.target])
        if longest is not None and (len(source) > longest or len(target) - 1 > longest):
            over += 1
            if way == "skip":
                continue
            source = source if len(source) <= longest else [*source[: longest - 1], END]
            target = target if len(target) - 1 <= longest else [*target[:longest], END]
        expected["source"].append(source)
        expected["target"].append(target)
    assert shaped(PAIRS, pairs, longest, way, chunk) == (expected, over)


def documents(pieces: list[Text]) -> list[list[int]]:
    """The ids of each document, of one or several pieces."""
    found: list[list[int]] = [[]]
    for piece in pieces:
        found[-1] += BPE.ids([piece.text])[0]
        if piece.ends:
            found.append([])
    return found[:-1]


pieces = st.lists(st.builds(Text, texts, st.booleans()), max_size=8).map(lambda found: [*found, Text("Ende")])


@given(pieces, limits, st.sampled_from(["skip", "truncate", "split"]), sizes)
def test_documents_and_streams(given: list[Text], longest: int | None, way: str, chunk: int) -> None:
    expected: list[list[int]] = []
    over = 0
    for ids in documents(given):
        room = len(ids) if longest is None else longest - 1
        over += len(ids) > room
        if len(ids) <= room:
            parts = [ids]
        elif way == "skip":
            parts = []
        else:
            parts = [ids[start : start + room] for start in range(0, len(ids) if way == "split" else 1, room)]
        expected += [[START, *part, END] for part in parts]
    assert shaped(DOCUMENT, given, longest, way, chunk) == ({"text": expected}, over)
    # A stream has no limit, and an end only after a whole document.
    found, over = shaped(STREAM, given, longest, way, chunk)
    assert [token for tokens in found["text"] for token in tokens] == [
        token for ids in documents(given) for token in [*ids, END]
    ]
    assert over == 0


def test_memory_does_not_grow_with_a_document_that_is_cut() -> None:
    for way in ("skip", "truncate", "split"):
        shaper = _Shaper(DOCUMENT, 20, way, {})
        for number in range(50):
            example = Text(CORPUS[number], ends=False)
            shaper.shape([Located(example, "a", number)], {"text": Ragged.of(encode_texts([example])["text"])})
            assert sum(map(len, shaper._open)) <= 20 + 60
        assert sum(each["count"] for each in shaper.too_long.values()) == 1


def test_pairs_from_files_and_from_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "CHUNK", 7)
    progress: list[str] = []
    found = prepared(pairs(), report=progress.append)
    source, target = framed(SOURCES, TARGETS)
    assert (texts_of(found, "source"), texts_of(found, "target")) == (source, target)
    assert (found.size, found.about["read"], found.about["labels"]) == (50, 50, {})
    assert found.about["tokens"] == {"source": sum(map(len, source)), "target": sum(map(len, target))}
    assert progress == [f"preparing train: {done} examples" for done in (7, 14, 21, 28, 35, 42, 49, 50)]
    grammar = Source(Grammar(train_pairs=30, direction="de-en"), "train")
    found = prepare(grammar, PAIRS, encode_pairs, {})
    expected = framed([pair.source for pair in grammar], [pair.target for pair in grammar])  # type: ignore[union-attr]
    assert (texts_of(found, "source"), texts_of(found, "target")) == expected


def test_a_long_file_as_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are joined again, wherever they were cut."""
    monkeypatch.setattr(readers, "PIECE", 100)
    monkeypatch.setattr(preparing, "CHUNK", 3)
    tokenizer = trained("bytes")
    columns = {"text": TokenColumn(tokenizer.size, first=tokenizer.role("start"), last=tokenizer.role("end"))}
    settings = RawText(train=("train.en", "train.de"), document="file")
    found = prepare(Source(settings, "train"), columns, lambda texts: encode_texts(texts, tokenizer), {})
    assert found.size == 2
    decoded = tokenizer.decode_batch(texts_of(found, "text"))
    assert decoded == [Path(name).read_text(encoding="utf-8") for name in ("train.en", "train.de")]
    assert found.about["read"] > 20


def test_labels_are_learned_and_then_known() -> None:
    """Classes are numbered in the order of their names; None has no class, and special tokens have none."""
    Path("train.txt").write_text("the B\ndog A\n\na A\ncat C\n\n")
    Path("valid.txt").write_text("a C\nbird D\n\n")
    data = Columns(train=("train.txt",), valid=("valid.txt",), unseen="keep")
    columns = {"text": TokenColumn(300, first=1, last=2), "tags": TokenLabelColumn(of="text"), "label": LabelColumn()}

    def encode(examples: Sequence[Tagged]) -> Mapping[str, Any]:
        return {
            "text": [[byte for word in example.words for byte in word.encode()] for example in examples],
            "tags": [
                [
                    tag if n == 0 else None
                    for word, tag in zip(example.words, example.tags, strict=True)
                    for n, _ in enumerate(word)
                ]
                for example in examples
            ],
            "label": [str(len(example.words[0])) for example in examples],
        }

    none = LABELS - 1
    train = prepare(Source(data, "train"), columns, encode, {})
    assert train.about["labels"] == {"tags": ["A", "B", "C"], "label": ["1", "3"]}
    assert texts_of(train, "tags") == [[none, 1, none, none, 0, none, none, none], [none, 0, 2, none, none, none]]
    assert texts_of(train, "label") == [[1], [0]]
    assert all(
        len(tags) == len(text) for tags, text in zip(texts_of(train, "tags"), texts_of(train, "text"), strict=True)
    )
    valid = prepare(Source(data, "valid"), columns, encode, {}, labels=train.about["labels"])
    assert valid.about["labels"] == train.about["labels"]
    assert texts_of(valid, "tags") == [[none, 2, 3, none, none, none, none]], "a class beyond the known ones"
    assert [reason["count"] for reason in valid.about["unseen"].values()] == [1]
    cut = prepare(Source(data.changed({"longest": 5}), "train"), columns, encode, {})
    assert texts_of(cut, "tags") == [[none, 1, none, none, none], [none, 0, 2, none, none]]
    with pytest.raises(DataError, match="D"):
        prepare(Source(data.changed({"unseen": "stop"}), "valid"), columns, encode, {}, labels=train.about["labels"])
    with pytest.raises(DataError, match=r"data\.valid"):
        prepare(Source(data.changed({"unseen": "skip"}), "valid"), columns, encode, {}, labels=train.about["labels"])


def test_what_was_left_out_is_known_without_reading_again(made: list[Path]) -> None:
    Path("train.en").write_bytes(b"the dog\n\xff\n\nthe dog\nthe cat\n" + b"snow " * 40 + b"\n")
    write_lines("train.de", ["der Hund", "x", "y", "der Hund", "Ω Ω", "Schnee"])
    settings = pairs(longest=30).changed({"filters.duplicates": "pair"})
    for _ in range(2):
        counts = prepared(settings).about
        assert (counts["examples"], counts["read"]) == (2, 3)
        assert counts["too_long"] == {"has a source of over 30 tokens": {"count": 1, "first": ["train.en, line 6"]}}
        assert [*counts["skipped"]] == ["is not UTF-8", "is empty"]
        assert [*counts["removed"]] == ["is a duplicate"]
        assert counts["unknown"] == {"source": 0, "target": 2}
    assert len(made) == 1


def test_the_smaller_limit_holds() -> None:
    lengths = [
        max(len(source) + 1, len(target) + 1) for source, target in zip(*map(BPE.ids, (SOURCES, TARGETS)), strict=True)
    ]
    by_data, by_model = sorted(lengths)[10], sorted(lengths)[20]
    assert by_data < by_model
    assert prepared(pairs(longest=by_model), longest=by_data).size == sum(n <= by_data for n in lengths)
    assert prepared(pairs(longest=by_data), longest=by_model).size == sum(n <= by_data for n in lengths)
    assert prepared(pairs(), longest=by_model).size == sum(n <= by_model for n in lengths)
    with pytest.raises(DataError, match=r"data\.longest(.|\n)*50 × has a source of over 3 tokens"):
        prepared(pairs(longest=3))


def test_whatever_matters_makes_it_again(made: list[Path]) -> None:
    valid = Source(pairs(valid=["train.en", "train.de"]), "valid")
    found = [
        prepared(pairs()),
        prepared(pairs(longest=20)),
        prepared(pairs(longest=20, too_long="truncate")),
        prepared(pairs(bad="stop")),
        prepared(pairs().changed({"filters.max_words": 9})),
        prepare(valid, PAIRS, encode_pairs, {}),
        prepare(Source(pairs(), "train"), PAIRS, encode_pairs, {"tokenizer": "another"}),
        prepare(Source(pairs(), "train"), {**PAIRS, "source": TokenColumn(BPE.size)}, encode_pairs, {}),
        prepared(Parallel(train=("train.de", "train.en"))),
    ]
    write_lines("train.en", [*SOURCES[:-1], "changed"])
    found.append(prepared(pairs()))
    assert len({each.directory for each in found}) == len(made) == 10
    # Filters change only the training data.
    for words in (5, 9):
        prepare(Source(valid.settings.changed({"filters.max_words": words}), "valid"), PAIRS, encode_pairs, {})
    assert len(made) == 11


def test_what_is_damaged_is_made_again(made: list[Path]) -> None:
    for number, name in enumerate(("source.values", "target.offsets", "about.json"), 1):
        file = prepared(pairs()).directory / name
        file.write_bytes(file.read_bytes()[:-3])
        again = prepared(pairs())
        assert texts_of(again, "source") == framed(SOURCES, TARGETS)[0]
        assert len(made) == 1 + number


SCRIPT = """
import sys, time
from pathlib import Path
from regard.data.columns import TokenColumn
from regard.data.prepare import prepare
from regard.data.settings import RawText
from regard.data.source import Source

def report(done):
    Path(f"{sys.argv[1]}.ready").touch()
    while not Path("go").exists():
        time.sleep(0.01)

def encode(texts):
    return {"text": [list(text.text.encode()) for text in texts]}

source = Source(RawText(train=("train.en",)), "train")
print(prepare(source, {"text": TokenColumn(256)}, encode, {}, report=report).size)
"""


@pytest.mark.slow
def test_two_processes_that_prepare_the_same_at_once() -> None:
    """Both have written everything, and neither has renamed it, when they continue."""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in ("1", "2")
    ]
    begun = time.monotonic()
    while not all(Path(f"{name}.ready").exists() for name in (1, 2)) and time.monotonic() < begun + 60:
        time.sleep(0.01)
    Path("go").touch()
    for process in both:
        out, errors = process.communicate(timeout=60)
        assert (out.strip(), errors, process.returncode) == ("50", "", 0)
    assert len(list(Path("cache/prepared").iterdir())) == 1


def test_bad_input_is_an_error_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(settings: DataSettings) -> str:
        with pytest.raises(RegardError) as caught:
            prepared(settings)
        assert not Path("cache/prepared").exists() or not list(Path("cache/prepared").iterdir())
        return str(caught.value)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(pairs(), report=interrupt)
    assert not list(Path("cache/prepared").iterdir())
    write_lines("train.de", TARGETS[:-2])
    assert "48" in message(pairs())
    assert "none.en" in message(Parallel(train=("none.en", "train.de")))
    assert "data.longest" in message(pairs(longest=1))
    write_lines("train.en", SOURCES[:-2])
    if Path("/dev/full").exists():
        plain = Path.open

        def full(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            return plain(
                Path("/dev/full") if path.name == "source.values" and "w" in mode else path, mode, *more, **named
            )

        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", full)
            assert os.environ["REGARD_CACHE"] in message(pairs())
    long = {"text": [[1] * 9] * 48, "label": ["a"] * 48}
    columns = {"text": TokenColumn(9), "label": LabelColumn()}
    with pytest.raises(SettingsError, match="split"):
        prepare(Source(RawText(train=("train.en",)), "train"), columns, lambda _: long, {}, longest=5)


def text(**changes: object) -> AnyTokenizer:
    found: AnyTokenizer = parse(AnyTokenizer, settings_of("bpe", **changes).model_dump())
    return found


def raw(name: str = "train.en") -> Source:
    return Source(RawText(train=(name,)), "train")


def test_tokenizers_are_learned_from_all_texts() -> None:
    source = Source(pairs(), "train")
    progress: list[tuple[object, ...]] = []
    found = learn_tokenizers(source, text(), report=lambda *stage: progress.append(stage))
    assert found.shared
    assert found.source == train_tokenizer(text(), [*TARGETS, *SOURCES])
    assert progress == [("reading", 100, 100)]
    separate = learn_tokenizers(source, text(shared=False))
    learned = (train_tokenizer(text(shared=False), texts) for texts in (SOURCES, TARGETS))
    assert separate == TokenizerPair(*learned)
    assert not separate.shared
    assert learn_tokenizers(raw(), text()) == TokenizerPair.of(train_tokenizer(text(), SOURCES))
    Path("a.tsv").write_text("".join(f"{one}\t{two}\tx\n" for one, two in zip(SOURCES, TARGETS, strict=True)), "utf-8")
    labelled = Source(LabelledTsv(train=("a.tsv",), text=1, second=2, label=3), "train")
    found = learn_tokenizers(labelled, text(shared=False))
    assert found == TokenizerPair.of(train_tokenizer(text(shared=False), [*SOURCES, *TARGETS]))
    Path("a.en").write_bytes(b"\0 no text")
    assert learn_tokenizers(raw("a.en"), Bytes()).source == train_tokenizer(Bytes(), []), "bytes need no data"


def test_tokenizers_are_learned_once_and_again_after_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []

    def counted(settings: AnyTokenizer, *rest: Any) -> Tokenizer:
        learned.append(settings.kind)
        return train_tokenizer(settings, *rest)

    monkeypatch.setattr(preparing, "train_tokenizer", counted)
    first = learn_tokenizers(raw(), text())
    assert learn_tokenizers(raw(), text()) == first
    assert len(learned) == 1
    (file,) = Path("cache/tokenizers").glob("*/tokenizer.json")
    file.write_text(file.read_text()[:-10])
    assert learn_tokenizers(raw(), text()) == first
    learn_tokenizers(raw(), text(size=150))
    learn_tokenizers(raw(), text(), most=20)
    write_lines("train.en", [*SOURCES[:-1], "another"])
    learn_tokenizers(raw(), text())
    assert len(learned) == 5
    assert len(list(Path("cache/tokenizers").iterdir())) == 4
    learn_tokenizers(Source(pairs(), "train"), text(shared=False))
    next(Path("cache/tokenizers").glob(f"*/{SOURCE_FILE}")).unlink()
    assert not learn_tokenizers(Source(pairs(), "train"), text(shared=False)).shared


def test_tokenizers_that_cannot_be_learned() -> None:
    def stop(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_tokenizers(raw(), text(), report=stop)
    assert not list(Path("cache/tokenizers").iterdir())
    with pytest.raises(SettingsError, match=r"data\.kind \(npz\)"):
        learn_tokenizers(Source(Npz(train=("a.npz",)), "train"), text())
    write_lines("train.de", ["one line"])
    with pytest.raises(DataError, match=r"train\.en has 50 lines, train\.de has 1"):
        learn_tokenizers(Source(pairs(), "train"), text())
    shutil.rmtree("cache")
    Path("cache").write_text("")
    with pytest.raises(DataError, match="REGARD_CACHE"):
        learn_tokenizers(raw(), text())


def test_pairs_in_both_directions() -> None:
    """Each pair comes both ways, and its source begins with a tag of the target language."""
    data = pairs(languages=["en", "de"], both=True)
    assert data.directions == (("en", "de"), ("de", "en"))
    both: list[Any] = list(Source(data, "train"))
    assert both[:2] == [Pair(SOURCES[0], TARGETS[0], "de"), Pair(TARGETS[0], SOURCES[0], "en")]
    one_way = pairs(languages=["en", "de"])
    assert one_way.directions == (("en", "de"),)
    assert next(iter(Source(one_way, "train"))) == Pair(SOURCES[0], TARGETS[0])
    assert pairs().directions == ()
    grammar = Source(Grammar(direction="de-en", both=True, valid_pairs=3), "valid")
    assert [pair.to for pair in grammar] == ["en", "de"] * 3  # type: ignore[union-attr]
    special = {"extra": [tag("de"), tag("en")]}
    tokenizers = TokenizerPair.of(train_tokenizer(parse(Words, {"special": special}, "text"), CORPUS))
    sources = TranslateTask(Translate(), EncoderDecoder(), tokenizers).encode(both)["source"]
    for pair, ids in zip(both, sources, strict=True):
        assert ids == [tokenizers.source.extra[tag(pair.to)], *tokenizers.source.ids([pair.source])[0]]
        inputs = tokenizers.inputs([pair.source], [pair.to])
        assert inputs == [[*ids, tokenizers.source.role("end")]], "training and use agree"
    with pytest.raises(SettingsError, match=r"data\.both.*<2de>"):
        TranslateTask(Translate(), EncoderDecoder(), PAIR).encode(both)
    recipe = {
        "task": "translate",
        "data": data.model_dump(),
        "text": {"kind": "words"},
        "model": {"preset": "transformer-tiny", "depth": 1},
        "train": {"steps": 1},
    }
    task = prepare_job(make_job("both", recipe, {}), torch.device("cpu"))
    assert set(task.tokenizers.source.extra) == {"<2de>", "<2en>"}
    with pytest.raises(SettingsError, match=r"text\.shared"):
        make_job("both", recipe, {"text": {"shared": False}})
    for languages, wrong in (("none", "both"), (["en", "en"], "both"), (["e n", "de"], "languages")):
        with pytest.raises(SettingsError, match=wrong):
            parse(AnyData, {**data.model_dump(), "languages": languages}, "data")
