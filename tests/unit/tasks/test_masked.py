"""Hidden tokens: which are chosen, what replaces them, and that only the example and the epoch decide it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data_cases import END, MASK, PAD, START, framed_texts, masked_in, stored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_cases import SMALL, VOCABULARY
from training_cases import examples as small_examples
from training_cases import prepare as small_store

from regard.data.batches import Group, PackedPlan, PaddedPlan, Plan, Share
from regard.data.columns import IGNORED, Draw, Examples
from regard.data.loader import Planner
from regard.models.build import build
from regard.models.settings import Encoder
from regard.settings import parse
from regard.tasks.masked import GOLDEN, Masked, MaskedColumn, MaskedTask, chances, mixed, text_pairs
from regard.text.settings import AnyTokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.train import train_tokenizer

SPECIAL = (PAD, START, END)
BERT = MaskedColumn(1000, mask=MASK, special=SPECIAL)
ALL = {"rate": 1.0, "hidden": 1.0, "random": 0.0}


def test_random_bits_are_those_of_splitmix64() -> None:
    """The first numbers of SplitMix64 from the seed 1234567, as published on Rosetta Code."""
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
    assert mixed(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_each_token_of_each_example_and_epoch_has_its_own_bits() -> None:
    lengths = np.array([3, 0, 500, 40])
    bits = chances(Draw(1, 0), np.array([7, 8, 9, 10]), lengths)
    assert len(set(bits.tolist())) == 543
    again = chances(Draw(1, 0), np.array([10, 9]), np.array([40, 500]))
    assert again.tolist() == [*bits[-40:].tolist(), *bits[3:503].tolist()]
    for other in (Draw(2, 0), Draw(1, 1)):
        assert not set(chances(other, np.array([7, 8, 9, 10]), lengths).tolist()) & set(bits.tolist())


def test_bits_are_even_over_examples_and_positions() -> None:
    bits = chances(Draw(0, 0), np.arange(2000), np.full(2000, 64)).reshape(2000, 64)
    share = bits / 2.0**64
    # The mean of 128,000 even numbers has a deviation of 0.0008, of 2,000 numbers 0.0065, of 64 numbers 0.036.
    assert abs(share.mean() - 0.5) < 0.004
    assert abs(share.mean(axis=0) - 0.5).max() < 0.032
    assert abs(share.mean(axis=1) - 0.5).max() < 0.18
    neighbours = [
        np.corrcoef(share[:-1].ravel(), share[1:].ravel()),
        np.corrcoef(share[:, :-1].ravel(), share[:, 1:].ravel()),
    ]
    assert all(abs(found[0, 1]) < 0.02 for found in neighbours)


def test_shares_are_those_of_the_paper() -> None:
    """15 % are predicted; of these 80 % are hidden, 10 % random, 10 % unchanged (Devlin et al. 2019, A.1)."""
    tokens = np.random.default_rng(0).integers(0, 1000, 400_000)
    chosen, now = BERT.choose(tokens, chances(Draw(0, 0), np.arange(400), np.full(400, 1000)), len(tokens))
    maskable = ~np.isin(tokens, [*SPECIAL, MASK])
    assert maskable[chosen].all()
    assert len(chosen) / maskable.sum() == pytest.approx(0.15, abs=0.003)
    before = tokens[chosen]
    assert (now == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (now == before).mean() == pytest.approx(0.1, abs=0.01)
    drawn = now[(now != MASK) & (now != before)]
    assert len(drawn) / len(chosen) == pytest.approx(0.1, abs=0.01)
    assert not np.isin(drawn, SPECIAL).any()
    # Each of the 996 ordinary tokens is drawn about six times.
    assert len(np.unique(drawn)) > 960


def test_other_shares_and_the_capacity() -> None:
    for hidden, random, wanted in ((1.0, 0.0, {MASK}), (0.0, 0.0, {5}), (0.0, 1.0, {4, 5, 6})):
        column = MaskedColumn(7, mask=MASK, special=SPECIAL, rate=1.0, hidden=hidden, random=random)
        chosen, read = column.choose(np.full(200, 5), chances(Draw(0, 0), np.array([0]), np.array([200])), 200)
        assert len(chosen) == 200
        assert set(read.tolist()) == wanted
    column = MaskedColumn(13, mask=MASK, special=SPECIAL, **ALL)
    chosen, read = column.choose(np.full(9, 5), chances(Draw(0, 0), np.array([0]), np.array([9])), most=4)
    assert chosen.tolist() == [0, 1, 2, 3]
    assert read.tolist() == [MASK] * 4
    # Six standard deviations of a binomial distribution: 1,000 cells at 15 % give 150 ± 11.3.
    assert BERT.capacity(1000) == 218
    assert BERT.capacity(3) == 3
    chance = np.random.default_rng(0)
    for cells in (16, 64, 256, 4096):
        assert chance.binomial(cells, 0.15, 100_000).max() <= BERT.capacity(cells)


def test_documents_and_windows_by_hand(tmp_path: Path) -> None:
    documents = masked_in(stored(tmp_path / "a", {"text": [[START, 5, 6, END], [START, 7, END]]}), **ALL)
    numbers = np.array([0, 1])
    batch = documents.collate(Group(numbers, documents.lengths.of(numbers)), PaddedPlan(100), Draw(0, 0))
    assert batch.sequences["text"].tokens.tolist() == [[START, MASK, MASK, END], [START, MASK, END, PAD]]
    assert batch.values["chosen"].tolist() == [1, 2, 5, 0, 0, 0, 0, 0]
    assert batch.values["labels"].tolist() == [5, 6, 7, *[IGNORED] * 5]
    windows = masked_in(stored(tmp_path / "b", {"text": [[5, 6, END], [7, 8, 9, END]]}), 3, **ALL)
    assert len(windows.lengths) == 2
    group = Group(np.array([1, 0]), windows.lengths.of(np.array([1, 0])), np.array([0, 1, 1, 2]))
    batch = windows.collate(group, PackedPlan.alike(9, 3), Draw(0, 0))
    assert batch.sequences["text"].tokens.tolist() == [[MASK] * 3, [PAD] * 3, [MASK, MASK, END]]
    assert batch.values["chosen"].tolist() == [0, 1, 2, 6, 7, 0, 0, 0, 0]
    assert batch.values["labels"].tolist() == [7, 8, 9, 5, 6, *[IGNORED] * 4]
    assert batch.sequences["text"].layout.lengths_B is None  # type: ignore[union-attr]


def hidden_in(examples: Examples, plan: Plan, share: Share, epoch: int, before: bool) -> list[tuple[int, ...]]:
    """What is read instead of what, perhaps with the token before it: over an epoch, sorted."""
    planner = Planner(plan, examples.lengths, seed=1)
    found: list[tuple[int, ...]] = []
    for step in (step for pool in range(planner.pools) for step in planner.steps(epoch, pool)):
        for part in plan.split(step, share):
            batch = examples.collate(part, plan, Draw(1, epoch))
            flat, labels = batch.sequences["text"].tokens.flatten(), batch.values["labels"]
            assert labels.shape == batch.values["chosen"].shape
            chosen = batch.values["chosen"][labels != IGNORED]
            rows = [flat[chosen].tolist(), labels[labels != IGNORED].tolist()]
            rows += [flat[(chosen - 1).clamp(min=0)].tolist()] if before else []
            found += list(zip(*rows, strict=True))
    return sorted(found)


def test_the_same_tokens_are_hidden_however_a_step_is_split(tmp_path: Path) -> None:
    store = framed_texts(tmp_path / "texts", 200)
    for windows in (False, True):  # the first token of a window has no token before it
        examples = masked_in(store, 8 if windows else None)
        packed = PackedPlan.alike(64, 8) if windows else PackedPlan.for_lengths(examples.lengths, 64, 16)
        once = hidden_in(examples, PaddedPlan(128), Share(), 0, not windows)
        assert len(once) > 50
        for plan, share in (
            (PaddedPlan(128), Share(world=3, micro=20)),
            (packed, Share()),
            (packed, Share(world=2, micro=16)),
        ):
            assert hidden_in(examples, plan, share, 0, not windows) == once
        assert hidden_in(examples, PaddedPlan(128), Share(), 1, not windows) != once


def test_the_number_of_predictions_follows_from_the_shape(tmp_path: Path) -> None:
    masked = masked_in(framed_texts(tmp_path / "texts", 100))
    for plan in (PaddedPlan(64), PackedPlan(4, (16,))):
        seen: dict[int, set[int]] = {}
        for step in Planner(plan, masked.lengths, seed=0).steps(0, 0):
            batch = masked.collate(step, plan, Draw(0, 0))
            seen.setdefault(batch.sequences["text"].tokens.numel(), set()).add(len(batch.values["chosen"]))
        assert all(len(counts) == 1 for counts in seen.values())


WORDS = "in the beginning there was nothing, which exploded; we don't know 1,234.5 reasons (or why) naïve über-cats"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram"])
@pytest.mark.parametrize("units", ["words", "spans"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(st.sampled_from(WORDS.split()), min_size=1).map(" ".join), min_size=1, max_size=8))
def test_words_are_hidden_as_a_whole(kind: str, units: str, texts: list[str]) -> None:
    tokenizer = learned(kind)
    task = MaskedTask(Masked(units=units, rate=0.3), Encoder(), TokenizerPair.of(tokenizer))
    column = task.columns()["text"]
    assert isinstance(column, MaskedColumn)
    rows = task._tokens(texts)
    flat = np.concatenate([np.array(row, np.int64) for row in rows])
    begins, tokens = flat < tokenizer.size, flat % tokenizer.size
    assert [row.tolist() for row in np.split(tokens, np.cumsum([len(row) for row in rows])[:-1])] == tokenizer.ids(
        texts
    )
    bits = chances(Draw(3, 0), np.arange(len(rows)), np.array([len(row) for row in rows]))
    hidden = np.zeros(len(tokens), bool)
    hidden[column.choose(tokens, bits, len(tokens), begins)[0]] = True
    start = 0
    for encoding in tokenizer.encode_batch(texts, framed=False):
        for word in set(encoding.word_ids):
            places = [start + place for place, each in enumerate(encoding.word_ids) if each == word]
            assert len(set(hidden[places].tolist())) == 1
        start += len(encoding.ids)


@lru_cache
def learned(kind: str) -> Tokenizer:
    return train_tokenizer(parse(AnyTokenizer, {"kind": kind, "size": 310 if kind == "byte-bpe" else 90}), [WORDS] * 3)


@pytest.mark.parametrize("units", ["words", "spans"])
def test_words_and_spans_have_the_same_share(units: str) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, 1000, 600_000)
    begins = rng.random(600_000) < 0.7
    begins[::1000] = True
    column = MaskedColumn(1000, mask=MASK, special=SPECIAL, units=units)
    bits = chances(Draw(0, 0), np.arange(600), np.full(600, 1000))
    chosen, _ = column.choose(tokens, bits, len(tokens), begins)
    assert len(chosen) / len(tokens) == pytest.approx(0.15, abs=0.004)
    few, _ = column.choose(tokens, bits, 1000, begins)
    assert 980 < len(few) <= 1000
    assert few.tolist() == chosen[: len(few)].tolist()
    if units == "spans":  # neighbouring words; the mean length is 3.8 (Joshi et al. 2020), and some spans touch
        words = np.unique(np.cumsum(begins)[chosen])
        runs = np.split(words, np.flatnonzero(np.diff(words) > 1) + 1)
        assert 3.8 < np.mean([len(run) for run in runs]) < 4.3


def test_pairs_of_sentences_are_balanced_and_follow_each_other() -> None:
    rng = Random(0)
    sizes = [rng.randrange(2, 30) for _ in range(300)]
    documents = [
        [[100 * number + place] * rng.randrange(1, 9) for place in range(size)] for number, size in enumerate(sizes)
    ]
    for kind in ("next", "order"):
        pairs = list(text_pairs(documents, 40, kind, Random(1)))
        assert 0.45 < np.mean([follows for *_, follows in pairs]) < 0.55
        for first, second, follows in pairs:
            assert 0 < len(first) + len(second) <= 40
            same, step = first[0] // 100 == second[0] // 100, second[0] - first[-1]
            assert (same and step == 1) if follows else (not same if kind == "next" else second[-1] + 1 == first[0])


@pytest.mark.parametrize("generator", [0, 1])
def test_replaced_tokens_are_detected(generator: int, tmp_path: Path) -> None:
    """The generator draws from two tokens, whatever it reads, so that all losses follow from the text it wrote."""
    examples = small_examples("masked", small_store("masked", tmp_path, 2000))
    numbers = np.arange(2000)
    batch = examples.collate(Group(numbers, examples.lengths.of(numbers)), PaddedPlan(100_000), Draw(0, 0))
    text, labels = batch.sequences["text"].tokens, batch.values["labels"]
    original = torch.cat([text.flatten(), torch.zeros(1, dtype=torch.long)])
    cells = torch.where(labels == IGNORED, text.numel(), batch.values["chosen"])
    original = original.scatter(0, cells, labels)[:-1].view_as(text)
    shares = torch.full((VOCABULARY,), 1e-9, dtype=torch.float64)
    shares[7], shares[9] = 0.7, 0.3
    of_generator: list[Any] = []
    for weight in (2.0, 5.0):
        task = MaskedTask(Masked(generator=generator, detection=weight), Encoder(vocabulary=VOCABULARY, **SMALL))
        task._tokenizers = SimpleNamespace(source=SimpleNamespace(roles={"pad": 0}))  # type: ignore[assignment]
        torch.manual_seed(1)
        model = build(task.fit(), dtype=torch.float64).eval()
        assert task.trained_heads == (("masked", "replaced") if generator == 0 else ("replaced",))
        detector = model.heads["replaced"]
        masked = model.heads["masked"] if generator == 0 else detector.masked
        with torch.no_grad():
            masked.norm.weight.zero_()
            masked.norm.bias.zero_()
            masked.output.bias.copy_(shares.log())
        read: list[torch.Tensor] = []
        model.register_forward_pre_hook(lambda _, given, read=read: read.append(given[0]))
        loss = task.loss(model, batch)
        assert len(read) == 2 - generator
        assert set(read[-1][read[-1] != original].tolist()) == {7, 9}
        chosen = read[-1].flatten()[batch.values["chosen"][labels != IGNORED]]
        count = len(chosen)
        assert count > 1000
        assert {*chosen.tolist()} == {7, 9}
        assert abs(int((chosen == 7).sum()) - 0.7 * count) < 4 * (0.21 * count) ** 0.5
        real = original != 0
        wrong = ((read[-1] != original) & real)[real].double()
        layout = batch.sequences["text"].layout
        right = torch.sigmoid(detector(model(read[-1], layout))).detach()[..., 0][real]
        detection = -(wrong * right.log() + (1 - wrong) * (1 - right).log()).sum()
        plain = -shares[labels[labels != IGNORED]].log().sum()
        assert loss.total.item() == pytest.approx(float(plain + weight * 0.15 * detection), rel=1e-5)
        assert (float(loss.weight), float(loss.sums["plain"])) == (count, pytest.approx(float(plain), rel=1e-6))
        assert loss.sums["wrong"] == wrong.sum()
        found = task.metrics(loss.total.item(), count, {key: float(value) for key, value in loss.sums.items()})
        both = float(((right > 0.5) & (wrong == 1)).sum())
        assert found["detection"] == pytest.approx(2 * both / float((right > 0.5).sum() + wrong.sum()))
        loss.total.backward()
        of_generator.append(masked.output.bias.grad)
    assert torch.allclose(*of_generator)  # the detection does not train the generator's choice
