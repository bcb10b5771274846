"""Columns: a model reads and predicts what was stored, in any layout and however a step is split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_cases import (
    END,
    PAD,
    START,
    documents_in,
    framed_pairs,
    framed_texts,
    learned,
    masked_in,
    pairs_in,
    stored,
    windows_in,
)
from family_cases import decoder, encoder, encoder_decoder, unsettled
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.layout import Packed, Padded
from regard.data.batches import Group, PackedPlan, PaddedPlan, Plan, Share
from regard.data.columns import (
    IGNORED,
    LABELS,
    Batch,
    Draw,
    Examples,
    LabelColumn,
    PixelColumn,
    TokenColumn,
    TokenLabelColumn,
)
from regard.data.loader import Planner
from regard.errors import DataError
from regard.models.build import build

DRAW = Draw(seed=1, epoch=0)


def batch_of(examples: Examples, plan: Plan, chosen: list[int], rows: list[int] | None = None) -> Batch:
    """The batch of some examples; `rows` is the number of examples in each row of a packed batch."""
    numbers = np.array(chosen, dtype=np.int64)
    group = Group(numbers, examples.lengths.of(numbers), None if rows is None else np.cumsum([0, *rows]))
    return examples.collate(group, plan, DRAW)


def parts_of(examples: Examples, plan: Plan, share: Share = Share(), epoch: int = 0) -> list[Batch]:  # noqa: B008
    """Every batch of an epoch, over all processes."""
    planner = Planner(plan, examples.lengths, seed=1)
    return [
        examples.collate(part, plan, Draw(1, epoch))
        for pool in range(planner.pools)
        for step in planner.steps(epoch, pool)
        for part in plan.split(step, share)
    ]


@pytest.fixture
def two_pairs(tmp_path: Path) -> Examples:
    columns = {"source": [[5, 6, 7, END], [8, END]], "target": [[START, 9, END], [START, 10, 11, 12, END]]}
    return pairs_in(stored(tmp_path / "pairs", columns))


def test_padded_pairs_by_hand(two_pairs: Examples) -> None:
    assert two_pairs.lengths.of(np.arange(2)).tolist() == [[4, 2], [2, 4]]
    batch = batch_of(two_pairs, PaddedPlan(100), [1, 0])
    source = batch.sequences["source"]
    assert source.tokens.tolist() == [[8, END, PAD, PAD], [5, 6, 7, END]]
    assert batch.sequences["target"].tokens.tolist() == [[START, 10, 11, 12], [START, 9, PAD, PAD]]
    assert batch.values["target.next"].tolist() == [[10, 11, 12, END], [9, END, IGNORED, IGNORED]]
    assert isinstance(source.layout, Padded)
    assert source.layout.lengths_B is not None
    assert source.layout.lengths_B.tolist() == [2, 4]
    wide = batch_of(two_pairs, PaddedPlan(100, multiple=8), [0])
    assert {each.tokens.shape for each in wide.sequences.values()} == {(1, 8)}
    assert two_pairs.tokens == 6 + 8


def test_packed_pairs_by_hand(two_pairs: Examples) -> None:
    plan = PackedPlan(2, (8, 6), most=3, longest=4)
    batch = batch_of(two_pairs, plan, [1, 0], rows=[2, 0])
    assert batch.sequences["source"].tokens.tolist() == [8, END, 5, 6, 7, END, *[PAD] * 10]
    assert batch.sequences["target"].tokens.tolist() == [START, 10, 11, 12, START, 9, *[PAD] * 6]
    assert batch.values["target.next"].tolist() == [10, 11, 12, END, 9, END, *[IGNORED] * 6]
    source, target = (batch.sequences[name].layout for name in ("source", "target"))
    assert isinstance(source, Packed)
    assert isinstance(target, Packed)
    # Each row has three examples (perhaps empty) and two fillers of at most four tokens.
    assert source.offsets_S1.tolist() == [0, 2, 6, 6, 8, 8, 8, 8, 8, 12, 16]
    assert target.offsets_S1.tolist() == [0, 4, 6, 6, 6, 6, 6, 6, 6, 10, 12]
    assert (source.longest, source.width, target.longest, target.width) == (4, 8, 4, 6)


def test_an_empty_batch_predicts_nothing(two_pairs: Examples) -> None:
    for plan, rows in ((PaddedPlan(100, multiple=2), None), (PackedPlan(2, (8, 6), most=3), [0, 0])):
        batch = batch_of(two_pairs, plan, [], rows)
        source, target = batch.sequences["source"], batch.sequences["target"]
        labels = batch.values["target.next"]
        assert target.tokens.numel() == labels.numel() > 0
        assert (labels == IGNORED).all()
        model = build(encoder_decoder()).double().eval()
        assert model(source.tokens, target.tokens, source.layout, target.layout).isfinite().all()


def test_documents_and_windows_by_hand(tmp_path: Path) -> None:
    documents = documents_in(stored(tmp_path / "a", {"text": [[START, 5, 6, END], [START, END]]}))
    batch = batch_of(documents, PaddedPlan(100), [0, 1])
    assert learned(batch.sequences["text"], batch.values["text.next"]) == [
        ([START, 5, 6], [5, 6, END]),
        ([START], [END]),
    ]
    store = stored(tmp_path / "b", {"text": [[5, 6, END], [7, END], [8, 9, 10, END]]})
    windows = windows_in(store, 4)
    assert windows.lengths.of(np.arange(2)).tolist() == [[4], [4]]
    batch = batch_of(windows, PackedPlan.alike(12, 4), [1, 0], rows=[1, 1, 0])
    assert batch.sequences["text"].tokens.tolist() == [[END, 8, 9, 10], [5, 6, END, 7], [PAD] * 4]
    assert batch.values["text.next"].tolist() == [[8, 9, 10, END], [6, END, 7, END], [IGNORED] * 4]
    assert batch.sequences["text"].layout == Padded(3, 4)
    # Nine tokens give eight predictions: a window of eight, or fewer if the context is longer.
    for context, length, count in ((8, 8, 1), (9, 8, 1), (100, 8, 1), (3, 3, 2)):
        lengths = windows_in(store, context).lengths
        assert (lengths.longest, len(lengths)) == ((length,), count)
    padded = batch_of(windows_in(store, 2), PaddedPlan(100, multiple=8), [1])
    assert padded.sequences["text"].tokens.tolist() == [[END, 7]], "windows are not padded"
    with pytest.raises(DataError, match="too few tokens"):
        _ = windows_in(stored(tmp_path / "c", {"text": [[5]]}), 4).lengths


def test_windows_move_from_the_second_epoch_on(tmp_path: Path) -> None:
    windows = windows_in(stored(tmp_path / "a", {"text": [[*range(100)]]}), 8)
    plan = PackedPlan.alike(96, 8)
    moved = []
    for epoch in range(6):
        rows = [row for part in parts_of(windows, plan, epoch=epoch) for row in part.sequences["text"].tokens.tolist()]
        assert all(row == list(range(row[0], row[0] + 8)) for row in rows), "a window is a part of the text"
        starts = sorted(row[0] for row in rows)
        assert len(set(starts)) == len(starts) == 12
        assert len(set(range(100)).difference(*rows)) <= 100 - 12 * 8 + 8
        moved.append(starts[-1] % 8)
    assert moved[0] == 0
    assert len(set(moved)) > 2, "other epochs cut the text at other places"


def test_images_by_hand(tmp_path: Path) -> None:
    pixels = [list(range(12)), list(range(100, 112)), list(range(200, 212))]
    store = stored(tmp_path / "a", {"pixels": pixels, "label": [[7], [0], [9]]}, {"pixels": 256, "label": LABELS})
    images = Examples(store, {"pixels": PixelColumn((3, 2, 2), tokens=5), "label": LabelColumn()})
    assert images.lengths.of(np.array([2])).tolist() == [[5]]
    assert images.tokens == 15
    for plan, rows in ((PaddedPlan(100), None), (PackedPlan.alike(10, 5), [1, 1])):
        batch = batch_of(images, plan, [2, 0], rows)
        assert batch.values["pixels"].dtype == torch.uint8
        assert batch.values["pixels"].tolist() == np.array([pixels[2], pixels[0]]).reshape(2, 3, 2, 2).tolist()
        assert batch.values["label"].tolist() == [9, 7]
    assert batch_of(images, PackedPlan.alike(10, 5), [1], [1, 0]).values["label"].tolist() == [0, IGNORED]


def test_labels_of_texts_and_of_tokens_by_hand(tmp_path: Path) -> None:
    none = LABELS - 1
    columns = {
        "text": [[START, 5, 6, END], [START, 7, END]],
        "label": [[2], [1]],
        "tags": [[none, 3, 4, none], [none, 5, none]],
    }
    store = stored(tmp_path / "a", columns, {"text": 13, "label": LABELS, "tags": LABELS})
    examples = Examples(store, {"text": TokenColumn(13), "label": LabelColumn(), "tags": TokenLabelColumn(of="text")})
    batch = batch_of(examples, PaddedPlan(100), [0, 1])
    assert batch.values["label"].tolist() == [2, 1]
    assert batch.values["tags"].tolist() == [[IGNORED, 3, 4, IGNORED], [IGNORED, 5, IGNORED, IGNORED]]
    # Packed, a class belongs to a sequence: here two examples and one filler.
    batch = batch_of(examples, PackedPlan(1, (8,), most=2), [1, 0], rows=[2])
    assert batch.values["label"].tolist() == [1, 2, IGNORED]
    assert batch.values["tags"].tolist() == [IGNORED, 5, IGNORED, IGNORED, 3, 4, IGNORED, IGNORED]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The summed loss of a batch, as a task computes it."""
    if "source" in batch.sequences:
        source, target = batch.sequences["source"], batch.sequences["target"]
        scores, labels = model(source.tokens, target.tokens, source.layout, target.layout), batch.values["target.next"]
    else:
        text = batch.sequences["text"]
        scores = model(text.tokens, text.layout)
        if "chosen" in batch.values:
            scores = model.heads["masked"](scores.flatten(0, -2)[batch.values["chosen"]])  # type: ignore[index,operator]
        labels = batch.values["labels" if "chosen" in batch.values else "text.next"]
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


FAMILIES = {"pairs": encoder_decoder, "documents": decoder, "masked": encoder, "windows": decoder}


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_learns_the_same_in_any_layout_and_split(tmp_path: Path, kind: str) -> None:
    """In float64, the loss of an epoch and its gradient are the sums over single examples."""
    texts = framed_texts(tmp_path / "texts", 30)
    examples = {
        "pairs": pairs_in(framed_pairs(tmp_path / "pairs", 30)),
        "documents": documents_in(texts),
        "masked": masked_in(texts, rate=0.5),
        "windows": windows_in(texts, 7),
    }[kind]
    model = unsettled(build(FAMILIES[kind](), dtype=torch.float64))

    def learn(plan: Plan, share: Share = Share()) -> list[Tensor]:  # noqa: B008
        model.zero_grad()
        total = sum((loss_of(model, batch) for batch in parts_of(examples, plan, share)), torch.zeros(()).double())
        total.backward()
        return [total.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    alone = learn(PaddedPlan(1000, examples=1))
    assert alone[0] > 30
    packed = PackedPlan.alike(28, 7) if kind == "windows" else PackedPlan.for_lengths(examples.lengths, 64, 16)
    for plan, share in (
        (PaddedPlan(64), Share()),
        (PaddedPlan(64, multiple=8), Share(world=2, micro=20)),
        (packed, Share()),
        (packed, Share(world=3, micro=16)),
    ):
        torch.testing.assert_close(learn(plan, share), alone, rtol=1e-9, atol=1e-9)
