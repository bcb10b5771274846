"""Completions and chat over HTTP, with a small language model of random weights."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi.testclient import TestClient
from tiny_models import write_decoder
from torch import Tensor

from regard.serving import completion, http
from regard.serving.app import create_app, load_services
from regard.serving.completion import CompletionService
from regard.serving.queue import StreamJob
from regard.serving.service import Metrics
from regard.serving.settings import Serving
from regard.use.generator import Generator, TextStream
from regard.use.model import load

HOST = "http://localhost:5000"
TEMPLATE = "{% for each in messages %}[{{ each.role }}] {{ each.content }}\n{% endfor %}[assistant] "
SETTINGS = Serving(wait_ms=0, characters=400, texts=6, rows=4, completion_tokens=60, device="cpu")
PROMPT = "ein Hund läuft"
CHAT = [{"role": "user", "content": "Was ist das?"}]
SECONDS = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    loaded = load(write_decoder(tmp_path_factory.mktemp("tiny")), "cpu")
    assert isinstance(loaded, Generator)
    loaded.template = TEMPLATE
    loaded.frame = replace(loaded.frame, limit=100)
    return loaded


@pytest.fixture(scope="module")
def service(model: Generator) -> CompletionService:
    made = CompletionService.choose({"tiny": model}, SETTINGS)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def client(service: CompletionService) -> Iterator[TestClient]:
    with TestClient(create_app([service], SETTINGS), HOST) as made:
        yield made


@contextlib.contextmanager
def running(service: CompletionService, settings: Serving) -> Iterator[str]:
    """The address of a real server, which sees clients that close their connection."""
    server = http.make_server(create_app([service], settings), 100, 10.0, 5)
    with http.listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield http.address_of(listening)
        finally:
            server.should_exit = True
            thread.join(SECONDS)


def ask(client: TestClient, **fields: Any) -> Any:
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    return client.post(path, json=fields)


def events(lines: Iterator[str]) -> list[dict[str, Any]]:
    """The events of a stream, which must be complete."""
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def parts(found: list[dict[str, Any]], index: int = 0) -> str:
    own = [choice for event in found for choice in event["choices"] if choice["index"] == index]
    return "".join(each["text"] if "text" in each else each["delta"].get("content", "") for each in own)


def test_completions_are_those_of_the_model(client: TestClient, model: Generator) -> None:
    wanted = model.generate(PROMPT, tokens=12, seed=3, details=True)
    answer = ask(client, model="tiny", prompt=PROMPT, max_tokens=12, seed=3).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    [choice] = answer["choices"]
    assert choice == {"index": 0, "text": wanted.text, "logprobs": None, "finish_reason": "length"}
    read = len(model.ids(PROMPT))
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": 12, "total_tokens": read + 12}
    for fields, changes in (
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_p": 0.5}, {"temperature": 0.7, "top_p": 0.5}),
        ({"top_p": 0}, {"temperature": 0.0}),
        ({"frequency_penalty": 2, "presence_penalty": -1.5, "temperature": 0.3},) * 2,
        ({"echo": True}, {"echo": True}),
        ({"stop": wanted.text[3]}, {"stop": [wanted.text[3]]}),
        ({"stop": [wanted.text[4:6], "nothing"]}, {"stop": [wanted.text[4:6], "nothing"]}),
        ({"seed": -1}, {"seed": 2**53 - 1}),
        ({"user": "me", "best_of": 1, "logit_bias": {}, "tools": [], "suffix": None}, {}),
    ):
        ours = {key.removesuffix("_penalty"): value for key, value in changes.items()}
        same = model.generate(PROMPT, **{"tokens": 12, "seed": 3, **ours, "details": True})
        [choice] = ask(client, **{"prompt": PROMPT, "max_tokens": 12, "seed": 3, **fields}).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == (same.text, same.finish), fields
    several = ask(client, prompt=[PROMPT, "und"], n=3, max_tokens=8, seed=5).json()
    samples = model.generate([PROMPT, "und"], n=3, tokens=8, seed=5)
    assert [each["text"] for each in several["choices"]] == [text.text for row in samples for text in row]
    assert several["usage"]["prompt_tokens"] == len(model.ids(PROMPT)) + len(model.ids("und"))
    free = [ask(client, prompt=PROMPT).json() for _ in range(2)]
    assert free[0]["choices"][0]["text"] != free[1]["choices"][0]["text"]
    assert free[0]["usage"]["completion_tokens"] == 16


def test_chat_uses_the_template(client: TestClient, model: Generator) -> None:
    system = {"role": "developer", "content": [{"type": "text", "text": "Kurz"}, {"type": "text", "text": "!"}]}
    prompt = model.chat_prompt([{"role": "system", "content": "Kurz!"}, *CHAT])
    wanted = model.generate(prompt, tokens=10, seed=1, special=True)
    for limit in ({"max_tokens": 10}, {"max_completion_tokens": 10}, {"max_tokens": 5, "max_completion_tokens": 10}):
        answer = ask(client, messages=[system, *CHAT], seed=1, **limit).json()
        [choice] = answer["choices"]
        assert answer["object"] == "chat.completion"
        assert choice["message"] == {"role": "assistant", "content": wanted, "refusal": None}
    assert ask(client, messages=CHAT, temperature=0).json()["usage"]["completion_tokens"] <= 60


def test_streams_join_to_the_text(client: TestClient) -> None:
    for request in ({"prompt": PROMPT}, {"prompt": [PROMPT, "und"], "n": 2}, {"messages": CHAT, "n": 2}):
        fields = {**request, "seed": 7, "max_tokens": 20, "stop": ["e", "xyz"]}
        whole = ask(client, **fields).json()
        for usage in (False, True):
            more = {"stream_options": {"include_usage": True}} if usage else {}
            answer = ask(client, **fields, stream=True, **more)
            assert answer.headers["content-type"].startswith("text/event-stream")
            found = events(answer.iter_lines())
            if usage:
                last = found.pop()
                assert (last["choices"], last["usage"]) == ([], whole["usage"])
                assert all(event["usage"] is None for event in found)
            else:
                assert not any("usage" in event for event in found)
            assert len({event["id"] for event in found}) == 1
            for choice in whole["choices"]:
                index, text = choice["index"], choice.get("text") or choice["message"]["content"]
                assert parts(found, index) == text
                ends = [each["finish_reason"] for event in found for each in event["choices"] if each["index"] == index]
                assert ends == [None] * (len(ends) - 1) + [choice["finish_reason"]]
            if "messages" in request:
                assert found[0]["object"] == "chat.completion.chunk"
                assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_logprobs_in_both_shapes(client: TestClient, model: Generator) -> None:
    wanted = model.generate(PROMPT, tokens=10, seed=3, logprobs=2)
    whole = ask(client, prompt=PROMPT, max_tokens=10, seed=3, logprobs=2).json()["choices"][0]
    found = whole["logprobs"]
    assert found["token_logprobs"] == pytest.approx(wanted.logprobs)
    assert [sorted(each.values()) for each in found["top_logprobs"]] == [
        pytest.approx(sorted(each.values())) for each in wanted.alternatives
    ]
    for number, token, place in zip(wanted.ids, found["tokens"], found["text_offset"], strict=True):
        text = model.token_text(number)
        assert token == text or (text is None and token == model.token_name(number))
        assert text is None or text in whole["text"][place : place + len(text) + 3]  # after bytes that are no character
    streamed = events(ask(client, prompt=PROMPT, max_tokens=10, seed=3, logprobs=2, stream=True).iter_lines())
    pieces = [event["choices"][0]["logprobs"] for event in streamed if event["choices"][0]["logprobs"]]
    assert [value for piece in pieces for value in piece["token_logprobs"]] == pytest.approx(wanted.logprobs)
    assert [place for piece in pieces for place in piece["text_offset"]] == found["text_offset"]
    chat = ask(client, messages=CHAT, max_tokens=5, seed=1, logprobs=True, top_logprobs=3).json()["choices"][0]
    entries = chat["logprobs"]["content"]
    known = [each["token"] for each in entries if each["bytes"] is not None]
    assert known
    assert all(token in chat["message"]["content"] for token in known)
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["bytes"] is None or bytes(entry["bytes"]).decode() == entry["token"]
        assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"] + 1e-6
    assert ask(client, prompt=PROMPT, logprobs=0).json()["choices"][0]["logprobs"]["top_logprobs"] is None


def test_bad_requests_get_a_clear_message(client: TestClient) -> None:
    long = "Hund " * 60
    for fields, status, param, word in (
        ({"prompt": PROMPT, "temperature": 2.5}, 400, "temperature", "2"),
        ({"prompt": PROMPT, "temperature": -1}, 400, "temperature", "0"),
        ({"prompt": PROMPT, "temperature": "1"}, 400, "temperature", "number"),
        ({"prompt": PROMPT, "top_p": 1.5}, 400, "top_p", "1"),
        ({"prompt": PROMPT, "frequency_penalty": 3}, 400, "frequency_penalty", "2"),
        ({"prompt": PROMPT, "presence_penalty": True}, 400, "presence_penalty", "number"),
        ({"prompt": PROMPT, "seed": 1.5}, 400, "seed", "integer"),
        ({"prompt": PROMPT, "seed": 2**63}, 400, "seed", "less"),
        ({"prompt": PROMPT, "max_tokens": 0}, 400, "max_tokens", "1"),
        ({"prompt": PROMPT, "max_tokens": 61}, 400, "max_tokens", "60"),
        ({"prompt": PROMPT, "n": 0}, 400, "n", "1"),
        ({"prompt": [PROMPT, PROMPT], "n": 4}, 400, "n", "at most 6"),
        ({"prompt": PROMPT, "stop": list("abcde")}, 400, "stop", "4"),
        ({"prompt": PROMPT, "stop": ""}, 400, "stop", "1 character"),
        ({"prompt": PROMPT, "stop": ["a", "\0"]}, 400, "stop", "NUL"),
        ({"prompt": PROMPT, "stop": 3}, 400, "stop", "string"),
        ({"prompt": PROMPT, "logprobs": 6}, 400, "logprobs", "5"),
        ({"prompt": PROMPT, "logprobs": 1, "echo": True}, 400, None, "echo"),
        ({"prompt": PROMPT, "best_of": 3}, 400, "best_of", "not supported"),
        ({"prompt": PROMPT, "logit_bias": {"50": 1}}, 400, "logit_bias", "not supported"),
        ({"prompt": PROMPT, "suffix": "x"}, 400, "suffix", "not supported"),
        ({"prompt": PROMPT, "unknown": 1}, 400, "unknown", "not supported"),
        ({"prompt": PROMPT, "stream": "yes"}, 400, "stream", "boolean"),
        ({"prompt": PROMPT, "stream_options": {"include_usage": True}}, 400, None, "stream"),
        ({"prompt": PROMPT, "model": "other"}, 404, "model", "choose one of tiny"),
        ({"prompt": [1, 2]}, 400, "prompt", "token ids"),
        ({"prompt": []}, 400, "prompt", "at least 1"),
        ({"prompt": {"a": 1}}, 400, "prompt", "string"),
        ({"prompt": long}, 400, "prompt", "context of the model (100)"),
        ({"prompt": "x" * 500}, 413, None, "400"),
        ({}, 400, "prompt", "missing"),
        ({"messages": []}, 400, "messages", "at least 1"),
        ({"messages": "hello"}, 400, "messages", "list"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages", "user"),
        ({"messages": [{"role": "user"}]}, 400, "messages", "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", "type text"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, 400, "tools", "not supported"),
        ({"messages": CHAT, "functions": [{}]}, 400, "functions", "not supported"),
        ({"messages": CHAT, "response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
        ({"messages": CHAT, "top_logprobs": 2}, 400, None, "logprobs"),
        ({"messages": CHAT, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "20"),
        ({"messages": [{"role": "user", "content": long}]}, 400, "messages", "context of the model (100)"),
    ):
        answer = ask(client, **fields)
        error = answer.json()["error"]
        assert answer.status_code == status, (fields, error)
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["param"]) == ("invalid_request_error", param), (fields, error)
        assert word in error["message"], (fields, error)
    found = ask(client, prompt=long).json()["error"]
    assert found["code"] == "context_length_exceeded"
    assert ask(client, prompt="a", model="x").json()["error"]["code"] == "model_not_found"
    for path in ("/v1/completions", "/v1/chat/completions"):
        for content, kind, status in (
            (b"{", "application/json", 400),
            (b"[1]", "application/json", 400),
            (b'{"prompt": "a", "temperature": NaN}', "application/json", 400),
            (b"prompt=a", "application/x-www-form-urlencoded", 415),
        ):
            answer = client.post(path, content=content, headers={"Content-Type": kind})
            assert answer.status_code == status
            assert answer.json()["error"]["message"]


def test_models_keys_and_templates(model: Generator, tmp_path: Path) -> None:
    settings = SETTINGS.changed({"api_keys": ["secret"]})
    services = load_services([str(write_decoder(tmp_path / "plain"))], settings)
    assert "completions" in "; ".join(each.summary for each in services)
    with TestClient(create_app(services, settings), HOST) as client:
        assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["plain"]
        assert ask(client, prompt=PROMPT).status_code == 401
        for key, status in (("wrong", 401), ("secret", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            answer = client.post("/v1/completions", json={"prompt": PROMPT}, headers=headers)
            assert answer.status_code == status
            assert ("WWW-Authenticate" in answer.headers) == (status == 401)
        answer = client.post("/v1/chat/completions", json={"messages": CHAT}, headers=headers)
        assert answer.status_code == 400
        assert "chat template" in answer.json()["error"]["message"]
    model.frame, frame = replace(model.frame, opening=(), empty=()), model.frame
    service = CompletionService({"tiny": model})
    with TestClient(create_app([service], SETTINGS), HOST) as client:
        assert "prompt is empty" in ask(client, prompt="").json()["error"]["message"]
        service.writers["tiny"].batch.step = _failing  # type: ignore[method-assign]
        for stream in (False, True):
            answer = ask(client, prompt=PROMPT, stream=stream)
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    model.frame = frame


def _failing() -> Any:
    raise RuntimeError


def test_many_streams_are_not_mixed_up(model: Generator, service: CompletionService) -> None:
    """Streams with options of their own join a batch of four rows; each has the text that it has alone."""
    requests = []
    for number in range(20):
        options = {"seed": number, "max_tokens": 6 + number % 9, "temperature": (0, 0.7, 1.0, 1.3)[number % 4]}
        more = {"presence_penalty": 1.5} if number % 3 == 0 else {"top_p": 0.8} if number % 3 == 1 else {"stop": "e"}
        requests.append({"prompt": f"{PROMPT} {number} " * (1 + number % 4), "stream": True, **options, **more})
    names = {"max_tokens": "tokens", "presence_penalty": "presence"}
    wanted = []
    for fields in requests:
        ours = {names.get(name, name): value for name, value in fields.items() if name not in ("prompt", "stream")}
        wanted.append(model.generate(fields["prompt"], **(ours | ({"stop": ["e"]} if "stop" in ours else {}))))

    with running(service, SETTINGS) as address, httpx.Client(base_url=address, timeout=SECONDS) as client:

        def text(fields: dict[str, Any]) -> str:
            with client.stream("POST", "/v1/completions", json=fields) as answer:
                assert answer.status_code == 200
                return parts(events(answer.iter_lines()))

        with ThreadPoolExecutor(10) as threads:
            assert list(threads.map(text, requests)) == wanted
        shown = client.get("/metrics").text
        assert "regard_batch_rows 0.0" in shown
        assert "regard_first_token_seconds_count 20.0" in shown
        written = next(line for line in shown.split("\n") if line.startswith("regard_tokens_written_total"))
        assert float(written.split()[1]) > 100


def test_a_client_that_leaves_frees_its_row(model: Generator) -> None:
    """One row only: the next request is answered, although a text without an end was being written."""
    settings = SETTINGS.changed({"rows": 1, "completion_tokens": 10**6, "queue": 300})
    model.frame, frame = replace(model.frame, ends=frozenset(), slide=True), model.frame
    service = CompletionService({"tiny": model})
    endless = {"prompt": PROMPT, "max_tokens": 10**6, "stream": True}
    try:
        with (
            running(service, settings) as address,
            httpx.Client(base_url=address, timeout=SECONDS) as client,
            ThreadPoolExecutor(1) as thread,
        ):
            batch, queue = service.writers["tiny"].batch, service.common.queue
            with client.stream("POST", "/v1/completions", json=endless) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                assert len(batch.rows) == 1
                with pytest.raises(httpx.ReadTimeout):  # it waits, and leaves
                    client.post("/v1/completions", json={"prompt": PROMPT}, timeout=0.2)
                _until(lambda: queue.size == 0)
                some = {"prompt": ["a", "b"], "max_tokens": 128}
                waiting = thread.submit(client.post, "/v1/completions", json=some)
                _until(lambda: queue.size > 200)
                full = client.post("/v1/completions", json=some)
                assert full.status_code == 503
                assert int(full.headers["retry-after"]) >= 1
                assert full.json()["error"]["type"] == "server_error"
                assert len(batch.rows) == 1
            assert waiting.result(SECONDS).json()["usage"]["completion_tokens"] == 256
            with pytest.raises(httpx.ReadTimeout):  # without a stream, the same
                client.post("/v1/completions", json=endless | {"stream": False}, timeout=0.2)
            _until(lambda: not batch.rows and not queue.streams and queue.size == 0)
    finally:
        model.frame = frame


def test_long_prompts_are_read_in_parts(model: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt joins others that are being written: at most two parts are read between two of their tokens."""
    monkeypatch.setattr(completion, "PART", 16)
    calls: list[int] = []
    states = model.network.states

    def counted(tokens_NT: Tensor, *rest: Any) -> Tensor:
        calls.append(tokens_NT.numel())
        return states(tokens_NT, *rest)

    monkeypatch.setattr(model.network, "states", counted)
    model.frame, frame = replace(model.frame, ends=frozenset()), model.frame
    model._prefixes.known.clear()
    texts = {"a": (PROMPT, 40), "long": (f"{PROMPT} " * 8, 4), "gone": (f"der {PROMPT} " * 6, 4), "b": ("eine", 9)}
    found: dict[str, list[str]] = {name: [] for name in texts}
    jobs, seen, writer = {}, [], completion.TextWriter(model, 4, Metrics())
    for name, (prompt, tokens) in texts.items():
        options = model.options(None, {"tokens": tokens, "seed": 5})
        jobs[name] = StreamJob(TextStream(model, prompt, options, keep=False), partial(_add, found[name]), writer)
    length = len(jobs["long"].content.prompt.tokens)
    assert length > 3 * 16
    active, begun = [jobs["a"]], time.monotonic()
    while active:
        assert time.monotonic() < begun + SECONDS
        calls.clear()
        ended = writer.write(active)
        seen.append(sum(calls))
        active = [job for job in active if job not in ended]
        if len(seen) == 1:
            active += [jobs["long"], jobs["gone"], jobs["b"]]
        if len(seen) == 2:
            assert not found["long"]
            assert len(jobs["b"].content.written) == 1  # a short one does not wait for a long one
        if len(seen) == 1 + length // 16:
            active.remove(jobs["gone"])
        assert len(jobs["a"].content.written) == min(len(seen), 40)
    assert max(seen) <= 2 * 16 + len(jobs)
    assert not writer.batch.rows
    for name in ("a", "long", "b"):
        prompt, tokens = texts[name]
        assert "".join(found[name]) == model.generate(prompt, tokens=tokens, seed=5), name
    assert not found["gone"]
    model.frame = frame


def _add(found: list[str], piece: completion.TextPiece | None) -> None:
    if piece is not None:
        found.append(piece.text)


def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)
