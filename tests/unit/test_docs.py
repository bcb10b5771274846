"""What the documents show is true: generated pages are up to date, and the README's example runs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from settings_cases import from_toml

from regard.data import settings as data
from regard.decoding.settings import TranslateOptions
from regard.look import attribution
from regard.look.views import heads
from regard.models import settings as models
from regard.models.settings import Decoder
from regard.settings import Settings, parse, variants
from regard.tasks.recipe import AnyText, data_settings, make_job
from regard.tasks.run import CHANGEABLE, CURVES
from regard.tasks.task import all_tasks
from regard.text import settings as text
from regard.training.run import ENVIRONMENT, STATUS
from regard.training.settings import Train
from regard.weights.checkpoints import CHECKSUMS, WEIGHTS
from regard.weights.directory import CONFIG

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_page(page: str) -> dict[str, Any]:
    """Runs a page's Python from top to bottom and gives back its names. A page must assert what it says."""
    everything = "\n".join(code_blocks(page, "python"))
    assert "assert " in everything, f"{page} claims nothing that could fail"
    names: dict[str, Any] = {}
    exec(compile(everything, page, "exec"), names)
    return names


def test_generated_pages_are_up_to_date(generate: ModuleType) -> None:
    for name, page in generate.PAGES.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page(), f"docs/{name} is stale; run make docs"


def reachable(annotation: object, found: set[type[Settings]]) -> set[type[Settings]]:
    """Every settings class that a model may hold, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        if annotation not in found:
            found.add(annotation)
            for field in annotation.model_fields.values():
                reachable(field.annotation, found)
    else:
        for argument in getattr(annotation, "__args__", ()):
            reachable(argument, found)
    return found


def test_the_settings_page_leaves_nothing_out(generate: ModuleType) -> None:
    described = {cls for _, _, classes in generate.PARTS for cls in classes}
    unions = (models.AnyModel, data.AnyData, AnyText)
    families = {Train, *(cls for union in unions for cls in variants(union).values())}
    families |= {task.settings_type for task in all_tasks().values()}
    assert set().union(*(reachable(family, set()) for family in families)) <= described
    for cls in described:
        own = [name for name in cls.model_fields if name in cls.__annotations__ and name != "kind"]
        rows = "\n".join(generate._rows(cls))
        assert all(f"| `{name}` |" in rows for name in own), cls


def test_the_example_on_the_settings_page_is_read() -> None:
    (example,) = code_blocks("docs/settings.md", "toml")
    assert from_toml(Decoder, example).attention.kv_heads == 2


def test_the_example_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = code_blocks("README.md", "python")
    assert len(example.splitlines()) <= 10
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "torch.Size([2, 7, 37000])"


PAGES: dict[str, Iterable[str]] = {
    "models": (),
    "data": [f"`{kind}`" for kind in variants(data.AnyData)],
    "looking": (),
    "evaluating": (),
    "text": [f"| `{kind}` |" for kind in variants(text.AnyTokenizer)],
    "training": [f"`{name}`" for name in (CONFIG, WEIGHTS, CHECKSUMS, ENVIRONMENT, STATUS, "log.jsonl", CURVES)],
    "translating": [f"`{name}`" for name in TranslateOptions.model_fields],
    "recording": [f"`{change}(" for change in ("Ablate", "Scale", "Force", "Patch")],
    "measures": [
        *(f"`{name}`" for name in heads.PATTERNS),
        f"at least {heads.LEAST} of the way",
        f"at most {attribution.TOLERANCE}",
    ],
    "vectors": (),
    "predecessors": (),
    "generating": (),
}
"""Pages with Python that runs, and what each must name."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_and_names_everything(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)  # it takes longer than all else
    assert run_page(f"docs/{name}.md")
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    assert all(part in page.replace("\n", " ") for part in PAGES[name])
    assert all((ROOT / "docs" / image).is_file() for image in re.findall(r"\]\((images/[^)]+)\)", page))


def test_the_recipes_on_pages_are_whole() -> None:
    found = [data_settings(tomllib.loads(text)) for text in code_blocks("docs/data.md", "toml")]
    assert [settings.kind for settings in found] == ["parallel", "labelled-tsv", "grammar"]
    (recipe,) = code_blocks("docs/text.md", "toml")
    assert parse(text.AnyTokenizer, tomllib.loads(recipe)["text"]).size == 10_000
    found_jobs = [tomllib.loads(recipe) for recipe in code_blocks("docs/training.md", "toml")]
    jobs = [make_job("page", recipe, {}) for recipe in found_jobs if "base" not in recipe]
    assert [job.task.kind for job in jobs] == ["translate", "language", "masked", "image", "translate"]


def test_the_page_on_training_names_every_setting_that_may_change() -> None:
    page = " ".join((ROOT / "docs/training.md").read_text(encoding="utf-8").split())
    first, last = "These settings can be changed when resuming", "All other settings are fixed"
    paragraph = page[page.index(first) : page.index(last)]
    spoken = {"steps", "epochs", "total_tokens", "minutes", "evaluate_every", "save_every", "save_minutes", "log_every"}
    assert all(f"`{name}`" in paragraph for name in {*CHANGEABLE} - spoken - {"average_of"})


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for requirement in needed:
        name = re.split(r"[<>=]", requirement)[0]
        assert re.search(rf"\b{name}\b", reasons), name


def test_every_extra_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    modules = {"pillow": "PIL", "scikit-learn": "sklearn"}
    for extra, requirements in project["optional-dependencies"].items():
        for name in [re.split(r"[<>=]", requirement)[0] for requirement in requirements if extra != "dev"]:
            module = modules.get(name, name.replace("-", "_"))
            assert re.search(rf"(import|from) {module}\b|\"{module}[\".]", source), f"{extra}: {name}"


def test_the_index_names_every_page_and_verb() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert all(f"({page.name}" in index for page in ROOT.glob("docs/*.md") if page.name != "README.md")
    verbs = ("align", "convert", "count", "data", "doctor", "evaluate", "look", "predict", "presets", "recipes", "runs")
    assert all(f"regard {verb}" in index for verb in (*verbs, "serve", "train", "translate"))


def test_every_direct_dependency_is_pinned_for_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[<>=]", requirement)[0] for requirement in needed} <= set(pinned)
