"""The cache: where it is, what it remembers of files, what it sweeps away, and standard input that is kept."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.data import cache as module
from regard.data.cache import MEMO, REMEMBERED, Cache, beside_name, cache_directory, move, refuse_input, sweep
from regard.data.settings import Grammar, Parallel, RawText
from regard.data.source import Source
from regard.errors import DataError

HOUR_AGO = time.time() - 3600


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def write(file: Path, text: str, when: float = HOUR_AGO) -> Path:
    """A file that was last changed a while ago."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    os.utime(file, (when, when))
    return file


# ----------------------------------------------------------------------------------------------------------- its place


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "name", "posix")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("REGARD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_directory() == Path("/elsewhere/regard")
    monkeypatch.setenv("REGARD_CACHE", "~/here")
    assert cache_directory() == tmp_path / "here"
    assert Cache().root == tmp_path / "here"


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError) as caught:
        Cache(tmp_path / "file").room("prepared")
    assert str(caught.value) == (
        f"the cache ({tmp_path / 'file'}) cannot be written: Not a directory; make room there, or set REGARD_CACHE to "
        "a folder that can be written"
    )


# ------------------------------------------------------------------------------------------------------------- content


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is read for its checksum."""
    names: list[str] = []
    plain = module._checksum

    def counted(path: Path) -> str:
        names.append(path.name)
        return plain(path)

    monkeypatch.setattr(module, "_checksum", counted)
    return names


def test_a_file_is_read_once(cache: Cache, tmp_path: Path, read: list[str]) -> None:
    one, two = write(tmp_path / "one", "same"), write(tmp_path / "two", "same")
    first = cache.checksums([one, two])
    assert first[0] == first[1]
    assert read == ["one", "two"]
    assert Cache(cache.root).checksums([two, one]) == first
    assert read == ["one", "two"]


def test_a_change_is_noticed(cache: Cache, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "abc")
    first = cache.checksums([file])
    write(file, "abd", HOUR_AGO + 1)
    second = cache.checksums([file])
    assert second != first
    write(file, "abc", HOUR_AGO + 2)
    assert cache.checksums([file]) == first


def test_a_file_that_replaces_another_of_the_same_size_and_time_is_noticed(cache: Cache, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "abc")
    first = cache.checksums([file])
    write(tmp_path / "other", "abd").replace(file)
    assert cache.checksums([file]) != first


def test_what_has_just_changed_is_not_remembered(cache: Cache, tmp_path: Path, read: list[str]) -> None:
    """It might change again without another size, and its clock may be too coarse to tell."""
    file = write(tmp_path / "file", "abc", time.time())
    cache.checksums([file])
    cache.checksums([file])
    assert read == ["file", "file"]


def test_a_folder_is_its_names_and_its_bytes(cache: Cache, tmp_path: Path, read: list[str]) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "cat" / "1.png", "one")
        write(tmp_path / name / "dog" / "2.png", "two")
    (same, again) = cache.checksums([tmp_path / "a", tmp_path / "b"])
    assert same == again
    read.clear()
    assert cache.checksums([tmp_path / "a"]) == [same]
    assert read == []
    (tmp_path / "b" / "dog" / "2.png").rename(tmp_path / "b" / "cat" / "2.png")
    write(tmp_path / "a" / "cat" / "1.png", "eno", HOUR_AGO + 1)
    changed = cache.checksums([tmp_path / "a", tmp_path / "b"])
    assert len({same, *changed}) == 3


@pytest.mark.parametrize("content", ["", "[1]", '{"/x": 1}', '{"/x": ["a"]}', "\0"])
def test_a_memo_that_is_lost_or_damaged_costs_only_time(cache: Cache, tmp_path: Path, content: str) -> None:
    file = write(tmp_path / "file", "abc")
    first = cache.checksums([file])
    (cache.root / MEMO).write_text(content)
    assert cache.checksums([file]) == first
    assert len(json.loads((cache.root / MEMO).read_text())) == 1


def test_the_memo_stays_small(cache: Cache, tmp_path: Path) -> None:
    cache.root.mkdir()
    many = {f"/{number}": ["mark", "sum"] for number in range(REMEMBERED + 50)}
    (cache.root / MEMO).write_text(json.dumps(many))
    cache.checksums([write(tmp_path / "file", "abc")])
    kept = json.loads((cache.root / MEMO).read_text())
    assert len(kept) == REMEMBERED
    assert str(tmp_path / "file") in kept


def test_where_nothing_can_be_remembered_checksums_still_come(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    file = write(tmp_path / "file", "abc")
    assert Cache(tmp_path / "in the way").checksums([file]) == Cache(tmp_path / "cache").checksums([file])


def test_a_missing_file_is_told_as_by_whoever_reads_it(cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "none.txt"
    with pytest.raises(DataError) as caught:
        cache.checksums([file])
    with pytest.raises(DataError) as reading:
        list(Source(RawText(train=(str(file),)), "train"))
    assert str(caught.value) == str(reading.value)


# ----------------------------------------------------------------------------------------------------------- leftovers


def leftover(room: Path, host: str, process: int, age: float = 0.0) -> Path:
    path = room / f".name.{host}.{process}.0123abcd"
    write(path / "text.tokens", "half", time.time() - age)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_only_what_the_dead_left_is_swept_away(tmp_path: Path) -> None:
    host, dead, old = module._host(), dead_process(), module.STALE_S + 60
    gone = [leftover(tmp_path, host, dead), leftover(tmp_path, "elsewhere", 1, old)]
    stays = [leftover(tmp_path, host, os.getpid()), leftover(tmp_path, "elsewhere", dead, 3600)]
    stays += [write(tmp_path / "whole" / "about.json", "{}").parent, write(tmp_path / ".other", "")]
    sweep(tmp_path)
    assert [path.exists() for path in gone] == [False, False]
    assert [path.exists() for path in stays] == [True] * 4


def test_names_beside_differ_and_say_who_is_at_work(tmp_path: Path) -> None:
    one, two = beside_name(tmp_path / "x"), beside_name(tmp_path / "x")
    assert one != two
    assert one.name.startswith(".x.")
    assert f".{os.getpid()}." in one.name


def test_the_quicker_one_stays(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1" / "a", "one").parent, write(tmp_path / "2" / "a", "two").parent
    move(first, tmp_path / "place")
    move(second, tmp_path / "place")
    assert (tmp_path / "place" / "a").read_text() == "one"
    assert not second.exists()
    with pytest.raises(OSError, match="No such file"):
        move(tmp_path / "none", tmp_path / "elsewhere")


# ------------------------------------------------------------------------------------------------------ standard input


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_standard_input_is_kept_under_its_content(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Parallel(root="elsewhere", train=("-", "x.de"), valid=("v.en", "v.de"))
    stdin(monkeypatch, b"one\ntwo\n")
    kept = cache.keep_input(settings)
    assert Path(kept.files("train")[0]).read_bytes() == b"one\ntwo\n"
    assert kept.files("train")[1] == "x.de"
    assert kept.files("valid") == settings.files("valid")
    stdin(monkeypatch, b"one\ntwo\n")
    assert cache.keep_input(settings) == kept
    stdin(monkeypatch, b"other\n")
    assert cache.keep_input(settings) != kept
    assert len(list((cache.root / "input").iterdir())) == 2


def test_it_can_then_be_read_again_and_again(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"one\ntwo\n")
    source = Source(cache.keep_input(RawText(root="elsewhere", train=("-",))), "train")
    assert [text.text for text in source] == [text.text for text in source] == ["one", "two"]


def test_other_data_stay_as_they_are(cache: Cache) -> None:
    for settings in (RawText(train=("a",)), Grammar()):
        assert cache.keep_input(settings) is settings


def test_nothing_on_standard_input(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"")
    with pytest.raises(DataError, match="standard input is empty, or was read before; give it data"):
        cache.keep_input(RawText(train=("-",)))


def test_what_is_read_twice_cannot_come_from_there() -> None:
    refuse_input(["a", "b"])
    with pytest.raises(DataError, match="standard input can be read only once, and data are read several times"):
        refuse_input(["a", "-"])
