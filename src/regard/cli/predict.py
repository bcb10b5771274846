"""`regard predict`, `regard fill`, `regard embed`, `regard generate` and `regard chat`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from regard.cli import terminal
from regard.decoding.settings import Filters, GenerateOptions, Penalties
from regard.errors import DataError, InputError, SettingsError
from regard.format import printable

if TYPE_CHECKING:
    from regard.use.generator import Generation, Generator
    from regard.use.model import Loaded

Result = TypeVar("Result")
CHUNK = 256
"""Inputs that are computed together."""
Inputs = Annotated[list[str] | None, typer.Argument(metavar="[INPUT]...", help="Texts, or image files.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts.", show_default="lines of --input")]
CHAT_OPTIONS = {
    name: name for name in ("tokens", *Filters.model_fields, *Penalties.model_fields, "stop", "seed", "draft")
}
OPTIONS = CHAT_OPTIONS | {name: name for name in ("n", "logprobs", "echo", "chat", "special", "slide", "rows")}
Int8 = Annotated[bool, typer.Option("--int8", help="Use 8-bit weights, on a CPU.")]
Int4 = Annotated[bool, typer.Option("--int4", help="Use 4-bit weights, on a CPU.")]


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
    terminal.check_files(inputs, source, output, "inputs")
    loaded: Loaded = terminal.open_model(model, device, threads)
    failed = done = 0

    def results() -> Iterator[Any]:
        nonlocal failed, done
        for chunk in terminal.input_chunks(inputs, source, CHUNK):
            try:
                yield from loaded.predict(chunk)
            except (DataError, InputError):
                if len(chunk) == 1 and inputs:
                    raise
                for number, each in enumerate(chunk, done):
                    try:
                        yield from loaded.predict([each])
                    except (DataError, InputError) as error:
                        failed += 1
                        yield {"error": _renumbered(error, number)}
            done += len(chunk)

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
    terminal.check_files(inputs, source, output, "inputs")
    loaded: Loaded = terminal.open_model(model, device, threads)

    def line(masks: list[dict[str, float]]) -> str:
        if as_json:
            return json.dumps(masks, ensure_ascii=False)
        tables = ((f"{token} {100 * share:.1f} %" for token, share in mask.items()) for mask in masks)
        return " | ".join(map("  ".join, tables))

    chunks = terminal.input_chunks(inputs, source, 1)
    terminal.write_lines(_numbered(chunks, lambda texts: line(loaded.fill(texts[0], best))), output)


def _numbered(chunks: Iterable[list[str]], compute: Callable[[list[str]], Result]) -> Iterator[Result]:
    """The result of each chunk. Errors name the index of an input among all inputs."""
    done = 0
    for chunk in chunks:
        try:
            yield compute(chunk)
        except InputError as error:
            raise InputError(_renumbered(error, done)) from None
        done += len(chunk)


def _renumbered(error: Exception, before: int) -> str:
    """The message of an error in a chunk with the index of the input among all inputs."""
    return re.sub(r"^inputs\[(\d+)", lambda found: f"inputs[{before + int(found[1])}", str(error))


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
    import numpy as np

    terminal.check_files(inputs, source, output, "inputs")
    loaded: Loaded = terminal.open_model(model, device, threads)
    chunks = terminal.input_chunks(inputs, source, CHUNK)
    if search is None:
        vectors = np.concatenate([loaded.embed([]), *_numbered(chunks, loaded.embed)])
        if as_json:
            terminal.write_lines((json.dumps([round(float(x), 6) for x in row]) for row in vectors), output)
        elif output is not None:
            np.save(output, vectors)
        elif sys.stdout.isatty():
            raise SettingsError("vectors are binary data; give --output FILE.npy, --json or --search FILE")
        else:
            np.save(sys.stdout.buffer, vectors)
        return
    lines = {number: line for number, line in enumerate(terminal.text_lines(str(search)), 1) if line.strip()}
    if not lines:
        raise DataError(f"{search} has no lines with text; give a file with the lines to search")
    numbers, texts = list(lines), list(lines.values())
    known = np.concatenate([loaded.embed(texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)])

    def found() -> Iterator[str]:
        for pairs in _numbered(chunks, lambda chunk: zip(chunk, loaded.embed(chunk), strict=True)):
            for text, vector in pairs:
                cosines = known @ vector
                near = [(numbers[i], float(cosines[i])) for i in np.argsort(-cosines, kind="stable")[:best]]
                if as_json:
                    tables = [{"line": line, "cosine": round(cosine, 6), "text": lines[line]} for line, cosine in near]
                    yield json.dumps({"text": text, "nearest": tables}, ensure_ascii=False)
                else:
                    yield text
                    yield from (f"  {cosine:.3f}  {lines[line]}" for line, cosine in near)

    terminal.write_lines(found(), output)


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


@terminal.settings_options(GenerateOptions, OPTIONS)
def generate_command(  # noqa: PLR0913
    model: terminal.ModelName,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="Texts to continue.")] = None,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each text.")] = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    int8: Int8 = False,
    int4: Int4 = False,
    *,
    given: dict[str, Any],
) -> None:
    """Continue a prompt with a language model, or each line of a file or of standard input.

    One text is printed as it is written. Texts for lines of input are printed on one line each. In --stop,
    \\n and \\t are a line end and a tab.
    """
    terminal.check_files(prompts, source, output, "prompts")
    loaded, options = _generator(model, device, threads, int8, int4, given)
    if prompts and len(prompts) == 1 and options.n == 1 and not as_json and output is None:
        _show(loaded.stream(prompts[0], options), [])
        return
    chunks = terminal.input_chunks(prompts, source, CHUNK)
    found = (text for chunk in chunks for row in loaded.generations(chunk, options) for text in row)
    terminal.write_lines((_generated(text, as_json, single=not prompts) for text in found), output)


@terminal.settings_options(GenerateOptions, CHAT_OPTIONS)
def chat_command(
    model: terminal.ModelName,
    system: Annotated[str | None, typer.Option(help="Instructions before the conversation.")] = None,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    int8: Int8 = False,
    int4: Int4 = False,
    *,
    given: dict[str, Any],
) -> None:
    """Talk to a chat model, by its chat template. /reset starts again, /exit or end of input ends."""
    loaded, options = _generator(model, device, threads, int8, int4, given | {"special": True})
    first = [] if system is None else [{"role": "system", "content": system}]
    loaded.chat_prompt([*first, {"role": "user", "content": "a"}])  # checks that the model has a template
    messages: list[dict[str, str]] = []
    code = 0
    while (text := _question()) is not None:
        if text == "/reset":
            messages = []
        elif text:
            messages.append({"role": "user", "content": text})
            try:
                prompt, dropped = fitting(loaded, first, messages, options.tokens)
            except InputError as error:  # the message is too long
                terminal.say(str(error))
                messages.pop()
                code = 1
                continue
            if dropped:
                terminal.say(f"the context is full; the oldest {dropped} messages are dropped")
                del messages[:dropped]
            parts: list[str] = []
            try:
                _show(loaded.stream(prompt, options), parts)
            except KeyboardInterrupt:  # ends the answer, not the conversation
                terminal.say("")
            messages.append({"role": "assistant", "content": "".join(parts).strip()})
    raise typer.Exit(code)


def _generator(
    model: str, device: str | None, threads: int | None, int8: bool, int4: bool, given: dict[str, Any]
) -> tuple[Generator, GenerateOptions]:
    """The model, and its options with those that are given. Errors in the options come before the model is loaded."""
    stops = [each.replace("\\n", "\n").replace("\\t", "\t") for each in given.get("stop", ())]
    changes = given | ({"stop": stops} if stops else {})
    GenerateOptions().changed(changes)
    loaded: Generator = terminal.open_model(model, device, threads, "generate", int8, int4)
    return loaded, loaded.options(None, changes)


def _show(parts: Iterable[str], kept: list[str]) -> None:
    """Prints the parts of a text as they come, and keeps them."""
    shown = sys.stdout.isatty()
    for part in parts:
        kept.append(part)
        sys.stdout.write(printable(part) if shown else part)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _generated(text: Generation, as_json: bool, single: bool) -> str:
    if as_json:
        return json.dumps(text.as_table(), ensure_ascii=False)
    return " ".join(text.text.split("\n")) if single else text.text


def _question() -> str | None:
    """The next message; None at the end."""
    try:
        text = input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    return None if text == "/exit" else text


def fitting(
    model: Generator, first: list[dict[str, str]], messages: list[dict[str, str]], tokens: int
) -> tuple[str, int]:
    """The prompt of a conversation, and how many of the oldest messages do not fit into the context with an answer."""
    limit = model.frame.limit
    for dropped in range(0, len(messages), 2):
        prompt = model.chat_prompt([*first, *messages[dropped:]])
        size = len(model.ids(prompt, special=True))
        if limit is None or size + min(tokens, limit // 4) <= limit:
            return prompt, dropped
    raise InputError(f"the message has {size:,} tokens, too many for the context ({limit:,}); shorten it")
