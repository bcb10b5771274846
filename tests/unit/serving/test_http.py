"""The server on a real socket: behaviour that depends on the bytes of a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from serving_cases import Parrot

from regard.errors import RunError
from regard.serving.app import create_app
from regard.serving.http import Say, address_of, listen, make_server, open_files, silent
from regard.serving.settings import Serving, body_limit
from regard.serving.translation import TranslationService

SECONDS = 10
SETTINGS = Serving(port=0, wait_ms=0, characters=1000, queue=4, texts=2, patience=0.3, grace=5)
BODY_LIMIT = body_limit(SETTINGS.characters)
POST = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Running:
    """A server in a thread, and plain sockets to talk to it."""

    def __init__(
        self, connections: int = SETTINGS.connections, patience: float = SETTINGS.patience, say: Say = silent
    ) -> None:
        self.parrot = Parrot()
        self.listening = listen(SETTINGS.host, SETTINGS.port)
        self.port = self.listening.getsockname()[1]
        app = create_app([TranslationService(self.parrot)], SETTINGS)
        self.server = make_server(app, connections, patience, SETTINGS.grace, say)
        self.thread = Thread(target=self.server.run, args=([self.listening],))
        self.thread.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def send(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer."""
        with self.connect() as client:
            client.sendall(raw)
            return answer_of(client)

    def wait_until(self, metric: str) -> None:
        """Waits until /metrics contains a line."""
        until = time.monotonic() + SECONDS
        while metric.encode() not in self.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")[2].split(b"\n"):
            assert time.monotonic() < until, metric
            time.sleep(0.005)

    def end(self) -> None:
        self.parrot.go.set()
        self.server.should_exit = True
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


def answer_of(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    with client.makefile("rb") as stream:
        return answer_from(stream)


def answer_from(stream: BinaryIO) -> tuple[int, dict[str, str], bytes]:
    status = int(stream.readline().split()[1])
    headers = {}
    while (line := stream.readline().decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = headers.get("content-length")
    return status, headers, stream.read() if length is None else stream.read(int(length))


def request(q: str | list[str] = "Hund", path: str = "/translate", more: str = "") -> bytes:
    body = json.dumps({"q": q, "source": "de", "target": "en"})
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    made = Running()
    yield made
    made.end()


@pytest.fixture
def running(shared: Running) -> Iterator[Running]:
    """The server; after each test it must still answer."""
    yield shared
    shared.parrot.go.set()
    assert shared.send(request())[::2] == (200, b'{"translatedText":"de>en:Hund"}')


def test_a_full_queue_answers_503(running: Running) -> None:
    running.parrot.hold()
    with running.connect() as first, running.connect() as second:
        first.sendall(request("first"))
        assert running.parrot.begun.wait(SECONDS)
        second.sendall(request(["a", "b"]))
        running.wait_until("regard_queue_tokens 4.0")
        status, headers, body = running.send(request("too many"))
        assert status == 503
        assert 1 <= int(headers["retry-after"]) <= 60
        assert list(json.loads(body)) == ["error"]
        assert running.send(request(path="/translate/stream"))[0] == 503
        running.parrot.go.set()
        assert (answer_of(first)[0], answer_of(second)[0]) == (200, 200)


def test_a_client_that_goes_away_frees_its_items(running: Running) -> None:
    running.parrot.hold()
    before = len(running.parrot.batches)
    with running.connect() as first:
        first.sendall(request("first"))
        assert running.parrot.begun.wait(SECONDS)
        with running.connect() as leaving:
            leaving.sendall(request(["leaving", "leaving"]))
            running.wait_until("regard_queue_tokens 4.0")
        running.wait_until("regard_queue_tokens 0.0")
        running.parrot.go.set()
        assert answer_of(first)[0] == 200
    assert running.parrot.batches[before:] == [["first"]]
    with running.connect() as leaving:
        leaving.sendall(request("a " * 400, "/translate/stream"))
        assert b"200" in leaving.recv(20)
    running.wait_until("regard_open_streams 0.0")


HOSTILE = [
    b"\x00\x01\x02\x03\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client that speaks TLS\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: nonsense\r\n\r\nab",
    b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /%00%ff%2e%2e/%2e%2e/etc/passwd?%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    request(more="Content-Encoding: gzip\r\n"),
]


def test_hostile_bytes_get_a_client_error(running: Running) -> None:
    for raw in HOSTILE:
        with running.connect() as client:
            with contextlib.suppress(ConnectionError):  # the server may close before all is sent
                client.sendall(raw)
            status = int(client.recv(12).split()[1])
        assert 400 <= status < 500, raw[:40]


def test_a_body_that_is_too_long_or_does_not_arrive(running: Running) -> None:
    status, headers, _ = running.send(POST + b"Content-Length: 10000000000\r\n\r\n")  # it is refused at once
    assert (status, headers["connection"]) == (413, "close")
    address = f"http://127.0.0.1:{running.port}/translate"
    with pytest.raises(HTTPError, match="413") as refused:  # this client reads only after sending all
        urlopen(Request(address, b"a" * 4_000_000, {"Content-Type": "application/json"}), timeout=SECONDS)
    refused.value.close()
    chunk = b"1000\r\n" + b"a" * 0x1000 + b"\r\n"
    sent = 0
    with running.connect() as client, contextlib.suppress(ConnectionError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0x1000)  # so that `sent` is nearly what the server took
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        while sent < 100 * BODY_LIMIT:
            client.sendall(chunk)
            sent += 0x1000
    assert sent < 100 * BODY_LIMIT  # the buffers of the system are included
    begun = time.monotonic()
    assert running.send(request()[:-5])[0] == 408
    assert time.monotonic() - begun < 5
    with running.connect() as leaving:
        leaving.sendall(request()[:-5])
    running.wait_until("regard_queue_tokens 0.0")
    assert running.send(request("next"))[0] == 200


def test_idle_and_slow_connections_are_closed(running: Running) -> None:
    with running.connect() as silent, running.connect() as slow, running.connect() as kept:
        kept.sendall(request("one"))
        assert answer_of(kept)[0] == 200
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in request():  # a header that never ends
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - begun > 2:
                    break
        assert time.monotonic() - begun < 2
        assert [client.recv(10) for client in (silent, kept)] == [b"", b""]
        assert time.monotonic() - begun < 2


def test_idle_connections_give_way_to_others() -> None:
    lines: list[str] = []
    limited = Running(connections=4, say=lines.append, patience=60)
    try:
        with contextlib.ExitStack() as stack:
            busy = stack.enter_context(limited.connect())
            limited.parrot.hold()
            busy.sendall(request("busy"))
            assert limited.parrot.begun.wait(SECONDS)
            idle = [stack.enter_context(limited.connect()) for _ in range(40)]
            for client in idle[:36]:
                with contextlib.suppress(ConnectionError):
                    assert client.recv(10) == b""
            assert lines == ["4 connections are open; idle ones are closed"]
            assert limited.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200
            limited.parrot.go.set()
            assert answer_of(busy)[0] == 200
    finally:
        limited.end()


def test_requests_that_arrive_with_a_crowd_are_answered() -> None:
    limited = Running(connections=4, patience=60)
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(limited.connect()) for _ in range(2)]
            for client in clients:
                client.sendall(request("a"))
            for _ in range(200):
                stack.enter_context(limited.connect())
            assert [answer_of(client)[0] for client in clients] == [200] * 2
    finally:
        limited.end()


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the system is raised; what it does not allow lowers the number of connections."""
    resource = pytest.importorskip("resource")
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: limits.append(new))
    assert (open_files(1024), open_files(512), open_files(9999)) == (1024, 1024, 4096)
    assert limits[1:] == [(1024, 4096), (4096, 4096)]
    limits.append((400, 400))
    server = make_server(create_app([TranslationService(Parrot())], SETTINGS), 1000, 1.0, 1)
    assert server.config.backlog == 100
    assert server.config.http.keywords["limit"] == 200  # type: ignore[union-attr]


def test_requests_share_a_connection(running: Running) -> None:
    """One after another (keep-alive), and sent before the first answer has come (pipelined)."""
    with running.connect() as client, client.makefile("rb") as stream:
        client.sendall(request("one"))
        first = answer_from(stream)
        client.sendall(request("two") + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + request("three"))
        answers = [first, *(answer_from(stream) for _ in range(3))]
    assert [status for status, _, _ in answers] == [200] * 4
    bodies = [json.loads(body) for _, _, body in answers]
    texts = [f"de>en:{text}" for text in ("one", "two", "three")]
    assert [body.get("translatedText") for body in bodies] == [texts[0], texts[1], None, texts[2]]


def test_a_port_in_use_and_an_address_of_another_machine() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(RunError, match=rf"127\.0\.0\.1:{port}.*in use.*--port"):
            listen("127.0.0.1", port)
    with pytest.raises(RunError, match=r"192\.0\.2\.1:0.*--host"):
        listen("192.0.2.1", 0)
