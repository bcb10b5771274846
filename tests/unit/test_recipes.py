"""Every recipe is a whole job: it is read, its model is built, and its header says what to run and what came of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import regard
from regard.data.settings import EmbeddedSettings
from regard.tasks.job import job_model, read_job

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
FILE = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
EMBEDDED = {"digits", "grammar", "python-language", "python-masked"}
"""Recipes that need no file and no GPU."""


def header(path: Path) -> list[str]:
    """The comment that a recipe opens with, line by line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        line.removeprefix("#").strip() for line in lines[: next(n for n, line in enumerate(lines) if line[:1] != "#")]
    ]


def test_there_are_recipes_for_a_machine_without_files() -> None:
    found = {path.stem for path in RECIPES if isinstance(read_job(path).data, EmbeddedSettings)}
    assert found == EMBEDDED


@FILE
def test_a_recipe_is_a_whole_job(path: Path) -> None:
    job = read_job(path)
    assert job.directory == Path("runs") / path.stem
    model = regard.build(job_model(job), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())


@FILE
def test_the_header_says_what_to_run_and_what_came_of_it(path: Path) -> None:
    lines = header(path)
    assert lines[0].endswith("."), "first, what it is"
    (command,) = [line.removeprefix("Run:").strip() for line in lines if line.startswith("Run:")]
    assert command.startswith(f"regard train recipes/{path.name}")
    (measured,) = [line for line in lines if line.startswith("Measured:")]
    told = " ".join(lines[lines.index(measured) :])
    assert re.search(r"\d (CPU core|GPU|H200)", told), "on which machine"
    assert re.search(r"\d+(:\d\d)? (min|s)", told), "how long it took"
    assert re.search(r"\d{4}-\d\d-\d\d", told), "when"
    assert re.search(r"(loss|accuracy|BLEU) [\d.]+", told), "what came of it"


@FILE
def test_the_reference_is_of_the_run_that_the_header_speaks_of(path: Path) -> None:
    """Its last evaluation is at the end of the budget, or it would be another run's."""
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    reference, train = recipe["reference"], recipe["train"]
    for name in ("loss", "valid"):
        steps = [step for step, _ in reference[name]]
        assert steps == sorted(set(steps))
        assert len(steps) >= 5
    if "steps" in train:
        assert reference["valid"][-1][0] == train["steps"]
