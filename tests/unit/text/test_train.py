"""Training: the vocabularies are those of the papers' algorithms, the same each time, and bad texts are named."""

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
from regard.text.learn import byte_signs
from regard.text.settings import Bpe, ByteBpe, Bytes, Characters, SpecialTokens, Unigram, WordPiece, Words
from regard.text.tokenizer import Tokenizer
from regard.text.train import Progress, train, train_pair

CASES = Path(__file__).parents[2] / "cases"


def model_of(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.json)["model"]
    return model


def message(settings: Any, texts: Any) -> str:
    with pytest.raises(DataError) as caught:
        train(settings, texts)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------------- algorithms


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
    tokenizer = train(Bpe(size=1 + 11 + 6, special=special), texts)
    expected = plain_bpe({f"▁{word}": count for word, count in counts.items()}, 6)
    assert expected[:3] == [("e", "s"), ("es", "t"), ("l", "o")]
    assert [tuple(pair) for pair in model_of(tokenizer)["merges"]] == expected


def test_a_frequency_is_the_least_that_is_merged() -> None:
    tokenizer = train(Bpe(size=100, frequency=3), ["ab ab ab cd cd"])
    assert ["a", "b"] in model_of(tokenizer)["merges"]
    assert tokenizer.id("cd") is None


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


def test_words_are_the_commonest() -> None:
    tokenizer = train(Words(size=5 + 2, split="spaces"), ["a a a b b, c. c.", "a c."])
    assert [tokenizer.token(number) for number in range(5, 7)] == ["a", "c."]
    assert tokenizer.encode("b a", framed=False).tokens == ["<unk>", "a"]


def test_characters_are_the_commonest() -> None:
    tokenizer = train(Characters(size=5 + 3), ["banana band"])
    assert [tokenizer.token(number) for number in range(5, 8)] == ["a", "n", "b"]
    assert train(Characters(frequency=2), ["banana band"]).size == 5 + 3


def test_a_byte_is_its_number_behind_the_special_tokens() -> None:
    tokenizer = train(Bytes(), [])
    text = "Ä\x00\r\n😀"
    assert tokenizer.encode(text, framed=False).ids == [4 + byte for byte in text.encode()]
    assert tokenizer.size == 260


def test_the_signs_of_bytes_are_those_of_gpt2() -> None:
    from tokenizers import pre_tokenizers

    assert sorted(byte_signs()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for text in ["abc", "Ä ß", "\n\t日本"]:
        ((word, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert word == "".join(byte_signs()[byte] for byte in text.encode())


# ------------------------------------------------------------------------------------------------------- determinism


CHECKSUMS = """
from text_cases import KINDS, settings_of, CORPUS
from regard.text.train import train
for kind in KINDS:
    print(train(settings_of(kind), CORPUS).checksum)
print(train(settings_of("bpe", alphabet=30), CORPUS).checksum)
"""


def test_another_process_learns_the_same() -> None:
    """Hash tables of the library are in another order in each process."""
    ours = [trained(kind).checksum for kind in KINDS]
    ours.append(train(settings_of("bpe", alphabet=30), CORPUS).checksum)
    for _ in range(2):
        theirs = subprocess.run(
            [sys.executable, "-c", CHECKSUMS], cwd=CASES, capture_output=True, text=True, check=True
        )
        assert theirs.stdout.split() == ours


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_texts_does_not_matter(kind: str) -> None:
    assert train(settings_of(kind), CORPUS[::-1]) == trained(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterator_is_as_good_as_a_list(kind: str) -> None:
    assert train(settings_of(kind), iter(CORPUS)) == trained(kind)


# ------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "words"])
def test_a_small_corpus_gives_a_small_vocabulary(kind: str) -> None:
    seen: list[Progress] = []
    tokenizer = train(settings_of(kind, size=5000), ["ein Hund, ein Hund"], seen.append)
    assert tokenizer.size < 300
    assert seen[-1] == Progress("done", tokenizer.size, 5000)
    assert tokenizer.decode(tokenizer.encode("ein Hund").ids) == "ein Hund"


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece"])
def test_the_size_is_the_one_asked_for(kind: str) -> None:
    assert trained(kind).size == settings_of(kind).size


def test_a_limited_alphabet_keeps_the_commonest() -> None:
    """▁ counts as one; d and e are equally frequent, so the first by code point stays."""
    tokenizer = train(Bpe(size=100, alphabet=4, frequency=9), ["aaa bbb ed f"])
    assert [token for token in model_of(tokenizer)["vocab"] if len(token) == 1] == ["a", "b", "d", "▁"]
    pieces = train(WordPiece(size=100, alphabet=3, frequency=9), ["aaa bbb ed f"])
    assert [token for token in model_of(pieces)["vocab"] if token[0] != "["] == ["a", "b", "d", "##a", "##b", "##d"]


@pytest.mark.parametrize(("settings", "least"), [(Bpe(size=50), 106), (WordPiece(size=50, alphabet=100), 105)])
def test_more_characters_than_tokens(settings: Any, least: int) -> None:
    text = " ".join(chr(0x4E00 + number) for number in range(100))
    assert message(settings, [text]) == (
        f"the texts have so many different characters that single ones and special tokens alone make {least} tokens, "
        "and text.size is 50; raise it, or keep fewer characters with text.alphabet"
    )


def test_more_characters_than_unigram_has_room_for() -> None:
    """100 characters, ▁, 5 special tokens and the 11 characters of these: 117."""
    texts = [" ".join(chr(0x4E00 + number) for number in range(100))]
    for size in (50, 110, 116):
        assert message(Unigram(size=size), texts) == (
            f"text.size ({size}) is too small for the characters of the texts, each of which is a token; "
            "raise it, or choose kind = byte-bpe"
        )
    assert train(Unigram(size=117), texts).size == 117


def test_a_piece_is_no_longer_than_the_setting() -> None:
    texts = ["Donaudampfschifffahrt"] * 5
    assert max(len(token) for token in model_of(train(Bpe(size=500, longest_piece=6), texts))["vocab"]) == 6
    pieces = [piece for piece, _ in model_of(train(Unigram(size=500, longest_piece=5), texts))["vocab"][5:]]
    assert max(map(len, pieces)) <= 5


# --------------------------------------------------------------------------------------------------------- odd texts


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("texts", [[], [""], ["", "  ", "\n\t"]])
def test_nothing_to_learn_from(kind: str, texts: list[str]) -> None:
    assert message(settings_of(kind), texts) == (
        f"there is nothing to learn a tokenizer from: {len(texts)} texts were read, and none holds a character; "
        "give it texts"
    )


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_what_is_no_text(kind: str) -> None:
    settings = settings_of(kind)
    assert message(settings, ["a", None]) == "text 2 (None) is no text but NoneType; give strings"
    assert message(settings, ["ab\ud800c"]) == (
        "text 1 has a lone surrogate ('\\ud800') at character 3, which no file in UTF-8 can hold; "
        "read its file with errors='replace'"
    )
    assert message(settings, "abc") == (
        "the texts are a single one ('abc'); give a list of texts, such as a file's lines"
    )


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_an_error_of_the_source_comes_through(kind: str) -> None:
    def source() -> Iterator[str]:
        yield "a text"
        raise DataError("line 2 is broken")

    assert message(settings_of(kind), source()) == "line 2 is broken"


@pytest.mark.parametrize("kind", KINDS)
def test_control_characters_and_every_plane(kind: str) -> None:
    odd = "\x00 \x01\x02 \u200b\ufeff \u2028x\x85 \U0010ffff \U0001f600\u0301 א\u05b7 \ufffd"
    tokenizer = train(settings_of(kind), [*CORPUS, odd])
    assert isinstance(tokenizer.decode(tokenizer.encode(odd).ids), str)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", ["a", "ab1", " ", "."])
def test_a_very_long_line_ends_in_good_time(kind: str, run: str) -> None:
    begun = time.monotonic()
    line = run * 60_000
    tokenizer = train(settings_of(kind), ["ein Hund", line])
    assert len(tokenizer.encode(line, framed=False)) >= (
        run.strip() != "" or kind in ("byte-bpe", "bytes", "characters")
    )
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "characters", "bytes"])
def test_text_never_becomes_a_special_token(kind: str) -> None:
    """Even where the corpus is full of texts that look like one."""
    settings = settings_of(kind, size=400) if kind in ("byte-bpe", "bpe", "unigram", "wordpiece") else settings_of(kind)
    looks = [token * 2 + " " + token for token in settings.special.tokens()]
    tokenizer = train(settings, CORPUS + looks * 50)
    for text in looks:
        encoding = tokenizer.encode(text, framed=False)
        assert not {*tokenizer.roles.values()}.intersection(encoding.ids), encoding.tokens
        if kind != "wordpiece":
            assert tokenizer.decode(encoding.ids) == text


# ---------------------------------------------------------------------------------------------------------- progress


def test_progress_is_reported() -> None:
    seen: list[Progress] = []
    train(Bpe(size=50), ["ein Hund"] * 2500, seen.append)
    assert seen[:3] == [Progress("reading", count, 2500) for count in (1000, 2000, 2500)]
    assert seen[-1].stage == "done"
    seen.clear()
    train(WordPiece(size=50), ("ein Hund" for _ in range(1500)), seen.append)
    assert [(at.stage, at.done) for at in seen[:-1]] == [
        ("alphabet", 1000),
        ("alphabet", 1500),
        ("reading", 1000),
        ("reading", 1500),
    ]


def test_an_iterator_has_no_total() -> None:
    seen: list[Progress] = []
    train(Bpe(size=50), iter(["ein Hund"]), seen.append)
    assert seen[0] == Progress("reading", 1, None)


# -------------------------------------------------------------------------------------------------------------- pairs


def test_a_shared_vocabulary_knows_both_sides() -> None:
    pair = train_pair(Characters(), ["abc"], ["xyz"])
    assert pair.source is pair.target
    assert pair.source.encode("ax", framed=False).tokens == ["a", "x"]
    assert train_pair(Characters(), iter(["abc"]), iter(["xyz"])) == pair


def test_separate_vocabularies_know_their_own() -> None:
    pair = train_pair(Characters(shared=False), ["abc"], ["xyz!"])
    assert (pair.sizes, pair.shared) == ((8, 9), False)
    assert pair.source.encode("ax", framed=False).tokens == ["a", "<unk>"]
    assert pair.target.encode("ax", framed=False).tokens == ["<unk>", "x"]


def test_byte_bpe_has_all_bytes() -> None:
    tokenizer = train(ByteBpe(size=400), ["a"])
    text = "".join(map(chr, range(0x250))) + "\U0010ffff"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
