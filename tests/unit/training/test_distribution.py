"""Processes of one run: what the others do when one is lost."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys

import pytest

from regard.errors import RunError
from regard.training import distribution
from regard.training.distribution import connected, peer_errors


def take_part(rank: int, port: int, output: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}
    try:
        with connected("cpu") as workers:
            workers.wait()
            if rank:
                os._exit(9)
            workers.most(1.0)
    except RunError as error:
        os.write(output, str(error).encode())
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are forked")
def test_a_lost_process_is_one_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_part, args=(rank, port, writer)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    os.close(writer)
    assert [process.exitcode for process in processes] == [0, 9]
    assert os.read(reader, 1000).decode().startswith("the connection to another process of this run is lost")
    os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="only there the command of a process is known")
def test_a_process_whose_launcher_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(distribution, "LAUNCHER", re.compile(b"an other launcher"))
    with pytest.raises(RunError, match="torchrun ended"), connected("cpu"):
        pass


def test_other_errors_stay_as_they_are() -> None:
    for world, text in ((1, "the request timed out"), (2, "shapes do not fit")):
        with pytest.raises(RuntimeError, match=text), peer_errors(world):
            raise RuntimeError(text)
