"""Raw text: documents that are lines, paragraphs or whole files, or stand under a key of JSONL."""

from __future__ import annotations

from collections.abc import Iterator

from regard.data.examples import Placed, Text
from regard.data.lines import BadLine, read_numbered
from regard.data.problems import Problems
from regard.data.settings import RawJsonl, RawText
from regard.data.tables import read_objects, text_at

PIECE = 1 << 16
"""Characters after which a file that is one document is cut at the next line end: memory does not grow with it."""


def read_text(file: str, settings: RawText, problems: Problems) -> Iterator[Placed[Text]]:
    """The documents of a file. Empty lines are none where documents are lines or paragraphs: they only part them."""
    if settings.document == "line":
        for number, line in read_numbered(file):
            if isinstance(line, BadLine):
                problems.add(file, f"line {number}", line.reason, line.detail)
            elif line and not line.isspace():
                yield Placed(Text(line), file, number)
    else:
        yield from _read_long(file, settings.document == "paragraph", problems)


def _read_long(file: str, paragraphs: bool, problems: Problems) -> Iterator[Placed[Text]]:
    """Documents of several lines, each with its line end; a whole file in pieces of about `PIECE` characters.

    A piece is held back until the next line is seen, so that the last one can say that the document ends.
    """
    lines: list[str] = []
    size = start = 0
    for number, line in read_numbered(file):
        if isinstance(line, BadLine):
            problems.add(file, f"line {number}", line.reason, line.detail)
            continue
        if paragraphs and (not line or line.isspace()):
            if lines:
                yield Placed(Text("".join(lines)), file, start)
            lines, size = [], 0
            continue
        if size >= PIECE and not paragraphs:
            yield Placed(Text("".join(lines), ends=False), file, start)
            lines, size = [], 0
        if not lines:
            start = number
        lines.append(f"{line}\n")
        size += len(line) + 1
    if lines:
        yield Placed(Text("".join(lines)), file, start)


def read_text_jsonl(file: str, settings: RawJsonl, problems: Problems) -> Iterator[Placed[Text]]:
    for number, found in read_objects(file, problems):
        if text := text_at(found, settings.text, file, number, problems):
            yield Placed(Text(text), file, number)
