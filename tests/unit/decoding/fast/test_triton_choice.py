"""A choice in two kernels is the choice that `BeamSearch` spells out."""

from __future__ import annotations

import pytest
import torch
from decoding_cases import ENDS, translator
from fused_cases import DEVICE, needs_triton

from regard.decoding.beam import BeamBatch, BeamSearch
from regard.decoding.fast import FastPaths
from regard.decoding.model import SearchModel
from regard.decoding.settings import Beam, Ends, Job, LengthPenalty, Paper, Power, Rules, Stop

pytestmark = needs_triton


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 5), (3, 64), (4, 1000), (8, 40_000)])
def test_one_look_at_all_scores(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    from regard.decoding.fast.triton_choice import scan

    scores = (5 * torch.randn(2 * rows, vocabulary, device=DEVICE) + 30).to(dtype)
    scores[0, 1:] = -torch.inf
    excess, tops, block = scan(scores, rows)
    assert torch.allclose(excess.double(), scores.double().logsumexp(-1), atol=1e-5)
    short = tops.shape[1] * block - vocabulary
    assert 0 <= short < block
    padded = torch.nn.functional.pad(scores.float(), (0, short), value=-torch.inf)
    assert torch.equal(tops, padded.view(2 * rows, -1, block).amax(-1))


def searches(vocabulary: int, longest: list[int], beam: Beam, end: int | None) -> list[BeamSearch]:
    """The same search twice: in kernels, and spelled out."""
    model = translator(vocabulary, dtype=torch.float32).to(DEVICE)
    jobs = [Job(place, [3, 4], longest=each) for place, each in enumerate(longest)]
    ends, found = Ends(ENDS.start, end), []
    for triton_choice in (True, False):
        prepared = SearchModel(model, ends, FastPaths(fixed=True, triton_choice=triton_choice))
        found.append(BeamSearch(BeamBatch(prepared, jobs, ends, Rules(), beam)))
    return found


def assert_equal_boards(mine: BeamSearch, other: BeamSearch) -> None:
    assert torch.equal(mine.live_B, other.live_B)
    assert torch.allclose(mine.sums_BK, other.sums_BK, atol=1e-5)
    assert torch.allclose(mine.pool_BKF[..., 3], other.pool_BKF[..., 3], atol=1e-5)
    filled = other.pool_BKF[..., 3] > -torch.inf
    assert torch.allclose(mine.pool_BKF[filled], other.pool_BKF[filled], atol=1e-5)
    real = other.sums_BK > -torch.inf
    assert torch.equal(mine.tokens_BK[real], other.tokens_BK[real])
    step = int(other.step_1) - 1
    fields = (mine.history_LBKF[step], other.history_LBKF[step])
    assert torch.allclose(fields[0][real], fields[1][real], atol=1e-5)
    assert not fields[0].isnan().any()


@pytest.mark.parametrize("stop", ["all", "best", "first"])
@pytest.mark.parametrize(
    ("size", "vocabulary", "length"),
    [
        (1, 6, Power(alpha=0.0)),
        (2, 6, Power(alpha=-0.5)),
        (3, 200, Paper()),
        (4, 64, Power(alpha=1.0)),
        (5, 131, Power(alpha=0.0)),
        (8, 6, Paper()),
        (8, 2100, Power(alpha=2.0)),
    ],
)
@torch.inference_mode()
def test_the_same_choices(size: int, vocabulary: int, length: LengthPenalty, stop: Stop) -> None:
    """Turn by turn, with scores that end some sequences, for inputs of different lengths and one that is none."""
    beam = Beam(size=size, nbest=(size + 1) // 2, length=length, stop=stop)
    for end in (1, None):
        mine, other = searches(vocabulary, [7, 4, 0, 6], beam, end)
        for _ in range(7):
            rows = len(mine.scores_NV)
            scores = 3 * torch.randn(rows, vocabulary, device=DEVICE)
            scores[:, 1] += torch.rand(rows, device=DEVICE) * scores.amax(-1)
            mine.scores_NV, other.scores_NV = scores, scores.clone()
            mine_rows, rows_BK = mine.choose(), other.choose()
            assert_equal_boards(mine, other)
            assert torch.equal(mine_rows[other.sums_BK > -torch.inf], rows_BK[other.sums_BK > -torch.inf])
            mine.scores_NV = scores.new_empty(len(rows_BK) * size, 0)


@pytest.mark.filterwarnings("ignore:All-NaN slice", "ignore:invalid value")
@torch.inference_mode()
def test_scores_that_are_no_numbers_lead_nowhere() -> None:
    """Nothing is read or written beyond an end, and no token is out of range."""
    mine, _ = searches(70, [5, 5], Beam(size=3), 1)
    mine.scores_NV = torch.full((2, 70), torch.nan, device=DEVICE)
    rows = mine.choose()
    assert set(rows.flatten().tolist()) <= {0, 1}
    assert bool(((mine.tokens_BK >= 0) & (mine.tokens_BK < 70)).all())


@torch.inference_mode()
def test_equal_scores_go_by_their_place() -> None:
    mine, _ = searches(200, [5], Beam(size=3), 1)
    mine.scores_NV = torch.zeros(1, 200, device=DEVICE)
    mine.choose()
    assert mine.tokens_BK.tolist() == [[0, 2, 3]]
