"""Beam search for a whole batch, in tensors.

B: active inputs, K: beams, C = 2K: candidates of a step, L: length of the longest sequence, S: source tokens,
V: vocabulary. Of the 2K best candidates the K best that do not end stay open, so that ends never empty the beam.
Candidates that end are kept, if they are among the K best candidates, in a pool of the K best finished ones.

Written tokens are stored with a pointer to the row that they continue; sequences are read from their end when all is
done. `turn` changes tensors in place and reads nothing from the device, so that a GPU can record and replay it
(`fast/graphs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.fast import Continuations, best_continuations
from regard.decoding.model import CHECK_EVERY, SHAPES, SearchModel, up_to, wide
from regard.decoding.rules import NEVER, RuleBook
from regard.decoding.settings import Beam, Ends, Hypothesis, Job, Rules

KEPT_ON_CPU, KEPT_ON_GPU = 7 / 8, 1 / 2
"""Finished inputs are dropped once at most this share is left: moving the others has a cost."""


class BeamField(IntEnum):
    """Columns of one float64 tensor, which holds tokens and finished sequences: few tensors need few kernels."""

    TOKEN = 0
    CHANCE = 1
    PARENT = 2
    """Row of the previous step that is continued."""
    RANK = 3
    """Ranking score of a finished sequence; −∞ if there is none."""
    LENGTH = 4
    ENDED = 5


STEPS = 3
"""Number of fields that are stored for every step."""


def _gather(x: Tensor, which_BK: Tensor) -> Tensor:
    index = which_BK.view(*which_BK.shape, *[1] * (x.dim() - 2)).expand(*which_BK.shape, *x.shape[2:])
    return x.gather(1, index)


class BeamBatch:
    """The inputs of a search on the device. All transfers from the host before a search happen here."""

    def __init__(self, model: SearchModel, jobs: Sequence[Job], ends: Ends, rules: Rules, beam: Beam) -> None:
        self.model, self.jobs, self.ends, self.rules, self.beam = model, jobs, ends, rules, beam
        self.book = RuleBook(rules, jobs, model, ends)
        self.longest = max(job.longest for job in jobs)
        if model.device.type == "cuda" and model.room(1) is None:
            # So that batches of similar lengths share a CUDA graph.
            self.longest = up_to(self.longest, SHAPES)
        inputs = [job.tokens for job in jobs]
        self.inputs = model.lay_out(inputs)
        time = max(len(tokens) for tokens in inputs) if beam.coverage else 0
        absent = [[s >= len(tokens) for s in range(time)] for tokens in inputs]
        self.absent_BS = torch.tensor(absent, device=model.device)
        divisors = [1.0, *(beam.length.divisor(length) for length in range(1, self.longest + 1))]
        self.divisor_L = torch.tensor(divisors, dtype=model.dtype, device=model.device)
        # Empty jobs, which fill up a batch, have length 0.
        farthest = [beam.length.divisor(max(job.longest, 1)) for job in jobs]
        self.farthest_B = torch.tensor(farthest, dtype=model.dtype, device=model.device)


class BeamSearch:
    """The search of one batch."""

    def __init__(self, batch: BeamBatch) -> None:
        model, beam = batch.model, batch.beam
        self.model, self.rules, self.beam, self.end = model, batch.rules, beam, batch.ends.end
        self.book, self.longest, self.triton_choice = batch.book, batch.longest, model.paths.triton_choice
        self.divisor_L, self.farthest_B, self.absent_BS = batch.divisor_L, batch.farthest_B, batch.absent_BS
        self.state, self.scores_NV = model.begin(batch.inputs, self.longest, beam.size, beam.coverage > 0)
        count, size, device = len(batch.jobs), beam.size, model.device
        exact = torch.float64
        # The open sequences of each input, the best first.
        self.sums_BK = torch.zeros(count, 1, dtype=model.dtype, device=device)
        """Log-probabilities; −∞ if there is none."""
        self.tokens_BK = torch.zeros(count, size, dtype=torch.long, device=device)
        """The last token of each."""
        self.history_LBKF = torch.zeros(self.longest, count, size, STEPS, dtype=exact, device=device)
        self.written_BKL = self.tokens_BK.new_zeros(count, 1, self.longest if self.book.looks_back else 0)
        """The sequences; L is 0 unless a rule needs them."""
        self.seen_BKS = self.sums_BK.new_zeros(count, 1, self.absent_BS.shape[1])
        """Attention to each source token so far; S is 0 without coverage."""
        self.pool_BKF = torch.zeros(count, size, len(BeamField), dtype=exact, device=device)
        """The best finished sequences of each input, the best first."""
        self.pool_BKF[..., BeamField.RANK].fill_(NEVER)
        self.indices = list(range(count))
        self.live_B = self.book.longest_B > 0
        self.offset_B1 = torch.arange(count, device=device)[:, None]
        self.rows_BK = torch.zeros_like(self.tokens_BK)
        self.results: list[list[Hypothesis]] = [[] for _ in batch.jobs]
        self.step = 0
        self.step_1 = torch.zeros(1, dtype=torch.long, device=device)
        """The same on the device."""

    def run(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each input, the best first."""
        while self.advance():
            pass
        return self.harvested()

    def advance(self) -> bool:
        """Writes one more token; false if nothing is left to do."""
        rows_BK = self.choose()
        self.step += 1
        if self.step == self.longest:
            return False
        kept_B: Tensor | None = None
        if self.model.device.type == "cpu" or self.step % CHECK_EVERY == 0:
            kept_B = self.live_B.nonzero()[:, 0]
            if len(kept_B) == 0:
                return False
            most = KEPT_ON_GPU if self.live_B.is_cuda else KEPT_ON_CPU
            kept_B = kept_B if len(kept_B) <= most * len(self.indices) else None
        if kept_B is not None:
            rows_BK = rows_BK[kept_B]
            self._leave_only(kept_B)
        self.write(rows_BK, kept_B)
        return True

    def turn(self) -> None:
        """Writes one more token without reading from the device."""
        self.write(self.choose())

    def choose(self) -> Tensor:
        """Ends and continues sequences by the current scores; `[B, K]`: the row that each open sequence continues."""
        self.step_1 += 1
        if self.triton_choice:
            return self._choose_by_triton()
        found, size = self._candidates(), self.beam.size
        ended_BC = found.tokens_BC == (-1 if self.end is None else self.end)
        hit_BC = ended_BC | (self.book.longest_B <= self.step_1)[:, None]
        steps = (found.tokens_BC, found.chances_BC, found.parents_BC)  # in the order of the fields
        steps_BCF = torch.stack([each.to(self.pool_BKF.dtype) for each in steps], dim=-1)
        self._finish(steps_BCF[:, :size], found.sums_BC[:, :size], hit_BC[:, :size], ended_BC[:, :size])
        best = found.sums_BC.masked_fill(hit_BC, NEVER).topk(size)
        new_BKF = _gather(steps_BCF, best.indices)
        parents_BK = new_BKF[..., BeamField.PARENT].long()
        rows_BK = self.offset_B1 * self.sums_BK.shape[1] + parents_BK
        self.history_LBKF.index_copy_(0, self.step_1 - 1, new_BKF[None])
        self.sums_BK = self.sums_BK.copy_(best.values) if self.sums_BK.shape == best.values.shape else best.values
        self.tokens_BK.copy_(new_BKF[..., BeamField.TOKEN])
        if self.beam.coverage:
            self.seen_BKS = _gather(self.seen_BKS, parents_BK)
        if self.book.looks_back:
            self.written_BKL = _gather(self.written_BKL, parents_BK)
            self.written_BKL[..., self.step] = self.tokens_BK
        self.live_B &= self._may_improve()
        return rows_BK

    def write(self, rows_BK: Tensor, kept_B: Tensor | None = None) -> None:
        """Feeds the chosen tokens to the model and stores the next scores."""
        self.state.select(rows_BK.flatten(), kept_B)
        scores_NV = self.state.step(self.tokens_BK.flatten())
        if self.state.cache.fixed and scores_NV is not self.scores_NV and scores_NV.shape == self.scores_NV.shape:
            self.scores_NV.copy_(scores_NV)
        else:  # on a CPU, copying all scores would cost as much as some steps
            self.scores_NV = scores_NV

    def _candidates(self) -> Continuations:
        """The 2K best continuations of each input's open sequences."""
        wanted, seen = 2 * self.beam.size, self.state.attended_NS
        if seen is not None:
            # The attention of the last step belongs to the token that it wrote.
            self.seen_BKS = self.seen_BKS + seen.view(self.seen_BKS.shape)
        if self.book.steady and self.sums_BK.shape[1] * self.scores_NV.shape[1] >= wanted:
            return best_continuations(wide(self.scores_NV), self.sums_BK, wanted)
        written_NT = self.written_BKL[..., : self.step].flatten(0, 1)
        chances_NV = self.book.apply(self.scores_NV.log_softmax(-1), written_NT, self.step)
        chances_BKV = chances_NV.view(*self.sums_BK.shape, -1)
        sums_BF = (self.sums_BK[..., None] + chances_BKV).flatten(1)
        flat, vocabulary = sums_BF.shape[1], chances_NV.shape[1]
        best = functional.pad(sums_BF, (0, max(wanted - flat, 0)), value=NEVER).topk(wanted)
        index_BC = best.indices.clamp(max=flat - 1)
        chances_BC = chances_BKV.flatten(1).gather(1, index_BC)
        return Continuations(best.values, chances_BC, index_BC // vocabulary, index_BC % vocabulary)

    def _choose_by_triton(self) -> Tensor:
        from regard.decoding.fast import triton_choice  # not every machine has Triton

        sums_BR, size = self.sums_BK, self.beam.size
        self.sums_BK = sums_BR if sums_BR.shape[1] == size else sums_BR.new_empty(len(sums_BR), size)
        beams = (self.sums_BK, self.tokens_BK, self.rows_BK, self.history_LBKF, self.pool_BKF)
        limits = (self.step_1, self.book.longest_B, self.divisor_L, self.farthest_B)
        board = (*beams, self.live_B.view(torch.uint8), *limits)
        triton_choice.choose_beams(self.scores_NV, sums_BR, board, self.longest, self.beam, self.end)
        return self.rows_BK

    def _finish(self, steps_BKF: Tensor, sums_BK: Tensor, hit_BK: Tensor, ended_BK: Tensor) -> None:
        """Adds finished candidates of active inputs to the pool if they are good enough."""
        rank_BK = self._ranks(steps_BKF, sums_BK, hit_BK)
        others = (rank_BK, self.step_1.expand_as(rank_BK), ended_BK)  # in the order of the fields
        done_BKF = torch.cat([steps_BKF, *(each[..., None].to(steps_BKF.dtype) for each in others)], dim=-1)
        both_BCF = torch.cat([self.pool_BKF, done_BKF], dim=1)
        best = both_BCF[..., BeamField.RANK].topk(self.beam.size)
        self.pool_BKF.copy_(_gather(both_BCF, best.indices))

    def _ranks(self, steps_BKF: Tensor, sums_BK: Tensor, hit_BK: Tensor) -> Tensor:
        """Ranking scores of finished candidates; −∞ for the others."""
        rank_BK = sums_BK / self.divisor_L.index_select(0, self.step_1)
        if self.beam.coverage:
            # Wu et al. (2016): β × the sum over source tokens of log min(attention, 1); never positive.
            got_BKS = _gather(self.seen_BKS, steps_BKF[..., BeamField.PARENT].long())
            got_BKS = got_BKS.masked_fill(self.absent_BS[:, None], 1.0)
            rank_BK = rank_BK + self.beam.coverage * got_BKS.clamp(torch.finfo(got_BKS.dtype).tiny, 1.0).log().sum(-1)
        return rank_BK.masked_fill(~(hit_BK & self.live_B[:, None]), NEVER)

    def _may_improve(self) -> Tensor:
        """`[B]`: whether the search of each input continues. Sums only fall, so the best open one bounds them all."""
        beam, best_B, rank_BK = self.beam, self.sums_BK[:, 0], self.pool_BKF[..., BeamField.RANK]
        alive_B = best_B > NEVER
        if beam.stop == "first":
            return alive_B & (rank_BK[:, -1] == NEVER)
        now_1 = self.divisor_L.index_select(0, self.step_1)
        if beam.stop == "best":
            return alive_B & (best_B / now_1 > rank_BK[:, -1])
        if self.rules.frequency < 0 or self.rules.presence < 0:
            return alive_B  # a penalty that rewards may raise a sum
        divisor = self.farthest_B if beam.length.alpha > 0 else now_1
        return alive_B & (best_B / divisor > rank_BK[:, beam.nbest - 1])

    def _leave_only(self, kept_B: Tensor) -> None:
        kept = kept_B.tolist()
        self._harvest(sorted(set(range(len(self.indices))) - set(kept)))
        self.indices = [self.indices[b] for b in kept]
        open_ = ("sums_BK", "tokens_BK", "written_BKL", "seen_BKS")
        for name in (*open_, "pool_BKF", "live_B", "farthest_B", "absent_BS", "rows_BK"):
            setattr(self, name, getattr(self, name).index_select(0, kept_B))
        self.history_LBKF = self.history_LBKF.index_select(1, kept_B)
        self.offset_B1 = self.offset_B1[: len(kept)]
        self.book.select(kept_B)

    def harvested(self) -> list[list[Hypothesis]]:
        """The results after the last step."""
        self._harvest(list(range(len(self.indices))))
        return [*self.results]

    def _harvest(self, chosen: list[int]) -> None:
        """Reads the finished sequences of some inputs from the device, each from its end."""
        pool_BKF, history_LBKF = self.pool_BKF[:, : self.beam.nbest], self.history_LBKF
        if len(chosen) < len(self.indices):
            index_B = torch.tensor(chosen, dtype=torch.long, device=pool_BKF.device)
            pool_BKF, history_LBKF = pool_BKF.index_select(0, index_B), history_LBKF.index_select(1, index_B)
        pool = pool_BKF.cpu().numpy()
        rank, chance = pool[..., BeamField.RANK], pool[..., BeamField.CHANCE]
        length, token, at = (
            pool[..., field].astype(np.int64) for field in (BeamField.LENGTH, BeamField.TOKEN, BeamField.PARENT)
        )
        steps = int(length.max(initial=1))
        history = history_LBKF[: steps - 1].cpu().numpy()
        written, theirs = np.zeros((*rank.shape, steps), np.int64), np.zeros((*rank.shape, steps))
        row = np.arange(len(chosen))[:, None]
        np.put_along_axis(written, np.maximum(length - 1, 0)[..., None], token[..., None], -1)
        np.put_along_axis(theirs, np.maximum(length - 1, 0)[..., None], chance[..., None], -1)
        for step in range(steps - 2, -1, -1):
            before = length > step + 1
            field = history[step][row, at]
            written[..., step] = np.where(before, field[..., BeamField.TOKEN], written[..., step])
            theirs[..., step] = np.where(before, field[..., BeamField.CHANCE], theirs[..., step])
            at = np.where(before, field[..., BeamField.PARENT].astype(np.int64), at)
        lists = (each.tolist() for each in (written, theirs, length, rank, pool[..., BeamField.ENDED] > 0))
        for b, each in zip(chosen, zip(*lists, strict=True), strict=True):
            found = [
                Hypothesis.of(tokens[:count], score, chances, ended)
                for tokens, chances, count, score, ended in zip(*each, strict=True)
                if score > NEVER
            ]
            # If rules leave no token at all, nothing is written.
            self.results[self.indices[b]] = found or [Hypothesis([], NEVER, [], False)]
