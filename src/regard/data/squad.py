"""Questions: the JSON of SQuAD 1.1 and 2.0.

It is one JSON value, so it is read as a whole; 30 MB of it for SQuAD's 88,000 questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeGuard

from regard.data.examples import Answer, Placed, Question
from regard.data.files import open_text, shown_name
from regard.data.problems import Problems
from regard.errors import DataError


def read_squad(file: str, problems: Problems) -> Iterator[Placed[Question]]:
    number = 0
    for paragraph in _paragraphs(file):
        context = paragraph.get("context")
        for asked in paragraph.get("qas", ()):
            number += 1
            place = f"question {number}"
            question, name = asked.get("question"), str(asked.get("id", number))
            if not _is_text(context) or not _is_text(question):
                missing = "question" if _is_text(context) else "context"
                problems.add(file, place, f"has no {missing}", name)
                continue
            answers = [_answer(found) for found in asked.get("answers", ())]
            if None in answers:
                problems.add(file, place, "has an answer without text and answer_start", name)
                continue
            spans = [answer for answer in answers if answer]
            wrong = next((span for span in spans if not context.startswith(span.text, span.start)), None)
            if wrong is not None:
                problems.add(file, place, "has an answer that is not in its context", f"{name}: {wrong.text}")
            else:
                # Annotators agree more often than not; one copy of each answer is enough.
                yield Placed(Question(name, question, context, tuple(dict.fromkeys(spans))), file, number)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _answer(found: Any) -> Answer | None:
    text, start = (found.get("text"), found.get("answer_start")) if isinstance(found, dict) else (None, None)
    if isinstance(text, str) and text and isinstance(start, int) and start >= 0:
        return Answer(text, start)
    return None


def _paragraphs(file: str) -> Iterator[dict[str, Any]]:
    with open_text(file) as stream:
        try:
            found = json.load(stream)
        except UnicodeDecodeError as error:
            raise DataError(f"{shown_name(file)} is not UTF-8 (byte {error.start + 1:,}); save it as UTF-8") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{shown_name(file)} is not JSON: {error}; give a file in SQuAD's format") from None
    try:
        for article in found["data"]:
            for paragraph in article["paragraphs"]:
                if not isinstance(paragraph, dict) or not all(isinstance(q, dict) for q in paragraph["qas"]):
                    raise TypeError
                yield paragraph
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f"{shown_name(file)} is JSON, but not SQuAD's: it needs data, a list of articles with paragraphs, each "
            "with a context and qas"
        ) from None
