"""Settings of both servers, and limits of requests."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from regard.blocks.settings import Positive
from regard.settings import MOST_THREADS, Settings

Words: TypeAlias = Annotated[tuple[str, ...], Field(strict=False)]

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names of this machine."""


def body_limit(characters: int) -> int:
    """The most bytes of a body with a text of this length: JSON may write a character as two escapes of six bytes."""
    return 16 * 1024 + 12 * characters


class Serving(Settings):
    """The server and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only; 0.0.0.0 accepts all."""
    port: int = Field(default=5000, ge=0, le=65535)
    """Port; 0 selects a free one. The default is LibreTranslate's."""
    hosts: Words = ()
    """Accepted names of the server (Host header). Empty: the names of this machine if host is one of them, else any.
    The check protects against web pages that reach the server under a name of their own (DNS rebinding)."""
    origins: Words = ()
    """Origins of web pages that may send requests and read the answers (CORS), such as "https://example.org"; "*"
    allows any. Forms and scripts of other pages get status 403."""
    api_keys: Words = ()
    """API keys; a request to a model must contain one of them. Empty: no key is required."""
    device: str | None = None
    """Device of the model: cpu, cuda or cuda:NUMBER. None: a GPU if there is one."""
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """CPU threads of the model. None: one for each core."""
    beam: Positive = 2
    """Beam size of translations; 1 is greedy. A wider beam is slower."""
    alternatives: int = Field(default=3, ge=0)
    """Most alternative translations that a request may ask for; the beam is widened for them."""
    characters: Positive = 10_000
    """Most characters of a request, all texts together."""
    texts: Positive = 64
    """Most texts or other inputs of a request."""
    upload_bytes: Positive = 10 * 2**20
    """Most bytes of the images of a request."""
    queue: Positive = 16_384
    """Most tokens in the queue; a further request gets status 503 and a Retry-After header, unless its client
    holds less than its share."""
    batch_tokens: Positive = 4096
    """Tokens of a batch, which may contain texts of several requests. A longer text is a batch of its own."""
    wait_ms: float = Field(default=5.0, ge=0)
    """Milliseconds that a batch waits for further requests while several clients send some; a single client never
    waits."""
    streams: Positive = 8
    """Streams of translations that are written at the same time; further ones wait."""
    rows: Positive = 32
    """Texts that a language model writes at the same time, in one batch; further ones wait."""
    completion_tokens: Positive = 1024
    """Most tokens that a language model writes for a text. An answer in a chat that names no limit has this one."""
    connections: Positive = 1024
    """Most open connections; above, those that are idle longest are closed."""
    patience: float = Field(default=10.0, gt=0)
    """Seconds that a connection may be idle, and that a client has to send the head and then the body of a request."""
    grace: Positive = 30
    """Seconds to finish running requests when the server stops."""

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Accepted names of the server; empty: any."""
        return self.hosts or (LOCAL if self.host in LOCAL else ())


class PageSettings(Settings):
    """The page of `regard look`, which is served to this machine only, and its limits."""

    port: int = Field(default=5050, ge=0, le=65535)
    """Port; 0 selects a free one."""
    chapters: str | None = None
    """TOML file with the chapters of a lecture; none: those of the package."""
    tokens: Positive = 1024
    """Most tokens of an input; the model's own limit may be lower."""
    characters: Positive = 20_000
    """Most characters of a request."""
    tensor_bytes: Positive = 256 * 2**20
    """Memory for recorded tensors, in addition to the model."""
    queue: Positive = 32
    """Most requests in the queue; a further request gets status 503."""
    patience: float = Field(default=60.0, gt=0)
    """Seconds until a request without a result gets status 503."""
    connections: Positive = 64
    """Most open connections."""
