"""How a task's examples become batches: the layout that suits the device, and the budget of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from regard.data.assemble import Assembler, Images, Windows
from regard.data.assemble_masked import MaskedWindows
from regard.data.batches import PackedPlan, PaddedPlan, Plan, Share
from regard.data.example_lengths import VariantLengths
from regard.data.loader import Loader
from regard.data.settings import Split
from regard.training.settings import Train

GPU_WORKERS = 2
"""Processes that make batches ahead of a GPU; a CPU is busy enough."""


@dataclass(frozen=True)
class Batching:
    """The examples of each split, and how they are put together."""

    assemblers: Mapping[Split, Sequence[Assembler]]
    """Several for one split are the same examples split into tokens in several ways, which epochs take in turn."""
    train: Train
    device: torch.device

    def loader(self, split: Split, share: Share) -> Loader:
        on_gpu = self.device.type == "cuda"
        workers = self.train.workers
        if workers is None:
            workers = GPU_WORKERS if on_gpu else 0
        assemblers = self.assemblers[split]
        return Loader(
            assemblers,
            self._plan(assemblers),
            self.train.seed,
            share,
            workers if split == "train" else 0,
            pin=on_gpu,
        )

    def _plan(self, assemblers: Sequence[Assembler]) -> Plan:
        train, first = self.train, assemblers[0]
        if not train.packs(self.device.type):
            return PaddedPlan(train.tokens, train.examples, multiple=8 if self.device.type == "cuda" else 1)
        if isinstance(first, Windows | MaskedWindows | Images):
            return PackedPlan.alike(train.tokens, first.lengths.longest[0], train.examples)
        lengths = VariantLengths([each.lengths for each in assemblers])
        return PackedPlan.for_lengths(lengths, train.tokens, train.row, train.examples)

    @property
    def source_ratio(self) -> float:
        """Source tokens for each token that is learnt; 0 where examples have one side."""
        means = self.assemblers["train"][0].lengths.means
        return means[0] / max(means[-1], 1e-9) if len(means) > 1 else 0.0
