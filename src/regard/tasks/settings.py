"""Settings of tasks: a recipe's `task`, a name alone (`task = "translate"`) or a table. No torch in here."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.settings import Settings
from regard.text.settings import AnyTokenizer, Positive

Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class _Smoothed(Settings):
    smoothing: Share = 0.0
    """Label smoothing: this share of each label's mass is spread evenly over all classes, the right one included
    (Szegedy et al. 2016; the convention of PyTorch's cross_entropy)."""


class SimCut(Settings):
    """The model shall say the same with some words hidden: `weight` times the divergence of what it says with all of
    them from what it says without, through both of which it learns (Gao et al. 2022)."""

    kind: Literal["simcut"] = "simcut"
    weight: float = Field(default=3.0, gt=0)
    """What the divergence is multiplied by (alpha)."""
    cut: float = Field(default=0.05, gt=0, lt=1)
    """Share of tokens, on both sides, whose vectors are zeroed."""


class RDrop(Settings):
    """Two passes that dropout makes differ shall say the same: the mean of both losses, and `weight` times half the
    sum of both divergences (Liang et al. 2021)."""

    kind: Literal["r-drop"] = "r-drop"
    weight: float = Field(default=5.0, gt=0)
    """What the divergence is multiplied by (alpha)."""


class Bleu(Settings):
    """Each evaluation also translates the validation data, and gives the figure `bleu` (sacreBLEU's)."""

    sentences: Positive = 500
    """How many are translated, at the most; the same ones each time."""
    beam: Positive = 1
    """Sequences that are searched side by side; 1: greedy."""
    lowercase: bool = False
    """Whether upper and lower case count as the same."""
    tokenize: Literal["13a", "intl", "char", "none"] = "13a"
    """How sacreBLEU cuts words; none: the texts are cut already."""


class Translate(_Smoothed):
    """From one text to another: translation, but also summaries, normalisation, ... Needs an encoder-decoder."""

    kind: Literal["translate"] = "translate"
    smoothing: Share = 0.1
    consistency: Annotated[SimCut | RDrop, Field(discriminator="kind")] | None = None
    """A second pass over each batch that must agree with the first; none: one pass."""
    bleu: Bleu | None = None
    """Validation by translating, for `train.select = "bleu"`; none: by loss alone."""


class _Context(Settings):
    context: Positive = 256
    """Most tokens that are seen at once: longer documents are cut into parts, and a window has just as many."""


class Language(_Smoothed, _Context):
    """The next token of raw text. Needs a decoder."""

    kind: Literal["language"] = "language"
    across: bool = True
    """Whether a window may hold several documents, each seeing those before it (GPT-2); else each stands alone."""


class Masked(_Context):
    """The hidden tokens of raw text (Devlin et al. 2019: BERT). Needs an encoder."""

    kind: Literal["masked"] = "masked"
    context: Positive = 128
    across: bool = False
    """Whether a window may hold several documents; else each stands alone, between class token and separator."""
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that are to be predicted."""
    hidden: float = Field(default=0.8, ge=0, le=1)
    """Share of those that are replaced by the mask token."""
    random: float = Field(default=0.1, ge=0, le=1)
    """Share of those that are replaced by any token; the rest stay as they are."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden + self.random > 1:
            raise ValueError(
                f"hidden ({self.hidden}) and random ({self.random}) are shares of the same tokens and must not exceed "
                "1 together; lower one"
            )
        return self


class Image(_Smoothed):
    """The class of an image. Needs a vision model."""

    kind: Literal["image"] = "image"


TaskSettings: TypeAlias = Translate | Language | Masked | Image
AnyTask: TypeAlias = Annotated[TaskSettings, Field(discriminator="kind")]
"""What `parse` takes to read `task`, told apart by its `kind`."""


class TokenizerFile(Settings):
    """A tokenizer that is there already: a `tokenizer.json`, or the directory of a model."""

    kind: Literal["file"] = "file"
    path: str = "tokenizer.json"
    """The file, or the directory that holds it (of a run, or Hugging Face's)."""


AnyText: TypeAlias = Annotated[AnyTokenizer | TokenizerFile, Field(discriminator="kind")]
"""What `parse` takes to read the table `[text]`: how a tokenizer is trained, or where one lies."""
