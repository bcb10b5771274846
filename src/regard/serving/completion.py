"""Language models with OpenAI's API: completions and chat, written by one running batch for each model."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from fastapi import FastAPI, Request
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from regard.decoding.continuation import TextRow, Written
from regard.errors import InputError
from regard.look.views.view import Text, valid_text
from regard.models.cpu import fixed
from regard.serving import http
from regard.serving.prediction import ModelRequest, as_list, known_input, named
from regard.serving.queue import StreamJob, Writer
from regard.serving.service import Metrics, Service
from regard.serving.settings import Serving
from regard.use.generator import Generator, TextStream, write
from regard.use.model import Loaded

EXPECTED = 128
"""Most tokens to write that a waiting text counts for, in addition to its prompt."""
TOKENS = 16
"""Tokens of a completion that names no limit, as in OpenAI's API."""
PART = 256
"""Most tokens of prompts that are read between two tokens of the texts that are being written: of long prompts, and as
many of short ones."""
SEEDS = 2**53
"""Seeds are reduced to fewer than these, the largest integer of settings."""
LEAST_SHARE = 1e-9
"""What `top_p` 0 stands for: only the most likely token."""
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields that change no text."""
NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "logit_bias": {},
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
    "modalities": ["text"],
    "response_format": {"type": "text"},
}
"""Fields that are not supported, with the values that change nothing."""

StopText: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(valid_text)]
Shown: TypeAlias = tuple[Written, int]
"""A token, and the number of characters before it."""


def _joined_parts(content: Any) -> Any:
    """A text from OpenAI's list of parts."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("only parts of type text are supported")
    return "".join(part["text"] for part in content)


class StreamOptions(BaseModel):
    """How a stream is sent."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True, strict=True, extra="forbid")
    include_usage: bool = False
    """Whether the last event before the end has the numbers of tokens."""
    include_obfuscation: bool = False
    """Ignored."""


class WritingRequest(ModelRequest):
    """What both kinds of requests have in common."""

    model_config = ConfigDict(strict=True, extra="forbid")
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of each text."""
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    """Divides the logits; 0 takes the most likely token. The model's own value by default, or 1."""
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Sample among the most likely tokens that together have this probability."""
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from a token's logit for each time that it was written."""
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    """Subtracted from the logit of each token that was written."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The same seed gives the same texts; random by default."""
    n: int = Field(default=1, ge=1)
    """Number of texts for each prompt."""
    stop: Annotated[list[StopText], BeforeValidator(as_list), Field(max_length=4)] = Field(default_factory=list)
    """The text ends before this string, or before the first of up to four."""
    stream: bool = False
    """Whether the text is sent while it is written, as server-sent events."""
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, fields: Any) -> Any:
        """Drops fields that change nothing."""
        empty = {name for name, value in NEUTRAL.items() if name in fields and fields[name] == value}
        return {name: value for name, value in fields.items() if name not in (*IGNORED, *empty)}

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream; set stream to true")
        return self

    def changes(self) -> dict[str, Any]:
        """The options of generation that both kinds have."""
        found: dict[str, Any] = {
            "n": self.n,
            "frequency": self.frequency_penalty,
            "presence": self.presence_penalty,
            "stop": tuple(self.stop),
            "seed": secrets.randbelow(SEEDS) if self.seed is None else self.seed % SEEDS,
            "temperature": self.temperature,
            "top_p": None if self.top_p is None else max(self.top_p, LEAST_SHARE),
        }
        return {name: value for name, value in found.items() if value is not None}


class CompletionRequest(WritingRequest):
    """Prompts to continue."""

    prompt: Annotated[list[Text], BeforeValidator(known_input), Field(min_length=1)]
    """A text, or a list of texts."""
    echo: bool = False
    """Whether each text begins with its prompt."""
    logprobs: int | None = Field(default=None, ge=0, le=5)
    """Number of alternatives of each token that are sent with their log-probabilities."""

    @model_validator(mode="after")
    def _check_echo(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo together with logprobs is not supported; leave one of them out")
        return self

    def options(self, longest: int) -> dict[str, Any]:
        """The options of generation; `longest` tokens are allowed."""
        tokens = min(TOKENS, longest) if self.max_tokens is None else self.max_tokens
        return {**self.changes(), "tokens": tokens, "logprobs": self.logprobs, "echo": self.echo}

    def prompts(self, model: Generator) -> list[str]:
        return list(self.prompt)

    def logprobs_of(self, tokens: Sequence[Shown], model: Generator) -> dict[str, Any]:
        """Log-probabilities in the shape of this kind of answer."""

        def text(token: int) -> str:
            return model.token_text(token) or model.token_name(token)

        best = [{text(each): chance for each, chance in written.alternatives[::-1]} for written, _ in tokens]
        return {
            "tokens": [text(written.token) for written, _ in tokens],
            "token_logprobs": [written.chance for written, _ in tokens],
            "top_logprobs": best if self.logprobs else None,
            "text_offset": [start for _, start in tokens],
        }


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True, strict=True, extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    """Who wrote it; developer is another name of system."""
    content: Annotated[Text, BeforeValidator(_joined_parts)]
    """A text, or a list of parts of type text."""
    name: Text | None = None
    """Ignored."""


class ChatRequest(WritingRequest):
    """A conversation whose next message is wanted."""

    messages: list[ChatMessage] = Field(min_length=1)
    """All messages so far."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of the answer; it wins over `max_tokens`."""
    logprobs: bool = False
    """Whether log-probabilities of the tokens are sent."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Number of alternatives of each token that are sent with them."""

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs; set logprobs to true")
        return self

    def options(self, longest: int) -> dict[str, Any]:
        tokens = self.max_completion_tokens or self.max_tokens or longest
        wanted = (self.top_logprobs or 0) if self.logprobs else None
        return {**self.changes(), "tokens": tokens, "logprobs": wanted, "special": True}

    def prompts(self, model: Generator) -> list[str]:
        roles = {"developer": "system"}
        said = [{"role": roles.get(each.role, each.role), "content": each.content} for each in self.messages]
        return [model.chat_prompt(said)]

    def logprobs_of(self, tokens: Sequence[Shown], model: Generator) -> dict[str, Any]:
        def entry(token: int, chance: float) -> dict[str, Any]:
            text = model.token_text(token)
            known = None if text is None else list(text.encode())
            return {"token": text or model.token_name(token), "logprob": chance, "bytes": known}

        return {
            "content": [
                entry(written.token, written.chance)
                | {"top_logprobs": [entry(each, chance) for each, chance in written.alternatives]}
                for written, _ in tokens
            ]
        }


AnyRequest: TypeAlias = CompletionRequest | ChatRequest


class TextPiece(NamedTuple):
    """What a step adds to a text."""

    text: str
    tokens: Sequence[Shown]
    """Empty if no log-probabilities were asked for."""
    finish: str | None


class TextWriter(Writer):
    """Writes the texts of a model in one running batch: texts join and leave it between two tokens."""

    def __init__(self, model: Generator, places: int, metrics: Metrics) -> None:
        super().__init__(places)
        self.batch = model.batch()
        self._metrics = metrics
        self._joined: list[TextStream] = []
        self._parts: dict[TextStream, TextRow] = {}
        """Beginnings of long prompts. Their caches are kept, so that the next part or the text goes on from there."""

    def _join(self, texts: Sequence[TextStream]) -> None:
        """Lets texts join. While others are being written, long prompts are read in parts first, one at a time."""
        joined, parts, room = [], dict[TextStream, TextRow](), PART
        alone = not any(text in self._joined for text in texts)
        for text in texts:
            part = self._parts.get(text)
            read = len(part.prompt.tokens) if part else 0
            rest = len(text.prompt.tokens) - read
            if alone or text in self._joined:
                joined.append(text)
            elif part and part.finish is None:
                parts[text] = part
            elif rest <= room:
                joined.append(text)
                room -= rest
            elif rest > PART and all(each.finish for each in parts.values()):
                tokens = text.prompt.tokens[: read + PART]
                parts[text] = TextRow(replace(text.prompt, tokens=tokens, longest=1, alternatives=0, keep=True))
            elif part:
                parts[text] = part
        self._joined, self._parts = joined, parts

    def write(self, streams: Sequence[StreamJob]) -> Sequence[StreamJob]:
        by_text: dict[TextStream, StreamJob] = {stream.content: stream for stream in streams}
        before = {text: (len(text.results), len(_asked(text))) for text in by_text}
        self._join(list(by_text))
        reading = [part for part in self._parts.values() if part.finish is None]
        ended = []
        for text, part in write(self.batch, [*self._joined, *reading]):
            count, shown = before[text]
            stream = by_text[text]
            if count == 0:
                self._metrics.first_token.observe(time.monotonic() - stream.submitted)
            self._metrics.written.inc(len(text.results) - count)
            tokens = _asked(text)[shown:]
            if part or tokens or text.finish is not None:
                stream.send(TextPiece(part, tokens, text.finish))
            if text.finish is not None:
                stream.send(None)
                ended.append(stream)
        return ended


def _asked(text: TextStream) -> Sequence[Shown]:
    return () if text.options.logprobs is None else text.shown()


class CompletionService(Service):
    """Answers requests with the texts of language models."""

    about = "Completions and chat with OpenAI's API."

    def __init__(self, models: Mapping[str, Generator]) -> None:
        self.models = models
        self.names = list(models)
        self.writers: dict[str, TextWriter] = {}

    @classmethod
    def choose(cls, models: Mapping[str, Loaded], settings: Serving) -> Self | None:
        """Writes one token with each model, so that the first request is not slower than others."""
        chosen = {name: model for name, model in models.items() if isinstance(model, Generator)}
        for model in chosen.values():
            model.network = fixed(model.network)
            model.generations(["."], model.options(None, {"tokens": 1}))
        return cls(chosen) if chosen else None

    @property
    def summary(self) -> str:
        kinds = {name: "completions" if model.template is None else "chat" for name, model in self.models.items()}
        return "; ".join(f"{name} ({kind})" for name, kind in kinds.items())

    def _texts(self, asked: AnyRequest, name: str) -> list[TextStream]:
        """The texts of a request, before their first token."""
        model, settings = self.models[name], self.common.settings
        prompts = asked.prompts(model)
        options = model.options(None, asked.options(settings.completion_tokens))
        if options.tokens > settings.completion_tokens:
            rule = f"{options.tokens:,} tokens are more than this server writes ({settings.completion_tokens:,})"
            raise http.FieldError(400, f"{rule}; lower max_tokens", "max_tokens")
        count = len(prompts) * options.n
        if count > settings.texts:
            rule = f"{count:,} texts ({len(prompts):,} prompts, n = {options.n:,}), at most {settings.texts:,}"
            raise http.FieldError(400, f"Invalid request: {rule} are allowed; lower n", "n")
        self.common.check_length(prompts)
        texts = model.texts(prompts, options, keep=count == 1 and options.special)
        for text in texts:
            try:
                self.writers[name].batch.check(text.prompt)
            except InputError as error:
                param = "messages" if options.special else "prompt"
                raise http.FieldError(400, str(error), param, "context_length_exceeded") from None
        return texts

    async def _respond(self, asked: AnyRequest, request: Request) -> Any:
        name = named(asked.model, self.names, "write texts")
        texts = await asyncio.to_thread(self._texts, asked, name)
        sizes = [len(text.prompt.tokens) + min(text.prompt.longest, EXPECTED) for text in texts]
        pieces = self.common.stream(texts, sizes, asked, request, self.writers[name])
        answer = Reply(asked, name, self.models[name], texts)
        self.common.metrics.read.inc(answer.read)
        if not asked.stream:
            await http.while_connected(asyncio.ensure_future(_all_received(pieces)), request)
            return answer.whole()
        # The first piece decides the status. It also starts the generator, whose end frees the rows.
        first = await http.while_connected(asyncio.ensure_future(anext(pieces)), request)

        async def events() -> AsyncIterator[str]:
            for index in range(len(texts) if answer.chat else 0):
                yield http.event(answer.opening(index))
            yield http.event(answer.chunk(*first))
            try:
                async for index, piece in pieces:
                    yield http.event(answer.chunk(index, piece))
            except Exception as error:
                yield http.event(http.openai_error(error))
                return
            if answer.usage_asked:
                yield http.event(answer.body([], usage=answer.usage))
            yield "data: [DONE]\n\n"

        return http.streamed(events())

    def add_routes(self, app: FastAPI) -> None:
        metrics, rows = self.common.metrics, self.common.settings.rows
        self.writers = {name: TextWriter(model, rows, metrics) for name, model in self.models.items()}
        metrics.rows.set_function(lambda: sum(len(writer.batch.rows) for writer in self.writers.values()))

        summary = "Write the next message of a chat."
        self.post(app, "/v1/completions", CompletionRequest, self._respond, "Continue a prompt.", forms=False)
        self.post(app, "/v1/chat/completions", ChatRequest, self._respond, summary, forms=False)


class Reply:
    """The answer to one request, in OpenAI's shapes."""

    def __init__(self, asked: AnyRequest, name: str, model: Generator, texts: Sequence[TextStream]) -> None:
        self.asked, self.model, self.texts = asked, model, texts
        self.chat = isinstance(asked, ChatRequest)
        self.usage_asked = asked.stream_options is not None and asked.stream_options.include_usage
        kind = ("chat.completion.chunk" if asked.stream else "chat.completion") if self.chat else "text_completion"
        number = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._head = {"id": number, "object": kind, "created": int(time.time()), "model": name}

    @property
    def read(self) -> int:
        """Tokens of the prompts; those of several texts count once."""
        return sum(len(text.prompt.tokens) for text in self.texts[:: self.asked.n])

    @property
    def usage(self) -> dict[str, int]:
        written = sum(len(text.results) for text in self.texts)
        return {"prompt_tokens": self.read, "completion_tokens": written, "total_tokens": self.read + written}

    def body(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        found = {**self._head, "choices": choices}
        return {**found, "usage": usage} if self.usage_asked or not self.asked.stream else found

    def whole(self) -> dict[str, Any]:
        """The answer that is sent at once, after all texts have ended."""
        choices = []
        for index, text in enumerate(self.texts):
            content = {"message": {"role": "assistant", "content": text.text, "refusal": None}}
            choices.append(self._choice(index, content, TextPiece(text.text, _asked(text), text.finish)))
        return self.body(choices, self.usage)

    def opening(self, index: int) -> dict[str, Any]:
        """The first event of a text in the stream of a chat, which names the role."""
        content = {"delta": {"role": "assistant", "content": ""}}
        return self.body([self._choice(index, content, TextPiece("", (), None))], None)

    def chunk(self, index: int, piece: TextPiece) -> dict[str, Any]:
        """An event of a stream."""
        content = {"delta": {"content": piece.text} if piece.text else {}}
        return self.body([self._choice(index, content, piece)], None)

    def _choice(self, index: int, content: dict[str, Any], piece: TextPiece) -> dict[str, Any]:
        """A text or a part of one; `content` has it in the shape of a chat."""
        empty = self.texts[index].options.logprobs is None or (self.asked.stream and not piece.tokens)
        logprobs = None if empty else self.asked.logprobs_of(piece.tokens, self.model)
        shown = content if self.chat else {"text": piece.text}
        return {"index": index, **shown, "logprobs": logprobs, "finish_reason": piece.finish}


async def _all_received(pieces: AsyncIterator[Any]) -> None:
    async for _ in pieces:
        pass
