"""A run directory: everything that one training writes to the disk.

```
config.toml          the job with all settings; a directory that has it is a run
tokenizer.json, labels.json
environment.json     versions, machine and command, at the start and at each resume
status.json          whether the run is running, and how it ended
log.jsonl            one JSON object for each event
checkpoints/000500/  weights, optimizer state and position of the training (regard.weights.checkpoints)
snapshots/           weights of the best evaluations (regard.training.checkpoints)
weights.safetensors  the final model, with its checksum in checksums.json (regard.weights.directory)
```
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypeAlias

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

import regard
from regard.errors import RunError
from regard.files import parse_json, write_text
from regard.settings import Table
from regard.weights.checkpoints import CHECKPOINTS, WEIGHTS
from regard.weights.directory import CONFIG, read_config, write_config

LOCK = ".lock"
STATUS = "status.json"
LOG = "log.jsonl"
ENVIRONMENT = "environment.json"
SNAPSHOTS = "snapshots"

PLACE = "choose another train.directory, or make this one writable"
LOCK_SECONDS = 0.5
"""How long to wait for the lock. A process that only reads the status holds it for an instant."""
MATTERS = ("regard", "commit", "python", "torch", "numpy", "tokenizers", "cuda", "cpu", "device", "threads")
"""Fields of `environment.json` that can change results."""
TIMES = frozenset({"seconds", "tokens_per_second", "wait", "evaluation", "evaluating", "peak", "time", "memory"})
"""Fields of the log that depend on the machine. All others are identical in a run that was interrupted."""

State: TypeAlias = Literal["running", "stopped", "finished", "failed", "killed"]


@contextmanager
def disk_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turns errors of the disk into a `RunError` that names `path`, the free space and the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps the error of the system
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        if not isinstance(error, PermissionError):
            existing = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
            reason += f"; {shutil.disk_usage(existing).free / 1e6:,.1f} MB are free"
        raise RunError(f"{path} cannot be written ({reason}); {remedy}") from error


def json_value(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with disk_errors(path, "free some space, or make the directory writable; then continue with --resume"):
        write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


@dataclass(frozen=True)
class Status:
    """The content of `status.json`."""

    state: State
    """killed: the file has the state running, but no process holds the lock."""
    step: int = 0
    reason: str = ""
    metrics: dict[str, float | None] = field(default_factory=dict)
    process: str = ""
    """The process that trains, such as "1234 on myhost"."""


class Run:
    """A run directory. `create` makes one, `open` opens an existing one. Training requires the `lock`."""

    def __init__(self, directory: Path, config: Table) -> None:
        self.directory = directory
        self.config = config
        """The tables of `config.toml`. A missing value is the word "none", as in a recipe."""
        self.log, self.weights, self.snapshots = directory / LOG, directory / WEIGHTS, directory / SNAPSHOTS

    @classmethod
    def create(
        cls, directory: Path | str, config: Mapping[str, Any], fill: Callable[[Path], None] | None = None
    ) -> Run:
        """Make a run in an empty or new directory. `fill` writes further files.

        `config.toml` is written last, so a run that is killed earlier can simply be started again.
        """
        path = Path(directory)
        run = cls(path, {})
        with disk_errors(path, PLACE):
            require_free(path)
            path.mkdir(parents=True, exist_ok=True)
            with run.lock():
                require_free(path)
                if fill is not None:
                    fill(path)
                run.set_status("stopped", reason="not started")
                run.configure({"id": secrets.token_hex(8), **config})
        return run

    @classmethod
    def open(cls, directory: Path | str) -> Run:
        path = Path(directory)
        try:
            if not (path / CONFIG).exists():
                remedy = "train without --resume" if (path / LOCK).exists() else "give a run directory"
                raise RunError(f"{path} does not exist or has no {CONFIG}, so it is not a run; {remedy}")
        except PermissionError:
            raise RunError(f"{path} is not readable; change its permissions") from None
        return cls(path, read_config(path))

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write `config.toml`. A resumed run writes it again if settings changed."""
        self.config = _without_nulls(config)
        with disk_errors(self.directory / CONFIG, "free some space, or make the directory writable"):
            write_config(self.directory, self.config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this directory. Removes files that a killed process left.

        A symbolic link in the directory of a stranger could lead anywhere, so none is accepted.
        """
        with disk_errors(self.directory, "make the directory readable"):
            for path in self.directory.iterdir():
                if path.is_symlink():
                    raise RunError(
                        f"{path} is a symbolic link, and a run writes and removes its own files only; replace it by "
                        "what it refers to (the run directory itself can be a link)"
                    )
        lock = FileLock(self.directory / LOCK, timeout=LOCK_SECONDS)
        with ExitStack() as stack:
            with disk_errors(self.directory, "make the directory writable"):
                try:
                    stack.enter_context(lock)
                except Timeout:
                    process = self.status.process or "unknown"
                    remedy = "wait until it ends, or choose another train.directory"
                    raise RunError(f"{self.directory} is in use by process {process}; {remedy}") from None
                for folder in (self.directory, self.directory / CHECKPOINTS, self.snapshots):
                    # Ours end in .partial; .tmp and six letters are the temporary files of safetensors.
                    for path in [*folder.glob(".*.partial"), *folder.glob(".tmp??????")]:
                        if path.is_dir() and not path.is_symlink():
                            shutil.rmtree(path, ignore_errors=True)
                        else:
                            path.unlink()
            yield

    @property
    def status(self) -> Status:
        return read_status(self.directory)

    def set_status(
        self, state: State, step: int = 0, reason: str = "", metrics: Mapping[str, float | None] | None = None
    ) -> None:
        process = f"{os.getpid()} on {platform.node()}" if state == "running" else ""
        _write_json(self.directory / STATUS, asdict(Status(state, step, reason, json_value(metrics or {}), process)))


def read_status(directory: Path) -> Status:
    """The status of a run; "killed" if it says running and no process holds the lock."""
    try:
        content = parse_json((directory / STATUS).read_text(encoding="utf-8"))
        if "figures" in content:  # the name of the metrics in older versions
            content["metrics"] = content.pop("figures")
        found: Any = Status(**content)
        if not (isinstance(found.state, str) and isinstance(found.step, int) and isinstance(found.metrics, dict)):
            raise TypeError
        status: Status = replace(found, metrics={key: each for key, each in found.metrics.items() if is_moderate(each)})
    except (OSError, ValueError, TypeError):
        return Status("killed", reason=f"{STATUS} is missing or damaged")
    if status.state == "running" and not _is_locked(directory / LOCK):
        return replace(status, state="killed", process="")
    return status


def is_moderate(value: Any) -> bool:
    """Whether a value is not a number that exceeds a float."""
    return not isinstance(value, int) or abs(value) < 1e300


def _is_locked(path: Path) -> bool:
    try:
        with FileLock(path, timeout=0.1) if path.exists() and not path.is_symlink() else nullcontext():
            return False
    except OSError as error:
        return isinstance(error, Timeout)  # in a read-only directory nobody trains


def is_run(directory: Path) -> bool:
    """Whether a directory contains a run, and not only a model."""
    return (directory / CONFIG).is_file() and ((directory / STATUS).is_file() or (directory / LOG).is_file())


def require_free(directory: Path) -> None:
    """Raise `RunError` unless a run can be created in this directory."""
    if directory.exists() and not directory.is_dir():
        raise RunError(f"{directory} is a file; choose another train.directory")
    if (directory / CONFIG).exists():
        raise RunError(f"{directory} already contains a run; continue it with --resume, or choose another directory")
    folder = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    with disk_errors(directory, PLACE), TemporaryFile(dir=folder):
        pass
    if not directory.is_dir() or (directory / LOCK).exists():  # with a lock, it is a run that was killed at its start
        return
    if found := min((path.name for path in directory.iterdir()), default=""):
        raise RunError(f"{directory} is not empty (it contains {found}); choose another train.directory")


def _without_nulls(value: Any) -> Any:
    """TOML has no null. A missing key would become the default, so None is written as the word "none"."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return "none" if value is None else value


class Log:
    """`log.jsonl`: one JSON object for each line. An incomplete last line is removed when the log is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncate()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, without a buffer. NaN and infinity become null."""
        line = (json.dumps(json_value(record), allow_nan=False, ensure_ascii=False) + "\n").encode()
        remedy = "free some space, then continue with --resume"
        with disk_errors(self.path, remedy), open(self.path, "ab", buffering=0) as file:
            if (written := file.write(line)) != len(line):  # a full disk can accept a part of a line
                raise OSError(f"only {written} of {len(line)} bytes were written")

    def sync(self) -> int:
        """Flush the log to the disk and return its length, which a checkpoint stores."""
        with disk_errors(self.path, "free some space, then continue with --resume"), open(self.path, "ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def truncate(self, length: int | None = None) -> str | None:
        """Cut the log to the length that a checkpoint stores. Returns a warning if lines are lost."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        kept = content[:length].rfind(b"\n") + 1
        if kept < len(content):
            with disk_errors(self.path, "make it writable, then continue with --resume"):
                os.truncate(self.path, kept)
        if length is None or kept == length:
            return None
        return f"{self.path} was changed: no line ends at byte {length:,}, so some lines are lost"


def read_log(path: Path, damaged: list[int] | None = None) -> list[dict[str, Any]]:
    """All records of a log, without an incomplete last line. Damaged lines are an error, or listed in `damaged`."""
    if not path.is_file():
        raise RunError(f"{path} does not exist; give the {LOG} of a run")
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif damaged is None:
            raise RunError(f"{path}, line {number}, is not a JSON object: {line[:40]!r}; remove the line")
        else:
            damaged.append(number)
    return records


def write_environment(directory: Path, device: torch.device) -> None:
    _write_json(directory / ENVIRONMENT, {**describe_environment(device), "resumes": []})


def resume_environment(directory: Path, device: torch.device) -> list[str]:
    """Add a resume to `environment.json`. Returns a warning if something changed that can change results."""
    now, content = describe_environment(device), read_environment(directory)
    before = {**content}
    try:
        for earlier in content["resumes"]:
            before |= {name: change[1] for name, change in earlier["changed"].items()}
    except (KeyError, TypeError, IndexError, AttributeError):
        write_environment(directory, device)
        return [f"{directory / ENVIRONMENT} is missing or damaged and is written again; changes cannot be detected"]
    start = {"time": now.pop("time"), "command": now.pop("command")}
    changed = {name: [before.get(name), value] for name, value in now.items() if before.get(name) != value}
    content["resumes"].append({**start, "changed": changed})
    _write_json(directory / ENVIRONMENT, content)
    matters = [f"{name} ({old}, now {new})" for name, (old, new) in changed.items() if name in MATTERS]
    return [f"changed since the last start: {', '.join(matters)}; results can differ slightly"] if matters else []


def read_environment(directory: Path) -> Table:
    """The content of `environment.json`; empty if it is missing or damaged."""
    try:
        content = parse_json((directory / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def describe_environment(device: torch.device) -> dict[str, Any]:
    return {
        "regard": regard.__version__,
        "commit": _commit(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("numpy", "safetensors", "tokenizers")},
        "cuda": torch.version.cuda,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "command": shlex.join(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit(package: Path) -> str | None:
    """The commit of the checkout that contains this package, and whether files changed since."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        # A virtual environment can be inside the checkout of another project, so ask for a file of ours.
        if git("ls-files", "--error-unmatch", "errors.py") is None:
            return None
        changed = git("diff", "--quiet", "HEAD", "--", ".") is None
        return f"{git('rev-parse', 'HEAD')}{' with changes' if changed else ''}"
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    with suppress(OSError):
        if found := re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()
