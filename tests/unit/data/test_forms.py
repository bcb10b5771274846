"""What is stored, held against plain lists: every frame, every way with what is too long, wherever chunks are cut."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_cases import CORPUS, trained

from regard.data import make as making
from regard.data.examples import Located, Pair, Text
from regard.data.forms import Chunk, Drawn, Form, Limit, PairForm, Sides, TextForm, TooLong
from regard.errors import SettingsError
from regard.text.tokenizer import TokenizerPair

BPE = trained("bpe")
START, END, UNKNOWN = (BPE.roles[role] for role in ("start", "end", "unknown"))
WORDPIECE = trained("wordpiece")

texts = st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3).map(" ".join) | st.just("Ω")
limits = st.none() | st.integers(3, 30)
sizes = st.integers(1, 5)


def stored(
    form: Form, examples: list[Pair] | list[Text], limit: Limit, chunk: int
) -> tuple[dict[str, list[list[int]]], int]:
    """What a form makes of examples that come in chunks, and how many were too long."""
    shaper = form.shaper(limit, None)
    found: dict[str, list[list[int]]] = {side: [] for side in form.vocabularies}
    placed = [Located(example, "a.txt", number) for number, example in enumerate(examples, 1)]
    for start in range(0, len(placed), chunk):
        part = Chunk(start, list(placed[start : start + chunk]))
        sides: Sides = shaper.shape(part, shaper.encode(part))
        for side, ragged in sides.items():
            found[side] += [tokens.tolist() for tokens in ragged.parts()]
    for side, size in form.vocabularies.items():
        assert all(0 <= token < size for tokens in found[side] for token in tokens)
    if not isinstance(form, TextForm) or form.tokenizer is BPE:
        for side in found:
            assert shaper.unknown[side] == sum(tokens.count(UNKNOWN) for tokens in found[side])
    return found, shaper.too_long.total


BPE_PAIRS = PairForm(TokenizerPair.of(BPE))


@given(
    st.lists(st.builds(Pair, texts, texts, st.none()), max_size=6), limits, st.sampled_from(["skip", "truncate"]), sizes
)
def test_pairs(pairs: list[Pair], longest: int | None, way: TooLong, chunk: int) -> None:
    found, too_long = stored(BPE_PAIRS, pairs, Limit(longest, way), chunk)
    expected: dict[str, list[list[int]]] = {"source": [], "target": []}
    over = 0
    for pair in pairs:
        ((source,), (target,)) = TokenizerPair.of(BPE).ids([pair.source], [pair.target])
        if longest is not None and (len(source) > longest or len(target) - 1 > longest):
            over += 1
            if way == "skip":
                continue
            source = source if len(source) <= longest else [*source[: longest - 1], END]
            target = target if len(target) - 1 <= longest else [*target[:longest], END]
        expected["source"].append(source)
        expected["target"].append(target)
    assert found == expected
    assert too_long == over


def documents(pieces: list[Text]) -> list[list[int]]:
    """The ids of each document, of however many pieces."""
    found: list[list[int]] = [[]]
    for piece in pieces:
        found[-1] += BPE.ids([piece.text])[0]
        if piece.ends:
            found.append([])
    return found[:-1]


pieces = st.lists(st.builds(Text, texts, st.booleans()), max_size=8).map(lambda found: [*found, Text("Ende")])


@given(pieces, limits, st.sampled_from(["skip", "truncate", "split"]), sizes)
def test_documents(given: list[Text], longest: int | None, way: TooLong, chunk: int) -> None:
    found, too_long = stored(TextForm(BPE), given, Limit(longest, way), chunk)
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
    assert found["text"] == expected
    assert too_long == over
    assert longest is None or all(len(tokens) - 1 <= longest for tokens in found["text"])


@given(pieces, st.sampled_from([None, 5]), sizes)
def test_a_stream_has_no_limit_and_an_end_only_where_a_document_ends(
    given: list[Text], longest: int, chunk: int
) -> None:
    found, too_long = stored(TextForm(BPE, "stream"), given, Limit(longest, "skip"), chunk)
    expected = [token for ids in documents(given) for token in [*ids, END]]
    assert [token for tokens in found["text"] for token in tokens] == expected
    assert too_long == 0


def test_a_frame_for_encoders() -> None:
    first, last = WORDPIECE.role("class_token"), WORDPIECE.role("separator")
    given = [Text(CORPUS[0]), Text(" ".join(CORPUS[:9]))]
    short, long = WORDPIECE.ids([text.text for text in given])
    found, too_long = stored(TextForm(WORDPIECE, "encoder"), given, Limit(20, "truncate"), 8)
    assert found["text"] == [[first, *short, last], [first, *long[:18], last]]
    assert too_long == 1
    # What stands for a role that a tokenizer has not.
    assert stored(TextForm(BPE, "encoder"), given[:1], Limit(), 8)[0]["text"][0][0] == START


def test_memory_does_not_grow_with_a_document_that_is_cut() -> None:
    """A file as one document: of what is too long, only what is needed is held."""
    for way in ("skip", "truncate", "split"):
        shaper = TextForm(BPE).shaper(Limit(20, way), None)
        for number in range(50):
            part = Chunk(number, [Located(Text(CORPUS[number], ends=False), "a", number)])
            shaper.shape(part, shaper.encode(part))
            assert sum(map(len, shaper._open)) <= 20 + 60  # type: ignore[attr-defined]
        assert shaper.too_long.total == 1


@pytest.mark.parametrize(("form", "least"), [(BPE_PAIRS, 2), (TextForm(BPE), 2), (TextForm(BPE, "encoder"), 3)])
def test_a_limit_that_leaves_no_room(form: Form, least: int) -> None:
    form.shaper(Limit(least), None)
    with pytest.raises(SettingsError) as caught:
        form.shaper(Limit(least - 1), None)
    assert str(caught.value) == (
        f"the longest example may have {least - 1} tokens, which leaves none for text beside special ones; set "
        f"data.longest (or the model's length) to more than {least - 1}"
    )


def test_a_seed_depends_on_nothing_but_the_number_of_the_text() -> None:
    placed = [Located(Text("x"), "a", number) for number in range(10)]
    drawn = Drawn(seed=1, variant=0)
    whole = drawn.seeds(Chunk(0, list(placed)), "source")
    assert whole == drawn.seeds(Chunk(0, list(placed[:4])), "source") + drawn.seeds(
        Chunk(4, list(placed[4:])), "source"
    )
    others = [
        drawn.seeds(Chunk(0, list(placed)), "target"),
        Drawn(2, 0).seeds(Chunk(0, list(placed)), "source"),
        Drawn(1, 1).seeds(Chunk(0, list(placed)), "source"),
        drawn.seeds(Chunk(10, list(placed)), "source"),
    ]
    assert len({*whole, *(seed for found in others for seed in found)}) == 50


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 6), st.integers(1, 60))
def test_chunks_end_by_number_and_by_size(lengths: list[int], number: int, size: int) -> None:
    placed = [Located(Text("x" * length), "a", index) for index, length in enumerate(lengths)]
    with patch.object(making, "CHUNK", number), patch.object(making, "CHUNK_SIZE", size):
        chunks = list(making._chunks(iter(placed)))
    assert [each for chunk in chunks for each in chunk.placed] == placed
    assert [chunk.first for chunk in chunks] == np.cumsum([0, *(len(c.placed) for c in chunks[:-1])]).tolist()
    for chunk in chunks:
        assert len(chunk.placed) <= number
        assert sum(len(each.example.text) for each in chunk.placed[:-1]) < size


def test_a_form_is_a_value() -> None:
    """Two of the same content have the same key, another tokenizer or frame another one."""
    assert PairForm(TokenizerPair.of(BPE)).key() == PairForm(TokenizerPair(BPE, trained("bpe"))).key()
    assert TextForm(BPE).key() != TextForm(WORDPIECE).key()
    assert TextForm(BPE).key() != TextForm(BPE, "stream").key()
