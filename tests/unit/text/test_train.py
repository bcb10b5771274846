"""Training: vocabularies follow the papers' algorithms and are reproducible; wrong texts raise errors."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from text_cases import CORPUS, KINDS, settings_of, trained

from regard.errors import DataError
from regard.text.settings import Bpe, Bytes, Characters, SpecialTokens, Unigram, WordPiece, Words
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

CASES = Path(__file__).parents[2] / "cases"


def model_of(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.json)["model"]
    return model


def message(settings: Any, texts: Any) -> str:
    with pytest.raises(DataError) as caught:
        train_tokenizer(settings, texts)
    return str(caught.value)


def plain_bpe(counts: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """Sennrich et al. 2016, algorithm 1; of two equally frequent pairs, the one whose pieces are older wins."""
    words = {tuple(word): count for word, count in counts.items()}
    known = sorted({character for word in words for character in word})
    learnt: list[tuple[str, str]] = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], known.index(pair[0]), known.index(pair[1])))
        learnt.append(best)
        known.append("".join(best))
        merged: dict[tuple[str, ...], int] = {}
        for word, count in words.items():
            new: list[str] = []
            for piece in word:
                if new and (new[-1], piece) == best:
                    new[-1] += piece
                else:
                    new.append(piece)
            merged[tuple(new)] = count
        words = merged
    return learnt


def test_merges_are_those_of_the_paper() -> None:
    """On the words of the paper's own example."""
    counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    texts = [" ".join([word] * count) for word, count in counts.items()]
    special = SpecialTokens(pad="", start="", end="", mask="")
    tokenizer = train_tokenizer(Bpe(size=1 + 11 + 6, special=special), texts)
    expected = plain_bpe({f"▁{word}": count for word, count in counts.items()}, 6)
    assert expected[:3] == [("e", "s"), ("es", "t"), ("l", "o")]
    assert [tuple(pair) for pair in model_of(tokenizer)["merges"]] == expected


def test_unigram_takes_the_likeliest_pieces() -> None:
    """Against all ways to cut a word."""
    tokenizer = trained("unigram")
    scores = dict(model_of(tokenizer)["vocab"])
    for word in ["▁Hund", "▁Straße", "▁Größten", "▁läuft", "▁Hundeschnee"]:
        best = -1e9
        for cuts in product([False, True], repeat=len(word) - 1):
            pieces, start = [], 0
            for place, cut in enumerate(cuts, 1):
                if cut:
                    pieces.append(word[start:place])
                    start = place
            pieces.append(word[start:])
            best = max(best, sum(scores.get(piece, -1e6) for piece in pieces))
        found = tokenizer.encode(word[1:], framed=False).tokens
        assert "".join(found) == word
        assert sum(scores[piece] for piece in found) == pytest.approx(best, abs=1e-9)


def test_wordpiece_takes_the_longest_piece_from_the_left() -> None:
    tokenizer = trained("wordpiece")
    vocabulary = model_of(tokenizer)["vocab"]
    for word in ["Hund", "Straße", "neighbour", "walking", "Größten", "Hxund"]:
        rest, pieces = word, []
        while rest:
            mark = "##" if pieces else ""
            piece = next((mark + rest[:n] for n in range(len(rest), 0, -1) if mark + rest[:n] in vocabulary), None)
            if piece is None:
                pieces = ["[UNK]"]
                break
            pieces.append(piece)
            rest = rest[len(piece) - len(mark) :]
        assert tokenizer.encode(word, framed=False).tokens == pieces


def test_words_and_characters_are_the_most_frequent() -> None:
    tokenizer = train_tokenizer(Words(size=5 + 2, split="spaces"), ["a a a b b, c. c.", "a c."])
    assert [tokenizer.token(number) for number in range(5, 7)] == ["a", "c."]
    assert tokenizer.encode("b a", framed=False).tokens == ["<unk>", "a"]
    tokenizer = train_tokenizer(Characters(size=5 + 3), ["banana band"])
    assert [tokenizer.token(number) for number in range(5, 8)] == ["a", "n", "b"]
    assert train_tokenizer(Characters(frequency=2), ["banana band"]).size == 5 + 3


def test_a_byte_is_its_number_behind_the_special_tokens() -> None:
    tokenizer = train_tokenizer(Bytes(), [])
    text = "Ä\x00\r\n😀"
    assert tokenizer.encode(text, framed=False).ids == [4 + byte for byte in text.encode()]
    assert tokenizer.size == 260


CHECKSUMS = """
from text_cases import KINDS, settings_of, CORPUS
from regard.text.train import train_tokenizer
for kind in KINDS:
    print(train_tokenizer(settings_of(kind), CORPUS).checksum)
print(train_tokenizer(settings_of("bpe", alphabet=30), CORPUS).checksum)
"""


def test_another_process_learns_the_same() -> None:
    """Each process iterates over hash tables in another order."""
    ours = [trained(kind).checksum for kind in KINDS]
    ours.append(train_tokenizer(settings_of("bpe", alphabet=30), CORPUS).checksum)
    for _ in range(2):
        command = [sys.executable, "-c", CHECKSUMS]
        theirs = subprocess.run(command, cwd=CASES, capture_output=True, text=True, check=True)
        assert theirs.stdout.split() == ours


def test_order_and_iterators_do_not_matter() -> None:
    for kind in KINDS:
        assert train_tokenizer(settings_of(kind), CORPUS[::-1]) == trained(kind)
        assert train_tokenizer(settings_of(kind), iter(CORPUS)) == trained(kind)


def test_a_limited_alphabet_keeps_the_most_frequent() -> None:
    """▁ counts as a character; d and e are equally frequent, so the smaller code point wins."""
    tokenizer = train_tokenizer(Bpe(size=100, alphabet=4, frequency=9), ["aaa bbb ed f"])
    assert [token for token in model_of(tokenizer)["vocab"] if len(token) == 1] == ["a", "b", "d", "▁"]
    pieces = train_tokenizer(WordPiece(size=100, alphabet=3, frequency=9), ["aaa bbb ed f"])
    assert [token for token in model_of(pieces)["vocab"] if token[0] != "["] == ["a", "b", "d", "##a", "##b", "##d"]


def test_more_characters_than_tokens() -> None:
    texts = [" ".join(chr(0x4E00 + number) for number in range(100))]
    for settings, least in ((Bpe(size=50), 106), (WordPiece(size=50, alphabet=100), 105)):
        found = message(settings, texts)
        assert "text.size (50)" in found
        assert str(least) in found
    # 100 characters, ▁, 5 special tokens and their 11 characters.
    for size in (50, 110, 116):
        assert f"text.size ({size})" in message(Unigram(size=size), texts)
    assert train_tokenizer(Unigram(size=117), texts).size == 117


def test_wrong_texts() -> None:
    def broken() -> Iterator[str]:
        yield "a text"
        raise DataError("line 2 is broken")

    for kind in KINDS[:-1]:
        settings = settings_of(kind)
        for empty in ([], [""], ["", "  ", "\n\t"]):
            assert f"{len(empty)} texts without any characters" in message(settings, empty)
        assert message(settings, ["a", None]) == "texts[1] is a NoneType, expected str"
        assert message(settings, ["ab\ud800c"]).startswith("texts[0] contains a lone surrogate")
        assert message(settings, "abc").startswith("texts ('abc') is a str")
        assert message(settings, broken()) == "line 2 is broken"


def test_very_long_lines_take_little_time() -> None:
    for kind in KINDS:
        for run in ["a", "ab1", " ", "."]:
            begun = time.monotonic()
            line = run * 20_000
            tokenizer = train_tokenizer(settings_of(kind), ["ein Hund", line])
            assert len(tokenizer.encode(line, framed=False)) >= (
                run.strip() != "" or kind in ("byte-bpe", "bytes", "characters")
            )
            assert time.monotonic() - begun < 10, (kind, run)


def test_text_never_becomes_a_special_token() -> None:
    """Not even if the corpus is full of texts that look like one."""
    for kind in ["byte-bpe", "bpe", "unigram", "wordpiece", "characters", "bytes"]:
        sized = kind in ("byte-bpe", "bpe", "unigram", "wordpiece")
        settings = settings_of(kind, size=400) if sized else settings_of(kind)
        looks = [token * 2 + " " + token for token in settings.special.tokens()]
        tokenizer = train_tokenizer(settings, CORPUS + looks * 50)
        for text in looks:
            encoding = tokenizer.encode(text, framed=False)
            assert not {*tokenizer.roles.values()}.intersection(encoding.ids), encoding.tokens
            if kind != "wordpiece":
                assert tokenizer.decode(encoding.ids) == text


def test_progress_is_reported() -> None:
    seen: list[tuple[str, int, int | None]] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        seen.append((stage, done, total))

    train_tokenizer(Bpe(size=50), ["ein Hund"] * 2500, progress)
    assert seen == [("reading", count, 2500) for count in (1000, 2000, 2500)]
    seen.clear()
    train_tokenizer(WordPiece(size=50), ("ein Hund" for _ in range(1500)), progress)
    stages = [("alphabet", 1000), ("alphabet", 1500), ("reading", 1000), ("reading", 1500)]
    assert [(stage, done) for stage, done, _ in seen] == stages
