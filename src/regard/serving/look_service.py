"""What the page asks for, answered by a study, one request after the other. Answers are plain values."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from regard.decoding.settings import Absolute, Beam, Paper, Rules, Sampling
from regard.errors import RecordError, RegardError
from regard.look.reading import Input, Read
from regard.look.stepwise import Choosing, grow_tree, label, write_stepwise, written
from regard.look.study import Run, Study
from regard.look.walk import Place, walk
from regard.models.settings import Vision
from regard.serving.bodies import Refused
from regard.serving.look_settings import Looking
from regard.serving.look_shapes import RunAsked, RunNamed, StepsAsked, TreeAsked, WalkAsked
from regard.tasks.translator import Translator

R = TypeVar("R")
RETRY = {"Retry-After": "1"}


class Turns:
    """One thread that works with the model, and a bounded line before it."""

    def __init__(self, settings: Looking) -> None:
        self.settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._waiting = 0

    async def take(self, work: Callable[[], R]) -> R:
        """The result of some work, when its turn has come; errors that a user can mend become answers."""
        if self._waiting >= self.settings.queue:
            raise Refused(503, "too many requests wait for the model; come again in a second", RETRY)
        self._waiting += 1
        try:
            async with asyncio.timeout(self.settings.patience):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError:
            raise Refused(503, f"no answer within {self.settings.patience:g} s; shorten the input", RETRY) from None
        except RecordError as error:
            raise Refused(409, str(error)) from None
        except RegardError as error:
            raise Refused(400, str(error)) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class LookService:
    """The answers of the page; all but `about` belong into the thread of `Turns`."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def about(self) -> dict[str, Any]:
        """What the model is."""
        study, loaded = self.study, self.study.loaded
        settings = loaded.settings
        translator = loaded if isinstance(loaded, Translator) else None
        align = loaded.config.get("align")
        return {
            "name": loaded.name,
            "family": settings.kind,
            "width": settings.width,
            "parameters": sum(each.numel() for each in study.network.parameters()),
            "views": study.views,
            "attentions": [asdict(each) for each in study.attentions],
            "names": list(study.names),
            "limit": study.limit,
            "directions": [list(each) for each in translator.directions] if translator else [],
            "translates": translator is not None,
            "image": [settings.channels, *settings.image] if isinstance(settings, Vision) else None,
            "patch": settings.patch if isinstance(settings, Vision) else None,
            "aligned": [list(each) for each in translator.frame.look.heads]
            if translator and translator.frame.look
            else [],
            "align_error": align.get("error") if isinstance(align, dict) else None,
        }

    def run(self, asked: RunAsked) -> dict[str, Any]:
        """An input, read and answered."""
        image = None if asked.image is None else self._pixels(asked.image)
        heads = tuple(dict.fromkeys(asked.ablated))
        return told(self.study.run(Input(asked.text, asked.target, asked.to, image, heads)))

    def output(self, asked: RunNamed) -> dict[str, Any]:
        """What the model says of a run."""
        return outputs(self.study.known(asked.run))

    def tensor(self, run: str, name: str) -> tuple[bytes, list[int]]:
        """A tensor as little-endian float32, and its shape."""
        found = self.study.tensor(run, name)
        return found.contiguous().numpy().astype("<f4", copy=False).tobytes(), list(found.shape)

    def walk(self, asked: WalkAsked) -> dict[str, Any]:
        """The path of a run."""
        run = self.study.known(asked.run)
        steps = walk(self.study, run, Place(asked.stack, asked.layer, asked.kind, asked.head))
        return {"steps": [asdict(step) for step in steps]}

    def steps(self, asked: StepsAsked) -> dict[str, Any]:
        """Decoding, step by step."""
        sampling = Sampling(
            temperature=asked.temperature, top_k=asked.top_k or None, top_p=asked.top_p, seed=asked.seed
        )
        rules = _rules(asked)
        choosing = Choosing(sampling, rules, asked.draws, tuple(asked.prefix))
        return asdict(write_stepwise(self.study, self.study.known(asked.run), choosing))

    def tree(self, asked: TreeAsked) -> dict[str, Any]:
        """The tree of a beam search, its tokens as they are shown."""
        beam = Beam(size=asked.beam, nbest=asked.beam, length=Paper(alpha=asked.alpha))
        found = grow_tree(self.study, self.study.known(asked.run), beam, _rules(asked), tuple(asked.prefix))
        nodes = [asdict(node) | {"text": label(self.study, node.token)} for node in found.nodes]
        kept = [
            {
                "text": written(self.study, each.tokens),
                "score": each.score,
                "tokens": each.tokens,
                "finished": each.finished,
            }
            for each in found.found
        ]
        return {"nodes": nodes, "found": kept}

    def _pixels(self, image: str) -> Any:
        settings = self.study.loaded.settings
        if not isinstance(settings, Vision):
            raise Refused(400, f"image is for models that read images; this one is of kind {settings.kind}")
        shape = (settings.channels, *settings.image)
        try:
            raw = base64.b64decode(image, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(400, "image is not base64") from None
        if len(raw) != int(np.prod(shape)):
            raise Refused(400, f"image has {len(raw):,} bytes and must have {int(np.prod(shape)):,}: {list(shape)}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


def told(run: Run) -> dict[str, Any]:
    """A run as the page reads it."""
    return {
        "run": run.key,
        "sides": sides(run.read),
        "shapes": run.shapes,
        "ablated": list(run.given.ablated),
        "plain": None if run.plain is None else run.plain.key,
    }


def outputs(run: Run) -> dict[str, Any]:
    """What the model says, and what it says with every head at work where some are silent."""
    return {"output": asdict(run.output), "plain": None if run.plain is None else asdict(run.plain.output)}


def sides(read: Read) -> dict[str, Any]:
    """The sequences, by the stack that reads them."""
    return {
        stack: {"text": side.text, "tokens": [asdict(t) for t in side.tokens]} for stack, side in read.sides.items()
    }


def _rules(asked: StepsAsked | TreeAsked) -> Rules:
    return Rules(frequency=asked.frequency, presence=asked.presence, longest=Absolute(tokens=asked.longest))
