"""`regard generate` and `regard chat`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import terminal
from regard.decoding.settings import GenerateOptions
from regard.errors import DataError, InputError, SettingsError
from regard.format import printable

if TYPE_CHECKING:
    from regard.use.generator import Generation, Generator

CHUNK = 256
"""Prompts that are continued together."""
_SAMPLING = ("tokens", "temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence", "ngram")
CHAT_OPTIONS = {name: name for name in (*_SAMPLING, "stop", "seed", "draft")}
OPTIONS = CHAT_OPTIONS | {name: name for name in ("n", "logprobs", "echo", "chat", "special", "slide", "rows")}
"""Options of the commands and their settings."""
Int8 = Annotated[bool, typer.Option("--int8", help="Use 8-bit weights, on a CPU.")]
Int4 = Annotated[bool, typer.Option("--int4", help="Use 4-bit weights, on a CPU.")]


@terminal.settings_options(GenerateOptions, OPTIONS)
def generate_command(  # noqa: PLR0913
    context: typer.Context,
    model: terminal.ModelName,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="Texts to continue.")] = None,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each text.")] = False,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    int8: Int8 = False,
    int4: Int4 = False,
    **given: Any,
) -> None:
    """Continue a prompt with a language model, or each line of a file or of standard input.

    One text is printed as it is written. Texts for lines of input are printed on one line each. In --stop,
    \\n and \\t are a line end and a tab.
    """
    if prompts and source is not None:
        raise SettingsError(f"give prompts or a file (--input {source}), not both")
    if source is not None and not source.exists():
        raise DataError(f"{source} does not exist; check the name after --input")
    changes = _given(context, OPTIONS, given)
    GenerateOptions().changed(changes)  # raises errors in the options before the model is loaded
    loaded = load_generator(model, device, threads, int8, int4)
    options = loaded.options(None, changes)
    if prompts and len(prompts) == 1 and options.n == 1 and not as_json and output is None:
        _show(loaded.stream(prompts[0], options))
        return
    chunks = terminal.input_chunks(prompts, source, CHUNK)
    found = (text for chunk in chunks for row in loaded.generations(chunk, options) for text in row)
    terminal.write_lines((_line(text, as_json, single=not prompts) for text in found), output)


@terminal.settings_options(GenerateOptions, CHAT_OPTIONS)
def chat_command(
    context: typer.Context,
    model: terminal.ModelName,
    system: Annotated[str | None, typer.Option(help="Instructions before the conversation.")] = None,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    int8: Int8 = False,
    int4: Int4 = False,
    **given: Any,
) -> None:
    """Talk to a chat model, by its chat template. /reset starts again, /exit or end of input ends."""
    changes = _given(context, CHAT_OPTIONS, given)
    GenerateOptions().changed(changes)
    loaded = load_generator(model, device, threads, int8, int4)
    options = loaded.options(None, {**changes, "special": True})
    first = [] if system is None else [{"role": "system", "content": system}]
    loaded.chat_prompt([*first, {"role": "user", "content": "a"}])  # raises an error if there is no template
    messages: list[dict[str, str]] = []
    while (text := _question()) is not None:
        if text == "/reset":
            messages = []
        elif text:
            messages.append({"role": "user", "content": text})
            prompt, dropped = fitting(loaded, first, messages, options.tokens)
            if dropped:
                terminal.say(f"the context is full; the oldest {dropped} messages are dropped")
                del messages[:dropped]
            parts: list[str] = []
            try:
                _show(_collected(loaded.stream(prompt, options), parts))
            except KeyboardInterrupt:  # ends the answer, not the conversation
                terminal.say("")
            messages.append({"role": "assistant", "content": "".join(parts).strip()})


def load_generator(
    model: str, device: str | None, threads: int | None = None, int8: bool = False, int4: bool = False
) -> Generator:
    """Loads a model that continues texts."""
    terminal.prepare_torch(threads, [model])
    import regard
    from regard.models.cpu import fixed
    from regard.use.generator import Generator

    loaded = regard.load(model, device=device, int8=int8, int4=int4)
    if not isinstance(loaded, Generator):
        raise InputError(
            f"model ({model}) is of kind {loaded.settings.kind} and cannot generate; give a model of kind decoder with "
            "a tokenizer.json"
        )
    loaded.network = fixed(loaded.network)
    return loaded


def _given(context: typer.Context, paths: dict[str, str], given: dict[str, Any]) -> dict[str, Any]:
    """The settings that the user gave; others are the model's own."""
    sources = {name: context.get_parameter_source(name) for name in given}
    chosen = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    found = terminal.given_settings(paths, {name: given[name] for name in chosen})
    if "stop" in found:
        found["stop"] = [each.replace("\\n", "\n").replace("\\t", "\t") for each in found["stop"]]
    return found


def _show(parts: Iterator[str]) -> None:
    """Prints a text while it is written."""
    shown = sys.stdout.isatty()
    for part in parts:
        sys.stdout.write(printable(part) if shown else part)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _collected(parts: Iterator[str], into: list[str]) -> Iterator[str]:
    for part in parts:
        into.append(part)
        yield part


def _line(text: Generation, as_json: bool, single: bool) -> str:
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
