"""One token after the other: the likeliest, or a random one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.decoding import choose
from regard.decoding.request import Ends, Hypothesis, Job, loops
from regard.decoding.rulebook import Rulebook
from regard.decoding.settings import Greedy, Rules, Sampling
from regard.decoding.source import Source

LOOK_EVERY = 8
"""Steps between two looks at what is finished, on a GPU: each look halts it."""


def looks(device: torch.device, step: int) -> bool:
    """Whether it is time to ask the device what is finished."""
    return device.type == "cpu" or step % LOOK_EVERY == 0


def shaped(scores_NV: Tensor, search: Sampling) -> Tensor:
    """Scores as a draw sees them: heated, and −∞ for what is cut off."""
    scores_NV = choose.temperature(scores_NV, search.temperature)
    if search.top_k is not None:
        scores_NV = choose.top_k(scores_NV, search.top_k)
    if search.top_p < 1:
        scores_NV = choose.top_p(scores_NV, search.top_p)
    return choose.min_p(scores_NV, search.min_p) if search.min_p > 0 else scores_NV


class Writing:
    """A batch that is being written, a token a step. B: inputs, A: those still worked on, L: the longest."""

    def __init__(
        self, source: Source, jobs: Sequence[Job], ends: Ends, rules: Rules, search: Greedy | Sampling
    ) -> None:
        self.source, self.jobs, self.rules, self.end = source, jobs, rules, ends.end
        device, count, longest = source.device, len(jobs), max(job.longest for job in jobs)
        self.search = search
        self.book = Rulebook(rules, jobs, source, ends)
        self.tokens_BL = torch.zeros(count, longest, dtype=torch.long, device=device)
        self.state, self.scores_AV = source.begin([job.tokens for job in jobs], longest)
        self.chances_BL = self.scores_AV.new_zeros(count, longest)
        self.lengths_B = torch.zeros(count, dtype=torch.long, device=device)
        self.finished_B = torch.zeros(count, dtype=torch.bool, device=device)
        self.open_B = torch.ones(count, dtype=torch.bool, device=device)
        self.place_A = torch.arange(count, device=device)
        self.uniform_BL = _numbers(search, jobs, longest).to(device) if isinstance(search, Sampling) else None
        self.step = 0

    def advance(self) -> bool:
        """Writes one more token everywhere; false when nothing is left to do, as far as that was looked at."""
        step, place_A = self.step, self.place_A
        scores_AV = self.book.apply(self.scores_AV, self.tokens_BL[place_A, :step], step)
        token_A = self._choose(scores_AV)
        possible_A = scores_AV.gather(1, token_A[:, None])[:, 0] > choose.NEVER
        live_A = self.open_B[place_A] & possible_A
        self.tokens_BL[place_A, step] = token_A
        self.chances_BL[place_A, step] = self._chance(token_A)
        self.lengths_B[place_A] += live_A.long()
        ended_A = torch.zeros_like(live_A) if self.end is None else token_A == self.end
        self.finished_B[place_A] |= live_A & ended_A
        self.open_B[place_A] = live_A & ~ended_A & (self.book.longest_B > step + 1)
        self.step = step = step + 1
        if step == self.tokens_BL.shape[1]:
            return False
        if looks(self.source.device, step):
            kept_A = self.open_B[place_A].nonzero()[:, 0]
            if len(kept_A) == 0:
                return False
            if 2 * len(kept_A) <= len(place_A):
                self._leave_only(kept_A)
                token_A = token_A[kept_A]
        self.scores_AV = self.state.step(token_A)
        return True

    def _choose(self, scores_AV: Tensor) -> Tensor:
        search = self.search
        if isinstance(search, Greedy) or self.uniform_BL is None:
            return scores_AV.argmax(-1)
        scores_AV = shaped(scores_AV, search)
        # A row that the rules leave nothing to is closed by the caller; it must not bring the draw to a halt.
        nothing_A1 = (scores_AV == choose.NEVER).all(-1, keepdim=True)
        return choose.draw(scores_AV.masked_fill(nothing_A1, 0.0), self.uniform_BL[self.place_A, self.step])

    def _chance(self, token_A: Tensor) -> Tensor:
        """The model's own log-probability of each token; 0 for one that it was told to write."""
        chance_A = self.scores_AV.log_softmax(-1).gather(1, token_A[:, None])[:, 0]
        forced_A = self.book.forced(self.step)
        return chance_A if forced_A is None else chance_A.masked_fill(forced_A >= 0, 0.0)

    def _leave_only(self, kept_A: Tensor) -> None:
        self.place_A = self.place_A[kept_A]
        self.state.select(kept_A, kept_A)
        self.book.select(kept_A)

    def hypotheses(self) -> list[Hypothesis]:
        """What was written, read from the device in one go."""
        tokens, chances = self.tokens_BL.tolist(), self.chances_BL.tolist()
        lengths, finished = self.lengths_B.tolist(), self.finished_B.tolist()
        return [
            hypothesis(tokens[b][: lengths[b]], sum(chances[b][: lengths[b]]), chances[b], finished[b], self.rules)
            for b in range(len(self.jobs))
        ]


def hypothesis(written: list[int], score: float, chances: list[float], ended: bool, rules: Rules) -> Hypothesis:
    """What was written, the end included, as it is given back."""
    tokens = written[:-1] if ended else written
    looped = loops(tokens, rules.loop_ngram, rules.loop_times)
    return Hypothesis(tokens, score, chances[: len(written)], ended, looped)


def write(
    source: Source, jobs: Sequence[Job], ends: Ends, rules: Rules, search: Greedy | Sampling
) -> list[list[Hypothesis]]:
    """One hypothesis for each input."""
    writing = Writing(source, jobs, ends, rules, search)
    while writing.advance():
        pass
    return [[each] for each in writing.hypotheses()]


def _numbers(search: Sampling, jobs: Sequence[Job], longest: int) -> Tensor:
    """`[B, L]` numbers in [0, 1), a stream for each input, so that no batch changes what is drawn for it."""
    streams = [np.random.Generator(np.random.Philox(key=[search.seed, job.place])) for job in jobs]
    return torch.from_numpy(np.stack([stream.random(longest) for stream in streams]))
