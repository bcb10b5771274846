"""Names of models: shipped names, directories, and names of the Hugging Face Hub in its cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_directories import SMALL

import regard
from regard.errors import WeightsError
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.location import find_model


def test_a_hub_name_is_read_from_the_cache(tmp_path: Path) -> None:
    """In a fresh process, because huggingface_hub reads its environment when it is imported."""
    folder = tmp_path / "hub" / "models--someone--a-model.v2"
    write_pretrained(regard.build(SMALL["gpt2"]), folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    code = "import regard; print(regard.load('someone/a-model.v2')); regard.load('someone/other')"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(Path(regard.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "Loaded(someone/a-model.v2, decoder)\n"
    assert "someone/other is not a directory, and it cannot be downloaded" in done.stderr.splitlines()[-1]
    assert "offline" in done.stderr.splitlines()[-1]


def test_names_that_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(WeightsError, match="did you mean de-en"):
        find_model("de-em")
    for name in ("runs/absent", "./absent", "../absent/again", "a/b/c", "/absent/model"):
        with pytest.raises(WeightsError, match="does not exist"):
            find_model(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(WeightsError, match=r"pip install 'regard\[hub\]'"):
        find_model("someone/model")
    assert find_model("runs") == (Path("runs"), None)
