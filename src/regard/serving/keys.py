"""API keys. No torch in here."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from regard.serving.bodies import Refused


def check_key(known: Sequence[str], given: str, authorization: str) -> None:
    """Refuses a request without a known key, where keys are wanted. How long it takes tells nothing about them."""
    if not known:
        return
    kind, _, token = authorization.partition(" ")
    key = given or (token.strip() if kind.lower() == "bearer" else "")
    if not key:
        raise Refused(
            401, "Please contact the server operator to get an API key", {"WWW-Authenticate": 'Bearer realm="regard"'}
        )
    matches = [hmac.compare_digest(key.encode(), each.encode()) for each in known]
    if not any(matches):
        raise Refused(403, "Invalid API key")
