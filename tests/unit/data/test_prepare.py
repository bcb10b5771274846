"""Preparing through files and the cache: made once, found again, made again when anything changes or is damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from text_cases import CORPUS, trained

from regard.data import make as making
from regard.data import prepare as preparing
from regard.data import readers
from regard.data.examples import Reason
from regard.data.forms import PairForm, TextForm
from regard.data.prepare import Preparation, prepare
from regard.data.prepared import Prepared
from regard.data.settings import DataSettings, Grammar, Parallel, ParallelTsv, RawText, Squad
from regard.data.source import Source
from regard.errors import DataError, RegardError, SettingsError
from regard.text.tokenizer import TokenizerPair

pytestmark = pytest.mark.slow

BPE = trained("bpe")
PAIR = TokenizerPair.of(BPE)
SOURCES, TARGETS = CORPUS[:50], CORPUS[50:100]


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


def prepared(settings: DataSettings, **options: int) -> Preparation:
    return prepare(Source(settings, "train"), PairForm(PAIR), **options)  # type: ignore[arg-type]


def stored(prepared: Prepared, side: str) -> list[list[int]]:
    flat, lengths = prepared.gather(side, np.arange(len(prepared)))
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The places of what is made, and not found."""
    places: list[Path] = []
    plain = preparing.make

    def counted(*arguments: object) -> Prepared:
        places.append(arguments[4])  # type: ignore[arg-type]
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(preparing, "make", counted)
    return places


# ------------------------------------------------------------------------------------------------------ what is stored


def test_pairs_as_the_tokenizers_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "CHUNK", 7)
    told: list[tuple[int, int | None]] = []
    found = prepare(Source(pairs(), "train"), PairForm(PAIR), tell=lambda done, size: told.append((done, size)))
    source, target = PAIR.ids(SOURCES, TARGETS)
    (only,) = found.variants
    assert (stored(only, "source"), stored(only, "target")) == (source, target)
    assert (found.counts.examples, found.counts.read, found.labels, found.notes) == (50, 50, None, ())
    assert found.counts.tokens == {"source": sum(map(len, source)), "target": sum(map(len, target))}
    assert told == [(done, None) for done in (7, 14, 21, 28, 35, 42, 49, 50)]


def test_a_long_file_as_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are joined again, wherever they were cut."""
    monkeypatch.setattr(readers, "PIECE", 100)
    monkeypatch.setattr(making, "CHUNK", 3)
    settings = RawText(train=("train.en", "train.de"), document="file")
    found = prepare(Source(settings, "train"), TextForm(trained("bytes")))
    assert found.counts.examples == 2
    decoded = trained("bytes").decode_batch(stored(found.variants[0], "text"))
    assert decoded == [Path(name).read_text(encoding="utf-8") for name in ("train.en", "train.de")]
    assert found.counts.read > 20


def test_what_was_left_out_is_told_again_without_reading(made: list[Path]) -> None:
    Path("train.en").write_bytes(b"the dog\n\xff\n\nthe dog\nthe cat\n" + b"snow " * 40 + b"\n")
    write_lines("train.de", ["der Hund", "x", "y", "der Hund", "Ω Ω", "Schnee"])
    settings = pairs(longest=30).changed({"filters.duplicates": "pair"})
    for _ in range(2):
        counts = prepared(settings).counts
        assert (counts.examples, counts.read) == (2, 3)
        assert counts.too_long == {"has a source of over 30 tokens": Reason(1, ("train.en, line 6",))}
        assert counts.skipped == {
            "is not UTF-8": Reason(1, ("train.en, line 2 (byte 1 is 0xff)",)),
            "is empty": Reason(1, ("train.en, line 3",)),
        }
        assert counts.removed == {"is a duplicate": Reason(1, ("train.en, line 4 (the dog | der Hund)",))}
        assert counts.unknown == {"source": 0, "target": 2}
    assert len(made) == 1


def test_the_smaller_limit_holds() -> None:
    lengths = [
        max(len(source) + 1, len(target) + 1) for source, target in zip(*map(BPE.ids, (SOURCES, TARGETS)), strict=True)
    ]
    by_data, by_model = sorted(lengths)[10], sorted(lengths)[20]
    assert by_data < by_model
    assert prepared(pairs(longest=by_model), longest=by_data).counts.examples == sum(n <= by_data for n in lengths)
    assert prepared(pairs(longest=by_data), longest=by_model).counts.examples == sum(n <= by_data for n in lengths)
    assert prepared(pairs(), longest=by_model).counts.examples == sum(n <= by_model for n in lengths)


def test_nothing_is_left() -> None:
    with pytest.raises(DataError) as caught:
        prepared(pairs(longest=3))
    assert str(caught.value).startswith(
        'data.train has no example left; raise data.longest, or set data.too_long = "truncate":\n50 × has a source of '
        "over 3 tokens: train.en, line 1; train.en, line 2; train.en, line 3; …"
    )
    assert not list(Path("cache/prepared").iterdir())


def test_data_of_another_sort() -> None:
    with pytest.raises(SettingsError, match=r"data.kind \(squad\) gives no examples of the sort that is wanted here"):
        prepare(Source(Squad(train=("a.json",)), "train"), PairForm(PAIR))
    with pytest.raises(SettingsError, match="text"):
        prepare(Source(RawText(train=("train.en",)), "train"), PairForm(PAIR))


# ---------------------------------------------------------------------------------------------------- made once


def test_what_does_not_matter_makes_nothing_anew(made: list[Path]) -> None:
    first = prepared(pairs())
    Path("elsewhere").mkdir()
    for name in ("train.en", "train.de"):
        Path(name).rename(Path("elsewhere") / f"{name}.txt")
    moved = Parallel(root="elsewhere", train=("train.en.txt", "train.de.txt"), valid=("x", "y"), variants=2)
    again = prepared(moved)
    assert again.variants[0].directory == first.variants[0].directory
    assert len(made) == 1


def test_whatever_matters_makes_it_anew(made: list[Path]) -> None:
    other = TokenizerPair(BPE, trained("characters"))
    source = Source(pairs(valid=["train.en", "train.de"]), "valid")
    prepared(pairs())
    prepared(pairs(longest=20))
    prepared(pairs(longest=20, too_long="truncate"))
    prepared(pairs(bad="stop"))
    prepared(pairs().changed({"filters.max_words": 9}))
    prepare(source, PairForm(PAIR))
    prepare(Source(pairs(), "train"), PairForm(other))
    prepared(Parallel(train=("train.de", "train.en")))
    write_lines("train.en", [*SOURCES[:-1], "changed"])
    prepared(pairs())
    assert len(set(made)) == 9


def test_only_training_has_filters_in_its_name(made: list[Path]) -> None:
    for words in (5, 9):
        settings = pairs(valid=["train.en", "train.de"]).changed({"filters.max_words": words})
        prepare(Source(settings, "valid"), PairForm(PAIR))
    assert len(made) == 1


@pytest.mark.parametrize("name", ["source.tokens", "target.offsets", "about.json"])
def test_what_is_damaged_is_made_again_and_told(made: list[Path], name: str) -> None:
    first = prepared(pairs()).variants[0]
    file = first.directory / name
    file.write_bytes(file.read_bytes()[:-3])
    again = prepared(pairs())
    (note,) = again.notes
    assert note.startswith(str(first.directory))
    assert note.endswith("; it was made again")
    assert stored(again.variants[0], "source") == PAIR.ids(SOURCES, TARGETS)[0]
    assert len(made) == 2
    assert prepared(pairs()).notes == ()


# ------------------------------------------------------------------------------------------- interrupted, and at once


def test_what_stops_on_the_way_leaves_nothing() -> None:
    def stop(done: int, size: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(Source(pairs(), "train"), PairForm(PAIR), tell=stop)
    assert not list(Path("cache/prepared").iterdir())


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from regard.data.forms import PairForm
from regard.data.prepare import prepare
from regard.data.settings import Parallel
from regard.data.source import Source
from regard.text.tokenizer import TokenizerPair

def tell(done, size):
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(f"{sys.argv[1]}.ready").touch()
    while not Path("go").exists():
        time.sleep(0.01)

source = Source(Parallel(train=("train.en", "train.de")), "train")
found = prepare(source, PairForm(TokenizerPair.load(".")), tell=tell)
print(found.counts.examples, *found.notes)
"""


def run(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_what_a_killed_process_left_is_swept_away() -> None:
    PAIR.save(".")
    dying = run("die")
    dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL
    (left,) = Path("cache/prepared").iterdir()
    assert f".{dying.pid}." in left.name
    found = prepared(pairs())
    assert found.counts.examples == 50
    assert found.notes == ()
    assert list(Path("cache/prepared").resolve().iterdir()) == [found.variants[0].directory]


def test_two_processes_that_prepare_the_same_at_once() -> None:
    """Both have written all of it, and neither has moved it to its place, when they are let go."""
    PAIR.save(".")
    both = [run("1"), run("2")]
    begun = time.monotonic()
    while not all(Path(f"{name}.ready").exists() for name in (1, 2)) and time.monotonic() < begun + 60:
        time.sleep(0.01)
    Path("go").touch()
    for process in both:
        out, errors = process.communicate(timeout=60)
        assert (out.strip(), errors, process.returncode) == ("50", "", 0)
    assert len(list(Path("cache/prepared").iterdir())) == 1


def test_two_threads_that_prepare_the_same_at_once() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: prepared(pairs()), range(2)))
    assert found[0].counts == found[1].counts
    assert len(list(Path("cache/prepared").iterdir())) == 1


# ----------------------------------------------------------------------------------------------------------- bad input


def damaged(settings: DataSettings) -> str:
    with pytest.raises(RegardError) as caught:
        prepared(settings)
    assert not Path("cache/prepared").exists() or not list(Path("cache/prepared").iterdir())
    return str(caught.value)


def test_unequal_line_counts() -> None:
    write_lines("train.de", TARGETS[:-2])
    assert damaged(pairs()).startswith("train.en has 50 lines, train.de has 48 lines")


def test_an_empty_file() -> None:
    Path("train.en").write_bytes(b"")
    assert damaged(pairs()) == "train.en is empty; give a file with data"


def test_a_binary_file() -> None:
    Path("train.en").write_bytes(b"\x7fELF\0\0")
    assert damaged(pairs()).startswith("train.en is a binary file (byte 4 is zero)")


def test_a_missing_file() -> None:
    assert damaged(Parallel(train=("none.en", "train.de"))).startswith("none.en does not exist")


def test_a_wrong_number_of_columns() -> None:
    Path("a.tsv").write_text("one\ttwo\nthree\nfour\tfive\tsix\nseven\teight\n")
    counts = prepared(ParallelTsv(train=("a.tsv",))).counts
    assert counts.examples == 2
    assert counts.skipped["does not have 2 columns, as the first line has"].count == 2
    with pytest.raises(DataError, match=r"a.tsv, line 2 does not have 2 columns, as the first line has \(it has 1\)"):
        prepared(ParallelTsv(train=("a.tsv",), bad="stop"))


def test_invalid_utf_8_stops_where_that_is_asked_for() -> None:
    Path("train.en").write_bytes(b"\xff\n" * 50)
    assert damaged(pairs(bad="stop")).startswith("train.en, line 1 is not UTF-8 (byte 1 is 0xff)")
    assert damaged(pairs()).startswith("data.train (train.en, train.de) has no usable example\n50 × is not UTF-8")


def test_standard_input_must_be_kept_first() -> None:
    assert damaged(Parallel(train=("-", "train.de"))).startswith("standard input can be read only once")


def test_a_cache_that_cannot_be_written() -> None:
    Path("cache").write_text("a file in its place")
    with pytest.raises(DataError, match=r"the cache \(.*cache\) cannot be written: .*set REGARD_CACHE to a folder"):
        prepared(pairs())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.open

    def full(path: Path, mode: str = "r", *more: object, **named: object) -> object:
        there = Path("/dev/full") if path.name == "source.tokens" and "w" in mode else path
        return plain(there, mode, *more, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    message = damaged(pairs())
    assert message.startswith(f"the cache ({os.environ['REGARD_CACHE']}) cannot be written: No space left on device")


def test_a_limit_without_room() -> None:
    assert damaged(pairs(longest=1)).startswith("the longest example may have 1 tokens, which leaves none for text")


# ----------------------------------------------------------------------------------------------------------- embedded


def test_the_grammar() -> None:
    told: list[tuple[int, int | None]] = []
    source = Source(Grammar(train_pairs=30, direction="de-en"), "train")
    found = prepare(source, PairForm(PAIR), tell=lambda done, size: told.append((done, size)))
    assert told == [(30, 30)]
    expected = PAIR.ids([pair.source for pair in source], [pair.target for pair in source])
    assert (stored(found.variants[0], "source"), stored(found.variants[0], "target")) == expected
