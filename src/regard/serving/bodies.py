"""Bodies of requests: JSON or a form, read within bounds; whatever they hold, the worst is `Refused`. No torch."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

FIELDS = 1000
"""Fields of a form at the most; more are an attack."""
HEARD_OUT = 32 * 1024 * 1024
"""Bytes of a body that is refused and yet let come, and dropped: many clients only listen when they have said all."""
CLOSED = {"Connection": "close"}
"""With an answer to what was not read to its end."""
NAME = re.compile(r'\bname="([^"]*)"|\bname=([^\s;"]+)')
BOUNDARY = re.compile(r'\bboundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))')


class Refused(Exception):  # noqa: N818
    """A request that gets no answer but why, with the status that says so."""

    def __init__(self, status: int, why: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = headers or {}


class Gone(Exception):  # noqa: N818
    """The client has closed the connection."""


async def disconnected(receive: Receive) -> None:
    """Comes back when the client goes away, whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive, announced: str | None, limit: int, seconds: float) -> bytes:
    """The whole body, unless it is too long, too slow, or its sender goes away. No more than `limit` is kept."""
    length = int(announced) if announced is not None and announced.isdigit() else None
    too_long = length is not None and length > limit
    if too_long and length is not None and length > HEARD_OUT:
        raise _too_long(limit)
    parts = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                if not too_long:
                    parts += message.get("body", b"")
                if len(parts) > limit:
                    raise _too_long(limit)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refused(408, f"the body took more than {seconds:g} s to come", CLOSED) from None
    if too_long:
        raise _too_long(limit)
    return bytes(parts)


def _too_long(limit: int) -> Refused:
    return Refused(413, f"the body exceeds {limit:,} bytes; send less text at once", CLOSED)


def fields_of(body: bytes, content_type: str, query: bytes) -> dict[str, Any]:
    """The fields of a request: a JSON object's, or those of a form and of the address's query, as Flask joins them."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return _json(_decoded(body))
    pairs = _urlencoded(query)
    if kind == "multipart/form-data":
        pairs += _multipart(body, content_type)
    elif kind in ("application/x-www-form-urlencoded", ""):
        pairs += _urlencoded(body)
    else:
        raise Refused(415, "Content-Type must be application/json or that of a form")
    return _joined(pairs)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8; encode it so") from None


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError too
        raise Refused(400, "the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body must be a JSON object")
    return found


def _urlencoded(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(_decoded(raw), keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except ValueError:
        raise Refused(400, "the form cannot be read; encode its fields as UTF-8, with percent signs") from None


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str]]:
    """Fields of a multipart form; files are left out."""
    boundary = BOUNDARY.search(content_type)
    if boundary is None:
        raise Refused(400, "the multipart form has no boundary")
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("ascii", "replace")
    parts = (b"\r\n" + body).split(mark, FIELDS)[1:]
    found = []
    for part in parts:
        head, blank, content = part.partition(b"\r\n\r\n")
        name = NAME.search(head.decode("utf-8", "replace"))
        if blank and name and b"filename" not in head.lower():
            found.append((name[1] or name[2], _decoded(content)))
    return found


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Fields by their names: several texts `q` are a list of texts, of anything else the first counts.

    Line ends are written as forms must, CR LF; they are LF here, so that limits count alike.
    """
    found: dict[str, Any] = {}
    texts: list[str] = []
    for name, value in pairs:
        if name == "q":
            texts.append("\n".join(value.splitlines()) if "\r" in value else value)
        else:
            found.setdefault(name, value)
    if texts:
        found["q"] = texts if len(texts) > 1 else texts[0]
    return found
