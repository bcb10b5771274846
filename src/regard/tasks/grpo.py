"""Reinforcement learning from verifiable rewards (Shao et al. 2024: GRPO; DeepSeek-AI 2025: R1).

For each prompt the model writes a group of answers, and a function scores each of them. Answers that score above the
mean of their group become more likely, the others less. Every update uses new answers of the current model, so the
ratio of the new to the old policy is 1 and needs no clipping.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.blocks.layout import Padded
from regard.blocks.settings import Positive
from regard.data.batches import Share
from regard.data.columns import Batch, Column, NumberColumn, TokenColumn
from regard.data.examples import Pair
from regard.data.loader import Loader
from regard.data.settings import Split
from regard.decoding.decode import decode
from regard.decoding.model import padded
from regard.decoding.settings import Absolute, Ends, Greedy, Rules, Sampling
from regard.errors import RunError, SettingsError
from regard.models.families import Decoder
from regard.settings import shown
from regard.tasks.instruct import InstructTask
from regard.tasks.recipe import TrainingJob
from regard.tasks.task import TaskSettings
from regard.training.step import Loss
from regard.weights.directory import load_model
from regard.weights.location import find_model

Reward: TypeAlias = Callable[[str, str, str], float]
"""Scores an answer: prompt, answer, reference."""
LAST_WORD = "last-word"
LARGEST_REWARD = 1e15
"""The square of a larger one, summed over a group, can exceed a float32."""
SMALLEST_SPREAD = 1e-6
"""Added to the standard deviation of the rewards of a group, which is 0 if all are equal."""


class Grpo(TaskSettings):
    """Learns from scores of its own answers. Needs a decoder that can answer already: set train.start."""

    kind: Literal["grpo"] = "grpo"
    reward: str = LAST_WORD
    """The function that scores an answer: FILE.py:NAME or MODULE:NAME, called with prompt, answer and reference; or
    last-word: 1 if the last word of the answer is the reference, otherwise 0."""
    group: int = Field(default=8, ge=2)
    """Answers to each prompt."""
    tokens: Positive = 128
    """Most tokens of an answer."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits when answers are drawn."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the model of `train.start`, which keeps answers close to its own."""
    template: str | None = None
    """Jinja template of a conversation, as for the task instruct; none: that of `train.start`."""


class GrpoTask(InstructTask):
    """Prompts with references. The loss of a batch comes from answers that the model writes while it is computed."""

    settings_type = Grpo
    example = Pair
    data_kind = "parallel-tsv"
    metric_names = ("loss", "reward", "length")
    settings: Grpo

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        if job.train.start is None:
            raise SettingsError("the task grpo improves a model that can answer already; set train.start to one")
        # Answers are read row by row, and writing them cannot be compiled.
        return replace(job, train=job.train.changed({"layout": "padded", "compile": "off"}))

    def columns(self) -> dict[str, Column]:
        text = TokenColumn.for_tokenizer(self.tokenizers.source)
        return {"reference": text, "question": text, "prompt": text, "real": NumberColumn()}

    def encode(self, examples: Sequence[Any]) -> Mapping[str, Any]:
        sources = [example.source for example in examples]
        return {
            "reference": self.tokenizers.source.ids([example.target for example in examples]),
            "question": self.tokenizers.source.ids(sources),
            "prompt": self.prompts(sources),
            "real": [1.0] * len(examples),
        }

    def batches(self, split: Split, share: Share) -> Loader:
        assert callable(self._reward)  # a wrong name is reported before training starts
        return super().batches(split, share)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, Decoder)
        real_P = batch.values["real"].isfinite()
        device, group = real_P.device, self.settings.group if model.training else 1
        counted = [place for place in real_P.nonzero()[:, 0].tolist() for _ in range(group)]
        columns = (_rows(batch, name) for name in ("prompt", "question", "reference"))
        prompts, questions, references = ([rows[place] for place in counted] for rows in columns)
        answers = self._answers(model, prompts)
        decode_batch = self.tokenizers.source.decode_batch
        texts = zip(*(decode_batch(each) for each in (questions, answers, references)), strict=True)
        rewards_PG = torch.tensor([self._score(*each) for each in texts], device=device).view(-1, group)
        lengths = torch.tensor(sum(map(len, answers)) / group, device=device)
        sums = {"reward": rewards_PG.mean(1).sum(), "length": lengths}
        if not model.training:
            return Loss(-sums["reward"], real_P.sum(), sums)
        if not prompts:  # as the last steps of several processes have; every parameter needs a gradient
            return Loss(0.0 * torch.stack([each.sum() for each in model.parameters()]).sum(), real_P.sum(), sums)
        spread_P1 = rewards_PG.std(1, correction=0, keepdim=True)
        advantage_PG = (rewards_PG - rewards_PG.mean(1, keepdim=True)) / (spread_P1 + SMALLEST_SPREAD)
        total = -self._gains(model, prompts, answers, advantage_PG.flatten()).sum() / group
        return Loss(total, real_P.sum(), sums)

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        reward, length = (sums[name] / max(weight, 1.0) for name in ("reward", "length"))
        return {"loss": -reward, "reward": reward, "length": length}

    def _answers(self, model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
        """An answer to each prompt, with its end token; drawn in training, otherwise the most likely one."""
        training, end = model.training, self.tokenizers.source.role("end")
        search: Sampling | Greedy = Greedy()
        if training:  # PyTorch's generator has the seed of the step, so a resumed run draws the same answers
            search = Sampling(temperature=self.settings.temperature, seed=int(torch.randint(2**31, ())))
        model.eval()
        try:
            rules = Rules(longest=Absolute(tokens=self.settings.tokens))
            found = decode(model, prompts, Ends(None, end), search, rules)
        finally:
            model.train(training)
        return [[*best[0].tokens, *([end] if best[0].finished else [])] for best in found]

    def _gains(self, model: Decoder, prompts: list[list[int]], answers: list[list[int]], advantage_N: Tensor) -> Tensor:
        """`[N]`: the mean over the tokens of each answer of advantage · log-probability − kl · divergence."""
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        device = advantage_N.device
        tokens_NT, _ = padded(rows, device)
        lengths_N = torch.tensor([len(row) - 1 for row in rows], device=device)
        first_N = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        layout = Padded.of(lengths_N, tokens_NT.shape[1] - 1)
        place_T = torch.arange(layout.time, device=device)
        written_NT = (place_T >= first_N[:, None]) & (place_T < lengths_N[:, None])

        def log_shares(network: nn.Module) -> Tensor:
            logits_NTV = network(tokens_NT[:, :-1], layout).float() / self.settings.temperature
            chosen_NT: Tensor = logits_NTV.log_softmax(-1).gather(-1, tokens_NT[:, 1:, None])[..., 0]
            return chosen_NT

        share_NT = log_shares(model)
        gain_NT = advantage_N[:, None] * share_NT
        if self.settings.kl:
            with torch.no_grad():
                first_NT = log_shares(self._first.to(device))
            ratio_NT = first_NT - share_NT
            divergence_NT = ratio_NT.exp() - ratio_NT - 1  # Schulman's estimate, never negative
            gain_NT = gain_NT - self.settings.kl * divergence_NT
        return torch.where(written_NT, gain_NT, 0).sum(1) / written_NT.sum(1).clamp(min=1)

    @cached_property
    def _first(self) -> nn.Module:
        assert self.data.train.start is not None
        return load_model(find_model(self.data.train.start)[0])

    @cached_property
    def _reward(self) -> Reward:
        return load_reward(self.settings.reward)

    def _score(self, question: str, answer: str, reference: str) -> float:
        name = f"task.reward ({self.settings.reward})"
        try:
            score = float(self._reward(question, answer, reference))
        except (Exception, SystemExit) as error:
            raise RunError(
                f"{name} failed for the answer {shown(answer)}: {type(error).__name__}: {error}; correct the function"
            ) from error
        if not abs(score) <= LARGEST_REWARD:  # also if it is NaN
            raise RunError(
                f"{name} returned {score} for the answer {shown(answer)}; it must return a finite number of at most "
                f"{LARGEST_REWARD:g}"
            )
        return score


def last_word(question: str, answer: str, reference: str) -> float:
    """1 if the last word of an answer is the reference, otherwise 0."""
    return float(answer.split()[-1:] == reference.split()[-1:])


def load_reward(name: str) -> Reward:
    """The function with this name: FILE.py:NAME, MODULE:NAME or last-word."""
    if name == LAST_WORD:
        return last_word
    where, _, function = name.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        found = getattr(module, function)
    except (Exception, SystemExit) as error:  # the file is the user's own code
        raise SettingsError(
            f"task.reward ({name}) cannot be loaded ({type(error).__name__}: {error}); give FILE.py:NAME, MODULE:NAME "
            f"or {LAST_WORD}"
        ) from None
    if not callable(found):
        raise SettingsError(f"task.reward ({name}) is not a function; give FILE.py:NAME, MODULE:NAME or {LAST_WORD}")
    return cast(Reward, found)


def _rows(batch: Batch, name: str) -> list[list[int]]:
    sequences = batch.sequences[name]
    assert isinstance(sequences.layout, Padded) and sequences.layout.lengths_B is not None
    lengths = sequences.layout.lengths_B.tolist()
    return [row[:length] for row, length in zip(sequences.tokens.tolist(), lengths, strict=True)]
