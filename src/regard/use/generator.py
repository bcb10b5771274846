"""Generation with a loaded language model.

```python
model = regard.load("runs/shakespeare")
model.generate("ROMEO:", tokens=200, temperature=0.8)
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard.decoding.continuation import Continuation, Prefixes, Prompt, TextRow, Written
from regard.decoding.model import smallest
from regard.decoding.settings import GenerateOptions
from regard.decoding.speculative import Drafter, LookupDrafter, ModelDrafter
from regard.errors import InputError, WeightsError
from regard.models.families import Decoder
from regard.models.settings import reach
from regard.settings import Table, shown
from regard.text.chat import chat_template, render_chat
from regard.text.tokenizer import TokenizerPair, check_texts
from regard.use.model import Keys, Loaded, load, read_generation, stated_options

_CONTEXT = 4
"""Tokens of the prompt that are decoded again with the first ones of the text, since they may change spaces."""
_BROKEN = "\ufffd"
"""What an incomplete UTF-8 character is decoded to."""


@dataclass(frozen=True)
class Generation:
    """A continuation of a prompt. Example: `regard.Generation("b", [66], ["b"], [-0.5], [], "length", -0.5).text`."""

    text: str
    ids: list[int]
    """Token ids, without the end."""
    tokens: list[str]
    """The same as written in the vocabulary."""
    logprobs: list[float]
    """Log-probability of each token by the model, before temperature, filters and penalties."""
    alternatives: list[dict[str, float]]
    """The most likely tokens at each step with their log-probabilities, if asked for."""
    finish: Literal["stop", "length"]
    """Whether the text ended by itself or at a stop string, or was cut."""
    score: float
    """Sum of the log-probabilities, that of the end included."""

    def as_table(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value for name, value in asdict(self).items() if name != "alternatives" or value}


@dataclass(frozen=True)
class TextFrame:
    """How a language model frames its texts."""

    opening: tuple[int, ...] = ()
    """Tokens before each prompt."""
    empty: tuple[int, ...] = ()
    """Tokens in place of an empty prompt; none: an empty prompt is an error."""
    ends: frozenset[int] = frozenset()
    line: int | None = None
    """The token between the lines of a running text, if the model was trained line by line."""
    limit: int | None = None
    """Largest number of tokens in the context."""
    slide: bool = False
    """Whether a text goes on when the context is full."""
    defaults: GenerateOptions = field(default_factory=GenerateOptions)
    """Options that hold where a request names no others."""


class Generator(Loaded):
    """A model that continues texts. Example: `isinstance(regard.load("de-en"), regard.Generator)`."""

    network: Decoder
    tokenizers: TokenizerPair

    def __init__(
        self, name: str, directory: Path, network: Decoder, tokenizers: TokenizerPair, config: Table, frame: TextFrame
    ) -> None:
        super().__init__(name, directory, network, tokenizers, config)
        self.frame = frame
        self.tokenizer = tokenizers.target
        self.template = chat_template(directory, config)
        """The Jinja template that turns a conversation into a prompt; None: the model has none."""
        self._prefixes = Prefixes()
        self._drafts: dict[str, Generator] = {}
        self._token_texts: dict[int, str | None] = {}

    def _generate(self, prompt: str | Sequence[str], options: GenerateOptions | None, changes: Table) -> Any:
        options = self.options(options, changes)
        rows = self.generations([prompt] if isinstance(prompt, str) else prompt, options)
        if options.n == 1:
            found: list[Any] = [row[0] if options.detailed else row[0].text for row in rows]
            return found[0] if isinstance(prompt, str) else found
        return rows[0] if isinstance(prompt, str) else rows

    def options(
        self, options: GenerateOptions | None = None, changes: Mapping[str, Any] | None = None
    ) -> GenerateOptions:
        """Options with the model's own values where none are set."""
        given = {} if options is None else {name: getattr(options, name) for name in options.model_fields_set}
        return self.frame.defaults.changed({**given, **(changes or {})})

    def generations(self, prompts: Sequence[str], options: GenerateOptions | None = None) -> list[list[Generation]]:
        """The continuations of each prompt, with all details."""
        check_texts(prompts)
        options = self.options(options)
        texts = self.texts(prompts, options, keep=len(prompts) == options.n == 1)
        for _ in self._run(texts, options):
            pass
        found = [text.generation() for text in texts]
        return [found[start : start + options.n] for start in range(0, len(found), options.n)]

    def stream(self, prompt: str, options: GenerateOptions | None = None, **changes: Any) -> Iterator[str]:
        """The parts of one continuation, while it is written. Joined, they are the text of `generate`.

        >>> for part in model.stream("It was", tokens=20):  # doctest: +SKIP
        ...     print(part, end="", flush=True)
        """
        check_texts([prompt])
        options = self.options(options, {**changes, "n": 1})
        texts = self.texts([prompt], options, keep=True)
        return (part for _, part in self._run(texts, options) if part)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt for the next answer in a conversation, by the chat template; generate with `special=True`.

        Messages have a role (system, user or assistant) and a content.
        """
        if self.template is None:
            raise InputError(f"model {self.name} has no chat template; use plain prompts, or load a chat model")
        return render_chat(self.template, messages, self.tokenizer, self.name)

    def batch(self, draft: str | None = None) -> Continuation:
        """An empty running batch, for `write`."""
        return Continuation(self.network, self.frame.limit, self._prefixes, self._drafter(draft))

    def ids(self, prompt: str, special: bool = False) -> list[int]:
        """The tokens of a prompt as the model reads them."""
        opening, line = list(self.frame.opening), self.frame.line
        if line is None or special:
            ids = list(self.tokenizer.encode(prompt, framed=False, special=special).ids)
        else:
            lines = self.tokenizer.ids(prompt.split("\n"))
            ids = [token for each in lines for token in (*each, line)][:-1]
        if not ids and not opening:
            opening = list(self.frame.empty)
        ids = ids if opening and ids[: len(opening)] == opening else [*opening, *ids]
        if not ids:
            raise InputError(
                f"the prompt is empty, and model {self.name} has no start token; give at least one character"
            )
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        ids, line = self.tokenizer.known(ids), self.frame.line
        if line is None:
            return self.tokenizer.decode(ids)
        parts: list[list[int]] = [[]]
        for token in ids:
            if token == line:
                parts.append([])
            else:
                parts[-1].append(token)
        return "\n".join(self.tokenizer.decode_batch(parts))

    def token_text(self, number: int) -> str | None:
        """The text of a token within a text; None for a special token and for a part of a character."""
        if number not in self._token_texts:  # the second of two, since the first may lose its space
            text = self.text([number, number])[len(self.text([number])) :]
            self._token_texts[number] = None if not text or _BROKEN in text else text
        return self._token_texts[number]

    def token_name(self, number: int) -> str:
        """A token as it is written in the vocabulary."""
        return self.tokenizer.names.get(number, f"<{number}>")

    def texts(self, prompts: Sequence[str], options: GenerateOptions, keep: bool) -> list[TextStream]:
        """The texts to write: `options.n` for each prompt. `keep`: their caches are kept for later prompts."""
        return [TextStream(self, prompt, options, sample, keep) for prompt in prompts for sample in range(options.n)]

    def _run(self, texts: Sequence[TextStream], options: GenerateOptions) -> Iterator[tuple[TextStream, str]]:
        """Writes all texts, at most `options.rows` at the same time; yields their parts."""
        batch, waiting, current = self.batch(options.draft), list(reversed(texts)), list[TextStream]()
        while waiting or current:
            current += [waiting.pop() for _ in range(min(options.rows - len(current), len(waiting)))]
            yield from write(batch, current)
            current = [text for text in current if text.finish is None]

    def _drafter(self, draft: str | None) -> Drafter | None:
        if draft is None or draft == "lookup":
            return None if draft is None else LookupDrafter()
        if draft not in self._drafts:
            other = load(draft, next(self.network.parameters()).device)
            if not isinstance(other, Generator) or other.tokenizer.names != self.tokenizer.names:
                raise InputError(f"draft ({draft}) has another vocabulary than {self.name}; give a model with the same")
            self._drafts[draft] = other
        other = self._drafts[draft]
        return ModelDrafter(other.network, other.frame.limit)


class TextStream(TextRow):
    """A text that grows token by token. It holds back incomplete characters and what may begin a stop string."""

    def __init__(
        self, model: Generator, prompt: str, options: GenerateOptions, sample: int = 0, keep: bool = True
    ) -> None:
        self.model, self.options = model, options
        given = model.chat_prompt([{"role": "user", "content": prompt}]) if options.chat else prompt
        ids, frame = model.ids(given, options.special or options.chat), model.frame
        slide = frame.slide if options.slide is None else options.slide
        search, rules = options.search(), options.rules()
        wanted = options.logprobs or 0
        super().__init__(Prompt(ids, options.tokens, search, rules, frame.ends, sample, wanted, slide, keep))
        self.results: list[Written] = []
        self._ids, self._before, self._read = list(ids), max(len(ids) - _CONTEXT, 0), len(ids)
        self.text = ""
        """The certain text so far."""
        self._held = prompt if options.echo else ""
        self._starts: list[int] = []
        """Characters of the text before each token, or before the tokens that were decoded with it."""
        self._hidden = len(self._held)
        """Characters of the prompt, in which no stop string is searched."""

    def add(self, written: Sequence[Written], finish: str | None) -> str:
        """The text that new tokens add, as far as it is certain; `finish` is that of the row."""
        # One by one only if the place of each token in the text is asked for: decoding takes longer than all the rest.
        alone = bool(self.options.stop) or self.options.logprobs is not None
        size = 1 if alone else max(len(written), 1)
        for some in (written[start : start + size] for start in range(0, len(written), size)):
            self.results += some
            self._starts += [len(self.text) + len(self._held)] * len(some)
            self._held += self._decoded([each.token for each in some if each.token not in self.prompt.ends])
            if (part := self._cut()) is not None:
                return part
        if finish is not None:
            self._held += self._decoded([], last=True)
            if (part := self._cut()) is not None:
                return part
            self.finish = "stop" if finish == "stop" else "length"
        stops = self.options.stop if finish is None else ()
        longest = max(
            (size for stop in stops for size in range(1, len(stop)) if self._held.endswith(stop[:size])), default=0
        )
        return self._emit(len(self._held) - longest)

    def generation(self) -> Generation:
        """The result; the text must have ended."""
        assert self.finish is not None
        shown, name = [each for each, _ in self.shown()], self.model.token_name
        ids = [each.token for each in shown]
        asked = self.options.logprobs is not None
        return Generation(
            self.text,
            ids,
            [name(number) for number in ids],
            [each.chance for each in shown],
            [{name(number): chance for number, chance in each.alternatives} for each in shown] if asked else [],
            self.finish,
            sum(each.chance for each in self.results),
        )

    def shown(self) -> list[tuple[Written, int]]:
        """The tokens of the certain text so far, without its end, and the number of characters before each."""
        pairs = zip(self.results, self._starts, strict=True)
        certain = ((each, start) for each, start in pairs if start < len(self.text) or self.finish == "length")
        return [(each, start) for each, start in certain if each.token not in self.prompt.ends]

    def _decoded(self, tokens: Sequence[int], last: bool = False) -> str:
        """The text of tokens after those before; none while a character is incomplete, unless they are the last."""
        self._ids += tokens
        before, now = (self.model.text(self._ids[self._before : end]) for end in (self._read, len(self._ids)))
        if not last and (now.endswith(_BROKEN) or len(now) <= len(before)):
            return ""
        self._before, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _cut(self) -> str | None:
        """The text before the first stop string, if there is one; the text then ends."""
        hidden = max(self._hidden - len(self.text), 0)
        found = [place for stop in self.options.stop if (place := self._held.find(stop, hidden)) >= 0]
        if not found:
            return None
        self.finish = "stop"
        return self._emit(min(found))

    def _emit(self, size: int) -> str:
        part, self._held = self._held[:size], self._held[size:]
        self.text += part
        return part


def write(batch: Continuation, rows: Sequence[TextRow]) -> list[tuple[TextStream, str]]:
    """Writes at least one more token of each row, and returns what it adds to each text. All other rows leave."""
    batch.seat(rows)
    found = []
    for row, written in batch.step():
        if isinstance(row, TextStream):
            found.append((row, row.add(written, row.finish)))
            if row.finish is not None:
                batch.remove(row)
    return found


def run_frame(network: Decoder, tokenizers: TokenizerPair, config: Table) -> TextFrame:
    """The frame of a run. A model that was trained across documents sees the text between two ends as one of many.

    If its documents are lines, a text goes on after a line, and the end token is a line end.
    """
    task, data, tokenizer = config.get("task"), config.get("data", {}), tokenizers.target
    task = task if isinstance(task, dict) else {"kind": task}
    across = task.get("kind") == "language" and task.get("across", True)
    end, start = tokenizer.roles.get("end"), tokenizer.roles.get("start")
    ends = frozenset(() if end is None else (end,))
    limit = smallest(reach(network.settings), task.get("context"))
    if not across:
        opening = () if start is None else (start,)
        return TextFrame(opening, opening, ends, limit=limit)
    empty = () if end is None else (end,)
    if data.get("kind", "text") == "text" and data.get("document", "line") == "line":
        return TextFrame((), empty, line=end, limit=limit, slide=True)
    return TextFrame((), empty, ends, limit=limit, slide=True)


_KEYS: Keys = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", lambda value: value or None),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "repetition_penalty": ("repetition", float),
    "no_repeat_ngram_size": ("ngram", int),
    "max_new_tokens": ("tokens", int),
}


def foreign_frame(place: Path, network: Decoder, tokenizers: TokenizerPair, config: Table) -> TextFrame:
    """The frame of a Hugging Face model; `generation_config.json` wins over `config.json`."""
    stated, generation = read_generation(place, config)
    options = stated_options(GenerateOptions(), generation, _KEYS, {}, place)
    if generation.get("do_sample") is False:
        options = options.changed({"temperature": 0.0})
    tokenizer, size = tokenizers.target, network.settings.vocabulary
    ends = stated.get("eos_token_id", tokenizer.roles.get("end"))
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(type(each) is int for each in ends):
        raise WeightsError(f"eos_token_id ({shown(ends)}) in {place} must be a token's number; copy its files again")
    bare, framed = (tokenizer.encode("a", framed=framed).ids for framed in (False, True))
    opening = tuple(framed[: framed.index(bare[0])]) if bare and bare[0] in framed else ()
    start = stated.get("bos_token_id", tokenizer.roles.get("start"))
    empty = (start,) if type(start) is int and 0 <= start < size else opening
    limit = smallest(reach(network.settings), stated.get("max_position_embeddings"), stated.get("n_positions"))
    known = frozenset(each for each in ends if each < size)
    return TextFrame(opening, empty, known, limit=limit, defaults=options)
