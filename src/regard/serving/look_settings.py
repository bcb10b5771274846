"""Settings of the page that looks into a model. No torch in here."""

from __future__ import annotations

from pydantic import Field

from regard.blocks.settings import Positive
from regard.serving.settings import LOCAL, body_limit
from regard.settings import Settings


class Looking(Settings):
    """How a model is shown in the browser, on this machine alone, and the bounds that keep the page usable."""

    port: int = Field(default=5050, ge=0, le=65535)
    """The port; 0 takes one that is free."""
    tokens: Positive = 1024
    """Tokens of an input; the model's own limit may be lower."""
    characters: Positive = 20_000
    """Characters of a request."""
    tensor_bytes: Positive = 256 * 2**20
    """Memory for recorded tensors, beside the model's own."""
    queue: Positive = 32
    """Requests that may wait for the model; others are told to come again (503)."""
    patience: float = Field(default=60.0, gt=0)
    """Seconds that a request waits for its turn and its answer."""
    connections: Positive = 64
    """Connections that may be open."""

    @property
    def body_bytes(self) -> int:
        """The longest body that could hold a request, however it is written."""
        return body_limit(self.characters)

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names that a request may call the server by."""
        return LOCAL
