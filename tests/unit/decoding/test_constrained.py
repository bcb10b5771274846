"""Words that must occur: the search against the enumeration of every sequence that holds them."""

from __future__ import annotations

from collections import Counter

import pytest
from decoding_cases import END, ENDS, contains, every_sequence, inputs, translator

from regard.decoding.constrained import Path, allocate, missing_tokens
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Greedy, Power, Rules, Wish
from regard.errors import InputError

LONGEST = 4


@pytest.mark.parametrize("must", [[(3,)], [(2, 4)], [(3,), (2,)], [(4,), (4, 2)]])
@pytest.mark.parametrize("length", [Power(alpha=0.0), Power(alpha=1.0)])
def test_a_beam_that_holds_everything_finds_the_best(must, length) -> None:
    model, sources = translator(5), inputs(2, 5)
    wishes = [Wish(must=must), Wish()]
    rules = Rules(longest=Absolute(tokens=LONGEST))
    found = decode(model, sources, ENDS, Beam(size=200, nbest=3, length=length), rules, wishes)
    every = every_sequence(translator, 0, 5, LONGEST)
    holding = {
        tokens: score / length.divisor(len(tokens))
        for tokens, score in every.items()
        if all(contains(word, list(tokens)) for word in must)
    }
    best = sorted(holding, key=lambda tokens: -holding[tokens])[:3]
    written = [(*each.tokens, END) if each.finished else tuple(each.tokens) for each in found[0]]
    assert written == best
    assert [each.score for each in found[0]] == pytest.approx([holding[tokens] for tokens in best])
    plain = decode(model, sources[1:], ENDS, Beam(size=200, nbest=3, length=length), rules)
    assert [each.tokens for each in found[1]] == [each.tokens for each in plain[0]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (6, {2: 2, 1: 2, 0: 2}),  # an equal share for each bank
        (8, {2: 4, 1: 2, 0: 2}),  # what is left over goes to the fullest
        (10, {2: 4, 1: 3, 0: 3}),  # which has no more than four
        (2, {2: 1, 1: 1}),  # and the emptiest gives way
    ],
)
def test_every_bank_has_its_share_of_the_beam(size: int, expected: dict[int, int]) -> None:
    """Though the sequences that have met nothing are likelier than all others."""
    candidates = [Path(0, (bank, i), (), -10.0 * bank - i, bank) for bank in range(3) for i in range(4)]
    kept = allocate(candidates, size, whole=2)
    assert Counter(path.bank for path in kept) == expected
    for bank, count in expected.items():
        assert sorted(path.tokens[1] for path in kept if path.bank == bank) == list(range(count))


def test_a_word_that_must_not_occur_for_one_input() -> None:
    model, sources = translator(), inputs(6)
    rules = Rules(longest=Absolute(tokens=8))
    free = [row[0].tokens for row in decode(model, sources, ENDS, Beam(), rules)]
    place = max(range(6), key=lambda i: len(free[i]))
    word = tuple(free[place][:2])
    wishes = [Wish(must_not=[word] if i == place else []) for i in range(6)]
    kept = [row[0].tokens for row in decode(model, sources, ENDS, Beam(), rules, wishes)]
    assert not contains(word, kept[place])
    assert [a == b for a, b in zip(free, kept, strict=True)] == [i != place for i in range(6)]


def test_what_contradicts_itself_is_unfinished() -> None:
    ((best,),) = decode(
        translator(), [[2, END]], ENDS, Beam(), Rules(must_not=((3,),), longest=Absolute(tokens=5)), [Wish(must=[(3,)])]
    )
    assert not best.finished


def test_what_is_refused() -> None:
    model = translator()
    for message, search, longest, must in (
        ("needs a beam search, not greedy", Greedy(), 9, (3,)),
        (r"longest \(2\)", Beam(), 2, (3, 4, 5)),
        ("empty word", Beam(), 9, ()),
        (r"beam\.coverage \(0\.2\)", Beam(coverage=0.2), 9, (3,)),
    ):
        with pytest.raises(InputError, match=message):
            decode(model, [[2]], ENDS, search, Rules(longest=Absolute(tokens=longest)), [Wish(must=[must])])


def test_overlapping_words_share_their_tokens() -> None:
    words = [(2, 3), (3, 4), (4, 2)]
    assert missing_tokens((), words) == 4  # 2 3 4 2
    assert missing_tokens((5, 2, 3), words) == 2
    assert missing_tokens((), [(2, 3), (5,)]) == 3
    assert missing_tokens((), [(7, token) for token in range(20)]) <= 40  # a lower bound for many words
    model, rules = translator(), Rules(longest=Absolute(tokens=3))
    (found,) = decode(model, inputs(1), ENDS, Beam(size=8), rules, [Wish(must=[(2, 3), (3, 4)])])
    assert found[0].tokens == [2, 3, 4]
    with pytest.raises(InputError, match="longest"):
        decode(model, inputs(1), ENDS, Beam(size=8), rules, [Wish(must=[(2, 3), (4, 5)])])
