"""Whatever the text: nothing of it is lost when it is cut, and what is kept comes back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_translator import ScriptedTranslator, scripted

from regard.text.placing import LEVELS, put_back, show
from regard.text.protect import find
from regard.text.sentences import cut, join, spans, split
from regard.text.tokenizer import word_spans

PARTS = (
    "Ein Hund", "z. B.", "Dr.", " ", "  ", "\n", ".", "!", "?", "...", "…", "。", "„", "“", '"', "(", ")", ",", "3.",
    "3,5", "2010", "https://a.de/b.c", "{x}", "%d", "<b>", "</b>", "<br/>", "&amp;", "é", "\u2028", "\r\n", "\u00a0",
    "日本", "😀", "<!--", "-->",
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PARTS), max_size=20).map("".join))


@given(TEXTS)
def test_sentences_and_what_lies_between_are_the_text(text: str) -> None:
    sentences, between = split(text)
    assert join(sentences, between) == text
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert not "".join(between).strip()


@given(TEXTS, st.integers(1, 30))
def test_parts_and_what_lies_between_are_the_sentence(text: str, most: int) -> None:
    found = cut(text, lambda part: len(part) <= most)
    assert all(start < end for start, end in found)
    assert all(end - start <= most for start, end in found)
    rest = list(text)
    for start, end in reversed(found):
        del rest[start:end]
    assert not "".join(rest).strip()


@given(TEXTS)
def test_sentences_are_those_of_the_sentences(text: str) -> None:
    """Cutting again cuts no further."""
    for start, end in spans(text):
        assert len(spans(text[start:end])) == 1


@given(TEXTS)
def test_items_do_not_overlap(text: str) -> None:
    found = find(text)
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))
    assert all(text[item.start : item.end] == item.text for item in found)


@given(TEXTS, st.integers(0, LEVELS), st.text(max_size=30), st.data())
def test_all_that_is_taken_out_comes_back_once_and_in_order(
    text: str, level: int, written: str, data: st.DataObject
) -> None:
    """Whatever is written, and however its words are aligned."""
    items = [item for item in find(text) if item.kind != "block"]
    shown = show(text, items, level, lambda word: False)
    source, target = word_spans(shown.text), word_spans(written)
    place = st.tuples(st.integers(0, max(len(source) - 1, 0)), st.integers(0, max(len(target) - 1, 0)))
    pairs = sorted(data.draw(st.sets(place, max_size=8))) if source and target else []
    found = put_back(shown, written, source, target, pairs)
    start = 0
    for item in items:
        start = found.index(item.text, start) + len(item.text)
    assert len(found) >= len(written) + sum(len(item.text) for item in items)


@pytest.fixture(scope="module")
def copying() -> ScriptedTranslator:
    return scripted(lambda text: text)


@given(TEXTS)
def test_a_model_that_copies_gives_back_the_words_and_everything_kept(copying: ScriptedTranslator, text: str) -> None:
    found = copying.translate(text, details=True)
    assert found.kept
    wanted = [item.text for item in find(text)]
    assert all(found.text.count(item) >= wanted.count(item) for item in wanted)
