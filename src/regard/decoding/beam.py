"""Beam search, for a whole batch in tensors.

B: inputs still worked on, K: beams, C = 2K: candidates of a step, L: the longest sequence, S: source tokens,
V: vocabulary. Of the 2K best candidates the K best that go on stay open, so that ends never empty the beam; those that
end are kept if they are among the K best candidates, in a pool of the K best finished ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from regard.decoding.choose import NEVER
from regard.decoding.greedy import hypothesis, looks
from regard.decoding.request import Ends, Hypothesis, Job
from regard.decoding.rulebook import Rulebook
from regard.decoding.settings import Beam, Rules
from regard.decoding.source import Source


@dataclass
class _Beams:
    """Sequences of each input, the best first."""

    tokens_BKL: Tensor
    chances_BKL: Tensor
    score_BK: Tensor
    """Of open sequences the sum, of finished ones what they are ranked by; −∞ where there is none."""
    length_BK: Tensor
    ended_BK: Tensor
    seen_BKS: Tensor
    """Attention that each source token got so far; S is 0 unless coverage is asked for."""

    def gather(self, which_BK: Tensor) -> Self:
        """The chosen sequences of each input."""
        return type(self)(*(_gather(getattr(self, each.name), which_BK) for each in fields(self)))

    def beside(self, other: Self) -> Self:
        return type(self)(
            *(torch.cat([getattr(self, each.name), getattr(other, each.name)], dim=1) for each in fields(self))
        )

    def of_inputs(self, inputs_B: Tensor) -> Self:
        return type(self)(*(getattr(self, each.name).index_select(0, inputs_B) for each in fields(self)))


def _gather(x: Tensor, which_BK: Tensor) -> Tensor:
    index = which_BK.view(*which_BK.shape, *[1] * (x.dim() - 2)).expand(*which_BK.shape, *x.shape[2:])
    return x.gather(1, index)


class BeamSearch:
    """One batch being searched."""

    def __init__(self, source: Source, jobs: Sequence[Job], ends: Ends, rules: Rules, beam: Beam) -> None:
        self.source, self.jobs, self.rules, self.beam, self.end = source, jobs, rules, beam, ends.end
        self.book = Rulebook(rules, jobs, source, ends)
        longest = max(job.longest for job in jobs)
        inputs = [job.tokens for job in jobs]
        self.state, self.scores_NV = source.begin(inputs, longest, look=beam.coverage > 0)
        first, count = self.scores_NV, len(jobs)
        time = max(len(tokens) for tokens in inputs) if beam.coverage else 0
        self.absent_BS = torch.tensor(
            [[s >= len(tokens) for s in range(time)] for tokens in inputs], device=first.device
        )
        self.open = self._none(count, 1, longest, time)
        self.open.score_BK.zero_()
        self.pool = self._none(count, beam.size, longest, time)
        self.places = list(range(count))
        self.live_B = torch.ones(count, dtype=torch.bool, device=first.device)
        self.farthest_B = first.new_tensor([beam.length.divisor(job.longest) for job in jobs])
        self.results: list[list[Hypothesis]] = [[] for _ in jobs]
        self.step = 0

    def _none(self, count: int, size: int, longest: int, time: int) -> _Beams:
        """Sequences of which there is none yet."""
        like = self.scores_NV
        whole = torch.zeros(count, size, longest, dtype=torch.long, device=like.device)
        return _Beams(
            whole,
            like.new_zeros(count, size, longest),
            like.new_full((count, size), NEVER),
            whole[..., 0].clone(),
            whole[..., 0].bool(),
            like.new_zeros(count, size, time),
        )

    def run(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each input, the best first."""
        while self.advance():
            pass
        self._harvest(range(len(self.places)))
        return self.results

    def advance(self) -> bool:
        """One more token; false when nothing is left to do, as far as that was looked at."""
        candidates, parent_BC = self._candidates()
        self.step = step = self.step + 1
        hit_BC = candidates.ended_BK | (self.book.longest_B <= step)[:, None]
        self._keep(candidates, hit_BC)
        best = candidates.score_BK.masked_fill(hit_BC, NEVER).topk(self.beam.size)
        before = self.open.score_BK.shape[1]
        self.open = candidates.gather(best.indices)
        self.open.score_BK = best.values
        self.live_B = self.live_B & self._may_improve()
        if step == self.open.tokens_BKL.shape[2]:
            return False
        kept_B: Tensor | None = None
        if looks(self.source.device, step):
            kept_B = self.live_B.nonzero()[:, 0]
            if len(kept_B) == 0:
                return False
            kept_B = kept_B if 2 * len(kept_B) <= len(self.places) else None
        offset_B1 = torch.arange(len(self.places), device=parent_BC.device)[:, None] * before
        rows_BK = offset_B1 + parent_BC.gather(1, best.indices)
        if kept_B is not None:
            rows_BK = rows_BK[kept_B]
            self._leave_only(kept_B)
        self.state.select(rows_BK.flatten(), kept_B)
        self.scores_NV = self.state.step(self.open.tokens_BKL[..., step - 1].flatten())
        return True

    def _candidates(self) -> tuple[_Beams, Tensor]:
        """The 2K best continuations of each input's open sequences, and which sequence each continues."""
        open_, wanted, step = self.open, 2 * self.beam.size, self.step
        count, beams = open_.score_BK.shape
        written_NT = open_.tokens_BKL[..., :step].flatten(0, 1)
        chances_NV = self.book.apply(self.scores_NV.log_softmax(-1), written_NT)
        chances_BKV = chances_NV.view(count, beams, -1)
        sums_BF = (open_.score_BK[..., None] + chances_BKV).flatten(1)
        flat, vocabulary = sums_BF.shape[1], chances_NV.shape[1]
        best = functional.pad(sums_BF, (0, max(wanted - flat, 0)), value=NEVER).topk(wanted)
        index_BC = best.indices.clamp(max=flat - 1)
        parent_BC, token_BC = index_BC // vocabulary, index_BC % vocabulary
        seen = self.state.attended()
        if seen is not None:
            # Which source tokens the last step looked at belongs to the token that it led to.
            open_.seen_BKS = open_.seen_BKS + seen.view(open_.seen_BKS.shape)
        candidates = open_.gather(parent_BC)
        candidates.tokens_BKL[..., step] = token_BC
        candidates.chances_BKL[..., step] = chances_BKV.flatten(1).gather(1, index_BC)
        candidates.score_BK = best.values
        candidates.length_BK = torch.full_like(token_BC, step + 1)
        candidates.ended_BK = torch.zeros_like(token_BC, dtype=torch.bool) if self.end is None else token_BC == self.end
        return candidates, parent_BC

    def _keep(self, candidates: _Beams, hit_BC: Tensor) -> None:
        """Puts finished candidates into the pool, where they are good enough and their input is still searched."""
        size, beam = self.beam.size, self.beam
        done = candidates.gather(torch.arange(size, device=hit_BC.device).expand(len(hit_BC), size))
        rank_BK = done.score_BK / beam.length.divisor(self.step) + self._coverage(done)
        allowed_BK = hit_BC[:, :size] & self.live_B[:, None]
        done.score_BK = rank_BK.masked_fill(~allowed_BK, NEVER)
        both = self.pool.beside(done)
        self.pool = both.gather(both.score_BK.topk(size).indices)

    def _coverage(self, done: _Beams) -> Tensor | float:
        """Wu et al. (2016): β × the sum over source tokens of log min(attention it got, 1); never positive."""
        if not self.beam.coverage:
            return 0.0
        got_BKS = done.seen_BKS.masked_fill(self.absent_BS[:, None], 1.0)
        tiny = torch.finfo(got_BKS.dtype).tiny
        return self.beam.coverage * got_BKS.clamp(tiny, 1.0).log().sum(-1)

    def _may_improve(self) -> Tensor:
        """`[B]`: whether the search of each input goes on. Sums only fall, so the best open one bounds them all."""
        beam, best_B = self.beam, self.open.score_BK[:, 0]
        alive_B = best_B > NEVER
        if beam.stop == "first":
            return alive_B & (self.pool.score_BK[:, -1] == NEVER)
        if beam.stop == "best":
            return alive_B & (best_B / beam.length.divisor(self.step) > self.pool.score_BK[:, -1])
        if self.rules.frequency < 0 or self.rules.presence < 0:
            return alive_B  # a penalty that rewards may raise a sum
        divisor = self.farthest_B if beam.length.alpha > 0 else beam.length.divisor(self.step)
        return alive_B & (best_B / divisor > self.pool.score_BK[:, beam.nbest - 1])

    def _leave_only(self, kept_B: Tensor) -> None:
        kept = kept_B.tolist()
        self._harvest(sorted(set(range(len(self.places))) - set(kept)))
        self.places = [self.places[b] for b in kept]
        self.open, self.pool = self.open.of_inputs(kept_B), self.pool.of_inputs(kept_B)
        self.live_B, self.farthest_B = self.live_B[kept_B], self.farthest_B[kept_B]
        self.absent_BS = self.absent_BS[kept_B]
        self.book.select(kept_B)

    def _harvest(self, inputs: Sequence[int]) -> None:
        """Reads the pools of inputs that are done."""
        pool = self.pool.of_inputs(torch.tensor(list(inputs), dtype=torch.long, device=self.live_B.device))
        rows = zip(
            inputs,
            pool.tokens_BKL.tolist(),
            pool.chances_BKL.tolist(),
            pool.score_BK.tolist(),
            pool.length_BK.tolist(),
            pool.ended_BK.tolist(),
            strict=True,
        )
        for b, tokens, chances, scores, lengths, ended in rows:
            found = [
                hypothesis(tokens[k][: lengths[k]], scores[k], chances[k], ended[k], self.rules)
                for k in range(self.beam.nbest)
                if scores[k] > NEVER
            ]
            # Rules that leave no token at all end here, with nothing written.
            self.results[self.places[b]] = found or [Hypothesis([], NEVER, [], False, False)]
