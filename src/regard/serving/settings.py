"""Settings of the server. No torch in here."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

Words: TypeAlias = Annotated[tuple[str, ...], Field(strict=False)]

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names of the machine itself; also what a browser may call a server that only listens there."""

BYTES_A_CHARACTER = 12
"""The longest that JSON may write one: two escapes of six letters."""
BYTES_BESIDE = 16 * 1024
"""What a body may hold besides its texts: names of fields, languages, a key, white space."""


class Serving(Settings):
    """How a model is served over HTTP, and the bounds that keep it alive."""

    host: str = "127.0.0.1"
    """The address to listen on: this machine alone, unless another one is named; 0.0.0.0 is every one it has."""
    port: int = Field(default=5000, ge=0, le=65535)
    """The port, LibreTranslate's own by default; 0 takes one that is free."""
    hosts: Words = ()
    """Names that a request may call the server by (its Host header). None are named: those of the machine itself where
    it listens to nobody else, so that a web page elsewhere cannot reach it by a name of its own; else any."""
    origins: Words = ()
    """Origins of web pages whose scripts may read the answers (CORS), such as "https://example.org"; "*" is any."""
    api_keys: Words = ()
    """Keys of which a request for a translation must bring one; none are named: everybody may ask."""
    device: str | None = None
    """Where the model runs: cpu, cuda or cuda:NUMBER; none: on a GPU where there is one."""
    threads: Positive | None = None
    """Threads that compute; none: as many as the machine has cores."""
    beam: Positive = 2
    """Width of the search: narrower than where nobody else waits, since the cost grows with it; 1 is greedy."""
    alternatives: int = Field(default=3, ge=0)
    """Other translations of a text that a request may ask for; the beam widens as far as they need."""
    characters: Positive = 10_000
    """Characters of a request, all its texts together."""
    texts: Positive = 64
    """Texts of a request."""
    queue: Positive = 256
    """Texts that may wait; a request that finds no room is told when to come again (503)."""
    batch_tokens: Positive = 4096
    """Source tokens that are translated together, across requests; a longer text goes alone."""
    wait_ms: float = Field(default=5.0, ge=0)
    """How long a batch waits for company, in milliseconds, while several clients ask; one alone never waits."""
    streams: Positive = 8
    """Streams that are written side by side; others wait their turn."""
    connections: Positive = 512
    """Connections that may be open."""
    patience: float = Field(default=10.0, gt=0)
    """Seconds that a client has to send what it announced."""
    grace: Positive = 30
    """Seconds that are left to finish what has begun when the server is told to stop."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.texts > self.queue:
            raise ValueError(f"texts ({self.texts}) must be at most queue ({self.queue}), or some never find room")
        return self

    @property
    def body_bytes(self) -> int:
        """The longest body that could hold a request within `characters`, however it is written."""
        return BYTES_BESIDE + BYTES_A_CHARACTER * self.characters

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names a request may call the server by; empty: any."""
        return self.hosts or (LOCAL if self.host in LOCAL else ())
