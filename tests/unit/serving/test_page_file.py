"""A saved page: it holds what the server answers, within limits, and no text in it is markup."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from study_cases import IMAGE, TEXT
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.errors import InputError
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views import decode, heads, views_of
from regard.serving import page_file as files
from regard.serving.page import create_page_app
from regard.serving.page_file import page_file
from regard.serving.settings import PageSettings

pytestmark = pytest.mark.slow

HOSTILE = "</script><!--<script><img src=x onerror=alert(1)> \u202eabc\u2028\u2029\u0007 &quot; \0 \ufeff"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_translator(tmp_path_factory.mktemp("translator")), "cpu"))


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="inlined">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def unpacked(entry: Any, shared: list[str] | None = None) -> Any:
    """What a page makes of an answer, written again here."""
    content = zlib.decompress(base64.b64decode(entry["packed"]))
    if "shape" not in entry:
        known = {"data": lambda number: (shared or [])[number]}
        return json.loads(content, object_hook=lambda each: {k: known.get(k, lambda v: v)(v) for k, v in each.items()})
    planes = np.frombuffer(content, np.uint8).reshape(entry["size"], -1)
    kept = np.ascontiguousarray(planes.T).view("<f4" if entry["size"] == 4 else "<u2").reshape(entry["shape"])
    return kept if entry["size"] == 4 else kept * files.STEP


def near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == pytest.approx(other, rel=1e-6)) if isinstance(one, float) else one == other


def test_answers_are_the_servers(study: Study) -> None:
    made = page_file(study, study.run(Input(TEXT, to="en")))
    assert made.views == list(views_of(study))
    assert made.left == {}
    data = data_of(made.html)
    answers, shared = data["answers"], data["shared"]
    assert len(set(shared)) == len(shared), "each tensor once"
    paths = [each["path"] for each in answers]
    layers = sum(group.layers for group in study.attentions)
    assert {path: paths.count(path) for path in paths} == {
        "run": 1,
        "architecture": 1,
        "walk": sum(group.layers * group.heads for group in study.attentions if group.kind == "attention"),
        "steps": 1,
        "tree": 1,
        "output": 1,
        "notes": layers,
        "training": 2,
        "lens": 1,
        "attribution": 1,
        "vectors": 1,
        "positions": 3,
        "compare": 1,
        "control": 1,
        # Each layer, a rollout of each kind, and a layer of the compared run.
        "tensor": layers + len(study.attentions) + 1,
    }
    with TestClient(create_page_app(study, PageSettings()), "http://localhost:5050") as client:
        for each in answers:
            if each["path"] == "tensor":
                answer = client.get("/api/tensor", params=each["asked"])
                assert (np.frombuffer(answer.content, "<f4") == unpacked(each).flatten()).all()
            else:
                answer = client.post(f"/api/{each['path']}", json=each["asked"])
                assert near(unpacked(each, shared), answer.json()), each["path"]


def test_every_family(tmp_path: Path) -> None:
    for write in (write_decoder, write_encoder, write_vision):
        study = Study(regard.load(write(tmp_path / write.__name__), "cpu"))
        seeing = write is write_vision
        made = page_file(study, study.run(Input(image=IMAGE) if seeing else Input("the dog")))
        answers = data_of(made.html)["answers"]
        assert made.views == list(views_of(study))
        assert not any("error" in each for each in answers)
        if seeing:
            assert base64.b64decode(answers[0]["asked"]["image"]) == IMAGE.tobytes()


def test_hostile_text_stays_data(study: Study) -> None:
    page = page_file(study, study.run(Input(HOSTILE, to="en"))).html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'")
    assert "http:" not in policy[1] + page.replace(policy[0], "").replace("http://www.w3.org/2000/svg", "")
    assert str(Path(study.loaded.name).parent) not in page, "the path of the model is private"
    assert page.isascii()
    assert "onerror=alert" not in page.replace("\\u003cimg src=x onerror=alert(1)\\u003e", "")
    assert page.count("</script>") == page.count("<script") == 3
    assert "<!--" not in page
    data = data_of(page)
    assert data["state"]["text"] == data["answers"][0]["asked"]["text"] == HOSTILE
    assert unpacked(data["answers"][0])["sides"]["encoder"]["text"] == HOSTILE


def test_chosen_views(study: Study) -> None:
    run = study.run(Input("ein Hund", to="en"))
    made = page_file(study, run, ["walk", "heads"], "decoder.0.cross.1")
    data = data_of(made.html)
    assert data["about"]["views"] == ["heads", "walk"]
    assert data["state"] | {"view": "walk", "at": "decoder.cross", "layer": "0", "head": "1"} == data["state"]
    first = next(each for each in data["answers"] if each["path"] == "walk")
    assert (first["asked"]["stack"], first["asked"]["layer"], first["asked"]["head"]) == ("decoder", 0, 1)
    with pytest.raises(InputError, match=r"view \(head\).*did you mean heads"):
        page_file(study, run, ["head"])


def test_room_is_limited(study: Study) -> None:
    run, chosen = study.run(Input(TEXT, to="en")), ["heads", "walk", "decode"]

    def size(data: Any) -> int:
        return sum(len(each["packed"]) for each in data["answers"]) + sum(map(len, data["shared"]))

    data = data_of(page_file(study, run, chosen).html)
    whole, room = data["answers"], size(data) * 2 // 3
    made = page_file(study, run, chosen, at="decoder.0.cross.1", room=room)
    answers = data_of(made.html)["answers"]
    assert size(data_of(made.html)) <= room
    assert made.left
    assert sum(made.left.values()) + len(answers) == len(whole)
    tensors = [each["asked"]["name"] for each in answers if each["path"] == "tensor"]
    assert tensors[0] == "decoder.0.cross.weights"
    for small, view in ((100, "run"), (2000, "[a-z]+")):
        with pytest.raises(InputError, match=f"view {view} needs more"):
            page_file(study, run, room=small)


def test_weights_of_long_inputs_are_rounded(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    run = study.run(Input(TEXT, to="en"))
    monkeypatch.setattr(files, "EXACT_BYTES", 0)
    data = data_of(page_file(study, run, ["heads"]).html)
    assert data["rounded"] == files.STEP / 2 < 1e-4
    for each in data["answers"]:
        if each["path"] == "tensor":
            truth = heads.fetch(study, run.key, each["asked"]["name"])
            assert (torch.from_numpy(unpacked(each)) - truth).abs().max() <= data["rounded"] + 1e-7


def test_errors_are_stored_as_the_server_answers_them(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise InputError("no tree today")

    monkeypatch.setattr(decode, "beam_tree", fails)
    data = data_of(page_file(study, study.run(Input("ein Hund", to="en")), ["decode"]).html)
    assert [each.get("error") for each in data["answers"]] == [None, None, "no tree today"]
