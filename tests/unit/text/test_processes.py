"""Worker processes: a tokenizer that was used on all cores works in a fork, in silence, and in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "cases"
SCRIPT = """
import multiprocessing, sys
from text_cases import CORPUS, trained

tokenizer = None

def begin(given):
    global tokenizer
    tokenizer = given

def work(texts):
    return tokenizer.ids(texts)

if __name__ == "__main__":
    ours = trained("bpe")
    wanted = ours.ids(CORPUS * 10)
    with multiprocessing.get_context(sys.argv[1]).Pool(2, begin, (ours,)) as pool:
        found = pool.map_async(work, [CORPUS * 10] * 4).get(timeout=60)
    assert found == [wanted] * 4
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_agree_in_silence(method: str, tmp_path: Path) -> None:
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    environment["PYTHONPATH"] = os.pathsep.join([str(CASES), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), method], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
