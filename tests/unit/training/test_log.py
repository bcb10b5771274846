"""The log: exact numbers, whole lines, and a length to go back to."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import RunError
from regard.training.log import Log, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_records_come_back_exactly_and_in_order(path: Path) -> None:
    log = Log(path)
    records: list[dict[str, Any]] = [
        {"step": 1, "loss": 0.1 + 0.2, "a": 5e-324, "text": "ü → \n", "none": None},
        {"z": 1, "a": [1.5, {"b": True}]},
        {"loss": float(np.float32(0.1)), "sum": np.float64(1) / 3},
    ]
    for record in records:
        log.append(record)
    assert read(path) == records
    assert [list(record) for record in read(path)] == [list(record) for record in records]
    assert path.read_bytes().count(b"\n") == 3
    assert log.bytes == path.stat().st_size


def test_what_json_has_no_word_for_is_null(path: Path) -> None:
    Log(path).append({"a": math.nan, "b": [math.inf, (1.0, -math.inf)], "c": {"d": math.nan}})
    assert read(path) == [{"a": None, "b": [None, [1.0, None]], "c": {"d": None}}]
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_line_is_in_the_file_at_once(path: Path) -> None:
    log = Log(path)
    log.append({"step": 1})
    assert path.read_text() == '{"step": 1}\n'


def test_going_back_to_a_checkpoint(path: Path) -> None:
    log = Log(path)
    assert log.sync() == 0
    log.append({"step": 1})
    length = log.sync()
    log.append({"step": 2})
    assert Log(path).truncate(length) is None
    assert read(path) == [{"step": 1}]
    log.append({"step": "two"})
    assert read(path) == [{"step": 1}, {"step": "two"}]
    assert log.truncate(0) is None
    assert read(path) == []


def test_a_log_that_lost_lines(path: Path) -> None:
    log = Log(path)
    log.append({"step": 1})
    warning = log.truncate(100)
    assert warning == f"{path} has 12 bytes, and had 100 at the checkpoint: some of its lines are lost"
    assert read(path) == [{"step": 1}]
    path.unlink()
    assert "has 0 bytes, and had 100" in (log.truncate(100) or "")


def test_a_log_that_was_edited(path: Path) -> None:
    log = Log(path)
    log.append({"step": 1})
    log.append({"step": 2})
    assert log.truncate(15) == f"{path} is not what was written: no line ends at byte 15, where the checkpoint stands"
    assert read(path) == [{"step": 1}]


@pytest.mark.parametrize("kept", range(12, 24))
def test_a_torn_last_line(path: Path, kept: int) -> None:
    log = Log(path)
    log.append({"step": 1})
    log.append({"step": 2})
    os.truncate(path, kept)
    assert read(path) == [{"step": 1}]
    Log(path).append({"step": 3})
    assert read(path) == [{"step": 1}, {"step": 3}]


def test_a_damaged_line_is_named(path: Path) -> None:
    path.write_text('{"step": 1}\n[2]\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"log\.jsonl, line 2, is no JSON object: b'\[2\]'; remove that line"):
        read(path)
    path.write_bytes(b'{"step": 1}\n{"step": \xff\n')
    with pytest.raises(RunError, match="line 2, is no JSON object"):
        read(path)


def test_no_log(path: Path) -> None:
    with pytest.raises(RunError, match=r"log\.jsonl does not exist; give the log of a run"):
        read(path)


def test_a_disk_that_takes_half_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half is cut off again, or the next line would be glued to it."""
    log = Log(path)
    log.append({"step": 1})
    plain = open

    def narrow(name: Path, mode: str, buffering: int = -1) -> Any:
        with plain(name, mode, buffering=buffering) as file:
            file.write(b'{"st')
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr("builtins.open", narrow)
        with pytest.raises(
            RunError, match=r"log\.jsonl cannot be written \(No space left on device; [\d,.]+ MB are fr"
        ):
            log.append({"step": 2})
    assert path.read_text() == '{"step": 1}\n'


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_a_full_device() -> None:
    with pytest.raises(RunError, match="No space left on device"):
        Log(Path("/dev/full")).append({"step": 1})
