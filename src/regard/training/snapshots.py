"""Snapshots: the weights of some evaluations, alone, from which the best are chosen or a mean is taken.

A snapshot is the file of weights of a checkpoint under a second name (a hard link), so it costs no room until the
checkpoint goes. The list of them is part of every checkpoint's state:

1. `add` and `prune` change the list only;
2. the checkpoint is written, with `to_state()` under the key `STATE` of its state;
3. `commit` gives the new snapshot its file, and removes files that no checkpoint lists.

Killed before 2, the run goes on from the checkpoint before, whose files are all there. Killed after it, `resume` takes
the new file from the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import RunError, WeightsError
from regard.files import flush_directory, write_beside
from regard.training.disk import writing
from regard.weights import checkpoints
from regard.weights.checkpoints import Checkpoint, name_of
from regard.weights.checksums import Checksum, difference
from regard.weights.directory import SNAPSHOTS

STATE = "snapshots"
"""Where the list is in a checkpoint's state."""
_NAME = re.compile(r"(\d{6,})\.safetensors")


@dataclass(frozen=True)
class Snapshot:
    """The weights after a step, and how good they are."""

    step: int
    figures: dict[str, float]
    checksum: Checksum | None = None
    """None until the checkpoint that holds the weights is written."""


class Snapshots:
    """Those of one run, in the order of their steps."""

    def __init__(self, run: Path, entries: Iterable[Snapshot] = ()) -> None:
        self.run = run
        self.entries = sorted(entries, key=lambda entry: entry.step)

    def path(self, step: int) -> Path:
        return self.run / SNAPSHOTS / f"{name_of(step)}.safetensors"

    # -------------------------------------------------------------------------------------------------------- the list

    def add(self, step: int, figures: dict[str, float]) -> None:
        """A snapshot of the checkpoint that is about to be written."""
        others = [entry for entry in self.entries if entry.step != step]
        self.entries = sorted([*others, Snapshot(step, dict(figures))], key=lambda entry: entry.step)

    def prune(self, keep_best: int, select: str, lower_is_better: bool, keep_last: int = 0) -> None:
        """Leaves the best and the last in the list."""
        best = self.ranked(select, lower_is_better)[:keep_best]
        last = self.entries[-keep_last:] if keep_last else []
        self.entries = [entry for entry in self.entries if entry in best or entry in last]

    def ranked(self, select: str, lower_is_better: bool) -> list[Snapshot]:
        """From the best to the worst by one figure, of equals the earlier first; what lacks the figure is left out."""
        sign = 1 if lower_is_better else -1
        rated = [entry for entry in self.entries if math.isfinite(entry.figures.get(select, math.nan))]
        return sorted(rated, key=lambda entry: (sign * entry.figures[select], entry.step))

    def best(self, select: str, lower_is_better: bool) -> Snapshot | None:
        return next(iter(self.ranked(select, lower_is_better)), None)

    def to_state(self) -> list[dict[str, Any]]:
        """The list as a checkpoint's state holds it."""
        return [
            {"step": entry.step, "figures": entry.figures, "checksum": entry.checksum and entry.checksum._asdict()}
            for entry in self.entries
        ]

    # ------------------------------------------------------------------------------------------------------- the files

    def commit(self, checkpoint: Checkpoint) -> None:
        """After a checkpoint was written, and older ones were pruned: its snapshot gets its file, unlisted ones go."""
        for place, entry in enumerate(self.entries):
            if entry.step == checkpoint.step:
                self._link(checkpoint)
                self.entries[place] = replace(entry, checksum=checkpoint.model_checksum)
        self.sweep()

    def sweep(self) -> None:
        """Removes the files that neither this list nor that of a checkpoint to which one might go back speaks of."""
        wanted = {entry.step for entry in self.entries}
        for checkpoint in checkpoints.listed(self.run):
            try:
                wanted |= {int(entry["step"]) for entry in checkpoint.state.get(STATE, [])}
            except (OSError, WeightsError, KeyError, TypeError, ValueError):
                return  # a damaged one is dealt with when a run is resumed; until then nothing goes
        for path in (self.run / SNAPSHOTS).glob("*.safetensors"):
            if (match := _NAME.fullmatch(path.name)) and int(match[1]) not in wanted:
                with contextlib.suppress(OSError):  # tried again next time
                    path.unlink()

    @classmethod
    def resume(cls, run: Path, checkpoint: Checkpoint | None) -> tuple[Snapshots, list[str]]:
        """Those that a checkpoint lists, and sentences about the ones that are lost. Files of later steps go."""
        snapshots, notes = cls(run), []
        for entry in _listed(checkpoint):
            damage = snapshots._repaired(entry)
            if damage is None:
                snapshots.entries.append(entry)
                continue
            path = snapshots.path(entry.step)
            notes.append(f"snapshot {path} is left out: {damage}")
            with contextlib.suppress(OSError):  # it is missing, or may not be changed; it is left out all the same
                path.rename(path.with_name(f"damaged-{path.name}"))
        snapshots.sweep()
        return snapshots, notes

    def _repaired(self, entry: Snapshot) -> str | None:
        """Why a snapshot cannot be used, after it was taken once more from its checkpoint, if that is still there."""
        path = self.path(entry.step)
        if entry.checksum is None:
            return "it was never written"
        damage = difference(path, entry.checksum)
        source = next((each for each in checkpoints.listed(self.run) if each.step == entry.step), None)
        if damage and source and difference(source.model, entry.checksum) is None:
            self._link(source)
            return None
        return damage

    def _link(self, checkpoint: Checkpoint) -> None:
        """A second name for a checkpoint's weights, or a copy where the disk knows no second names."""
        source = checkpoint.model

        def link(partial: Path) -> None:
            partial.unlink(missing_ok=True)
            try:
                os.link(source, partial)
            except OSError:
                shutil.copyfile(source, partial)

        path = self.path(checkpoint.step)
        with writing(path, f"the checkpoint {checkpoint.path} is whole: make room, then go on with --resume"):
            if not path.parent.is_dir():
                path.parent.mkdir()
                flush_directory(self.run)
            write_beside(path, link)

    # ----------------------------------------------------------------------------------------------------- the weights

    def average(self, steps: Iterable[int]) -> dict[str, Tensor]:
        """The mean of some snapshots, summed in float64. One tensor at a time is in memory, beside the result."""
        paths = [self.path(step) for step in sorted(steps)]
        if not paths:
            raise RunError("there is no snapshot to take a mean of; evaluate once at least, or leave train.average out")
        result: dict[str, Tensor] = {}
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(safe_open(path, framework="pt", device="cpu")) for path in paths]
                for name in files[0].keys():
                    first = files[0].get_tensor(name)
                    total = first.to(torch.float64, copy=True)
                    for file in files[1:]:
                        total += file.get_tensor(name)
                    result[name] = (total / len(files)).to(first.dtype)
        except (OSError, SafetensorError) as error:
            raise RunError(f"a snapshot in {paths[0].parent} cannot be read ({error}); go on with --resume") from error
        return result


def _listed(checkpoint: Checkpoint | None) -> list[Snapshot]:
    """The list in a checkpoint's state. Its own snapshot had no checksum yet when that was written."""
    entries = []
    for entry in checkpoint.state.get(STATE, []) if checkpoint else []:
        known = entry["checksum"] and Checksum(**entry["checksum"])
        if checkpoint and entry["step"] == checkpoint.step:
            known = checkpoint.model_checksum
        entries.append(Snapshot(entry["step"], entry["figures"], known))
    return entries
