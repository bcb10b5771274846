"""Greedy search and sampling: one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.decoding.model import SearchModel, checks
from regard.decoding.rules import NEVER, RuleBook, draw, shaped
from regard.decoding.settings import Ends, Greedy, Hypothesis, Job, Rules, Sampling, hypothesis


class Writing:
    """A batch being written, one token at a step. B: inputs, A: active inputs, L: length of the longest."""

    def __init__(
        self, model: SearchModel, jobs: Sequence[Job], ends: Ends, rules: Rules, search: Greedy | Sampling
    ) -> None:
        self.model, self.rules, self.end, self.search = model, rules, ends.end, search
        device, count, longest = model.device, len(jobs), max(job.longest for job in jobs)
        self.book = RuleBook(rules, jobs, model, ends)
        self.tokens_BL = torch.zeros(count, longest, dtype=torch.long, device=device)
        self.state, self.scores_AV = model.begin(model.lay_out([job.tokens for job in jobs]), longest)
        self.chances_BL = self.scores_AV.new_zeros(count, longest)
        self.lengths_B = torch.zeros(count, dtype=torch.long, device=device)
        self.finished_B = torch.zeros(count, dtype=torch.bool, device=device)
        self.open_B = torch.ones(count, dtype=torch.bool, device=device)
        self.index_A = torch.arange(count, device=device)
        self.uniform_BL: Tensor | None = None
        if isinstance(search, Sampling):
            # A stream for each input, so that the other inputs of a batch do not change its draws.
            streams = [np.random.Generator(np.random.Philox(key=[search.seed, job.index])) for job in jobs]
            self.uniform_BL = torch.from_numpy(np.stack([stream.random(longest) for stream in streams])).to(device)
        self.step = 0

    def advance(self) -> bool:
        """Writes one more token for every active input; false if nothing is left to do."""
        step, index_A = self.step, self.index_A
        scores_AV = self.book.apply(self.scores_AV, self.tokens_BL[index_A, :step], step)
        token_A = self._choose(scores_AV)
        possible_A = scores_AV.gather(1, token_A[:, None])[:, 0] > NEVER
        live_A = self.open_B[index_A] & possible_A
        self.tokens_BL[index_A, step] = token_A
        chance_A, forced_A = self.scores_AV.log_softmax(-1).gather(1, token_A[:, None])[:, 0], self.book.forced(step)
        self.chances_BL[index_A, step] = chance_A if forced_A is None else chance_A.masked_fill(forced_A >= 0, 0.0)
        self.lengths_B[index_A] += live_A.long()
        ended_A = torch.zeros_like(live_A) if self.end is None else token_A == self.end
        self.finished_B[index_A] |= live_A & ended_A
        self.open_B[index_A] = live_A & ~ended_A & (self.book.longest_B > step + 1)
        self.step = step = step + 1
        if step == self.tokens_BL.shape[1]:
            return False
        if checks(self.model.device, step):
            kept_A = self.open_B[index_A].nonzero()[:, 0]
            if len(kept_A) == 0:
                return False
            if 2 * len(kept_A) <= len(index_A):
                self.index_A, token_A = index_A[kept_A], token_A[kept_A]
                self.state.select(kept_A, kept_A)
                self.book.select(kept_A)
        self.scores_AV = self.state.step(token_A)
        return True

    def _choose(self, scores_AV: Tensor) -> Tensor:
        search = self.search
        if isinstance(search, Greedy) or self.uniform_BL is None:
            return scores_AV.argmax(-1)
        scores_AV = shaped(scores_AV, search)
        # `advance` closes a row in which the rules leave no token; here it only must not break the draw.
        nothing_A1 = (scores_AV == NEVER).all(-1, keepdim=True)
        return draw(scores_AV.masked_fill(nothing_A1, 0.0), self.uniform_BL[self.index_A, self.step])

    def hypotheses(self) -> list[Hypothesis]:
        """The results, read from the device at once."""
        read = (self.tokens_BL, self.lengths_B, self.chances_BL, self.finished_B)
        return [
            hypothesis(tokens[:length], sum(chances[:length]), chances, finished, self.rules)
            for tokens, length, chances, finished in zip(*(each.tolist() for each in read), strict=True)
        ]
