"""Assemblers: what a model reads and predicts is what was prepared, in any layout and however a step is split."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from data_cases import END, MASK, PAD, START, framed_pairs, framed_texts, learned, prepared, same, sequences_of, stored
from family_cases import decoder, encoder, encoder_decoder, unsettled
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.layout import Packed, Padded, pack
from regard.data.assemble import Assembler, Documents, Draw, Images, Pairs, Windows
from regard.data.assemble_grid import lay
from regard.data.assemble_masked import MaskedDocuments, MaskedWindows, Masking
from regard.data.batch import IGNORED, Batch, ImageBatch, PairBatch, TextBatch
from regard.data.batches import Group, PackedPlan, PaddedPlan, Plan, Share
from regard.data.loader import Planner
from regard.errors import DataError
from regard.models.build import build

DRAW = Draw(seed=1, epoch=0)
HALF = Masking(mask=MASK, vocabulary=13, special=(PAD, START, END), rate=0.5)


def batch_of(assembler: Assembler, plan: Plan, examples: list[int], rows: list[int] | None = None) -> Batch:
    """The batch of some examples; `rows` says how many lie in each row of a packed one."""
    numbers = np.array(examples, dtype=np.int64)
    group = Group(numbers, assembler.lengths.of(numbers), None if rows is None else np.cumsum([0, *rows]))
    return assembler.assemble(numbers, lay(group, plan), DRAW)


def parts_of(assembler: Assembler, plan: Plan, share: Share = Share(), epoch: int = 0) -> list[Batch]:  # noqa: B008
    """Every batch of an epoch, over all processes."""
    planner = Planner(plan, assembler.lengths, seed=1)
    return [
        assembler.assemble(part.examples, lay(part, plan), Draw(1, epoch))
        for pool in range(planner.pools)
        for step in planner.steps(epoch, pool)
        for part in plan.split(step, share)
    ]


# -------------------------------------------------------------------------------------------------------------- pairs


@pytest.fixture
def two_pairs(tmp_path: Path) -> Pairs:
    data = prepared(
        tmp_path / "pairs",
        {"source": [[5, 6, 7, END], [8, END]], "target": [[START, 9, END], [START, 10, 11, 12, END]]},
    )
    return Pairs(data, PAD)


def test_padded_pairs_by_hand(two_pairs: Pairs) -> None:
    assert two_pairs.lengths.of(np.arange(2)).tolist() == [[4, 2], [2, 4]]
    batch = batch_of(two_pairs, PaddedPlan(100), [1, 0])
    assert isinstance(batch, PairBatch)
    assert batch.source.tokens.tolist() == [[8, END, PAD, PAD], [5, 6, 7, END]]
    assert batch.target.tokens.tolist() == [[START, 10, 11, 12], [START, 9, PAD, PAD]]
    assert batch.labels.tolist() == [[10, 11, 12, END], [9, END, IGNORED, IGNORED]]
    assert isinstance(batch.source.layout, Padded)
    assert batch.source.layout.lengths_B is not None
    assert batch.source.layout.lengths_B.tolist() == [2, 4]
    wide = batch_of(two_pairs, PaddedPlan(100, multiple=8), [0])
    assert isinstance(wide, PairBatch)
    assert wide.source.tokens.shape == wide.target.tokens.shape == (1, 8)


def test_packed_pairs_by_hand(two_pairs: Pairs) -> None:
    plan = PackedPlan(2, (8, 6), most=3, longest=4)
    batch = batch_of(two_pairs, plan, [1, 0], rows=[2, 0])
    assert isinstance(batch, PairBatch)
    assert batch.source.tokens.tolist() == [8, END, 5, 6, 7, END, *[PAD] * 10]
    assert batch.target.tokens.tolist() == [START, 10, 11, 12, START, 9, *[PAD] * 6]
    assert batch.labels.tolist() == [10, 11, 12, END, 9, END, *[IGNORED] * 6]
    source, target = batch.source.layout, batch.target.layout
    assert isinstance(source, Packed)
    assert isinstance(target, Packed)
    # In each row three examples (perhaps empty) and two fillers of four tokens at the most.
    assert source.offsets_S1.tolist() == [0, 2, 6, 6, 8, 8, 8, 8, 8, 12, 16]
    assert target.offsets_S1.tolist() == [0, 4, 6, 6, 6, 6, 6, 6, 6, 10, 12]
    assert (source.longest, source.width, target.longest, target.width) == (4, 8, 4, 6)


def test_packed_layouts_mean_what_pack_means(tmp_path: Path) -> None:
    """`pack` lays examples in rows in the order given; so do we, with empty sequences in between."""
    pairs = Pairs(framed_pairs(tmp_path / "a", 40), PAD)
    plan = PackedPlan(50, (20, 17), most=7, longest=11)
    numbers = np.arange(40)
    lengths = pairs.lengths.of(numbers)
    packing = pack(lengths.tolist(), plan.widths, plan.longest)
    width = packing.layouts[0].width
    assert width is not None
    rows = [int(packing.layouts[0].offsets_S1[s]) // width for s in packing.sequences]
    counts = np.bincount(rows, minlength=packing.layouts[0].rows)
    grids = lay(Group(numbers, lengths, np.cumsum([0, *counts])), plan)
    for theirs, ours in zip(packing.layouts, grids, strict=True):
        assert isinstance(ours.layout, Packed)
        assert (ours.layout.tokens, ours.layout.longest, ours.layout.width) == (
            theirs.tokens,
            theirs.longest,
            theirs.width,
        )
        assert (ours.starts == theirs.offsets_S1.numpy()[packing.sequences]).all()
        mine, other = (layout.offsets_S1.diff() for layout in (ours.layout, theirs))
        assert mine[mine > 0].tolist() == other[other > 0].tolist()


def test_an_empty_batch_predicts_nothing(two_pairs: Pairs) -> None:
    for plan, rows in ((PaddedPlan(100, multiple=2), None), (PackedPlan(2, (8, 6), most=3), [0, 0])):
        batch = batch_of(two_pairs, plan, [], rows)
        assert isinstance(batch, PairBatch)
        assert batch.target.tokens.numel() == batch.labels.numel() > 0
        assert (batch.labels == IGNORED).all()
        model = build(encoder_decoder()).double().eval()
        logits = model(batch.source.tokens, batch.target.tokens, batch.source.layout, batch.target.layout)
        assert logits.isfinite().all()


# ------------------------------------------------------------------------------------------------ texts and windows


def test_documents_by_hand(tmp_path: Path) -> None:
    documents = Documents(prepared(tmp_path / "a", {"text": [[START, 5, 6, END], [START, END]]}), PAD)
    batch = batch_of(documents, PaddedPlan(100), [0, 1])
    assert isinstance(batch, TextBatch)
    assert batch.chosen is None
    assert learned(batch.text, batch.labels) == [([START, 5, 6], [5, 6, END]), ([START], [END])]


def test_windows_by_hand(tmp_path: Path) -> None:
    data = prepared(tmp_path / "a", {"text": [[5, 6, END], [7, END], [8, 9, 10, END]]})
    windows = Windows(data, PAD, context=4)
    assert windows.lengths.of(np.arange(2)).tolist() == [[4], [4]]
    batch = batch_of(windows, PackedPlan.alike(12, 4), [1, 0], rows=[1, 1, 0])
    assert isinstance(batch, TextBatch)
    assert batch.text.tokens.tolist() == [[END, 8, 9, 10], [5, 6, END, 7], [PAD] * 4]
    assert batch.labels.tolist() == [[8, 9, 10, END], [6, END, 7, END], [IGNORED] * 4]
    assert batch.text.layout == Padded(3, 4)
    # Nine tokens give eight predictions: a window of eight, or of less where the context is longer.
    for context, length, count in ((8, 8, 1), (9, 8, 1), (100, 8, 1), (3, 3, 2)):
        lengths = Windows(data, PAD, context).lengths
        assert (lengths.longest, len(lengths)) == ((length,), count)


def test_padded_windows_need_no_rounding(tmp_path: Path) -> None:
    windows = Windows(prepared(tmp_path / "a", {"text": [[5, 6, 7, 8, 9]]}), PAD, context=2)
    batch = batch_of(windows, PaddedPlan(100, multiple=8), [1])
    assert isinstance(batch, TextBatch)
    assert batch.text.tokens.tolist() == [[7, 8]]
    assert batch.labels.tolist() == [[8, 9]]


def test_too_little_text_for_a_window_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path / "a", {"text": [[5]]})
    with pytest.raises(DataError, match="a holds too few tokens for one window; give it more text"):
        _ = Windows(data, PAD, context=4).lengths


# -------------------------------------------------------------------------------------------------------------- images


def test_images_by_hand(tmp_path: Path) -> None:
    pixels = [list(range(12)), list(range(100, 112)), list(range(200, 212))]
    data = prepared(tmp_path / "a", {"pixels": pixels, "label": [[7], [0], [9]]}, vocabulary=256)
    images = Images(data, shape=(3, 2, 2), tokens=5)
    assert images.lengths.of(np.array([2])).tolist() == [[5]]
    for plan, rows in ((PaddedPlan(100), None), (PackedPlan.alike(10, 5), [1, 1])):
        batch = batch_of(images, plan, [2, 0], rows)
        assert isinstance(batch, ImageBatch)
        assert batch.images.dtype == torch.uint8
        assert batch.images.tolist() == np.array([pixels[2], pixels[0]]).reshape(2, 3, 2, 2).tolist()
        assert batch.labels.tolist() == [9, 7]
    short = batch_of(images, PackedPlan.alike(10, 5), [1], [1, 0])
    assert isinstance(short, ImageBatch)
    assert short.labels.tolist() == [0, IGNORED]


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path / "a", {"pixels": [[1, 2, 3, 4]], "label": [[0]]}, vocabulary=256)
    with pytest.raises(DataError, match="a holds 4 bytes of pixels, but 1 images of 1 × 2 × 3 have 6; give the shape"):
        _ = Images(data, (1, 2, 3), tokens=4).lengths


# ------------------------------------------------------------------------------------- whole epochs, whatever the split

SHARES = [Share(), Share(world=3), Share(micro=20), Share(world=2, micro=11)]


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_everything_prepared_is_learned_once(tmp_path: Path, share: Share, packed: bool) -> None:
    data = framed_pairs(tmp_path / "pairs", 60)
    pairs = Pairs(data, PAD)
    plan = PackedPlan.for_lengths(pairs.lengths, 64, row=16) if packed else PaddedPlan(64)
    found = []
    for batch in parts_of(pairs, plan, share):
        assert isinstance(batch, PairBatch)
        sides = zip(
            sequences_of(batch.source.tokens, batch.source.layout),
            sequences_of(batch.target.tokens, batch.target.layout),
            sequences_of(batch.labels, batch.target.layout),
            strict=True,
        )
        found += [side for side in sides if any(label != IGNORED for label in side[2])]
    wanted = [(stored(data, "source", i), stored(data, "target", i)) for i in range(60)]
    assert sorted(found) == sorted((source, target[:-1], target[1:]) for source, target in wanted)


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_every_window_is_learned_once(tmp_path: Path, share: Share, packed: bool) -> None:
    data = framed_texts(tmp_path / "texts", 60)
    windows = Windows(data, PAD, context=5)
    plan = PackedPlan.alike(40, 5) if packed else PaddedPlan(40)
    batches = parts_of(windows, plan, share)
    found = [pair for batch in batches if isinstance(batch, TextBatch) for pair in learned(batch.text, batch.labels)]
    flat = [token for i in range(60) for token in stored(data, "text", i)]
    starts = range(0, len(flat) - 5, 5)
    assert sorted(found) == sorted((flat[i : i + 5], flat[i + 1 : i + 6]) for i in starts)
    if packed:
        assert len({batch.text.tokens.shape for batch in batches if isinstance(batch, TextBatch)}) == 1


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The summed loss of a batch, as a task computes it."""
    if isinstance(batch, PairBatch):
        scores = model(batch.source.tokens, batch.target.tokens, batch.source.layout, batch.target.layout)
    else:
        assert isinstance(batch, TextBatch)
        scores = model(batch.text.tokens, batch.text.layout)
        if batch.chosen is not None:
            scores = model.heads["masked"](scores.flatten(0, -2)[batch.chosen])  # type: ignore[index,operator]
    return functional.cross_entropy(
        scores.flatten(0, -2), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


FAMILIES = {"pairs": encoder_decoder, "documents": decoder, "masked": encoder, "windows": decoder}


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_learns_the_same_in_any_layout_and_split(tmp_path: Path, kind: str) -> None:
    """In float64, the loss of an epoch and its gradient are those of each example by itself."""
    assemblers: dict[str, Assembler] = {
        "pairs": Pairs(framed_pairs(tmp_path / "pairs", 30), PAD),
        "documents": Documents(texts := framed_texts(tmp_path / "texts", 30), PAD),
        "masked": MaskedDocuments(texts, PAD, HALF),
        "windows": Windows(texts, PAD, context=7),
    }
    assembler = assemblers[kind]
    model = unsettled(build(FAMILIES[kind](), dtype=torch.float64))

    def learn(plan: Plan, share: Share = Share()) -> list[Tensor]:  # noqa: B008
        model.zero_grad()
        total = sum((loss_of(model, batch) for batch in parts_of(assembler, plan, share)), torch.zeros(()).double())
        total.backward()
        return [total.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    alone = learn(PaddedPlan(1000, examples=1))
    assert alone[0] > 30
    row = None if kind == "windows" else 16
    packed = PackedPlan.alike(28, 7) if kind == "windows" else PackedPlan.for_lengths(assembler.lengths, 64, row)
    for plan, share in (
        (PaddedPlan(64), Share()),
        (PaddedPlan(64, multiple=8), Share(world=2, micro=20)),
        (packed, Share()),
        (packed, Share(world=3, micro=16)),
    ):
        torch.testing.assert_close(learn(plan, share), alone, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ other processes


def test_an_assembler_is_the_same_in_another_process(tmp_path: Path) -> None:
    pairs = Pairs(framed_pairs(tmp_path / "pairs", 30), PAD)
    masked = MaskedWindows(framed_texts(tmp_path / "texts", 30), PAD, HALF, context=8)
    for assembler in (pairs, masked):
        _ = assembler.lengths.longest
        sent = pickle.dumps(assembler)
        assert len(sent) < 2000, "files are mapped again, not sent"
        first, second = (batch_of(each, PaddedPlan(100), [3, 1]) for each in (assembler, pickle.loads(sent)))
        assert same(first, second)
