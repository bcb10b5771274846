"""Predictions of any task, masked words, and embeddings in OpenAI's shape."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from fastapi import FastAPI, Request
from pydantic import BeforeValidator, Field
from starlette.exceptions import HTTPException

from regard.data.images import read_image
from regard.errors import RegardError
from regard.look.views.view import Text, valid_text
from regard.models.settings import AnyVision, reach
from regard.serving.http import FieldError
from regard.serving.service import Service, ServiceRequest
from regard.serving.settings import Serving
from regard.use.model import Loaded, Use


def as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _strings(value: Any) -> Iterator[str]:
    """All texts of an input, which may be nested."""
    if isinstance(value, str):
        yield valid_text(value)
    elif isinstance(value, list | dict):
        for each in value if isinstance(value, list) else [*value, *value.values()]:
            yield from _strings(each)


def _checked(value: Any) -> Any:
    list(_strings(value))  # raises an error for a text that is not valid
    return value


def known_input(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(each, int | list) for each in value):
        raise ValueError("token ids are not supported; send texts")
    return as_list(value)


class ModelRequest(ServiceRequest):
    """A request to one of several models."""

    model: Text = ""
    """The name of the model, as /v1/models lists it; the first suitable one by default."""


def named(model: str, able: Sequence[str], verb: str) -> str:
    """The model with this name, or the first of those that can do this."""
    if model and model not in able:
        message = f"no model with this name can {verb}; choose one of {', '.join(able)}"
        raise FieldError(404, message, "model", "model_not_found")
    return model or able[0]


class PredictRequest(ModelRequest):
    """Inputs for the task of a model."""

    inputs: Annotated[list[Any], BeforeValidator(as_list), BeforeValidator(_checked), Field(min_length=1)]
    """Texts; pairs as lists, as objects or with a tab between them; images as files of a form or in base64."""


class FillRequest(PredictRequest):
    """Texts with mask tokens."""

    best: int = Field(default=5, ge=1, le=1000)
    """Tokens for each mask."""


class EmbeddingsRequest(ModelRequest):
    """Texts to embed."""

    input: Annotated[list[Text], BeforeValidator(known_input), Field(min_length=1)]
    """A text, or a list of texts."""
    encoding_format: Literal["float", "base64"] = "float"
    """Numbers, or the bytes of 32-bit numbers (little-endian) in base64."""
    dimensions: Annotated[None, Field(description="Not supported: vectors have the width of the model.")] = None


class Work(NamedTuple):
    """Inputs of one kind for one model may share a batch."""

    use: Use
    model: str
    best: int = 0


class PredictionService(Service):
    """Answers requests with what the models can do of `predict`, `fill` and `embed`."""

    about = "Predictions, and embeddings in OpenAI's shape."

    def __init__(self, models: Mapping[str, Loaded]) -> None:
        self.models = models
        self.names = list(models)

    @classmethod
    def choose(cls, models: Mapping[str, Loaded], settings: Serving) -> Self | None:
        chosen = {name: model for name, model in models.items() if model.uses - {"translate"}}
        return cls(chosen) if chosen else None

    @property
    def summary(self) -> str:
        return "; ".join(f"{name} ({', '.join(sorted(model.uses))})" for name, model in self.models.items())

    def _able(self, use: Use) -> list[str]:
        return [name for name, model in self.models.items() if use in model.uses]

    def run(self, key: Work, items: list[tuple[int, Any]]) -> Sequence[Any]:
        """The results of inputs, each with its index in its request."""
        model, inputs = self.models[key.model], [each for _, each in items]
        try:
            if key.use == "embed":
                return list(model.embed(inputs))
            if key.use == "fill":
                return [model.fill(text, key.best) for text in inputs]
            return model.predict(inputs)
        except RegardError as error:  # of one input, if there are several: the queue repeats them one by one
            raise type(error)(str(error).replace("inputs[0]", f"inputs[{items[0][0]}]")) from None

    async def _results(self, work: Work, inputs: list[Any], asked: ModelRequest, request: Request) -> tuple[Any, int]:
        """The results of the inputs, and the number of tokens that the model read."""
        texts = [list(_strings(each)) for each in inputs]
        model, common = self.models[work.model], self.common
        if isinstance(model.settings, AnyVision):
            common.check_length([""] * len(inputs))
            inputs = await asyncio.to_thread(_images, inputs, model.settings.channels)
            sizes = [model.settings.tokens] * len(inputs)
        else:
            if any(isinstance(each, bytes) for each in inputs):
                raise HTTPException(400, f"inputs: model {work.model} reads texts, not files")
            common.check_length(["".join(each) for each in texts])
            assert model.tokenizers is not None
            tokenizer, longest = model.tokenizers.source, reach(model.settings) or 1 << 30
            before, _, after = tokenizer.frame
            frame = len(before) + len(after)
            sizes = [min(sum(map(len, tokenizer.ids(each))) + frame, longest) for each in texts]
        items = list(enumerate(inputs))
        return await common.results(self, work, items, sizes, asked, request), sum(sizes)

    async def _predictions(self, use: Use, asked: PredictRequest, request: Request) -> dict[str, Any]:
        work = Work(use, named(asked.model, self._able(use), use), asked.best if isinstance(asked, FillRequest) else 0)
        return {"predictions": (await self._results(work, asked.inputs, asked, request))[0]}

    async def _embeddings(self, asked: EmbeddingsRequest, request: Request) -> dict[str, Any]:
        work = Work("embed", named(asked.model, self._able("embed"), "embed"))
        found, tokens = await self._results(work, list(asked.input), asked, request)
        data = [
            {"object": "embedding", "index": number, "embedding": _encoded(vector, asked.encoding_format)}
            for number, vector in enumerate(found)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": work.model, "usage": usage}

    def add_routes(self, app: FastAPI) -> None:
        images = any(isinstance(model.settings, AnyVision) for model in self.models.values())
        upload = self.common.settings.upload_bytes * 4 // 3 if images else 0  # base64 has 4 characters for 3 bytes
        if self._able("predict"):
            answer, summary = partial(self._predictions, "predict"), "Apply a model to inputs, by its task."
            self.post(app, "/predict", PredictRequest, answer, summary, more_bytes=upload)
        if self._able("fill"):
            answer, summary = partial(self._predictions, "fill"), "Find the most likely tokens for each mask token."
            self.post(app, "/fill", FillRequest, answer, summary)
        if self._able("embed"):
            self.post(app, "/v1/embeddings", EmbeddingsRequest, self._embeddings, "Compute a vector for each text.")


def _encoded(vector: np.ndarray[Any, Any], kind: str) -> Any:
    return vector.tolist() if kind == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _images(inputs: Sequence[Any], channels: int) -> list[Any]:
    """Decodes images: files, or texts in base64, also as data URLs. A text is never the name of a file here."""
    found = []
    for number, each in enumerate(inputs):
        if isinstance(each, str):
            try:
                each = base64.b64decode(each.rpartition("base64,")[2], validate=True)
            except ValueError:
                raise HTTPException(400, f"inputs[{number}] is not base64; send the bytes of an image") from None
        if not isinstance(each, bytes):
            raise HTTPException(400, f"inputs[{number}] is not an image; send a file, or its bytes in base64")
        found.append(read_image(each, "grey" if channels == 1 else "rgb", f"inputs[{number}]"))
    return found
