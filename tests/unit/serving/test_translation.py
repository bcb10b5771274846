"""The translation server's API, as LibreTranslate's clients call it, and real models behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from serving_cases import BAD, PANIC, WRONG, Parrot
from tiny_translator import write_translator

import regard
from regard.errors import InputError
from regard.models.settings import Encoder
from regard.serving.app import create_app, load_services
from regard.serving.settings import Serving, body_limit
from regard.serving.translation import Route, TranslationService, Translators
from regard.use.model import load
from regard.use.translator import Translator
from regard.weights.directory import save_model

HOST = "http://localhost:5000"
SETTINGS = Serving(wait_ms=0, characters=200, texts=5, queue=8, alternatives=2)
JSON = {"Content-Type": "application/json"}
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app([TranslationService(Parrot())], SETTINGS), HOST) as made:
        yield made


def translate(client: TestClient, **fields: Any) -> Any:
    return client.post("/translate", json={"q": "Hund", "source": "de", "target": "en", **fields})


def test_texts_and_alternatives(client: TestClient) -> None:
    assert translate(client).json() == {"translatedText": "de>en:Hund"}
    assert translate(client, q=["ein", "Hund"]).json() == {"translatedText": ["de>en:ein", "de>en:Hund"]}
    assert translate(client, q=["", "a", " \n"]).json() == {"translatedText": ["", "de>en:a", " \n"]}
    assert translate(client, alternatives=2).json()["alternatives"] == ["de>en:Hund#1", "de>en:Hund#2"]
    assert translate(client, q=["a", "b"], alternatives=1).json()["alternatives"] == [["de>en:a#1"], ["de>en:b#1"]]
    unicode = "👩‍👩‍👧 ﷽ \u202e ß 漢字 e\u0301 \x07"
    assert translate(client, q=unicode).json() == {"translatedText": f"de>en:{unicode}"}


def test_the_source_language_is_detected(client: TestClient) -> None:
    one = translate(client, q="Der Hund ist nicht auf dem Sofa", source="auto").json()
    assert one["translatedText"].startswith("de>en:")
    assert one["detectedLanguage"]["language"] == "de"
    assert 50 < one["detectedLanguage"]["confidence"] <= 100
    several = translate(client, q=["The dog is here", "and the cat is there"], source="auto", target="de").json()
    assert several["translatedText"][1] == "en>de:and the cat is there"
    assert [each["language"] for each in several["detectedLanguage"]] == ["en", "en"]
    html = '<a href="the and of"><i>Der Hund ist da</i></a>'
    assert translate(client, q=html, source="auto", format="html").json()["detectedLanguage"]["language"] == "de"
    text = "The dog is on the sofa"  # already in the target language
    assert translate(client, q=text, source="auto").json()["translatedText"] == text
    assert translate(client, q=text, source="en", target="en").json() == {"translatedText": text}
    (german,) = client.post("/detect", json={"q": "Wir haben es nicht gesehen"}).json()
    assert german["language"] == "de"
    assert german["confidence"] > 70
    assert client.post("/detect", json={"q": "a" * 201}).status_code == 413


def test_forms(client: TestClient) -> None:
    fields = {"q": "schöne\r\nGrüße &+%", "source": "de", "target": "en", "alternatives": "1", "format": ""}
    files: dict[str, Any] = {name: (None, value) for name, value in fields.items()}
    answers = (
        client.post("/translate", data=fields),
        client.post("/translate", params=fields),
        client.post("/translate", files={**files, "file": ("a.txt", b"\xff")}),
    )
    wanted = {"translatedText": "de>en:schöne\nGrüße &+%", "alternatives": ["de>en:schöne\nGrüße &+%#1"]}
    assert [answer.json() for answer in answers] == [wanted] * 3
    repeated = client.post("/translate", data={"q": ["a", "b"], "source": "de", "target": "en"})
    assert repeated.json() == {"translatedText": ["de>en:a", "de>en:b"]}


def test_streams(client: TestClient) -> None:
    answer = client.post("/translate/stream", json={"q": "ein Hund", "source": "auto", "target": "en"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[:2] == [{"piece": "de>en:ein "}, {"piece": "Hund "}]
    assert (lines[2]["done"], lines[2]["translatedText"]) == (True, "de>en:ein Hund ")
    assert lines[2]["detectedLanguage"]["language"] == "de"
    assert len(lines) == 3

    fields = {"q": f"ein {BAD}", "source": "de", "target": "en"}
    answer = client.post("/translate/stream", json=fields, headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n") if event]
    assert events[0] == {"piece": "de>en:ein "}
    assert list(events[1]) == ["error"]
    assert "secret" not in answer.text

    answer = client.post("/translate/stream", json={"q": "dog", "source": "en", "target": "en"})
    assert [json.loads(line) for line in answer.text.splitlines()][-1] == {"done": True, "translatedText": "dog"}
    for wrong in ({"q": ["a"]}, {"format": "html"}, {"alternatives": 1}, {"target": "fr"}):
        answer = client.post("/translate/stream", json={"q": "a", "source": "de", "target": "en", **wrong})
        assert (answer.status_code, list(answer.json())) == (400, ["error"]), wrong


def test_wrong_requests_name_the_field(client: TestClient) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"source": None}, 400, "missing source"),
        ({"target": "fr"}, 400, "fr is not supported; choose one of de, en"),
        ({"source": "x" * 100}, 400, "x… is not supported"),
        ({"q": ["a", 3]}, 400, "Invalid request: q: Input should be"),
        ({"q": "a\0b"}, 400, "Invalid request: q: a text must not contain NUL"),
        ({"format": "pdf"}, 400, "format: "),
        ({"alternatives": 3}, 400, "alternatives must be at most 2"),
        ({"q": "a" * 201}, 413, "201 characters, at most 200"),
        ({"q": ["a"] * 6}, 400, "6 texts, at most 5"),
        ({"q": WRONG}, 400, "correct it"),
    ]
    for fields, status, message in cases:
        answer = translate(client, **fields)
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), fields
        assert message in answer.json()["error"]


def test_hostile_json_is_refused() -> None:
    rest = b', "source": "de", "target": "en"}'
    bodies = [
        *(b"", b"{", b"nonsense", b"[]", b"null", b'"q"', b'{"q": NaN1}', b"[" * 100_000, b'{"q":' * 5_000),
        b'{"q": ' + b"9" * 10_000 + rest,
        b'{"q": "\xff\xfe"' + rest,
        '{"q": "Hund", "source": "de", "target": "en"}'.encode("utf-16"),
        b'{"q": "\\ud800"' + rest,
        b'{"q": ["\\udfff\\ud800"]' + rest,
        b'{"q": "a", "source": "\\ud800", "target": "en"}',
        b'{"q": "a", "source": "de", "target": "en", "api_key": "\\ud800"}',
        b'{"q": "a\\u0000b"' + rest,
        b"\x00" * 100,
    ]
    with TestClient(create_app([TranslationService(Parrot())], Serving(characters=100_000)), HOST) as client:
        for path in ("/translate", "/translate/stream", "/detect"):
            for body in bodies:
                sent = body.replace(b'"source"', b'"api_key"') if path == "/detect" else body  # it has no source
                answer = client.post(path, content=sent, headers=JSON)
                assert (answer.status_code, list(answer.json())) == (400, ["error"]), body[:40]


def test_hostile_forms_bodies_and_addresses_are_refused(client: TestClient) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--'
    for content_type, body, status in (
        (FORM, b"q=%ff&source=de&target=en", 400),
        (FORM, b"q=\xff&source=de&target=en", 400),
        (FORM, b"q=a%00b&source=de&target=en", 400),
        (FORM, b"&".join([b"a=b"] * 8000), 413),
        (FORM, b"&".join([b"a="] * 1500), 400),
        ("multipart/form-data", b"--x", 400),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--", 400),
        ("multipart/form-data; boundary=x", part, 400),
        ("multipart/form-data; boundary=x", b"no boundary at all", 400),
        ("text/plain", b"q=a&source=de&target=en", 415),
        ("application/octet-stream", b"", 415),
        ("\x7f/é", b"q=a", 415),
    ):
        answer = client.post("/translate", content=body, headers={"Content-Type": content_type.encode()})
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), (content_type, body[:40])
    endless = (b"a" * 10_000 for _ in range(body_limit(SETTINGS.characters) // 1000))  # without a length
    assert client.post("/translate", content=endless, headers=JSON).status_code == 413
    for method, address, status in (("GET", "/nowhere", 404), ("GET", "/translate", 405), ("POST", "/health", 405)):
        answer = client.request(method, address)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_the_host_header_is_checked(client: TestClient) -> None:
    known = {"localhost": 200, "127.0.0.1:5000": 200, "[::1]:5000": 200, "LOCALHOST:1": 200}
    for host, status in (
        known | dict.fromkeys(("evil.example", "127.0.0.1.evil.example:5000", "", "[::1"), 403)
    ).items():
        assert client.get("/health", headers={"Host": host}).status_code == status
    for settings, name, status in (
        (Serving(hosts=("translate.example",)), "translate.example", 200),
        (Serving(hosts=("translate.example",)), "localhost", 403),
        (Serving(host="0.0.0.0"), "anything.example", 200),
    ):
        with TestClient(create_app([TranslationService(Parrot())], settings), f"http://{name}") as other:
            assert other.get("/health").status_code == status


def test_api_keys() -> None:
    with TestClient(
        create_app([TranslationService(Parrot())], Serving(api_keys=("first", "zweiter Schlüssel", "déjà"))), HOST
    ) as client:
        missing, wrong, right = (translate(client, **fields) for fields in ({}, {"api_key": "x"}, {"api_key": "first"}))
        assert [missing.status_code, wrong.status_code, right.status_code] == [401, 403, 200]
        assert missing.headers["WWW-Authenticate"].startswith("Bearer")
        assert wrong.json() == {"error": "Invalid API key"}
        assert translate(client, api_key="zweiter Schlüssel").status_code == 200
        form = {"q": "a", "source": "de", "target": "en", "api_key": "first"}
        assert client.post("/translate", data=form).status_code == 200
        bearer = {"Authorization": "Bearer first"}
        assert client.post("/detect", json={"q": "der Hund"}, headers=bearer).status_code == 200
        assert client.post("/detect", json={"q": "der Hund"}).status_code == 401
        for key, status in (("zweiter Schlüssel", 200), ("déjà", 200), ("dritter Schlüssel", 403)):
            for encoding in ("utf-8", "latin-1"):
                header = {"Authorization": f"Bearer {key}".encode(encoding)}
                answer = client.post("/detect", json={"q": "der Hund"}, headers=header)  # type: ignore[arg-type]
                assert answer.status_code == status, (key, encoding)
        assert client.get("/languages").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_languages() -> None:
    with TestClient(create_app([TranslationService(Parrot([("de", "en"), ("xx", "en")]))], SETTINGS), HOST) as other:
        found = {each["code"]: (each["name"], each["targets"]) for each in other.get("/languages").json()}
        assert found == {"de": ("German", ["de", "en"]), "en": ("English", ["en"]), "xx": ("xx", ["en", "xx"])}
        answer = translate(other, source="en", target="de")
        assert answer.status_code == 400
        assert "en to de is not supported; choose one of de to en" in answer.json()["error"]


def test_the_docs_page_works_offline(client: TestClient) -> None:
    assert client.get("/", follow_redirects=False).headers["location"] == "/docs"
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {"/docs.js", "/docs.css", "/openapi.json"} <= set(linked)
    for address in linked:
        assert address.startswith("/")
        assert client.get(address).status_code == 200
    assert client.get("/docs.js").headers["content-type"].startswith("text/javascript")
    assert "://" not in client.get("/docs.js").text
    described = client.get("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/detect", "/languages", "/health", "/metrics"} < set(described)
    body = described["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["required"]) == {"q", "source", "target"}
    found = client.get("/frontend/settings").json()
    assert (found["charLimit"], found["keyRequired"]) == (200, False)


def test_scripts_of_other_pages_need_a_setting(client: TestClient) -> None:
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in client.get("/languages", headers=origin).headers
    with TestClient(
        create_app([TranslationService(Parrot())], Serving(origins=("https://page.example",))), HOST
    ) as other:
        for answer in (other.get("/languages", headers=origin), other.post("/translate", json={}, headers=origin)):
            assert answer.headers["access-control-allow-origin"] == "https://page.example"
        stranger = other.get("/languages", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in stranger.headers
        asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        assert other.options("/translate", headers=asking).status_code == 200


def test_forms_of_other_sites_are_refused(client: TestClient) -> None:
    form = {"q": "a", "source": "de", "target": "en"}
    page = "https://page.example"
    site = "Sec-Fetch-Site"
    for headers, status in (
        ({}, 200),  # not a browser
        ({"Origin": HOST}, 200),
        ({"Origin": page}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": f"{HOST}:8000"}, 403),  # another port of this machine
        ({"Origin": page, site: "cross-site"}, 403),
        ({site: "cross-site"}, 403),
        ({"Origin": page, site: "same-origin"}, 200),  # behind a proxy
    ):
        for path in ("/translate", "/translate/stream", "/detect"):
            assert client.post(path, data=form, headers=headers).status_code == status, headers
    for origins in ((page,), ("*",)):
        with TestClient(create_app([TranslationService(Parrot())], Serving(origins=origins)), HOST) as other:
            headers = {"Origin": page, site: "cross-site"}
            assert other.post("/translate", data=form, headers=headers).status_code == 200


def test_metrics() -> None:
    with TestClient(create_app([TranslationService(Parrot())], SETTINGS), HOST) as client:
        translate(client, q=["ein Hund", "zwei"])
        translate(client, q=["drei"])
        translate(client, target="fr")
        client.get("/nowhere")
        client.request("BREW", "/health")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    wanted = {
        'regard_requests_total{method="POST",path="/translate",status="200"}': 2,
        'regard_requests_total{method="POST",path="/translate",status="400"}': 1,
        'regard_requests_total{method="GET",path="other",status="404"}': 1,
        'regard_requests_total{method="other",path="/health",status="405"}': 1,
        "regard_tokens_read_total": 3 + 2 + 2,  # words, and one for the end
        "regard_tokens_written_total": 9,
        "regard_texts_failed_total": 0,
        "regard_clients_left_total": 0,
        "regard_batch_texts_count": 2,
        'regard_batch_texts_bucket{le="1.0"}': 1,
        'regard_batch_texts_bucket{le="+Inf"}': 2,
        "regard_batch_seconds_count": 2,
        "regard_request_seconds_count": 5,
    }
    assert {name: float(values[name]) for name in wanted} == wanted


def test_a_panic_is_an_internal_error_and_the_server_continues() -> None:
    lines: list[str] = []
    with TestClient(create_app([TranslationService(Parrot())], Serving(), lines.append), HOST) as client:
        for text in (PANIC, f"count {PANIC}"):
            answer = translate(client, q=[text, "a"])
            assert (answer.status_code, list(answer.json())) == (500, ["error"])
            assert client.get("/health").status_code == 200
            assert translate(client).json() == {"translatedText": "de>en:Hund"}
        assert len(lines) == 2
        assert not any("secret" in line for line in lines)


def test_the_log_contains_no_texts_keys_or_addresses() -> None:
    log: list[str] = []
    with TestClient(
        create_app([TranslationService(Parrot())], Serving(api_keys=("geheim",)), log.append, verbose=True), HOST
    ) as client:
        answer = translate(client, q=f"privat {BAD}", api_key="geheim")
        assert (answer.status_code, list(answer.json())) == (500, ["error"])
        assert "secret" not in answer.text
        client.post("/translate?q=privat&api_key=geheim&source=de&target=en")
        client.get("/privat")
    assert log[0].startswith("error: RuntimeError in serving_cases.py")
    assert [line.split(" ")[:2] for line in log[1:]] == [["POST", "/translate"]] * 2 + [["GET", "other"]]
    assert not [line for line in log if re.search("privat|geheim|secret", line)]


def test_the_docs_page_states_the_defaults_and_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    stated = {name: float(number.replace(",", "")) for name, number in re.findall(r"`(\w+)` \(([\d,.]+)", page)}
    assert set(stated) == {
        *("beam", "characters", "texts", "queue", "batch_tokens", "wait_ms", "grace", "patience", "connections"),
        *("rows", "completion_tokens"),
    }
    assert stated == {name: getattr(Serving(), name) for name in stated}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})


THERE, BACK = Route("de", "en"), Route("en", "de")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("tiny"))


def loaded(directory: Path, settings: Serving) -> Translators:
    [service] = load_services([str(directory)], settings)
    assert isinstance(service, TranslationService)
    return service.model


def test_models_answer_as_the_translator_does(directory: Path, tmp_path: Path) -> None:
    models = loaded(directory, Serving(beam=2, device="cpu"))
    assert models.directions == [("de", "en"), ("en", "de")]
    translator = load(directory, "cpu")
    texts = ["ein Hund", "eine Katze. und der Schnee?", "", "<b>Hund</b>"]
    found = models.translate(texts, THERE)
    assert [each.versions for each in found] == [[text] for text in translator.translate(texts, to="en", beam=2)]
    assert found[0].tokens == len(translator.translate(texts[0], to="en", beam=2, details=True).tokens)
    back = models.translate(texts[:1], BACK)[0].versions[0]
    assert back == translator.translate(texts[0], to="de", beam=2) != found[0].versions[0]
    wanted = [each.text for each in translator.translate("ein Hund", to="en", beam=4, nbest=4)]
    assert models.translate(["ein Hund"], Route("de", "en", 3))[0].versions == wanted
    pieces = list(models.stream("ein Hund", THERE))
    assert "".join(pieces) == translator.translate("ein Hund", to="en", beam=1)
    assert len(pieces) > 1
    short, long = models.sizes(["Hund", "ein Hund läuft durch den Schnee"], THERE)
    assert 1 <= short < long <= len("ein Hund läuft durch den Schnee".encode())
    assert isinstance(translator, Translator)
    first = load(write_translator(tmp_path / "one", both=False), "cpu")
    assert isinstance(first, Translator)
    models = Translators([first, translator], beam=1)  # two models serve one direction each
    assert models.directions == [("de", "en"), ("en", "de")]
    assert models.translate(["Hund"], THERE)[0].versions[0] == first.translate("Hund", beam=1)
    assert models.translate(["dog"], BACK)[0].versions[0] == translator.translate("dog", beam=1, to="de")


def test_models_without_languages_and_models_that_cannot_translate(tmp_path: Path) -> None:
    unnamed = write_translator(tmp_path / "unnamed", both=False, named=False)
    models = loaded(unnamed, Serving(device="cpu"))
    assert models.directions == [("source", "target")]
    assert models.translate(["Hund"], Route("source", "target"))[0].versions
    save_model(regard.build(Encoder(vocabulary=50, width=8, depth=1)), tmp_path / "encoder")
    with pytest.raises(InputError, match="of kind encoder"):
        load_services([str(tmp_path / "encoder")], Serving())
