"""Tokenizers learnt from a split: what they are learnt from, and that they are learnt once."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_cases import CORPUS, settings_of

from regard.data import prepare
from regard.data.prepare import _Sample, learn_tokenizers
from regard.data.settings import LabelledTsv, Npz, Parallel, RawText
from regard.data.source import Source
from regard.errors import DataError, SettingsError
from regard.settings import parse
from regard.text.settings import AnyTokenizer, Bytes
from regard.text.tokenizer import SOURCE_FILE, TokenizerPair
from regard.text.train import train_pair, train_tokenizer

SOURCES, TARGETS = CORPUS[:80], CORPUS[80:160]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for name, lines in (("a.en", SOURCES), ("a.de", TARGETS)):
        Path(name).write_text("\n".join(lines), encoding="utf-8")


def pairs() -> Source:
    return Source(Parallel(train=("a.en", "a.de")), "train")


def text(**changes: object) -> AnyTokenizer:
    found: AnyTokenizer = parse(AnyTokenizer, settings_of("bpe", **changes).model_dump())
    return found


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was trained, and not found."""
    trained: list[str] = []

    def counted(settings: AnyTokenizer, *rest: object) -> object:
        trained.append(settings.kind)
        return train_tokenizer(settings, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "train_tokenizer", counted)
    return trained


def test_one_tokenizer_from_both_sides() -> None:
    found = learn_tokenizers(pairs(), text())
    assert found.shared
    assert found.source == train_tokenizer(text(), [*TARGETS, *SOURCES])


def test_one_for_each_side() -> None:
    found = learn_tokenizers(pairs(), text(shared=False))
    assert found == train_pair(text(shared=False), SOURCES, TARGETS)
    assert not found.shared


def test_raw_and_labelled_texts() -> None:
    found = learn_tokenizers(Source(RawText(train=("a.en",)), "train"), text())
    assert found == TokenizerPair.of(train_tokenizer(text(), SOURCES))
    Path("a.tsv").write_text("".join(f"{one}\t{two}\tx\n" for one, two in zip(SOURCES, TARGETS, strict=True)), "utf-8")
    labelled = LabelledTsv(train=("a.tsv",), text=1, second=2, label=3)
    found = learn_tokenizers(Source(labelled, "train"), text(shared=False))
    assert found.source == train_tokenizer(text(shared=False), [*SOURCES, *TARGETS])
    assert found.shared


def test_it_is_learnt_once(once: list[str]) -> None:
    first = learn_tokenizers(pairs(), text())
    assert learn_tokenizers(pairs(), text()) == first
    assert len(once) == 1
    learn_tokenizers(pairs(), text(size=150))
    learn_tokenizers(pairs(), text(), most=50)
    Path("a.en").write_text("\n".join([*SOURCES[:-1], "another"]), encoding="utf-8")
    learn_tokenizers(pairs(), text())
    assert len(once) == 4
    assert len(list(Path("cache/tokenizers").iterdir())) == 4


def test_a_damaged_one_is_learnt_again(once: list[str]) -> None:
    first = learn_tokenizers(Source(RawText(train=("a.en",)), "train"), text())
    (file,) = Path("cache/tokenizers").glob("*/tokenizer.json")
    file.write_text(file.read_text()[:-10])
    assert learn_tokenizers(Source(RawText(train=("a.en",)), "train"), text()) == first
    assert len(once) == 2
    learn_tokenizers(pairs(), text(shared=False))
    next(Path("cache/tokenizers").glob(f"*/{SOURCE_FILE}")).unlink()
    assert not learn_tokenizers(pairs(), text(shared=False)).shared


def test_what_stops_it_leaves_nothing() -> None:
    def stop(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_tokenizers(pairs(), text(), report=stop)
    assert not list(Path("cache/tokenizers").iterdir())


@pytest.mark.parametrize("most", [1, 2, 7, 40, 79, 80, 81, 1000])
def test_a_sample_is_spread_evenly(most: int) -> None:
    numbers = [SOURCES.index(found) for found in _Sample(pairs(), most, "source")]
    assert len(numbers) == len(_Sample(pairs(), most, "source")) == min(80, most)
    gaps = [after - before for before, after in zip([-1, *numbers], [*numbers, 80], strict=True)][1:-1]
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert numbers[-1] == 79


def test_a_sample_of_pairs_has_both_sides() -> None:
    found = list(_Sample(pairs(), 40))
    assert len(found) == len(_Sample(pairs(), 40)) == 40
    assert len(set(found) & set(SOURCES)) == len(set(found) & set(TARGETS)) == 20


def test_progress_is_told() -> None:
    told: list[tuple[object, ...]] = []
    found = learn_tokenizers(pairs(), text(), report=lambda *progress: told.append(progress))
    assert told == [("reading", 160, 160), ("done", found.source.size, 160)]


def test_bytes_need_no_reading() -> None:
    Path("a.en").write_bytes(b"\0 no text")
    found = learn_tokenizers(Source(RawText(train=("a.en",)), "train"), Bytes())
    assert found.source == train_tokenizer(Bytes(), [])


def test_data_without_texts() -> None:
    with pytest.raises(SettingsError, match=r"data.kind \(npz\) has no texts to learn a tokenizer from"):
        learn_tokenizers(Source(Npz(train=("a.npz",)), "train"), text())


def test_bad_data_are_told_as_they_are() -> None:
    Path("a.de").write_text("one line", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.en has 80 lines, a.de has 1"):
        learn_tokenizers(pairs(), text())
    with pytest.raises(DataError, match="standard input can be read only once"):
        learn_tokenizers(Source(RawText(train=("-",)), "train"), text())
    Path("cache").rename("old")
    Path("cache").write_text("")
    with pytest.raises(DataError, match="set REGARD_CACHE to a folder"):
        learn_tokenizers(Source(RawText(train=("a.en",)), "train"), text())
