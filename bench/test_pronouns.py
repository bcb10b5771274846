"""Tests of pronouns.py against words, loops and sums by hand: python -m pytest bench"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pronouns import Flips, Looked, Pronoun, Written, looked, pronoun_tokens, pronouns, write, write_swapped
from tools.grammar import dependent

import regard
from regard.blocks.settings import Attention
from regard.decoding.settings import Ends
from regard.errors import InputError
from regard.look.heads import Ablation, HeadAddress, ablation, heads_of
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.text.settings import AnyTokenizer, ByteBpe, Characters, Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import Frame
from regard.use.translator import Translator

PAIRS = list(dependent("valid", 1, 30))


def translator(kind: AnyTokenizer) -> Translator:
    torch.manual_seed(2)
    sides = [[getattr(pair, side) for pair, _ in PAIRS] for side in ("source", "target")]
    tokenizers = TokenizerPair(*(train_tokenizer(kind, side) for side in sides))
    source, target = tokenizers.sizes
    settings = EncoderDecoder(
        vocabulary=source,
        target_vocabulary=target,
        tied=(),
        width=16,
        depth=2,
        attention=Attention(heads=2),
        norm_place="pre",
        dropout=0.0,
    )
    ends = Ends(tokenizers.target.role("start"), tokenizers.target.role("end"))
    return Translator("grammar", Path(), build(settings).eval(), tokenizers, {}, Frame(ends))


@pytest.fixture(scope="module")
def model() -> Translator:
    return translator(Words())


@pytest.mark.parametrize("kind", [Words(), ByteBpe(size=400)], ids=["words", "bytes"])
def test_the_tokens_are_those_of_the_words(kind: AnyTokenizer) -> None:
    made = translator(kind)
    source, target = made.tokenizers.source, made.tokenizers.target
    assert any("'" in pair.source for pair, _ in PAIRS)  # there, words and tokens are not the same
    for (pair, referent), case in zip(PAIRS, pronouns(made, PAIRS), strict=True):
        sides = ((source, case.source, pair.source_tokens), (target, case.target, pair.target_tokens))
        for side, (tokenizer, tokens, words) in enumerate(sides):
            for found, place in zip(case.nouns[side], (referent.noun[side], referent.distractor[side]), strict=True):
                assert tokenizer.decode([tokens[each] for each in found]).strip() == words[place]
        assert source.token(case.source[case.read]).lower().endswith("it")
        assert target.decode(case.target) == pair.target
        assert case.right == case.target[case.written]
        assert pair.target_tokens[referent.pronoun[1]] in ("er", "sie", "es")
        assert target.decode(case.target[: case.written + 1]).strip().endswith(("er", "sie", "es", "e", "s"))
        near = abs(referent.noun[0] - referent.pronoun[0]) < abs(referent.distractor[0] - referent.pronoun[0])
        assert case.nearest is near


def alone(model: Translator, case: Pronoun) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair as the model is called with it, without any padding."""
    start = model.frame.ends.start
    assert start is not None
    return torch.tensor([case.source]), torch.tensor([[start, *case.target]])


def test_looks_against_each_pair_alone(model: Translator) -> None:
    known = pronouns(model, PAIRS)
    found = looked(model, known)
    assert found.heads == heads_of(model)
    for number, case in enumerate(known[:8]):
        with torch.no_grad(), regard.record(model, "*.weights") as seen:
            model.network(*alone(model, case))
        for row, head in enumerate(found.heads):
            weights = seen[f"{head.attention}.weights"][0, head.number]
            query = weights[case.read if head.stack == "encoder" else case.written]
            own = head.stack == "decoder" and head.kind == "attention"
            for nouns, shown in ((0, found.referent_HN), (1, found.distractor_HN)):
                places = [place + 1 for place in case.nouns[1][nouns]] if own else case.nouns[0][nouns]
                assert float(shown[row, number]) == pytest.approx(sum(float(query[p]) for p in places), abs=1e-5)


def test_shares_by_hand() -> None:
    heads = [HeadAddress("encoder", 0, "attention", number) for number in (0, 1)]
    looks = Looked(
        heads, torch.tensor([[0.5, 0.1, 0.0, 0.4], [0.2] * 4]), torch.tensor([[0.2, 0.3, 0.0, 0.1], [0.0] * 4])
    )
    assert looks.accuracy().tolist() == pytest.approx([0.5, 1.0])
    assert looks.share().tolist() == pytest.approx([1.6 / 4, 0.2])
    assert looks.preference().tolist() == pytest.approx([0.4 / 4, 0.2])
    assert looks.ranked() == heads[::-1]


def test_what_is_written_against_each_pair_alone(model: Translator) -> None:
    known = pronouns(model, PAIRS)
    found = write(model, known)
    candidates = pronoun_tokens(model)
    assert [model.tokenizers.target.token(token) for token in candidates] == ["er", "sie", "es"]
    margins = []
    for number, case in enumerate(known):
        with torch.no_grad():
            scores = model.network(*alone(model, case))[0, case.written]
        assert int(found.tokens_N[number]) == int(scores.argmax())
        margins.append(float(scores[case.right] - max(scores[token] for token in candidates if token != case.right)))
    assert found.margin == pytest.approx(sum(margins) / len(margins), abs=1e-4)


def test_flips_are_other_pronouns_alone() -> None:
    before = Written(torch.tensor([5, 6, 7, 5]), 1.0)
    after = Written(torch.tensor([6, 6, 9, 7]), 0.0)
    assert after.flipped(before, [5, 6, 7]) == pytest.approx(0.5)
    assert after.changed(before) == pytest.approx(0.75)


def test_flips_are_a_metric_of_ablation(model: Translator) -> None:
    """Nothing flips in the whole model; what the metric sees without heads is what an edit by hand gives."""
    known = pronouns(model, PAIRS)
    flips = Flips(model, known)
    assert flips() == 0
    trial = Ablation(model, flips)
    heads = heads_of(model)
    flipped = trial.without(heads)
    with torch.no_grad(), regard.record(model, edit=ablation(heads)):
        again = write(model, known)
    assert torch.equal(flips.last.tokens_N, again.tokens_N)
    assert flipped == again.flipped(flips.before, pronoun_tokens(model))
    assert flips.guide() == pytest.approx(-again.margin)


def test_heads_that_look_at_the_other_noun(model: Translator) -> None:
    """Against weights that are put in by hand, pair by pair."""
    known = pronouns(model, PAIRS[:6])
    heads = [HeadAddress("decoder", 1, "cross", 1), HeadAddress("encoder", 1, "attention", 0)]
    found = write_swapped(model, known, heads)
    margins, tokens = [], []
    for case in known:
        batch = alone(model, case)
        edit = {}
        for head in heads:
            # What comes later depends on what was swapped before it, so each is made from what it is given.
            query = case.read if head.stack == "encoder" else case.written
            (one,), (other,) = case.nouns[0]

            def exchange(
                x: torch.Tensor, number: int = head.number, at: tuple[int, ...] = (query, one, other)
            ) -> torch.Tensor:
                x[0, number, at[0], [at[1], at[2]]] = x[0, number, at[0], [at[2], at[1]]].clone()
                return x

            edit[f"{head.attention}.weights"] = exchange
        with torch.no_grad(), regard.record(model, edit=edit):
            scores = model.network(*batch)[0, case.written]
        tokens.append(int(scores.argmax()))
        others = [token for token in pronoun_tokens(model) if token != case.right]
        margins.append(float(scores[case.right] - max(scores[token] for token in others)))
    assert found.tokens_N.tolist() == tokens
    assert found.margin == pytest.approx(sum(margins) / len(margins), abs=1e-4)
    assert abs(found.margin - write(model, known).margin) > 1e-4
    for case, (_, referent) in zip(known, PAIRS, strict=False):
        genders = {"er": "m", "sie": "f", "es": "n"}
        assert genders[model.tokenizers.target.token(case.other)] == referent.distractor_gender
    assert Written(torch.tensor([case.other for case in known]), 0.0).taken(known) == 1


def test_what_cannot_be_looked_at(model: Translator) -> None:
    with pytest.raises(InputError, match="no pronoun is given"):
        looked(model, [])
    with pytest.raises(InputError, match="same first token"):
        pronoun_tokens(translator(Characters()))
    known = pronouns(model, PAIRS[:1])
    bare = Translator("bare", Path(), model.network, model.tokenizers, {}, Frame(Ends(None, 2)))
    with pytest.raises(InputError, match=r"Ends\.start"):
        looked(bare, known)
