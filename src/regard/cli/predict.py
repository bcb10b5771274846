"""The commands `regard predict`, `regard fill` and `regard embed`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import terminal
from regard.errors import DataError, InputError, SettingsError

if TYPE_CHECKING:
    from regard.use.model import Loaded

CHUNK = 256
"""Inputs that are computed together."""
Inputs = Annotated[list[str] | None, typer.Argument(metavar="[INPUT]...", help="Texts, or image files.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts.", show_default="lines of --input")]


def predict_command(
    model: terminal.ModelName,
    inputs: Inputs = None,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON value for each input.")] = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
) -> None:
    """Apply a model of any task to inputs. The output has one line per input.

    An input of two texts (a pair, a question and its context) has a tab between them. An input that cannot be read is a
    line with the error in its place, and the exit code is 1.
    """
    loaded = _load(model, device, threads, inputs, source)
    failed = 0

    def results() -> Iterator[Any]:
        nonlocal failed
        for chunk in terminal.input_chunks(inputs, source, CHUNK):
            try:
                yield from loaded.predict(chunk)
            except (DataError, InputError):
                if len(chunk) == 1 and inputs:
                    raise
                for each in chunk:
                    try:
                        yield from loaded.predict([each])
                    except (DataError, InputError) as error:
                        failed += 1
                        yield {"error": str(error)}

    terminal.write_lines((_line(result, as_json) for result in results()), output)
    if failed:
        raise typer.Exit(1)


def fill_command(
    model: terminal.ModelName,
    inputs: Texts = None,
    best: Annotated[int, typer.Option(min=1, help="Tokens for each mask.")] = 5,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON value for each text.")] = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
) -> None:
    """Show the most likely tokens for each mask token ([MASK]) of a text."""
    loaded = _load(model, device, threads, inputs, source)

    def lines() -> Iterator[str]:
        for chunk in terminal.input_chunks(inputs, source, CHUNK):
            for text in chunk:
                masks = loaded.fill(text, best)
                if as_json:
                    yield json.dumps(masks, ensure_ascii=False)
                else:
                    shown = (
                        "  ".join(f"{token} {100 * share:.1f} %" for token, share in mask.items()) for mask in masks
                    )
                    yield " | ".join(shown)

    terminal.write_lines(lines(), output)


def embed_command(  # noqa: PLR0913
    model: terminal.ModelName,
    inputs: Texts = None,
    search: Annotated[
        Path | None, typer.Option(help="Print the lines of this file that are nearest to each text.")
    ] = None,
    best: Annotated[int, typer.Option(min=1, help="Lines for each text, with --search.")] = 5,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: terminal.Json = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
) -> None:
    """Compute a vector for each text. The output is a NumPy file (.npy), or with --search the nearest lines."""
    import sys

    import numpy as np

    loaded = _load(model, device, threads, inputs, source)
    chunks = terminal.input_chunks(inputs, source, CHUNK)
    if search is None:
        vectors = np.concatenate([loaded.embed(chunk) for chunk in chunks])
        if as_json:
            terminal.write_lines((json.dumps([round(float(x), 6) for x in row]) for row in vectors), output)
        elif output is not None:
            np.save(output, vectors)
        elif sys.stdout.isatty():
            raise SettingsError("vectors are binary data; give --output FILE.npy, --json or --search FILE")
        else:
            np.save(sys.stdout.buffer, vectors)
        return
    lines = [line for chunk in terminal.input_chunks(None, search, CHUNK) for line in chunk if line.strip()]
    known = np.concatenate([loaded.embed(lines[start : start + CHUNK]) for start in range(0, len(lines), CHUNK)])

    def found() -> Iterator[str]:
        for chunk in chunks:
            for text, vector in zip(chunk, loaded.embed(chunk), strict=True):
                cosines = known @ vector
                nearest = np.argsort(-cosines, kind="stable")[:best]
                if as_json:
                    near = [
                        {"line": int(i) + 1, "cosine": round(float(cosines[i]), 6), "text": lines[i]} for i in nearest
                    ]
                    yield json.dumps({"text": text, "nearest": near}, ensure_ascii=False)
                else:
                    yield text
                    yield from (f"  {cosines[i]:.3f}  {lines[i]}" for i in nearest)

    terminal.write_lines(found(), output)


def _load(model: str, device: str | None, threads: int | None, inputs: list[str] | None, source: Path | None) -> Loaded:
    if inputs and source is not None:
        raise SettingsError(f"give inputs or a file (--input {source}), not both")
    terminal.prepare_torch(threads, [model])
    import regard

    return regard.load(model, device=device)


def _line(result: Any, as_json: bool) -> str:
    """A result on one line: JSON, or the text, the label with its probability, tagged words, or an answer."""
    value = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
    if as_json:
        return json.dumps(value, ensure_ascii=False, default=str)
    match value:
        case str():
            return " ".join(value.splitlines())
        case {"error": error}:
            return f"error: {' '.join(str(error).split())}"
        case {"label": label, "probabilities": dict(shares)}:
            file = f"\t{value['file']}" if "file" in value else ""
            return f"{label}\t{shares[label]:.4f}{file}"
        case {"number": number}:
            return f"{number:.4f}"
        case {"words": words, "tags": tags}:
            tagged = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
            return f"{value['intent']}\t{tagged}" if "intent" in value else tagged
        case {"answer": answer, "probability": share}:
            return f"{' '.join(answer.split())}\t{share:.4f}"
        case {"option": option, "text": text, "probabilities": list(shares)}:
            return f"{text}\t{shares[option]:.4f}"
        case _:
            return json.dumps(value, ensure_ascii=False, default=str)
