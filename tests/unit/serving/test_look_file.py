"""One file with every view: what it holds is what the server answers, within bounds, and no text in it is markup."""

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
from tiny_models import write_decoder, write_encoder, write_vision

import regard
from regard.errors import InputError
from regard.look.reading import Input
from regard.look.study import Study
from regard.serving import look_file
from regard.serving.look_app import create_look_app
from regard.serving.look_file import page_file
from regard.serving.look_held import HELD
from regard.serving.look_pages import WEB, modules_of
from regard.serving.look_service import LookService
from regard.serving.look_settings import Looking

pytestmark = pytest.mark.slow

HOST = "http://localhost:5050"
HOSTILE = "</script><!--<script><img src=x onerror=alert(1)> \u202eabc\u2028\u2029\u0007 &quot; \0 \ufeff"


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="inlined">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def unpacked(entry: Any) -> Any:
    """What a page makes of an answer, written anew here."""
    content = zlib.decompress(base64.b64decode(entry["packed"]))
    if "shape" not in entry:
        return json.loads(content)
    planes = np.frombuffer(content, np.uint8).reshape(entry["size"], -1)
    kept = np.ascontiguousarray(planes.T).view("<f4" if entry["size"] == 4 else "<u2").reshape(entry["shape"])
    return kept if entry["size"] == 4 else kept * look_file.STEP


def near(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return bool(one == pytest.approx(other, rel=1e-6)) if isinstance(one, float) else one == other


def test_answers_are_the_servers(study: Study) -> None:
    made = page_file(study, study.run(Input("ein Hund läuft", to="en")))
    assert made.views == study.views
    assert made.left == {}
    answers = data_of(made.html)["answers"]
    heads = sum(place.layers * place.heads for place in study.attentions)
    paths = [each["path"] for each in answers]
    assert {path: paths.count(path) for path in paths} == {
        "run": 1,
        "walk": heads,
        "steps": 1,
        "tree": 1,
        "output": 1,
        "notes": sum(place.layers for place in study.attentions),
        "lens": 1,
        "vectors": 1,
        "positions": 3,
        "compare": 1,
        "control": 1,
        # Each layer, a rollout of each kind, and a layer of the run that is compared.
        "tensor": sum(place.layers + 1 for place in study.attentions) + 1,
    }
    with TestClient(create_look_app(study, Looking()), HOST) as client:
        for each in answers:
            if each["path"] == "tensor":
                told = client.get("/api/tensor", params=each["asked"])
                assert (np.frombuffer(told.content, "<f4") == unpacked(each).flatten()).all()
            else:
                told = client.post(f"/api/{each['path']}", json=each["asked"])
                assert near(unpacked(each), told.json()), each["path"]


@pytest.mark.parametrize("write", [write_decoder, write_encoder])
def test_every_view_of_a_model_has_what_it_asks(tmp_path: Path, write: Any) -> None:
    study = Study(regard.load(write(tmp_path), "cpu"))
    assert set(study.views) <= set(HELD)
    made = page_file(study, study.run(Input("the dog")))
    assert made.views == study.views
    assert not any("error" in each for each in data_of(made.html)["answers"])


def test_an_image(tmp_path: Path) -> None:
    study = Study(regard.load(write_vision(tmp_path), "cpu"))
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    asked = data_of(page_file(study, study.run(Input(image=pixels))).html)["answers"][0]["asked"]
    assert base64.b64decode(asked["image"]) == bytes(range(64))


def test_hostile_text_is_only_ever_data(study: Study) -> None:
    page = page_file(study, study.run(Input(HOSTILE, to="en"))).html
    assert page.isascii()
    assert "onerror=alert" not in page.replace("\\u003cimg src=x onerror=alert(1)\\u003e", "")
    assert page.count("</script>") == page.count("<script") == 3
    assert "<!--" not in page
    data = data_of(page)
    assert data["state"]["text"] == data["answers"][0]["asked"]["text"] == HOSTILE
    assert unpacked(data["answers"][0])["sides"]["encoder"]["text"] == HOSTILE


def test_nothing_is_asked_of_anybody(study: Study) -> None:
    page = page_file(study, study.run(Input("ein Hund", to="en"))).html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'")
    assert "http:" not in policy[1] + page.replace(policy[0], "").replace("http://www.w3.org/2000/svg", "")
    assert str(Path(study.loaded.name).parent) not in page, "where the model lies is not told"


def test_views_can_be_left_out_and_the_first_is_open(study: Study) -> None:
    made = page_file(study, study.run(Input("ein Hund", to="en")), ["walk", "heads"], "decoder.0.cross.1")
    data = data_of(made.html)
    assert data["about"]["views"] == ["heads", "walk"]
    assert data["state"] | {"view": "walk", "at": "decoder.cross", "layer": "0", "head": "1"} == data["state"]
    first = next(each for each in data["answers"] if each["path"] == "walk")
    assert (first["asked"]["stack"], first["asked"]["kind"], first["asked"]["head"]) == ("decoder", "cross", 1)
    assert "look/views/decode.js" not in made.html
    with pytest.raises(InputError, match=r"view \(head\).*heads, walk, decode, .*compare \(did you mean heads\?\)"):
        page_file(study, study.run(Input("ein Hund", to="en")), ["head"])


def test_what_two_views_ask_is_kept_once(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    run = study.run(Input("ein Hund", to="en"))
    once = data_of(page_file(study, run, ["heads"]).html)["answers"]
    monkeypatch.setitem(HELD, "walk", HELD["heads"])
    assert data_of(page_file(study, run, ["heads", "walk"]).html)["answers"] == once


def test_modules_are_those_that_are_imported() -> None:
    everything = {file.relative_to(WEB).as_posix() for file in WEB.rglob("*.js")}
    assert set(modules_of(HELD)) == everything
    assert "views/heads.js" not in modules_of(["decode"])
    assert {"main.js", "source.js", "dom.js", "views/decode.js"} <= set(modules_of(["decode"]))


def test_room_runs_out_first_for_what_matters_least(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    run = study.run(Input("ein Hund läuft", to="en"))
    views = ["heads", "walk", "decode"]
    told: list[str] = []
    whole = page_file(study, run, views, say=told.append)
    assert told[0] == "run: what it opens with"
    assert {line.partition(":")[0] for line in told} == {"run", *views}
    room = sum(len(each["packed"]) for each in data_of(whole.html)["answers"])
    made = page_file(study, run, views, at="decoder.0.cross.1", room=room * 2 // 3)
    answers = data_of(made.html)["answers"]
    assert sum(len(each["packed"]) for each in answers) <= room * 2 // 3
    assert made.left
    assert sum(made.left.values()) + len(answers) == len(data_of(whole.html)["answers"])
    tensors = [each["asked"]["name"] for each in answers if each["path"] == "tensor"]
    assert tensors[0] == "decoder.0.cross.weights"
    with pytest.raises(
        InputError, match=r"run: what it shows of this input takes more than .* MiB .*give a shorter text"
    ):
        page_file(study, run, room=100)
    with pytest.raises(InputError, match="heads: what it shows"):
        page_file(study, run, room=2000)


def test_long_inputs_are_rounded_and_say_so(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    run = study.run(Input("ein Hund läuft", to="en"))
    monkeypatch.setattr(look_file, "EXACT", 0)
    data = data_of(page_file(study, run, ["heads"]).html)
    assert data["rounded"] == look_file.STEP / 2 < 1e-4
    for each in data["answers"]:
        if each["path"] == "tensor":
            truth = LookService(study).found(run.key, each["asked"]["name"])
            assert (torch.from_numpy(unpacked(each)) - truth).abs().max() <= data["rounded"] + 1e-7


def test_an_error_is_kept_as_the_server_would_tell_it(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise InputError("no tree today; come tomorrow")

    monkeypatch.setattr("regard.serving.look_service.grow_tree", fails)
    data = data_of(page_file(study, study.run(Input("ein Hund", to="en")), ["decode"]).html)
    assert [each.get("error") for each in data["answers"]] == [None, None, "no tree today; come tomorrow"]
