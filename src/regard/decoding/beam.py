"""Beam search, for a whole batch in tensors.

B: inputs still worked on, K: beams, C = 2K: candidates of a step, L: the longest sequence, S: source tokens,
V: vocabulary. Of the 2K best candidates the K best that go on stay open, so that ends never empty the beam; those that
end are kept if they are among the K best candidates, in a pool of the K best finished ones.

What was written is kept as tokens that point back to the row they continue, and read from its end when all is done. A
turn changes tensors in place, takes its number from one of them and asks the device nothing, so that a GPU can record a
turn and replay it (`replay.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.choose import NEVER
from regard.decoding.greedy import hypothesis, looks
from regard.decoding.likeliest import Continuations, likeliest
from regard.decoding.request import Ends, Hypothesis, Job
from regard.decoding.rulebook import Rulebook
from regard.decoding.settings import Beam, Rules
from regard.decoding.source import SHAPES, Source, up_to

KEPT_ON_CPU, KEPT_ON_GPU = 7 / 8, 1 / 2
"""Once no more than this share of the inputs is left, the others are dropped: to move what is left costs something."""


@dataclass
class _Open:
    """The open sequences of each input, the best first, and how each came about, step by step."""

    sums_BK: Tensor
    """Log-probabilities; −∞ where there is none."""
    tokens_LBK: Tensor
    chances_LBK: Tensor
    parents_LBK: Tensor
    """Which of the step before each continues."""
    written_BKL: Tensor
    """The sequences themselves; L is 0 unless a rule asks for them."""
    seen_BKS: Tensor
    """Attention that each source token got so far; S is 0 unless coverage is asked for."""


@dataclass
class _Pool:
    """The best finished sequences of each input, the best first."""

    rank_BK: Tensor
    """What they are ranked by; −∞ where there is none."""
    length_BK: Tensor
    token_BK: Tensor
    """The last one."""
    chance_BK: Tensor
    parent_BK: Tensor
    """Which of the open sequences it was written behind."""
    ended_BK: Tensor


def _gather(x: Tensor, which_BK: Tensor) -> Tensor:
    index = which_BK.view(*which_BK.shape, *[1] * (x.dim() - 2)).expand(*which_BK.shape, *x.shape[2:])
    return x.gather(1, index)


class BeamSearch:
    """One batch being searched."""

    def __init__(self, source: Source, jobs: Sequence[Job], ends: Ends, rules: Rules, beam: Beam) -> None:
        self.source, self.jobs, self.rules, self.beam, self.end = source, jobs, rules, beam, ends.end
        self.book = Rulebook(rules, jobs, source, ends)
        self.longest = max(job.longest for job in jobs)
        if source.device.type == "cuda" and source.room(1) is None:
            # So that batches of about one length can share a recording.
            self.longest = up_to(self.longest, SHAPES)
        inputs = [job.tokens for job in jobs]
        self.state, self.scores_NV = source.begin(inputs, self.longest, look=beam.coverage > 0)
        self.stays = self.state.fixed() is not None
        """Whether memory must stay in its place."""
        like, count, size = self.scores_NV, len(jobs), beam.size
        time = max(len(tokens) for tokens in inputs) if beam.coverage else 0
        self.absent_BS = torch.tensor(
            [[s >= len(tokens) for s in range(time)] for tokens in inputs], device=like.device
        )
        history = torch.zeros(self.longest, count, size, dtype=torch.long, device=like.device)
        written = self.longest if self.book.looks_back else 0
        self.open = _Open(
            like.new_zeros(count, 1),
            history,
            like.new_zeros(history.shape),
            history.clone(),
            history.new_zeros(count, 1, written),
            like.new_zeros(count, 1, time),
        )
        none = history.new_zeros(count, size)
        self.pool = _Pool(
            like.new_full((count, size), NEVER),
            none,
            none.clone(),
            like.new_zeros(count, size),
            none.clone(),
            none.bool(),
        )
        self.places = list(range(count))
        self.live_B = torch.ones(count, dtype=torch.bool, device=like.device)
        # The first is never asked for.
        divisors = [1.0, *(beam.length.divisor(length) for length in range(1, self.longest + 1))]
        self.divisor_L = like.new_tensor(divisors)
        self.farthest_B = like.new_tensor([beam.length.divisor(job.longest) for job in jobs])
        self.offset_B1 = torch.arange(count, device=like.device)[:, None]
        self.results: list[list[Hypothesis]] = [[] for _ in jobs]
        self.step = 0
        self.step_1 = torch.zeros(1, dtype=torch.long, device=like.device)
        """The same, where the device can see it."""

    def run(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each input, the best first."""
        while self.advance():
            pass
        return self.harvested()

    def advance(self) -> bool:
        """One more token; false when nothing is left to do, as far as that was looked at."""
        rows_BK = self.choose()
        self.step += 1
        if self.step == self.longest:
            return False
        kept_B: Tensor | None = None
        if looks(self.source.device, self.step):
            kept_B = self.live_B.nonzero()[:, 0]
            if len(kept_B) == 0:
                return False
            most = KEPT_ON_GPU if self.live_B.is_cuda else KEPT_ON_CPU
            kept_B = kept_B if len(kept_B) <= most * len(self.places) else None
        if kept_B is not None:
            rows_BK = rows_BK[kept_B]
            self._leave_only(kept_B)
        self.write(rows_BK, kept_B)
        return True

    def choose(self) -> Tensor:
        """Ends and continues sequences by the scores at hand; `[B, K]`: the row that each open one goes on from."""
        found = self._candidates()
        self.step_1 += 1
        ended_BC = torch.zeros_like(found.tokens_BC, dtype=torch.bool)
        ended_BC = ended_BC if self.end is None else found.tokens_BC == self.end
        hit_BC = ended_BC | (self.book.longest_B <= self.step_1)[:, None]
        self._finish(found, hit_BC, ended_BC)
        best = found.sums_BC.masked_fill(hit_BC, NEVER).topk(self.beam.size)
        tokens_BK, chances_BK, parents_BK = (
            each.gather(1, best.indices) for each in (found.tokens_BC, found.chances_BC, found.parents_BC)
        )
        rows_BK = self.offset_B1 * self.open.sums_BK.shape[1] + parents_BK
        self._continue(best.values, tokens_BK, chances_BK, parents_BK)
        self.live_B &= self._may_improve()
        return rows_BK

    def write(self, rows_BK: Tensor, kept_B: Tensor | None = None) -> None:
        """Reads the tokens that were chosen last, and asks the model what may follow."""
        self.state.select(rows_BK.flatten(), kept_B)
        tokens_BK = self.open.tokens_LBK.index_select(0, self.step_1 - 1)[0]
        scores_NV = self.state.step(tokens_BK.flatten())
        if self.stays and scores_NV.shape == self.scores_NV.shape:
            self.scores_NV.copy_(scores_NV)
        else:  # a copy of all scores would cost a CPU as much as many a step
            self.scores_NV = scores_NV

    # ------------------------------------------------------------------------------------------------------- one turn

    def _candidates(self) -> Continuations:
        """The 2K best continuations of each input's open sequences."""
        open_, wanted = self.open, 2 * self.beam.size
        seen = self.state.attended()
        if seen is not None:
            # Which source tokens the last step looked at belongs to the token that it led to.
            open_.seen_BKS = open_.seen_BKS + seen.view(open_.seen_BKS.shape)
        if self.book.steady and open_.sums_BK.shape[1] * self.scores_NV.shape[1] >= wanted:
            return likeliest(self.scores_NV, open_.sums_BK, wanted)
        written_NT = open_.written_BKL[..., : self.step].flatten(0, 1)
        chances_NV = self.book.apply(self.scores_NV.log_softmax(-1), written_NT, self.step)
        chances_BKV = chances_NV.view(*open_.sums_BK.shape, -1)
        sums_BF = (open_.sums_BK[..., None] + chances_BKV).flatten(1)
        flat, vocabulary = sums_BF.shape[1], chances_NV.shape[1]
        best = functional.pad(sums_BF, (0, max(wanted - flat, 0)), value=NEVER).topk(wanted)
        index_BC = best.indices.clamp(max=flat - 1)
        chances_BC = chances_BKV.flatten(1).gather(1, index_BC)
        return Continuations(best.values, chances_BC, index_BC // vocabulary, index_BC % vocabulary)

    def _finish(self, found: Continuations, hit_BC: Tensor, ended_BC: Tensor) -> None:
        """Puts finished candidates into the pool, where they are good enough and their input is still searched."""
        size = self.beam.size
        sums_BK, chances_BK, parents_BK, tokens_BK = (each[:, :size] for each in found)
        rank_BK = sums_BK / self.divisor_L.index_select(0, self.step_1) + self._coverage(parents_BK)
        rank_BK = rank_BK.masked_fill(~(hit_BC[:, :size] & self.live_B[:, None]), NEVER)
        length_BK = self.step_1.expand_as(tokens_BK)
        done = _Pool(rank_BK, length_BK, tokens_BK, chances_BK, parents_BK, ended_BC[:, :size])
        best = torch.cat([self.pool.rank_BK, rank_BK], dim=1).topk(size)
        for each in fields(self.pool):
            before = getattr(self.pool, each.name)
            before.copy_(torch.cat([before, getattr(done, each.name)], dim=1).gather(1, best.indices))

    def _continue(self, sums_BK: Tensor, tokens_BK: Tensor, chances_BK: Tensor, parents_BK: Tensor) -> None:
        open_, place_1 = self.open, self.step_1 - 1
        for history_LBK, new_BK in (
            (open_.tokens_LBK, tokens_BK),
            (open_.chances_LBK, chances_BK),
            (open_.parents_LBK, parents_BK),
        ):
            history_LBK.index_copy_(0, place_1, new_BK[None])
        if open_.sums_BK.shape == sums_BK.shape:
            open_.sums_BK.copy_(sums_BK)
        else:
            open_.sums_BK = sums_BK
        if self.beam.coverage:
            open_.seen_BKS = _gather(open_.seen_BKS, parents_BK)
        if self.book.looks_back:
            open_.written_BKL = _gather(open_.written_BKL, parents_BK)
            open_.written_BKL[..., self.step] = tokens_BK

    def _coverage(self, parents_BK: Tensor) -> Tensor | float:
        """Wu et al. (2016): β × the sum over source tokens of log min(attention it got, 1); never positive."""
        if not self.beam.coverage:
            return 0.0
        got_BKS = _gather(self.open.seen_BKS, parents_BK).masked_fill(self.absent_BS[:, None], 1.0)
        tiny = torch.finfo(got_BKS.dtype).tiny
        return self.beam.coverage * got_BKS.clamp(tiny, 1.0).log().sum(-1)

    def _may_improve(self) -> Tensor:
        """`[B]`: whether the search of each input goes on. Sums only fall, so the best open one bounds them all."""
        beam, best_B = self.beam, self.open.sums_BK[:, 0]
        alive_B = best_B > NEVER
        if beam.stop == "first":
            return alive_B & (self.pool.rank_BK[:, -1] == NEVER)
        now_1 = self.divisor_L.index_select(0, self.step_1)
        if beam.stop == "best":
            return alive_B & (best_B / now_1 > self.pool.rank_BK[:, -1])
        if self.rules.frequency < 0 or self.rules.presence < 0:
            return alive_B  # a penalty that rewards may raise a sum
        divisor = self.farthest_B if beam.length.alpha > 0 else now_1
        return alive_B & (best_B / divisor > self.pool.rank_BK[:, beam.nbest - 1])

    # --------------------------------------------------------------------------------------------------- what is done

    def _leave_only(self, kept_B: Tensor) -> None:
        kept = kept_B.tolist()
        self._harvest(sorted(set(range(len(self.places))) - set(kept)))
        self.places = [self.places[b] for b in kept]
        for each in fields(self.open):
            along = 1 if each.name.endswith("LBK") else 0
            setattr(self.open, each.name, getattr(self.open, each.name).index_select(along, kept_B))
        for each in fields(self.pool):
            setattr(self.pool, each.name, getattr(self.pool, each.name).index_select(0, kept_B))
        self.live_B, self.farthest_B = self.live_B[kept_B], self.farthest_B[kept_B]
        self.absent_BS = self.absent_BS[kept_B]
        self.offset_B1 = self.offset_B1[: len(kept)]
        self.book.select(kept_B)

    def harvested(self) -> list[list[Hypothesis]]:
        """The results, when all is done."""
        self._harvest(range(len(self.places)))
        return self.results

    def _harvest(self, inputs: Sequence[int]) -> None:
        """Reads the pools of inputs that are done, each sequence from its end."""
        chosen = list(inputs)
        index_B = torch.tensor(chosen, dtype=torch.long, device=self.live_B.device)
        rank, length, token, chance, parent, ended = (
            getattr(self.pool, each.name).index_select(0, index_B).cpu().numpy() for each in fields(self.pool)
        )
        tokens, chances, parents = (
            history.index_select(1, index_B).cpu().numpy()
            for history in (self.open.tokens_LBK, self.open.chances_LBK, self.open.parents_LBK)
        )
        row = np.arange(len(chosen))[:, None]
        written, theirs = (
            np.zeros((*rank.shape, self.longest), np.int64),
            np.zeros((*rank.shape, self.longest), chance.dtype),
        )
        at = parent
        for step in range(int(length.max(initial=0)) - 1, -1, -1):
            last, before = length == step + 1, length > step + 1
            written[..., step] = np.where(last, token, np.where(before, tokens[step][row, at], 0))
            theirs[..., step] = np.where(last, chance, np.where(before, chances[step][row, at], 0))
            at = np.where(before, parents[step][row, at], at)
        for b, place in enumerate(self.places[b] for b in chosen):
            found = [
                hypothesis(
                    written[b, k, : length[b, k]].tolist(),
                    float(rank[b, k]),
                    theirs[b, k].tolist(),
                    bool(ended[b, k]),
                    self.rules,
                )
                for k in range(self.beam.nbest)
                if rank[b, k] > NEVER
            ]
            # Rules that leave no token at all end here, with nothing written.
            self.results[place] = found or [Hypothesis([], NEVER, [], False, False)]
