"""Every recipe is a whole job: it is read, its model is built, and its header says what to run and what came of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import regard
from regard.data.settings import EmbeddedSettings
from regard.tasks.recipe import job_model, read_job
from regard.tasks.translate import Translate
from regard.training.schedules import rate_factor
from regard.training.settings import Adam

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
EMBEDDED = {"digits", "grammar", "grammar-parsing", "grammar-referents"} | {
    "grammar-answers",
    "grammar-classes",
    "grammar-pairs",
    "python-experts",
    "python-language",
    "python-masked",
}
"""Recipes that need no file and no GPU."""
PUBLISHED = {"paper-base", "paper-big"}
"""Recipes of published systems, whose data are not at hand: they say what was published, and that it was not run."""
WITHOUT_CURVE = {"arithmetic-grpo", "fashion-mnist", "mnist", "multi30k-lstm", "shakespeare-gpu"}
"""Measured recipes without a reference: the curve of GRPO depends on the model that it starts from, and those of the
others, trained on a GPU on 2026-11-19, were not kept."""


def header(path: Path) -> list[str]:
    """The comment that a recipe opens with, line by line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        line.removeprefix("#").strip() for line in lines[: next(n for n, line in enumerate(lines) if line[:1] != "#")]
    ]


MEASURED = [path for path in RECIPES if any(line.startswith("Measured:") for line in header(path))]


def test_there_are_recipes_for_a_machine_without_files() -> None:
    found = {path.stem for path in RECIPES if isinstance(read_job(path).data, EmbeddedSettings)}
    assert found == EMBEDDED


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_a_whole_job(path: Path) -> None:
    job = read_job(path)
    assert job.directory == Path("runs") / path.stem
    model = regard.build(job_model(job), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())


def test_headers_name_the_command_and_the_result() -> None:
    for path in RECIPES:
        lines = header(path)
        assert lines[0].endswith("."), "first, what it is"
        (command,) = [line.removeprefix("Run:").strip() for line in lines if line.startswith("Run:")]
        assert command.startswith(f"regard train recipes/{path.name}")
        stated = path in MEASURED or path.stem in PUBLISHED
        assert stated or any(line.startswith("Not measured:") for line in lines), path.name
    for path in MEASURED:
        lines = header(path)
        (measured,) = [line for line in lines if line.startswith("Measured:")]
        text = " ".join(lines[lines.index(measured) :])
        for name, pattern in {
            "machine": r"\d (CPU core|GPU|H200)",
            "time": r"\d+(:\d\d)? (min|s)",
            "date": r"\d{4}-\d\d-\d\d",
            "result": r"(loss|accuracy|BLEU) [\d.]+",
        }.items():
            assert re.search(pattern, text), (path.name, name)
    for name in PUBLISHED:
        text = " ".join(header(ROOT / "recipes" / f"{name}.toml"))
        assert re.search(r"Published: .*BLEU \d\d\.\d.* Not run here", text)


def test_references_reach_the_end_of_the_budget() -> None:
    for path in MEASURED:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        assert ("reference" in recipe) != (path.stem in WITHOUT_CURVE), path.name
        if path.stem in WITHOUT_CURVE:
            continue
        reference, train = recipe["reference"], recipe["train"]
        for name in ("loss", "valid"):
            steps = [step for step, _ in reference[name]]
            assert steps == sorted(set(steps))
            assert len(steps) >= 5
        if "steps" in train:
            assert reference["valid"][-1][0] == train["steps"]


@pytest.mark.parametrize(
    ("name", "steps", "average", "width", "peak"), [("base", 100_000, 5, 512, 7e-4), ("big", 300_000, 20, 1024, 4.9e-4)]
)
def test_the_papers_system_is_the_papers(name: str, steps: int, average: int, width: int, peak: float) -> None:
    """Vaswani et al. (2017), sections 5.1 to 5.4 and 6.1."""
    job = read_job(ROOT / "recipes" / f"paper-{name}.toml")
    train, model = job.train, job_model(job)
    assert (train.steps, train.average, train.average_of, train.tokens) == (steps, average, "last", 25_000)
    adam = train.optimizer
    assert isinstance(adam, Adam)
    assert (adam.beta1, adam.beta2, adam.eps, adam.decay) == (0.9, 0.98, 1e-9, 0.0)
    rates = {
        step: adam.rate * rate_factor(train.schedule, step, step / steps, 0.0, width) for step in (1, 4_000, steps)
    }
    assert rates[4_000] == pytest.approx(peak, rel=0.01), "at the end of warm-up"
    assert rates[1] == pytest.approx(width**-0.5 * 4_000**-1.5)
    assert rates[steps] == pytest.approx(width**-0.5 * steps**-0.5)
    assert isinstance(job.task, Translate)
    assert job.task.smoothing == 0.1
    assert model.width == width
    assert model.dropout == (0.1 if name == "base" else 0.3)
