"""Requests of the page."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from regard.serving.settings import Text

HEADS = 4096
"""Silent heads that a request may name."""
BEAM = 16
"""The widest beam."""
SENTENCES = 64
"""Lines of a request, empty ones too."""
PLACES = 256
"""Places whose encodings a request may want."""
Number: TypeAlias = Annotated[int, Field(ge=0, le=2**31)]


class Asked(BaseModel):
    """A request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def letters(self) -> int:
        """Characters of the texts that the model is to read."""
        return 0


class RunAsked(Asked):
    """An input to be looked at."""

    text: Text = ""
    target: Text | None = None
    to: Text | None = None
    image: Text | None = None
    """The bytes of an image, as base64: channels, height, width."""
    ablated: list[Text] = Field(default=[], max_length=HEADS)

    @property
    def letters(self) -> int:
        return len(self.text) + len(self.target or "")


class RunNamed(Asked):
    """A run that was made before."""

    run: Text


class TensorNamed(Asked):
    """A tensor of a run."""

    run: Text
    name: Text


class NotesAsked(Asked):
    """What can be said of the heads of one attention, `decoder.1.cross`."""

    run: Text
    at: Text


class WalkAsked(Asked):
    """The path of a run through one head."""

    run: Text
    stack: Text = "encoder"
    layer: Number = 0
    kind: Text = "attention"
    head: Number = 0


class PatchesAsked(Asked):
    """Where a query of an image looks, and how that compares with chance."""

    run: Text
    query: int | None = Field(default=-1, ge=-1, le=2**31)
    """A patch, −1 for the class token; none: the mean over all patches."""
    layer: Number = 0
    head: Number = 0
    rollout: bool = False


class OccludeAsked(PatchesAsked):
    """What greying out the patches does that a query looks at most."""

    count: int = Field(default=1, ge=1, le=2**16)
    seed: int = Field(default=0, ge=0, le=2**31)


class WritingAsked(Asked):
    """What a run's model writes."""

    run: Text
    frequency: float = Field(default=0.0, ge=-100, le=100)
    presence: float = Field(default=0.0, ge=-100, le=100)
    prefix: list[Number] = Field(default=[], max_length=256)
    longest: int = Field(default=48, ge=1, le=64)


class StepsAsked(WritingAsked):
    """The same, step by step."""

    temperature: float = Field(default=1.0, ge=0.01, le=100)
    top_k: int = Field(default=0, ge=0, le=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1)
    draws: bool = False
    seed: int = Field(default=0, ge=0, le=2**31)


class TreeAsked(WritingAsked):
    """The same, by a beam search."""

    beam: int = Field(default=4, ge=1, le=BEAM)
    alpha: float = Field(default=0.6, ge=-5, le=5)


class VectorsAsked(Asked):
    """Sentences whose words are put on maps."""

    texts: list[Text] = Field(max_length=SENTENCES)
    to: Text | None = None

    @property
    def letters(self) -> int:
        return sum(map(len, self.texts))


class PositionsAsked(Asked):
    """The positions of one side of a model."""

    part: Literal["encoder", "decoder"] | None = None
    length: int | None = Field(default=None, ge=2, le=PLACES)


class LensAsked(Asked):
    """What each layer of a run would say."""

    run: Text
    output: Text | None = None
    """The output through which layers are read; none: the first."""


class CompareAsked(Asked):
    """A run beside one with other heads or, if none are named, beside another model."""

    run: Text
    changes: list[Text] = Field(default=[], max_length=HEADS)
