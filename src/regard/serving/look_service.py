"""What the page asks for, answered by a study, one request after the other. Answers are plain values."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.settings import Absolute, Beam, Paper, Rules, Sampling
from regard.errors import InputError
from regard.look.align import measured_in
from regard.look.answers import token_name
from regard.look.atlas import atlas
from regard.look.compare import compare, control, names_of_both
from regard.look.head_notes import HeadNotes
from regard.look.lens import outputs_of
from regard.look.lensed import lensed
from regard.look.nearness import placed
from regard.look.occlusion import occlude
from regard.look.patches import Query, concentration, over_patches
from regard.look.reading import Input, Read
from regard.look.run_rollout import PREFIX, rollout_map
from regard.look.samples import SAMPLES
from regard.look.stepwise import Choosing, grow_tree, write_stepwise, written
from regard.look.study import Run, Study
from regard.look.walk import Place, walk
from regard.models.settings import Vision
from regard.serving.look_maps import positions_told, vectors_told
from regard.serving.look_shapes import (
    Asked,
    CompareAsked,
    LensAsked,
    NotesAsked,
    OccludeAsked,
    PatchesAsked,
    PositionsAsked,
    RunAsked,
    RunNamed,
    StepsAsked,
    TreeAsked,
    VectorsAsked,
    WalkAsked,
    WritingAsked,
)
from regard.use.translator import Translator


class Question(NamedTuple):
    """What the page may ask."""

    asked: type[Asked]
    answer: Callable[[Any], dict[str, Any]]
    """Takes a request of that type."""


class LookService:
    """The answers of the page; all but `about` belong into the worker thread of the queue."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._notes = HeadNotes(study)
        self.questions = {
            "run": Question(RunAsked, self.run),
            "output": Question(RunNamed, self.output),
            "notes": Question(NotesAsked, self.notes),
            "patches": Question(PatchesAsked, self.patches),
            "occlude": Question(OccludeAsked, self.occlude),
            "walk": Question(WalkAsked, self.walk),
            "steps": Question(StepsAsked, self.steps),
            "tree": Question(TreeAsked, self.tree),
            "lens": Question(LensAsked, self.lens),
            "vectors": Question(VectorsAsked, self.vectors),
            "positions": Question(PositionsAsked, self.positions),
            "compare": Question(CompareAsked, self.compare),
            "control": Question(CompareAsked, self.control),
        }
        """By the end of their path."""

    def about(self) -> dict[str, Any]:
        """What the model is."""
        study, loaded = self.study, self.study.loaded
        settings = loaded.settings
        translator = loaded if isinstance(loaded, Translator) else None
        return {
            "name": loaded.name,
            "family": settings.kind,
            "width": settings.width,
            "parameters": sum(each.numel() for each in study.network.parameters()),
            "views": study.views,
            "attentions": [asdict(each) for each in study.attentions],
            "directions": [list(each) for each in translator.directions] if translator else [],
            "translates": translator is not None,
            "image": [settings.channels, *settings.image] if isinstance(settings, Vision) else None,
            "patch": settings.patch if isinstance(settings, Vision) else None,
            "aligned": [list(each) for each in translator.frame.look.heads]
            if translator and translator.frame.look
            else [],
            "align_measured": [asdict(each) for each in measured_in(loaded.config)] if translator else [],
            "picture": None
            if study.picture is None
            else {"name": study.picture.name, "pixels": _base64(study.picture.pixels)},
            "outputs": outputs_of(loaded),
            "samples": {code: sample._asdict() for code, sample in SAMPLES.items()},
            "beside": None if study.beside is None else self._beside(study.beside),
        }

    def _beside(self, other: Study) -> dict[str, Any]:
        return {
            "name": names_of_both(self.study.loaded.name, other.loaded.name)[1],
            "width": other.loaded.settings.width,
            "parameters": sum(each.numel() for each in other.network.parameters()),
            "attentions": [asdict(each) for each in other.attentions],
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
        found = self.found(run, name)
        return found.contiguous().numpy().astype("<f4", copy=False).tobytes(), list(found.shape)

    def found(self, run: str, name: str) -> Tensor:
        """A tensor of a run, or a rollout."""
        study = self.study.holding(run)
        return rollout_map(study, study.known(run), name) if name.startswith(PREFIX) else study.tensor(run, name)

    def notes(self, asked: NotesAsked) -> dict[str, Any]:
        """What can be said of the heads of one attention, by their addresses."""
        found = self._notes.at(self.study.known(asked.run), asked.at)
        return {"heads": {head: asdict(note) for head, note in found.items()}}

    def patches(self, asked: PatchesAsked) -> dict[str, Any]:
        """A map over the patches of an image, and how concentrated it is."""
        run, query = self.study.known(asked.run), _query(asked)
        found = over_patches(self.study, run, query)
        beside = asdict(concentration(self.study, run, query))
        if not beside["draws"]:  # there is only one head
            beside["chance"] = None
        return {"patches": found.patches_N.tolist(), "rest": found.rest, "concentration": beside}

    def occlude(self, asked: OccludeAsked) -> dict[str, Any]:
        """The answer without the patches that are looked at most."""
        run = self.study.known(asked.run)
        return asdict(occlude(self.study, run, _query(asked), asked.count, seed=asked.seed))

    def walk(self, asked: WalkAsked) -> dict[str, Any]:
        """The path of a run."""
        run = self.study.known(asked.run)
        steps = walk(self.study, run, Place(asked.stack, asked.layer, asked.kind, asked.head))
        return {"steps": [asdict(step) for step in steps]}

    def lens(self, asked: LensAsked) -> dict[str, Any]:
        """What each layer of a run would say."""
        return asdict(lensed(self.study, self.study.known(asked.run), asked.output))

    def compare(self, asked: CompareAsked) -> dict[str, Any]:
        """A run beside another."""
        return asdict(compare(self.study, self.study.known(asked.run), asked.changes))

    def control(self, asked: CompareAsked) -> dict[str, Any]:
        """What random heads change in the place of those that were chosen."""
        return asdict(control(self.study, self.study.known(asked.run), asked.changes))

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
        nodes = [asdict(node) | {"text": token_name(self.study.loaded, node.token)} for node in found.nodes]
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

    def vectors(self, asked: VectorsAsked) -> dict[str, Any]:
        """The words of some sentences on maps."""
        return vectors_told(atlas(self.study.loaded, asked.texts, asked.to, self.study.limit))

    def positions(self, asked: PositionsAsked) -> dict[str, Any]:
        """The positions of one side of the model."""
        return positions_told(placed(self.study.loaded, asked.length, asked.part))

    def _pixels(self, image: str) -> Any:
        settings = self.study.loaded.settings
        if not isinstance(settings, Vision):
            raise InputError(f"image is for models that read images; this one is of kind {settings.kind}")
        shape = (settings.channels, *settings.image)
        try:
            raw = base64.b64decode(image, validate=True)
        except (binascii.Error, ValueError):
            raise InputError("image is not base64") from None
        if len(raw) != int(np.prod(shape)):
            raise InputError(f"image has {len(raw):,} bytes, expected {int(np.prod(shape)):,}: {list(shape)}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


def told(run: Run) -> dict[str, Any]:
    """A run as the page reads it."""
    return {
        "image": None if run.given.image is None else _base64(run.given.image),
        "run": run.key,
        "sides": sides(run.read),
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


def _rules(asked: WritingAsked) -> Rules:
    return Rules(frequency=asked.frequency, presence=asked.presence, longest=Absolute(tokens=asked.longest))


def _query(asked: PatchesAsked) -> Query:
    return Query(asked.query, asked.layer, asked.head, asked.rollout)


def _base64(pixels: NDArray[np.uint8]) -> str:
    return base64.b64encode(pixels.tobytes()).decode()
