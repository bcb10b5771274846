"""What the page asks of images, rollouts and notes on heads, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tiny_models import write_vision
from tiny_translator import write_translator

import regard
from regard.look.patches import Query, concentration, over_patches
from regard.look.reading import Input
from regard.look.run_rollout import rollout_map
from regard.look.study import Picture, Study
from regard.serving.look_app import create_look_app
from regard.serving.look_settings import Looking

HOST = "http://localhost:5050"
PIXELS = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = Study(regard.load(write_vision(tmp_path_factory.mktemp("vision")), "cpu"))
    made.picture = Picture("a <b>.png", PIXELS)
    return made


@pytest.fixture(scope="module")
def run(client: TestClient) -> str:
    picture = client.get("/api/about").json()["picture"]
    assert picture["name"] == "a <b>.png"
    told = client.post("/api/run", json={"image": picture["pixels"]}).json()
    assert base64.b64decode(told["image"]) == PIXELS.tobytes()
    return str(told["run"])


def ask(client: TestClient, path: str, **fields: Any) -> Any:
    answer = client.post(f"/api/{path}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_patches_are_pythons(client: TestClient, study: Study, run: str) -> None:
    assert client.get("/api/about").json()["views"][0] == "image"
    kept = study.run(Input(image=PIXELS))
    for fields, query in (
        ({"layer": 0, "head": 1}, Query(-1, 0, 1)),
        ({"query": 2, "rollout": True}, Query(2, rollout=True)),
        ({"query": None}, Query(None)),
    ):
        told = ask(client, "patches", run=run, **fields)
        assert np.allclose(told["patches"], over_patches(study, kept, query).patches_N)
        assert told["concentration"]["entropy"] == pytest.approx(concentration(study, kept, query).entropy)
    assert sum(told["patches"]) + told["rest"] == pytest.approx(1, abs=1e-5)


def test_occlusion_rollout_and_notes(client: TestClient, study: Study, run: str) -> None:
    told = ask(client, "occlude", run=run, count=2)
    assert 0 <= told["after"] <= 1
    assert len(told["draws"]) == 20
    answer = client.get("/api/tensor", params={"run": run, "name": "rollout.encoder"})
    assert answer.headers["X-Shape"] == "1,5,5"
    found = np.frombuffer(answer.content, "<f4").reshape(5, 5)
    assert np.allclose(found, rollout_map(study, study.run(Input(image=PIXELS)), "rollout.encoder")[0])
    notes = ask(client, "notes", run=run, at="encoder.0.attention")["heads"]
    assert set(notes) == {"encoder.0.attention.0", "encoder.0.attention.1"}


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        ("patches", {"run": "x"}, "run the input again"),
        ("patches", {"query": -2}, "query"),
        ("patches", {"query": 4}, "patch (4) is not there"),
        ("patches", {"query": "<b>"}, "query"),
        ("patches", {"layer": 1}, "layer 1, head 0, is not in this model"),
        ("patches", {"rollout": 1}, "rollout"),
        ("occlude", {"count": 0}, "count"),
        ("occlude", {"count": 5}, "must be from 1 to 4"),
        ("occlude", {"count": 10**9}, "count"),
        ("notes", {"run": "x", "at": "encoder.0.attention"}, "run the input again"),
        ("notes", {"at": "encoder.9.attention"}, "is no attention of this model"),
        ("notes", {"at": "encoder.0.attention", "more": 1}, "more"),
        ("run", {"ablated": ["encoder.0.attention.0=median"]}, "median"),
    ],
)
def test_wrong_requests(client: TestClient, run: str, path: str, fields: dict[str, Any], told: str) -> None:
    asked = {**({} if path == "run" else {"run": run}), **fields}
    answer = client.post(f"/api/{path}", json=asked)
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]


def test_a_rollout_that_is_not_there(client: TestClient, run: str) -> None:
    answer = client.get("/api/tensor", params={"run": run, "name": "rollout.decoder"})
    assert answer.status_code == 400
    assert "choose rollout.encoder" in answer.json()["error"]


def test_a_translator_has_rollouts_means_and_figures_but_no_patches(tmp_path_factory: pytest.TempPathFactory) -> None:
    loaded = regard.load(write_translator(tmp_path_factory.mktemp("translator")), "cpu")
    entry = {"to": "en", "data": "gold", "pairs": 7, "error": 0.25, "naive": 0.5}
    loaded.config["align"] = {"heads": [[0, 0]], "consumed": True, "measured": [entry, {"pairs": "few"}, 3]}
    with TestClient(create_look_app(Study(loaded), Looking()), HOST) as client:
        about = client.get("/api/about").json()
        assert about["align_measured"] == [{**entry, "joined": None, "heads": ""}]
        assert about["picture"] is None
        heads = ("decoder.0.cross.1", "decoder.0.cross.1=mean")
        zero, mean = (ask(client, "run", text="ein Hund", to="en", ablated=[head]) for head in heads)
        assert zero["run"] != mean["run"]
        chances = [
            ask(client, "output", run=one["run"])["output"]["answers"][0]["rows"][0]["actual"]["chance"]
            for one in (zero, mean)
        ]
        assert chances[0] != chances[1]
        assert client.get("/api/tensor", params={"run": mean["run"], "name": "rollout.source"}).status_code == 200
        answer = client.post("/api/patches", json={"run": mean["run"]})
        assert answer.status_code == 400
        assert "reads no images" in answer.json()["error"]
