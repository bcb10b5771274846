"""Predictions, masked words and embeddings over HTTP, by real small models."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hub_directories import write_bert, write_gpt2
from PIL import Image
from tiny_translator import write_translator

import regard
from regard.data.images import LARGEST_UPLOAD
from regard.serving.app import create_app, load_services
from regard.serving.settings import Serving
from regard.training.report import Display

HOST = "http://localhost:5000"
SETTINGS = Serving(wait_ms=0, characters=300, texts=5, device="cpu")
TINY = {"width": 16, "depth": 1, "attention": {"heads": 2}}
COLOURS = {"red": (250, 0, 0), "blue": (0, 0, 200)}


def train(recipe: dict[str, Any], directory: Path) -> Path:
    recipe["train"] = {"steps": 1, "tokens": 512, "directory": str(directory)}
    return regard.train(recipe, device="cpu", display=Display(quiet=True)).directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "pairs.tsv").write_text("a dog\tan animal\tyes\na cat\ta stone\tno\n" * 8)
    data = {"kind": "labelled-tsv", "second": 2, "label": 3, "train": [str(folder / "pairs.tsv")]}
    text = {"kind": "wordpiece", "size": 60}
    pairs = {"task": "classify", "data": data, "text": text, "model": {"kind": "encoder", **TINY}}
    for name, colour in COLOURS.items():
        (folder / "images" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), colour).save(folder / "images" / name / "0.png")
    images = {
        "task": "image",
        "data": {"kind": "image-folder", "train": [str(folder / "images")]},
        "model": {"kind": "vision", "image": [8, 8], "patch": 4, **TINY},
    }
    return {
        "pairs": train(pairs, folder / "pairs"),
        "colours": train(images, folder / "colours"),
        "bert": write_bert(folder / "bert"),
        "gpt2": write_gpt2(folder / "gpt2"),
    }


@pytest.fixture(scope="module")
def client(models: dict[str, Path]) -> Iterator[TestClient]:
    services = load_services([str(path) for path in models.values()], SETTINGS)
    with TestClient(create_app(services, SETTINGS), HOST) as made:
        yield made


def ask(client: TestClient, path: str, **fields: Any) -> Any:
    return client.post(path, json=fields)


def test_each_model_is_served_by_what_it_can_do(models: dict[str, Path], tmp_path: Path) -> None:
    uses = {name: set(regard.load(path, "cpu").uses) for name, path in models.items()}
    wanted = {"pairs": {"predict", "embed"}, "colours": {"predict"}, "bert": {"predict", "fill", "embed"}}
    assert uses == {**wanted, "gpt2": {"embed"}}
    names = [str(models["bert"]), str(write_translator(tmp_path))]
    services = load_services(names, SETTINGS)
    assert [type(service).__name__ for service in services] == ["TranslationService", "PredictionService"]
    with TestClient(create_app(services, SETTINGS), HOST) as client:
        assert ask(client, "/translate", q="Hund", source="de", target="en").status_code == 200
        assert ask(client, "/fill", inputs="[MASK] house").status_code == 200
        listed = client.get("/v1/models").json()
        assert [each["id"] for each in listed["data"]] == [tmp_path.name, "bert"]
        assert {"/translate", "/predict", "/fill", "/v1/embeddings"} < client.get("/openapi.json").json()[
            "paths"
        ].keys()
    with TestClient(create_app(load_services([str(models["gpt2"])], SETTINGS), SETTINGS), HOST) as client:
        assert ask(client, "/predict", inputs=["a"]).status_code == 404


def test_predictions_are_those_of_the_model(client: TestClient, models: dict[str, Path]) -> None:
    pairs = regard.load(models["pairs"], "cpu")
    wanted = pairs.predict(["a dog\tan animal", "a stone\ta cat"])
    for inputs in (
        ["a dog\tan animal", "a stone\ta cat"],
        [["a dog", "an animal"], {"text": "a stone", "second": "a cat"}],
    ):
        found = ask(client, "/predict", inputs=inputs).json()["predictions"]
        assert [each["label"] for each in found] == [each["label"] for each in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
    form = client.post("/predict", data={"inputs": "a dog\tan animal", "model": "pairs"})
    assert form.json()["predictions"][0]["label"] == wanted[0]["label"]
    bert = regard.load(models["bert"], "cpu")
    for path in ("/fill", "/predict"):
        answer = ask(client, path, inputs=["the [MASK] house", "[MASK] [MASK]"], model="bert").json()
        assert answer["predictions"] == [bert.fill("the [MASK] house"), bert.fill("[MASK] [MASK]")]
    [[tokens]] = ask(client, "/fill", inputs="the [MASK] house", best=2).json()["predictions"]
    assert len(tokens) == 2


def test_images_are_sent_as_files_or_in_base64(client: TestClient, models: dict[str, Path]) -> None:
    folder = models["colours"].parent / "images"
    files = [folder / name / "0.png" for name in COLOURS]
    wanted = regard.load(models["colours"], "cpu").predict(files)
    sent = [("inputs", (file.name, file.read_bytes(), "image/png")) for file in files]
    texts = [base64.b64encode(file.read_bytes()).decode() for file in files]
    for answer in (
        client.post("/predict", files=sent, data={"model": "colours"}),
        ask(client, "/predict", model="colours", inputs=texts),
        ask(client, "/predict", model="colours", inputs=[f"data:image/png;base64,{text}" for text in texts]),
    ):
        assert [each["label"] for each in answer.json()["predictions"]] == [each["label"] for each in wanted]
    # A text is never the name of a file on the server's disk.
    huge = io.BytesIO()
    Image.new("1", (LARGEST_UPLOAD // 1024 + 1, 1024)).save(huge, "PNG")
    for wrong, message in (
        (str(files[0]), "inputs[1] is not base64"),
        (texts[0][:40], "inputs[1] does not decode as an image"),
        (["a"], "inputs[1] is not an image"),
        (base64.b64encode(huge.getvalue()).decode(), "inputs[1] is too large"),
    ):
        answer = ask(client, "/predict", model="colours", inputs=[texts[0], wrong])
        assert answer.status_code == 400
        assert message in answer.json()["error"]
    assert client.post("/predict", files=sent, data={"model": "pairs"}).status_code == 400
    long = ask(client, "/predict", model="colours", inputs=["a" * (2 * SETTINGS.upload_bytes)])
    assert long.status_code == 413


def test_embeddings_have_openais_shape(client: TestClient, models: dict[str, Path]) -> None:
    texts = ["the small house", "a green bird sings"]
    model = regard.load(models["bert"], "cpu")
    wanted = model.embed(texts)
    answer = ask(client, "/v1/embeddings", model="bert", input=texts, user="someone").json()
    assert (answer["object"], answer["model"]) == ("list", "bert")
    assert [(each["object"], each["index"]) for each in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], wanted, atol=1e-6)
    tokens = sum(len(encoding.ids) for encoding in model.tokenizers.source.encode_batch(texts))  # type: ignore[union-attr]
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = ask(client, "/v1/embeddings", model="bert", input=texts[0], encoding_format="base64").json()
    [encoded] = [each["embedding"] for each in answer["data"]]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(encoded), "<f4"), wanted[0], atol=1e-6)
    assert ask(client, "/v1/embeddings", model="bert", input="house " * 40).json()["usage"]["total_tokens"] <= 64


def test_wrong_requests(client: TestClient) -> None:
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        ("/predict", {}, 400, "missing inputs"),
        ("/predict", {"inputs": []}, 400, "inputs"),
        ("/predict", {"inputs": ["a\0b\tc"]}, 400, "NUL"),
        ("/predict", {"inputs": [["a", {"b": "\ud800"}]]}, 400, "Unicode"),
        ("/predict", {"inputs": ["a\tb", "no second"]}, 400, "inputs[1] has 1 texts"),
        ("/predict", {"inputs": ["a\tb", 3]}, 400, "inputs[1] is a int"),
        ("/predict", {"inputs": ["a\tb"] * 6}, 400, "6 texts, at most 5"),
        ("/predict", {"inputs": [["a" * 200, "b" * 200]]}, 413, "400 characters"),
        ("/predict", {"inputs": ["a"], "model": "gpt2"}, 404, "choose one of pairs, colours, bert"),
        ("/fill", {"inputs": ["no mask"]}, 400, "has no [MASK]"),
        ("/fill", {"inputs": ["a [MASK]"], "best": 0}, 400, "best"),
        ("/fill", {"inputs": ["[MASK] " + "a " * 70]}, 400, "exceeds position.length (64)"),
        ("/fill", {"inputs": [3]}, 400, "is of type int, expected str"),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 400, "token ids are not supported"),
        ("/v1/embeddings", {"input": [[1, 2], [3]]}, 400, "token ids are not supported"),
        ("/v1/embeddings", {"input": ["a", ""]}, 400, "inputs[1] has an empty text"),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, 400, "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}, 404, "pairs, bert, gpt2"),
    ]
    for path, fields, status, message in cases:
        body = json.dumps(fields)
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, (fields, answer.text)
        error = answer.json()["error"]
        assert message in (error["message"] if path.startswith("/v1/") else error), fields
    error = ask(client, "/v1/embeddings", input=[1]).json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "input", None)


def test_api_keys_hold_for_all_services(models: dict[str, Path]) -> None:
    settings = SETTINGS.changed({"api_keys": ("secret",)})
    with TestClient(create_app(load_services([str(models["bert"])], settings), settings), HOST) as client:
        for path, field in (("/predict", "inputs"), ("/fill", "inputs"), ("/v1/embeddings", "input")):
            body = {field: ["a [MASK]"]}
            answers = [
                client.post(path, json=body, headers={"Authorization": f"Bearer {key}"}) for key in ("x", "secret")
            ]
            wrong = 401 if path.startswith("/v1/") else 403
            assert [answer.status_code for answer in (client.post(path, json=body), *answers)] == [401, wrong, 200]
