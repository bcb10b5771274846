"""Text to ids and back: frames, pairs, places, words, roles, and input that is no text."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from text_cases import CORPUS, KINDS, settings_of, trained

from regard.errors import InputError
from regard.text.settings import Bpe, ByteBpe, Characters, SpecialTokens, Unigram, WordPiece, Words
from regard.text.tokenizer import Tokenizer
from regard.text.train import train

TEXT = "Der Hund läuft durch die breite Straße!"


def message(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        action()
    return str(caught.value)


# -------------------------------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_stands_around_a_text(kind: str) -> None:
    tokenizer = trained(kind)
    bare, framed = tokenizer.encode(TEXT, framed=False), tokenizer.encode(TEXT)
    opening, closing = tokenizer.role("start"), tokenizer.role("end")
    assert framed.ids == [opening, *bare.ids, closing]
    assert framed.special == [True, *[False] * len(bare), True]
    assert (len(bare), len(framed)) == (len(bare.ids), len(bare) + 2)


def test_a_pair_has_two_segments() -> None:
    pair = trained("wordpiece").encode("Der Hund", "The street")
    assert pair.tokens[0] == "[CLS]"
    assert [token for token in pair.tokens if token.startswith("[")] == ["[CLS]", "[SEP]", "[SEP]"]
    first = pair.tokens.index("[SEP]") + 1
    assert pair.segments == [0] * first + [1] * (len(pair) - first)


def test_a_pair_without_a_class_token_is_framed_by_start_and_end() -> None:
    pair = trained("words").encode("Der Hund", "The street")
    assert pair.tokens == ["<s>", "Der", "Hund", "</s>", "The", "street", "</s>"]
    assert pair.segments == [0, 0, 0, 0, 1, 1, 1]


def test_a_tokenizer_without_special_tokens_has_no_frame() -> None:
    none = {"pad": "", "start": "", "end": "", "mask": ""}
    tokenizer = train(settings_of("bytes", special=none), [])
    assert tokenizer.encode("ab").ids == [97, 98]
    assert tokenizer.encode("ab", "c").segments == [0, 0, 1]


def test_a_frame_of_an_end_alone() -> None:
    tokenizer = train(settings_of("characters", special={"start": ""}), CORPUS)
    assert tokenizer.encode("Hu").tokens == ["H", "u", "</s>"]
    assert tokenizer.encode("H", "u").tokens == ["H", "</s>", "u", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_single_texts(kind: str) -> None:
    tokenizer = trained(kind)
    texts = [*CORPUS[:20], "", "unbekanntes Wort ☃"]
    assert [e.ids for e in tokenizer.encode_batch(texts)] == [tokenizer.encode(text).ids for text in texts]
    bare = [tokenizer.encode(text, framed=False).ids for text in texts]
    first, last = tokenizer.role("start"), tokenizer.role("end")
    assert tokenizer.ids(texts) == bare
    assert tokenizer.ids(texts, start=True, end=True) == [[first, *ids, last] for ids in bare]
    assert tokenizer.ids(texts, end=True) == [[*ids, last] for ids in bare]
    pairs = tokenizer.encode_batch(texts, texts[::-1])
    assert [e.ids for e in pairs] == [tokenizer.encode(a, b).ids for a, b in zip(texts, texts[::-1], strict=True)]
    assert tokenizer.ids([]) == []


# ------------------------------------------------------------------------------------------------- places and words


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "words", "characters"])
def test_offsets_point_into_the_text(kind: str) -> None:
    """A text with nothing to normalise: what stands at a token's place is the token, but for its marks."""
    text = "Der Hund overquert the street;"
    encoding = trained(kind).encode(text, framed=False)
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        plain = token.removeprefix("##").lstrip("▁") if kind != "byte-bpe" else token.replace("Ġ", " ")
        if token not in ("<unk>", "[UNK]", "▁"):
            assert text[start:end] == plain
        assert text[start:end]


def test_offsets_count_characters_of_the_text_as_given() -> None:
    tokenizer = train(Bpe(unicode="nfkc", lowercase=True), ["fisch ein"] * 9)
    text = "ﬁSch   \t EIN"
    encoding = tokenizer.encode(text, framed=False)
    assert encoding.tokens == ["▁fisch", "▁ein"]
    assert [text[start:end] for start, end in encoding.offsets] == ["ﬁSch", "EIN"]


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "characters", "bytes"])
def test_words_gather_their_pieces(kind: str) -> None:
    """What whole-word masking hides together."""
    tokenizer = trained(kind)
    encoding = tokenizer.encode("Hundeschnee überquert")
    pieces: dict[int, list[int]] = {}
    for number, word in zip(encoding.ids, encoding.words, strict=True):
        if word is not None:
            pieces.setdefault(word, []).append(number)
    texts = [tokenizer.decode(ids) for ids in pieces.values()]
    assert [text.strip() for text in texts if text.strip()] == ["Hundeschnee", "überquert"]
    assert encoding.words[0] is encoding.words[-1] is None


# ------------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("kind", KINDS)
def test_known_text_comes_back(kind: str) -> None:
    tokenizer = trained(kind)
    texts = ["Der Hund läuft durch den Schnee.", "The old man remembers den Schnee."]
    assert tokenizer.decode_batch(tokenizer.ids(texts, start=True, end=True)) == texts


def test_special_tokens_are_shown_on_request() -> None:
    tokenizer = trained("characters")
    ids = tokenizer.encode("Hund☃").ids
    assert tokenizer.decode(ids) == "Hund"
    assert tokenizer.decode(ids, special=True) == "<s>Hund<unk></s>"


def test_text_that_looks_like_a_special_token_is_text() -> None:
    tokenizer = trained("byte-bpe")
    text = "a <s> b</s><pad>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_are_not_normalised() -> None:
    tokenizer = train(WordPiece(lowercase=True), CORPUS)
    assert tokenizer.encode("Der [MASK]", special=True, framed=False).tokens[-1] == "[MASK]"


def test_a_vocabulary_of_words_takes_a_special_word_for_the_token() -> None:
    """As documented: a table of words has one place for each spelling."""
    tokenizer = train(Words(split="spaces"), CORPUS)
    assert tokenizer.encode("Der <unk> Hund", framed=False).ids[1] == tokenizer.role("unknown")


def test_special_tokens_are_read_on_request() -> None:
    tokenizer = trained("wordpiece")
    ids = tokenizer.encode("Der [MASK] läuft", special=True).ids
    assert tokenizer.role("mask") in ids
    assert tokenizer.role("mask") not in tokenizer.encode("Der [MASK] läuft").ids
    assert tokenizer.ids(["[MASK]"], special=True) == [[tokenizer.role("mask")]]
    assert tokenizer.encode_batch(["[MASK]"], special=True, framed=False)[0].ids == [tokenizer.role("mask")]


# ----------------------------------------------------------------------------------------------------------- vocabulary


def test_roles_have_the_first_ids() -> None:
    assert trained("bpe").roles == {"pad": 0, "start": 1, "end": 2, "unknown": 3, "mask": 4}
    assert trained("wordpiece").roles == {"pad": 0, "unknown": 1, "mask": 2, "class_token": 3, "separator": 4}
    assert trained("bytes").roles == {"pad": 0, "start": 1, "end": 2, "mask": 3}


def test_start_and_class_token_stand_for_each_other() -> None:
    assert trained("wordpiece").role("start") == trained("wordpiece").role("class_token") == 3
    assert trained("wordpiece").role("end") == trained("wordpiece").role("separator") == 4
    assert trained("bpe").role("class_token") == 1


def test_a_role_without_a_token() -> None:
    expected = "the tokenizer has no unknown token (it has pad, start, end, mask); train it with text.special.unknown"
    assert message(lambda: trained("bytes").role("unknown")) == expected


def test_tags_of_languages() -> None:
    tokenizer = train(Bpe(size=100, special=SpecialTokens(extra=("<de>", "<en>"))), CORPUS)
    assert tokenizer.extra == {"<de>": 5, "<en>": 6}
    assert tokenizer.encode("<de> ein", special=True, framed=False).ids[0] == 5


def test_tokens_and_ids() -> None:
    tokenizer = trained("words")
    number = tokenizer.id("Hund")
    assert number is not None
    assert tokenizer.token(number) == "Hund"
    assert tokenizer.id("Elefant") is None
    for wrong in (-1, tokenizer.size):
        expected = f"token {wrong} is not in the vocabulary of {tokenizer.size}; give one from 0 on"
        assert message(lambda wrong=wrong: tokenizer.token(wrong)) == expected  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------------- normalisation


def test_lower_case_and_normal_forms() -> None:
    small = train(Bpe(lowercase=True, unicode="nfkc"), ["ein fisch"] * 9)
    assert small.encode("EIN ﬁSCH", framed=False).tokens == ["▁ein", "▁fisch"]
    composed = train(Characters(unicode="nfc"), ["é"])
    assert composed.encode("e\u0301", framed=False).tokens == ["é"]
    left = train(Characters(unicode="none"), ["e\u0301"])
    assert left.encode("e\u0301", framed=False).tokens == ["e", "\u0301"]


def test_accents_may_go() -> None:
    tokenizer = train(WordPiece(lowercase=True, accents=False), CORPUS)
    assert tokenizer.decode(tokenizer.encode("Mädchen LÄUFT").ids) == "madchen lauft"


def test_words_may_end_at_spaces_alone() -> None:
    tokenizer = train(Words(split="spaces"), CORPUS)
    text = "Der Hund läuft durch den Schnee."
    assert tokenizer.encode(text, framed=False).tokens == text.split()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_letters_and_punctuation_stay_apart() -> None:
    for settings in (Bpe(size=500), Unigram(size=500), ByteBpe(size=800)):
        tokens = train(settings, ["Schnee. Schnee, (Schnee)"] * 50).encode("Schnee.", framed=False).tokens
        assert tokens[-1] == "."


def test_a_word_too_long_for_wordpiece_is_unknown() -> None:
    tokenizer = train(WordPiece(longest_word=5), ["abcdef abcde"] * 3)
    assert tokenizer.encode("abcdef abcde", framed=False).tokens[0] == "[UNK]"
    assert "[UNK]" not in tokenizer.encode("abcde", framed=False).tokens


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_pickles(kind: str) -> None:
    again = pickle.loads(pickle.dumps(trained(kind)))
    assert again == trained(kind)
    assert hash(again) == hash(trained(kind))
    assert (again.settings, again.roles) == (trained(kind).settings, trained(kind).roles)
    assert again.encode(TEXT).ids == trained(kind).encode(TEXT).ids


def test_tokenizers_differ() -> None:
    assert trained("bpe") != trained("unigram")
    assert trained("bpe") != "bpe"
    assert repr(trained("bpe")) == "Tokenizer(bpe, size=160)"
    assert repr(trained("words").encode("Der Hund")) == "Encoding(<s> Der Hund </s>)"


def test_threads_share_a_tokenizer() -> None:
    tokenizer: Tokenizer = trained("bpe")
    wanted = [tokenizer.encode(text, special=bool(n % 2)).ids for n, text in enumerate(CORPUS)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: tokenizer.encode(CORPUS[n], special=bool(n % 2)).ids, range(len(CORPUS))))
    assert found == wanted


# ------------------------------------------------------------------------------------------------------------- messages


SURROGATE = (
    "text 2 has a lone surrogate ('\\ud800') at character 2, which no file in UTF-8 can hold; "
    "read it with errors='replace'"
)


def test_a_lone_surrogate() -> None:
    tokenizer = trained("byte-bpe")
    bad: list[str] = ["a", "b\ud800"]
    assert message(lambda: tokenizer.ids(bad)) == SURROGATE
    assert message(lambda: tokenizer.encode_batch(bad)) == SURROGATE
    assert message(lambda: tokenizer.encode_batch(bad, bad)) == SURROGATE
    assert message(lambda: tokenizer.encode(*bad)) == SURROGATE
    assert message(lambda: tokenizer.sample(bad, [1, 2], 0.1)) == SURROGATE


def test_what_is_no_text() -> None:
    bad: Any = ["a", 7]
    expected = "text 2 (7) is no text but int; give strings"
    assert message(lambda: trained("bpe").ids(bad)) == expected
    assert message(lambda: trained("bpe").encode_batch(bad)) == expected


def test_a_single_text_where_many_are_wanted() -> None:
    expected = "a list of texts is wanted here, not a single one ('ein Hund'); write [text]"
    assert message(lambda: trained("bpe").ids("ein Hund")) == expected
    assert message(lambda: trained("bpe").encode_batch("ein Hund")) == expected
    assert message(lambda: trained("bpe").sample("ein Hund", [1], 0.1)) == expected


def test_unequal_pairs() -> None:
    expected = "1 texts cannot be paired with 2; give as many of both"
    assert message(lambda: trained("bpe").encode_batch(["a"], ["b", "c"])) == expected


@pytest.mark.parametrize("number", [-1, 160])
def test_an_id_out_of_range(number: int) -> None:
    assert message(lambda: trained("bpe").decode([5, number])) == (
        f"token {number} is out of range: the tokenizer has 160, from 0 to 159; "
        "use the one that the model was trained with"
    )
