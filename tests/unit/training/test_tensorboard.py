"""The log for TensorBoard, read back with TensorBoard's own reader; skipped where it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regard.errors import RunError
from regard.training.tensorboard import TensorboardWriter


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_become_scalars_at_their_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorboardWriter(tmp_path)
    writer.record({"kind": "data", "train": {"examples": 3}})
    for step in (10, 20):
        writer.record({"kind": "train", "step": step, "loss": 50 / step, "rate": 1e-3})
    writer.record({"kind": "valid", "step": 20, "accuracy": 0.5, "best": True})
    writer.record({"kind": "event", "step": 20, "what": "stopped", "text": "by SIGTERM"})
    writer.close()

    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["train/loss", "train/rate", "valid/accuracy"]
    assert [(point.step, point.value) for point in read.Scalars("train/loss")] == [(10, 5.0), (20, 2.5)]
    assert read.Scalars("valid/accuracy")[0].value == 0.5
    assert any("stopped" in tag for tag in read.Tags()["tensors"])


def test_without_tensorboard_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    with pytest.raises(RunError, match=r"^train.tensorboard \(true\) needs .* pip install 'regard\[tensorboard\]'"):
        TensorboardWriter(tmp_path)
