"""The page's server: its answers are Python's, and wrong requests are refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from study_cases import IMAGE, TEXT, given
from tiny_models import write_decoder, write_vision
from tiny_translator import write_translator

import regard
from regard.look.study import Study
from regard.look.views.heads import rollout
from regard.serving.page import WEB, create_page_app
from regard.serving.settings import PageSettings

HOST = "http://localhost:5050"
HOSTILE = "</script><img src=x onerror=alert(1)> \u202eabc\u0007 " + "x" * 120
HEAD = "decoder.0.attention.1"


class Page:
    """A study behind a test client."""

    def __init__(self, study: Study, client: TestClient) -> None:
        self.study, self.client = study, client

    def ask(self, path: str, **fields: Any) -> Any:
        answer = self.client.post(f"/api/{path}", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tensor(self, run: str, name: str) -> Any:
        answer = self.client.get("/api/tensor", params={"run": run, "name": name})
        assert answer.status_code == 200, answer.text
        shape = [int(size) for size in answer.headers["X-Shape"].split(",")]
        return np.frombuffer(answer.content, "<f4").reshape(shape)

    def refused(self, path: str, body: Any, status: int, message: str) -> None:
        answer = self.client.post(f"/api/{path}", json=body)
        assert answer.status_code == status, (path, body, answer.text)
        assert message in answer.json()["error"], (path, body, answer.text)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Page]]:
    def load(write: Any) -> Any:
        return regard.load(write(tmp_path_factory.mktemp("model")), "cpu")

    translator = load(write_translator)
    measured = {"to": "en", "data": "gold", "pairs": 7, "error": 0.25, "naive": 0.5}
    translator.config["align"] = {"heads": [[0, 0]], "consumed": True, "measured": [measured, {"pairs": "few"}, 3]}
    studies = {
        "translator": Study(translator),
        "decoder": Study(load(write_decoder), against=load(write_decoder)),
        "vision": Study(load(write_vision)),
    }
    studies["vision"].picture = "a <b>.png", IMAGE
    clients = {
        name: TestClient(create_page_app(each, PageSettings(characters=2000)), HOST) for name, each in studies.items()
    }
    for client in clients.values():
        client.__enter__()
    yield {name: Page(studies[name], clients[name]) for name in studies}
    for client in clients.values():
        client.__exit__(None, None, None)


def test_about(pages: dict[str, Page]) -> None:
    about = pages["translator"].client.get("/api/about").json()
    assert about["views"] == [
        *("architecture", "heads", "words", "walk", "decode", "training", "lens"),
        *("attribution", "vectors", "positions", "compare"),
    ]
    assert [each["kind"] for each in about["attentions"]] == ["attention", "attention", "cross"]
    assert [each["error"] for each in about["align_measured"]] == [0.25]
    assert about["picture"] is None is about["against"]
    about, other = pages["decoder"].client.get("/api/about").json(), pages["decoder"].study.against
    assert other is not None
    assert about["against"]["name"] == Path(other.loaded.name).name
    assert about["against"]["attentions"] == about["attentions"]
    assert pages["vision"].client.get("/api/about").json()["picture"]["name"] == "a <b>.png"


def test_runs_tensors_and_outputs(pages: dict[str, Page]) -> None:
    page = pages["translator"]
    found = page.ask("run", text=TEXT, to="en")
    run = page.study.run(given("translator"))
    assert found["run"] == run.key
    for name in ("decoder.0.cross.weights", "encoder.0.residual"):
        assert np.array_equal(page.tensor(run.key, name), page.study.tensor(run.key, name).numpy())
    assert np.array_equal(page.tensor(run.key, "rollout.source")[0], rollout(page.study, run, "rollout.source").numpy())
    changed = [page.ask("run", text=TEXT, to="en", ablated=[f"decoder.0.cross.1{how}"]) for how in ("", "=mean")]
    outputs = [page.ask("output", run=each["run"]) for each in changed]
    chances = [each["output"]["answers"][0]["rows"][0]["actual"]["chance"] for each in outputs]
    chances.append(outputs[0]["plain"]["answers"][0]["rows"][0]["actual"]["chance"])
    assert len(set(chances)) == 3, "zero, mean and unchanged"
    assert changed[0]["plain"] == run.key
    assert page.ask("run", text=HOSTILE, to="en")["sides"]["encoder"]["text"] == HOSTILE


def test_images(pages: dict[str, Page]) -> None:
    page = pages["vision"]
    run = page.study.run(given("vision"))
    told = page.ask("run", image=base64.b64encode(IMAGE.tobytes()).decode())
    assert (told["run"], base64.b64decode(told["image"])) == (run.key, IMAGE.tobytes())
    found = page.ask("patches", run=run.key, query=2, rollout=True)
    assert sum(found["patches"]) + found["rest"] == pytest.approx(1, abs=1e-5)
    found = page.ask("deletion", run=run.key)
    assert 0 <= found["area"]["overlay"] <= 1


def test_wrong_requests(pages: dict[str, Page]) -> None:
    cases: dict[str, list[tuple[str, Any, int, str]]] = {
        "translator": [
            ("run", {"text": "x" * 3000}, 413, "at most 2,000"),
            ("run", {"text": "a\0b"}, 400, "NUL"),
            ("run", {"text": "a", "to": "fr"}, 400, "fr"),
            ("run", {"text": "a", "to": "en", "ablated": ["decoder.7.cross.0"]}, 400, "not in this model"),
            ("run", {"image": "AAAA"}, 400, "image"),
            ("run", [], 400, "object"),
            ("walk", {"run": "nothing"}, 400, "run the input again"),
            ("steps", {"run": "x", "temperature": 0}, 400, "temperature"),
            ("vectors", {"texts": ["", " "], "to": "de"}, 400, "expected 1 to 24"),
            ("vectors", {"texts": ["the dog " * 90], "to": "de"}, 400, "180 words"),
            ("patches", {"run": "RUN"}, 400, "reads no images"),
        ],
        "decoder": [
            ("lens", {"run": "RUN", "output": "nothing"}, 400, "must be output"),
            ("compare", {"run": "RUN", "changes": [f"{HEAD}*1e99"]}, 400, "from −100 to 100"),
        ],
        "vision": [
            ("run", {"image": "!!"}, 400, "base64"),
            ("run", {"image": "AAAA"}, 400, "of shape [1, 8, 8]"),
            ("patches", {"run": "RUN", "query": 4}, 400, "patch (4)"),
            ("patches", {"run": "RUN", "layer": 1}, 400, "layer 1, head 0"),
        ],
    }
    for family, wrong in cases.items():
        page = pages[family]
        key = page.study.run(given(family)).key
        for path, body, status, message in wrong:
            filled = {**body, "run": key} if isinstance(body, dict) and body.get("run") == "RUN" else body
            page.refused(path, filled, status, message)
        for name in ("rollout.nothing", "*.residual", "nothing"):
            assert page.client.get("/api/tensor", params={"run": key, "name": name}).status_code == 400


def test_hosts_bodies_and_paths(pages: dict[str, Page]) -> None:
    client, kind = pages["translator"].client, {"Content-Type": "application/json"}
    assert client.get("/api/about", headers={"Host": "evil.example"}).status_code == 403
    assert client.post("/api/run", content=b"text=a", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post("/api/run", content=b"{", headers=kind).status_code == 400
    assert client.post("/api/run", content=b'{"text": "' + b"x" * 200_000 + b'"}', headers=kind).status_code == 413
    for path in ("/../page.py", "/%2e%2e/page.py", "/views/../../docs.html", "/nothing"):
        assert client.get(path).status_code == 404


def test_files_of_the_page(pages: dict[str, Page]) -> None:
    client = pages["translator"].client
    assert client.get("/").headers["Content-Security-Policy"].startswith("default-src 'self'")
    scripts = list(WEB.rglob("*.js"))
    assert sum(file.stat().st_size for file in scripts) < 250_000
    long = [
        f"{file.name}: {line[:60]}"
        for file in scripts
        for line in file.read_text("utf-8").splitlines()
        if len(line) > 240
    ]
    assert long == [], "a line that nobody can read"
    for file in [*scripts, *WEB.glob("*.css"), *WEB.glob("*.html")]:
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "https://" not in text
        assert client.get(f"/{file.relative_to(WEB).as_posix()}").status_code == 200


def test_slow_requests(pages: dict[str, Page]) -> None:
    study = pages["translator"].study
    with TestClient(create_page_app(study, PageSettings(patience=1e-6)), HOST) as client:
        answer = client.post("/api/run", json={"text": "ein " * 100, "to": "en"})
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
