"""What the documents show is true: generated pages are up to date, and the README's example runs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from settings_cases import from_toml

from regard.blocks import edits
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


@pytest.mark.slow
def test_the_page_on_models_runs() -> None:
    names = run_page("docs/models.md")
    assert names["packed"].shape == (16, 5000)
    assert [path.name for path in sorted((names["place"] / "theirs").iterdir())] == ["config.json", "model.safetensors"]


@pytest.mark.slow
def test_the_page_on_data_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page("docs/data.md")


def test_the_recipes_on_the_page_on_data_are_read() -> None:
    found = [data_settings(tomllib.loads(text)) for text in code_blocks("docs/data.md", "toml")]
    assert [settings.kind for settings in found] == ["parallel", "labelled-tsv", "grammar"]


def test_the_kinds_on_the_page_on_data_are_all() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    assert all(f"`{kind}`" in page for kind in variants(data.AnyData))


@pytest.mark.slow
def test_the_page_on_looking_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("docs/looking.md")
    assert names["look"].html == (tmp_path / "look.html").read_text(encoding="utf-8")
    page = (ROOT / "docs/looking.md").read_text(encoding="utf-8")
    assert all((ROOT / "docs" / image).is_file() for image in re.findall(r"\]\((images/[^)]+)\)", page))


@pytest.mark.slow
def test_the_page_on_evaluating_runs() -> None:
    assert run_page("docs/evaluating.md")


@pytest.mark.slow
def test_the_page_on_text_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page("docs/text.md")
    page = (ROOT / "docs/text.md").read_text(encoding="utf-8")
    assert all(f"| `{kind}` |" in page for kind in variants(text.AnyTokenizer))
    (recipe,) = code_blocks("docs/text.md", "toml")
    assert parse(text.AnyTokenizer, tomllib.loads(recipe)["text"]).size == 10_000


@pytest.mark.slow
def test_the_page_on_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run._draw", lambda directory: False)  # it takes longer than all else
    assert run_page("docs/training.md")


def test_the_recipes_on_the_page_on_training_are_whole() -> None:
    found = [make_job("page", tomllib.loads(recipe), {}) for recipe in code_blocks("docs/training.md", "toml")]
    assert [job.task.kind for job in found] == ["translate", "language", "image", "translate"]


@pytest.mark.slow
def test_the_page_on_training_names_every_file_and_every_setting_that_may_change() -> None:
    page = " ".join((ROOT / "docs/training.md").read_text(encoding="utf-8").split())
    files = (CONFIG, WEIGHTS, CHECKSUMS, ENVIRONMENT, STATUS, "log.jsonl", CURVES)
    assert all(f"`{name}`" in page for name in files)
    paragraph = page[
        page.index("These settings can be changed when resuming") : page.index("All other settings are fixed")
    ]
    spoken = {"steps", "epochs", "total_tokens", "minutes", "evaluate_every", "save_every", "save_minutes", "log_every"}
    assert all(f"`{name}`" in paragraph for name in {*CHANGEABLE} - spoken - {"average_of"})


@pytest.mark.slow
def test_the_page_on_translating_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run._draw", lambda directory: False)
    assert run_page("docs/translating.md")
    page = (ROOT / "docs/translating.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in TranslateOptions.model_fields)


@pytest.mark.slow
def test_the_page_on_recording_runs() -> None:
    assert run_page("docs/recording.md")
    page = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    for change in (edits.Ablate, edits.Scale, edits.Force, edits.Patch):
        assert f"`{change.__name__}(" in page
        assert all(field.name in page for field in fields(change))


@pytest.mark.slow
def test_the_page_on_measures_runs() -> None:
    assert run_page("docs/measures.md")
    page = (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in heads.PATTERNS)
    assert f"at least {heads.LEAST} of the way" in page.replace("\n", " ")
    assert f"at most {attribution.TOLERANCE}" in page.replace("\n", " ")


@pytest.mark.slow
def test_the_page_on_vectors_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page("docs/vectors.md")


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


def test_every_direct_dependency_is_pinned_for_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[<>=]", requirement)[0] for requirement in needed} <= set(pinned)
