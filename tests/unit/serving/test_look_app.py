"""The page's server: the numbers that it gives, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tiny_models import write_vision

import regard
from regard.look.reading import Input
from regard.look.study import Study
from regard.serving.look_app import WEB, create_look_app
from regard.serving.look_settings import Looking

HOST = "http://localhost:5050"
HOSTILE = "</script><img src=x onerror=alert(1)> \u202eabc\u0007 " + "x" * 120


def run(client: TestClient, **fields: Any) -> Any:
    answer = client.post("/api/run", json={"text": "ein Hund läuft", "to": "en", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_about(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert about["family"] == "encoder-decoder"
    assert about["views"] == ["heads", "walk", "decode", "lens", "vectors", "positions", "compare"]
    assert [each["kind"] for each in about["attentions"]] == ["attention", "attention", "cross"]


def test_a_tensor_is_what_python_records(client: TestClient, study: Study) -> None:
    found = run(client)
    name = "decoder.0.cross.weights"
    answer = client.get("/api/tensor", params={"run": found["run"], "name": name})
    shape = [int(size) for size in answer.headers["X-Shape"].split(",")]
    assert shape == study.known(found["run"]).shapes[name]
    got = np.frombuffer(answer.content, "<f4").reshape(shape)
    kept = study.run(Input("ein Hund läuft", to="en"))
    import torch

    with regard.record(study.network, name) as seen:
        study.network(*(torch.tensor([kept.sides[side].ids]) for side in ("encoder", "decoder")))
    assert np.abs(got - seen[name][0].numpy()).max() < 1e-6


def test_ablation_tells_both_outputs(client: TestClient) -> None:
    found = run(client, ablated=["decoder.0.cross.1"])
    assert found["plain"] == run(client)["run"]
    said = client.post("/api/output", json={"run": found["run"]}).json()
    before, after = (said[each]["answers"][0]["rows"][0]["actual"]["chance"] for each in ("plain", "output"))
    assert before != after


def test_walk_steps_and_tree(client: TestClient) -> None:
    key = run(client)["run"]
    asked = {"run": key, "stack": "decoder", "kind": "cross"}
    titles = [step["title"] for step in client.post("/api/walk", json=asked).json()["steps"]]
    assert titles[:3] == ["Text", "Tokens", "Ids"]
    assert titles[-1] == "Logits, softmax"
    steps = client.post("/api/steps", json={"run": key, "top_k": 3, "longest": 5}).json()["steps"]
    assert len(steps) <= 5
    assert all(step["kept"] <= 3 for step in steps)
    tree = client.post("/api/tree", json={"run": key, "beam": 2, "longest": 5}).json()
    assert {node["fate"] for node in tree["nodes"]} >= {"open", "dropped"}


def test_hostile_text_is_only_ever_data(client: TestClient) -> None:
    found = run(client, text=HOSTILE)
    assert found["sides"]["encoder"]["text"] == HOSTILE


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("run", {"text": "x" * 3000}, 413, "at most 2,000"),
        ("run", {"text": 5}, 400, "text"),
        ("run", {"text": "a\0b"}, 400, "NUL"),
        ("run", {"text": "a", "nonsense": 1}, 400, "nonsense"),
        ("run", {"text": "a", "to": "fr"}, 400, "fr"),
        ("run", {"text": "a", "to": "en", "ablated": ["decoder.7.cross.0"]}, 400, "not in this model"),
        ("run", {"text": "a", "to": "en", "ablated": ["x"] * 5000}, 400, "ablated"),
        ("run", {"image": "AAAA"}, 400, "image"),
        ("run", [], 400, "object"),
        ("walk", {"run": "nothing"}, 400, "run the input again"),
        ("walk", {"run": "nothing", "layer": -1}, 400, "layer"),
        ("steps", {"run": "x", "temperature": 0}, 400, "temperature"),
        ("steps", {"run": "x", "longest": 10**6}, 400, "longest"),
        ("tree", {"run": "x", "beam": 1000}, 400, "beam"),
    ],
)
def test_wrong_requests(client: TestClient, path: str, body: Any, status: int, told: str) -> None:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert told in answer.json()["error"]


def test_hosts_bodies_and_paths(client: TestClient) -> None:
    assert client.get("/api/about", headers={"Host": "evil.example"}).status_code == 403
    assert client.post("/api/run", content=b"text=a", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post("/api/run", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    large = b'{"text": "' + b"x" * 200_000 + b'"}'
    assert client.post("/api/run", content=large, headers={"Content-Type": "application/json"}).status_code == 413
    for path in ("/../look_app.py", "/%2e%2e/look_app.py", "/views/../../docs.html", "/nothing"):
        assert client.get(path).status_code == 404
    answer = client.get("/api/tensor", params={"run": run(client)["run"], "name": "decoder.*"})
    assert answer.status_code == 400


def test_files_are_few_and_from_here(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
    scripts = list(WEB.rglob("*.js"))
    assert sum(file.stat().st_size for file in scripts) < 200_000
    for file in [*scripts, *WEB.glob("*.css"), *WEB.glob("*.html")]:
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "https://" not in text
        assert client.get(f"/{file.relative_to(WEB).as_posix()}").status_code == 200


def test_images_come_as_bytes(tmp_path_factory: pytest.TempPathFactory) -> None:
    seeing = Study(regard.load(write_vision(tmp_path_factory.mktemp("vision")), "cpu"))
    with TestClient(create_look_app(seeing, Looking()), HOST) as client:
        import base64

        whole = client.post("/api/run", json={"image": base64.b64encode(bytes(range(64))).decode()})
        assert len(whole.json()["sides"]["encoder"]["tokens"]) == 5
        for wrong in ("!!", "AAAA"):
            assert client.post("/api/run", json={"image": wrong}).status_code == 400


def test_too_many_wait_outside(study: Study) -> None:
    with TestClient(create_look_app(study, Looking(patience=1e-6)), HOST) as client:
        answer = client.post("/api/run", json={"text": "ein " * 100, "to": "en"})
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
