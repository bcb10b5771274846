"""Lens and comparison over HTTP: the numbers are Python's, and bad requests are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tiny_models import write_decoder

import regard
from regard.look.compare import compare
from regard.look.lensed import lensed
from regard.look.reading import Input
from regard.look.study import Study

HOST = "http://localhost:5050"
TEXT = "ein Hund läuft"
HEAD = "decoder.0.attention.1"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    one, two = (regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu") for _ in range(2))
    return Study(one, beside=two)


def ask(client: TestClient, path: str, **fields: Any) -> Any:
    answer = client.post(f"/api/{path}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_about(client: TestClient, study: Study) -> None:
    about = client.get("/api/about").json()
    assert about["outputs"] == ["output"]
    assert study.beside is not None
    assert about["beside"]["name"] == Path(study.beside.loaded.name).name
    assert about["beside"]["attentions"] == about["attentions"]


def test_the_lens(client: TestClient, study: Study) -> None:
    run = ask(client, "run", text=TEXT)["run"]
    got, found = ask(client, "lens", run=run), lensed(study, study.run(Input(TEXT)))
    assert got["layers"][0]["chances"] == found.layers[0].chances
    assert got["texts"] == {str(token): text for token, text in found.texts.items()}


def test_a_comparison_and_its_control(client: TestClient, study: Study) -> None:
    run = ask(client, "run", text=TEXT)["run"]
    got, found = ask(client, "compare", run=run, changes=[HEAD]), compare(study, study.run(Input(TEXT)), [HEAD])
    assert got["answers"][0]["figures"]["divergence"] == found.answers[0].figures.divergence
    spread = ask(client, "control", run=run, changes=[HEAD])["answers"]["output"]["divergence"]
    assert spread["least"] <= spread["mean"] <= spread["most"]


def test_tensors_of_the_model_beside(client: TestClient, study: Study) -> None:
    run = ask(client, "run", text=TEXT)["run"]
    got = ask(client, "compare", run=run)
    name = "decoder.1.attention.weights"
    answer = client.get("/api/tensor", params={"run": got["other"], "name": name})
    assert study.beside is not None
    expected = study.beside.tensor(study.beside.run(Input(TEXT)).key, name)
    assert np.array_equal(np.frombuffer(answer.content, "<f4").reshape(expected.shape), expected.numpy())


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("lens", {"run": "nothing"}, "run the input again"),
        ("lens", {"run": 1}, "run"),
        ("lens", {"run": "RUN", "output": "nothing"}, "choose output"),
        ("lens", {"run": "RUN", "top": 10**9}, "top"),
        ("compare", {"run": "nothing"}, "run the input again"),
        ("compare", {"run": "RUN", "changes": ["decoder.9.attention.0"]}, "not in this model"),
        ("compare", {"run": "RUN", "changes": [f"{HEAD}*1e99"]}, "between −100 and 100"),
        ("compare", {"run": "RUN", "changes": ["x"] * 5000}, "changes"),
        ("control", {"run": "RUN", "changes": "x"}, "changes"),
        ("control", {"run": "RUN", "draws": 10**9}, "draws"),
        ("control", {"run": "RUN", "changes": [f"decoder.{i}.attention.{j}" for i in (0, 1) for j in (0, 1)]}, "half"),
    ],
)
def test_wrong_requests(client: TestClient, path: str, body: dict[str, Any], told: str) -> None:
    if body["run"] == "RUN":
        body = {**body, "run": ask(client, "run", text=TEXT)["run"]}
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]
