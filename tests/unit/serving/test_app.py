"""The application in LibreTranslate's shapes, as its clients call it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from serving_cases import BAD, WRONG, Parrot

from regard.serving.app import create_app
from regard.serving.settings import Serving

HOST = "http://localhost:5000"
SETTINGS = Serving(wait_ms=0, characters=200, texts=5, queue=8, alternatives=2)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Parrot(), SETTINGS), HOST) as made:
        yield made


def translate(client: TestClient, **fields: Any) -> Any:
    return client.post("/translate", json={"q": "Hund", "source": "de", "target": "en", **fields})


# ------------------------------------------------------------------------------------------------------- translations


def test_a_text_and_a_list_of_texts(client: TestClient) -> None:
    assert translate(client).json() == {"translatedText": "de>en:Hund"}
    assert translate(client, q=["ein", "Hund"]).json() == {"translatedText": ["de>en:ein", "de>en:Hund"]}


def test_alternatives(client: TestClient) -> None:
    one = translate(client, alternatives=2).json()
    assert one == {"translatedText": "de>en:Hund", "alternatives": ["de>en:Hund#1", "de>en:Hund#2"]}
    several = translate(client, q=["a", "b"], alternatives=1).json()
    assert several["alternatives"] == [["de>en:a#1"], ["de>en:b#1"]]


def test_a_language_that_is_found(client: TestClient) -> None:
    one = translate(client, q="Der Hund ist nicht auf dem Sofa", source="auto").json()
    assert one["translatedText"].startswith("de>en:")
    assert one["detectedLanguage"]["language"] == "de"
    assert 50 < one["detectedLanguage"]["confidence"] <= 100
    several = translate(client, q=["The dog is here", "and the cat is there"], source="auto", target="de").json()
    assert several["translatedText"][1] == "en>de:and the cat is there"
    assert [each["language"] for each in several["detectedLanguage"]] == ["en", "en"]


def test_what_is_in_the_wanted_language_stays(client: TestClient) -> None:
    text = "The dog is on the sofa"
    assert translate(client, q=text, source="auto").json()["translatedText"] == text
    assert translate(client, q=text, source="en", target="en").json() == {"translatedText": text}


def test_nothing_known_is_taken_for_what_can_be_translated(client: TestClient) -> None:
    found = translate(client, q="Xylophon", source="auto", target="de").json()
    assert found == {"translatedText": "en>de:Xylophon", "detectedLanguage": {"confidence": 0.0, "language": "en"}}


def test_tags_are_not_words(client: TestClient) -> None:
    html = '<a href="the and of"><i>Der Hund ist da</i></a>'
    assert translate(client, q=html, source="auto", format="html").json()["detectedLanguage"]["language"] == "de"


def test_empty_texts_stay_empty(client: TestClient) -> None:
    assert translate(client, q="").json() == {"translatedText": ""}
    assert translate(client, q=["", "a", " \n"]).json() == {"translatedText": ["", "de>en:a", " \n"]}


def test_any_unicode_comes_back(client: TestClient) -> None:
    text = "👩‍👩‍👧 ﷽ \u202e ß 漢字 e\u0301 \x07"
    assert translate(client, q=text).json() == {"translatedText": f"de>en:{text}"}


@pytest.mark.parametrize("kind", ["data", "params", "multipart"])
def test_forms_do_as_well(client: TestClient, kind: str) -> None:
    fields = {"q": "schöne\r\nGrüße &+%", "source": "de", "target": "en", "alternatives": "1", "format": ""}
    if kind == "multipart":
        files = {name: (None, value) for name, value in fields.items()}
        answer = client.post("/translate", files={**files, "file": ("a.txt", b"\xff")})
    else:
        answer = client.post("/translate", **{kind: fields})
    assert answer.json() == {
        "translatedText": "de>en:schöne\nGrüße &+%",
        "alternatives": ["de>en:schöne\nGrüße &+%#1"],
    }


def test_a_form_may_repeat_its_text(client: TestClient) -> None:
    answer = client.post("/translate", data={"q": ["a", "b"], "source": "de", "target": "en"})
    assert answer.json() == {"translatedText": ["de>en:a", "de>en:b"]}


# ------------------------------------------------------------------------------------------------------------ streams


def test_a_stream_in_lines_of_json(client: TestClient) -> None:
    answer = client.post("/translate/stream", json={"q": "ein Hund", "source": "auto", "target": "en"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[:2] == [{"piece": "de>en:ein "}, {"piece": "Hund "}]
    assert lines[2]["done"] is True
    assert lines[2]["translatedText"] == "de>en:ein Hund "
    assert lines[2]["detectedLanguage"]["language"] == "de"
    assert len(lines) == 3


def test_a_stream_of_events(client: TestClient) -> None:
    fields = {"q": f"ein {BAD}", "source": "de", "target": "en"}
    answer = client.post("/translate/stream", json=fields, headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n") if event]
    assert events == [{"piece": "de>en:ein "}, {"error": "cannot translate this text"}]


def test_a_stream_of_what_needs_no_translation(client: TestClient) -> None:
    answer = client.post("/translate/stream", json={"q": "dog", "source": "en", "target": "en"})
    assert [json.loads(line) for line in answer.text.splitlines()][-1] == {"done": True, "translatedText": "dog"}


@pytest.mark.parametrize("wrong", [{"q": ["a"]}, {"format": "html"}, {"alternatives": 1}, {"target": "fr"}])
def test_a_stream_refuses_before_it_begins(client: TestClient, wrong: dict[str, Any]) -> None:
    answer = client.post("/translate/stream", json={"q": "a", "source": "de", "target": "en", **wrong})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


# ------------------------------------------------------------------------------------------------------------- wrongs


@pytest.mark.parametrize(
    ("fields", "status", "told"),
    [
        ({"q": None}, 400, "missing q"),
        ({"source": None}, 400, "missing source"),
        ({"target": None}, 400, "missing target"),
        ({"target": "fr"}, 400, "fr is not supported; known: de, en"),
        ({"source": "x" * 100}, 400, "x… is not supported"),
        ({"q": 3}, 400, "q: "),
        ({"q": {"a": 1}}, 400, "q: "),
        ({"q": ["a", 3]}, 400, "q: "),
        ({"q": [["a"]]}, 400, "q: "),
        ({"q": "a\0b"}, 400, "NUL"),
        ({"source": ["de"]}, 400, "source: "),
        ({"format": "pdf"}, 400, "format: "),
        ({"alternatives": -1}, 400, "alternatives: "),
        ({"alternatives": 3}, 400, "alternatives must be at most 2"),
        ({"alternatives": "many"}, 400, "alternatives: "),
        ({"alternatives": 1e300}, 400, "alternatives: "),
        ({"q": "a" * 201}, 413, "201 characters exceed the limit (200)"),
        ({"q": ["a" * 101, "b" * 100]}, 413, "201 characters"),
        ({"q": ["a"] * 6}, 400, "6 texts exceed the limit (5)"),
        ({"q": WRONG}, 400, "mend it"),
        ({"q": BAD}, 500, "cannot translate"),
    ],
)
def test_wrong_requests_are_told_why(client: TestClient, fields: dict[str, Any], status: int, told: str) -> None:
    answer = translate(client, **fields)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert told in answer.json()["error"]
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b'"q"',
        b'{"q": NaN1}',
        b"[" * 100_000,
        b'{"q":' * 5_000,
        b'{"q": ' + b"9" * 10_000 + b', "source": "de", "target": "en"}',
        b'{"q": "\xff\xfe", "source": "de", "target": "en"}',
        '{"q": "Hund", "source": "de", "target": "en"}'.encode("utf-16"),
        b'{"q": "\\ud800", "source": "de", "target": "en"}',
        b'{"q": ["\\udfff\\ud800"], "source": "de", "target": "en"}',
        b'{"q": "a", "source": "\\ud800", "target": "en"}',
        b'{"q": "a", "source": "de", "target": "en", "api_key": "\\ud800"}',
        b'{"q": "a\\u0000b", "source": "de", "target": "en"}',
        b"\x00" * 100,
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("path", ["/translate", "/translate/stream", "/detect"])
def test_hostile_json_is_refused(client: TestClient, path: str, body: bytes) -> None:
    if path == "/detect":  # it has no source
        body = body.replace(b'"source"', b'"api_key"')
    settings = Serving(characters=100_000)
    with TestClient(create_app(Parrot(), settings), HOST) as roomy:
        answer = roomy.post(path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, list(answer.json())) == (400, ["error"])


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/x-www-form-urlencoded", b"q=%ff&source=de&target=en", 400),
        ("application/x-www-form-urlencoded", b"q=\xff&source=de&target=en", 400),
        ("application/x-www-form-urlencoded", b"q=a%00b&source=de&target=en", 400),
        ("application/x-www-form-urlencoded", b"&".join([b"a=b"] * 2000), 413),
        ("application/x-www-form-urlencoded", b"&".join([b"a="] * 1500), 400),
        ("multipart/form-data", b"--x", 400),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--", 400),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--x--',
            400,
        ),
        ("text/plain", b"q=a&source=de&target=en", 415),
        ("application/octet-stream", b"", 415),
        ("\x7f/é", b"q=a", 415),
    ],
)
def test_hostile_forms_are_refused(content_type: str, body: bytes, status: int) -> None:
    # 12 bytes a character, and 16 KiB beside: a body of 6,000 bytes would be read, of 1 character's worth it is not.
    settings = Serving(characters=1) if status == 413 else SETTINGS
    with TestClient(create_app(Parrot(), settings), HOST) as client:
        body = body * 4 if status == 413 else body
        answer = client.post("/translate", content=body, headers={"Content-Type": content_type.encode()})
        assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_a_long_body_is_refused_before_it_is_read(client: TestClient) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while read < 100 * SETTINGS.body_bytes:
            read += 10_000
            yield b"a" * 10_000

    # The client of the tests hands over a body as a whole; what matters here is that the answer is one.
    answer = client.post("/translate", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_unknown_addresses_and_methods(client: TestClient) -> None:
    for answer, status in (
        (client.get("/nowhere"), 404),
        (client.get("/translate"), 405),
        (client.post("/health"), 405),
    ):
        assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_who_calls_the_server_by_another_name_is_refused(client: TestClient) -> None:
    for host in ("localhost", "127.0.0.1:5000", "[::1]:5000", "LOCALHOST:1"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:5000", ""):
        assert client.get("/health", headers={"Host": host}).status_code == 403


def test_names_may_be_given_and_are_not_asked_for_elsewhere() -> None:
    for settings, name, status in (
        (Serving(hosts=("translate.example",)), "translate.example", 200),
        (Serving(hosts=("translate.example",)), "localhost", 403),
        (Serving(host="0.0.0.0"), "anything.example", 200),
    ):
        with TestClient(create_app(Parrot(), settings), f"http://{name}") as client:
            assert client.get("/health").status_code == status


# --------------------------------------------------------------------------------------------------------------- keys


def test_keys_are_wanted_where_there_are_some() -> None:
    with TestClient(create_app(Parrot(), Serving(api_keys=("first", "zweiter Schlüssel"))), HOST) as client:
        missing, wrong, right = (translate(client, **fields) for fields in ({}, {"api_key": "x"}, {"api_key": "first"}))
        assert [missing.status_code, wrong.status_code, right.status_code] == [401, 403, 200]
        assert wrong.json() == {"error": "Invalid API key"}
        assert translate(client, api_key="zweiter Schlüssel").status_code == 200
        form = {"q": "a", "source": "de", "target": "en", "api_key": "first"}
        assert client.post("/translate", data=form).status_code == 200
        bearer = {"Authorization": "Bearer first"}
        assert client.post("/detect", json={"q": "der Hund"}, headers=bearer).status_code == 200
        assert client.post("/detect", json={"q": "der Hund"}).status_code == 401
        assert client.get("/languages").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


# -------------------------------------------------------------------------------------------------- about the server


def test_languages(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["de", "en"]},
        {"code": "en", "name": "English", "targets": ["de", "en"]},
    ]
    with TestClient(create_app(Parrot([("de", "en"), ("xx", "en")]), SETTINGS), HOST) as other:
        found = {each["code"]: (each["name"], each["targets"]) for each in other.get("/languages").json()}
        assert found == {"de": ("German", ["de", "en"]), "en": ("English", ["en"]), "xx": ("xx", ["en", "xx"])}
        answer = translate(other, source="en", target="de")
        assert answer.status_code == 400
        assert "German (de) is not available as a target language from English (en)" in answer.json()["error"]


def test_detection(client: TestClient) -> None:
    (german,) = client.post("/detect", json={"q": "Wir haben es nicht gesehen"}).json()
    assert german["language"] == "de"
    assert german["confidence"] > 70
    (unknown,) = client.post("/detect", data={"q": "Xylophon"}).json()
    assert unknown["confidence"] == 0
    assert client.post("/detect", json={}).status_code == 400
    assert client.post("/detect", json={"q": "a" * 201}).status_code == 413


def test_frontend_settings(client: TestClient) -> None:
    found = client.get("/frontend/settings").json()
    assert found["charLimit"] == 200
    assert found["language"]["target"] == {"code": "en", "name": "English"}
    assert found["keyRequired"] is False


def test_the_page_about_the_server_needs_nothing_from_elsewhere(client: TestClient) -> None:
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


def test_openapi_tells_of_every_address(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/translate", "/translate/stream", "/detect", "/languages", "/frontend/settings", "/health", "/metrics"
    }  # fmt: skip
    body = described["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["q", "source", "target"]
    assert body["properties"]["format"]["enum"] == ["text", "html"]
    assert "503" in described["paths"]["/translate"]["post"]["responses"]


def test_pages_elsewhere_may_read_answers_only_by_setting(client: TestClient) -> None:
    origin = {"Origin": "https://page.example"}
    assert "access-control-allow-origin" not in client.get("/languages", headers=origin).headers
    settings = Serving(origins=("https://page.example",))
    with TestClient(create_app(Parrot(), settings), HOST) as open_client:
        answer = open_client.get("/languages", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        refused = open_client.post("/translate", json={}, headers=origin)
        assert refused.status_code == 400
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        other = open_client.get("/languages", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        assert open_client.options("/translate", headers=asking).status_code == 200


def test_metrics_count_what_happened() -> None:
    with TestClient(create_app(Parrot(), SETTINGS), HOST) as client:
        translate(client, q=["ein Hund", "zwei"])
        translate(client, q=["drei"])
        translate(client, target="fr")
        client.get("/nowhere")
        client.request("BREW", "/health")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert values['regard_requests_total{method="POST",path="/translate",status="200"}'] == "2"
    assert values['regard_requests_total{method="POST",path="/translate",status="400"}'] == "1"
    assert values['regard_requests_total{method="GET",path="other",status="404"}'] == "1"
    assert values['regard_requests_total{method="other",path="/health",status="405"}'] == "1"
    assert values["regard_tokens_read_total"] == str(3 + 2 + 2)  # words, and one for the end
    assert values["regard_tokens_written_total"] == "9"
    assert values["regard_batch_texts_count"] == "2"
    assert values['regard_batch_texts_bucket{le="1"}'] == "1"
    assert values['regard_batch_texts_bucket{le="+Inf"}'] == "2"
    assert values["regard_request_seconds_count"] == "5"
    assert values["regard_queue_texts"] == "0"


def test_texts_keys_and_addresses_are_never_logged() -> None:
    said: list[str] = []
    settings = Serving(api_keys=("geheim",))
    with TestClient(create_app(Parrot(), settings, said.append, verbose=True), HOST) as client:
        translate(client, q=f"privat {BAD}", api_key="geheim")
        client.post("/translate?q=privat&api_key=geheim&source=de&target=en")
        client.get("/privat")
    assert len([line for line in said if line.startswith(("POST /translate ", "GET other "))]) == 3
    assert len([line for line in said if line.startswith("error: RuntimeError in serving_cases.py")]) == 1
    assert not [line for line in said if re.search("privat|geheim|secret", line)]


def test_without_verbose_only_errors_of_the_server_are_told() -> None:
    said: list[str] = []
    with TestClient(create_app(Parrot(), SETTINGS, said.append), HOST) as client:
        translate(client)
        translate(client, target="fr")
        assert said == []
        translate(client, q=BAD)
    assert len(said) == 1
