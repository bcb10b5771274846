"""What the server gives of vectors and positions is Python's, and wrong requests are refused."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tiny_models import write_decoder, write_vision

import regard
from regard.look.positions import encodings
from regard.look.study import Study
from regard.look.vectors import contextual, find
from regard.serving.look_app import create_look_app
from regard.serving.look_settings import Looking

HOST = "http://localhost:5050"
TEXTS = ["the dog and a cat", "the dog is running"]


def unpacked(given: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(given["data"]), "<f4").reshape(given["shape"])


def test_vectors(client: TestClient, study: Study) -> None:
    found = client.post("/api/vectors", json={"texts": TEXTS, "to": "de"}).json()
    assert [word["text"] for word in found["words"]][:3] == ["the", "dog", "and"]
    assert {chart["word"] for chart in found["charts"]} == {None, "the", "dog"}
    vectors = contextual(study.loaded, [find(text, "dog") for text in TEXTS], "de").layers.double().numpy()
    one, two = (number for number, word in enumerate(found["words"]) if word["text"] == "dog")
    got = unpacked(found["cosines"])
    for layer in range(2):
        a, b = vectors[layer]
        assert got[layer, one, two] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    dog = next(chart for chart in found["charts"] if chart["word"] == "dog")
    points = unpacked(dog["points"])
    far = np.linalg.norm(points[1, 0] - points[1, 1])
    assert far == pytest.approx(np.linalg.norm(vectors[1, 0] - vectors[1, 1]), rel=1e-4), "two points lie on a line"
    assert len(dog["chance"]["layers"]) == 2


def test_positions(client: TestClient, study: Study) -> None:
    found = client.post("/api/positions", json={"part": "decoder", "length": 12}).json()
    wanted = encodings(study.loaded, 12, "decoder")
    assert found["kind"] == "sinusoidal"
    assert found["parts"] == ["encoder", "decoder"]
    for name in ("matrix", "dots", "cosines"):
        assert np.abs(unpacked(found["encodings"][name]) - getattr(wanted, name).numpy()).max() < 1e-5
    assert client.post("/api/positions", json={}).json()["length"] == 64


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("vectors", {}, 400, "texts"),
        ("vectors", {"texts": "the dog"}, 400, "texts"),
        ("vectors", {"texts": ["a\0b"]}, 400, "NUL"),
        ("vectors", {"texts": ["x"] * 100}, 400, "texts"),
        ("vectors", {"texts": ["", " "], "to": "de"}, 400, "must be 1 to"),
        ("vectors", {"texts": ["the"], "to": "de"}, 400, "1 words"),
        ("vectors", {"texts": ["the dog " * 300], "to": "de"}, 413, "at most 2,000"),
        ("vectors", {"texts": TEXTS, "to": "fr"}, 400, "fr"),
        ("vectors", {"texts": TEXTS, "layer": 1}, 400, "layer"),
        ("positions", {"part": "middle"}, 400, "part"),
        ("positions", {"length": 1}, 400, "length"),
        ("positions", {"length": 100_000}, 400, "length"),
        ("positions", {"length": "8"}, 400, "length"),
    ],
)
def test_wrong_requests(client: TestClient, path: str, body: Any, status: int, told: str) -> None:
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert told in answer.json()["error"]


def test_a_sentence_has_its_bound(tmp_path_factory: pytest.TempPathFactory) -> None:
    study = Study(regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu"), tokens=5)
    with TestClient(create_look_app(study, Looking()), HOST) as client:
        answer = client.post("/api/vectors", json={"texts": ["the dog is running through the snow"]})
        assert answer.status_code == 400
        assert "at most 5 of a text" in answer.json()["error"]
        assert client.post("/api/positions", json={"part": "encoder"}).status_code == 400


def test_images_have_places_and_no_words(tmp_path_factory: pytest.TempPathFactory) -> None:
    study = Study(regard.load(write_vision(tmp_path_factory.mktemp("vision")), "cpu"))
    assert "vectors" not in study.views
    with TestClient(create_look_app(study, Looking()), HOST) as client:
        found = client.post("/api/positions", json={}).json()
        assert found["encodings"]["grid"] == [2, 2]
        assert found["encodings"]["dots"] is None
        assert unpacked(found["encodings"]["cosines"]).shape == (4, 4)
        assert client.post("/api/vectors", json={"texts": TEXTS}).status_code == 400
