"""The log for those who watch their runs in TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import RunError

FOLDER = "tensorboard"
"""Where the files lie, in the run's directory."""
PLACES = {"kind", "step"}
"""Fields of a record that say what and when, not how much."""


def require_installed() -> None:
    """Refuses a run that could not be told about, before it has begun."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise RunError(
            "train.tensorboard (true) needs the package tensorboard, which is not installed; run "
            "pip install 'regard[tensorboard]', or set train.tensorboard=false"
        ) from None


class TensorboardWriter:
    """Writes each number of a record as a scalar at its step: `train/loss`, `valid/accuracy`; and events as text."""

    def __init__(self, run_dir: Path) -> None:
        require_installed()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run_dir / FOLDER))

    def record(self, record: Mapping[str, Any]) -> None:
        """One line of the log; what has no step, or no number, is left out."""
        step, kind = record.get("step"), record.get("kind")
        if step is None:
            return
        for name, value in record.items():
            if name not in PLACES and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{kind}/{name}", value, step)
        if kind == "event":
            self._writer.add_text(f"event/{record.get('what', '')}", str(record.get("text", "")), step)

    def close(self) -> None:
        self._writer.close()
