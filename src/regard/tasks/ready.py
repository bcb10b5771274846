"""Everything that a job needs before its first step: tokenizers, the model's settings, prepared data, the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from regard.data.assemble import Assembler, Documents, Images, Pairs, Windows
from regard.data.assemble_masked import MaskedDocuments, MaskedWindows, Masking
from regard.data.batches import Share
from regard.data.files import require_there
from regard.data.forms import Form, PairForm, TextForm
from regard.data.image_form import ImageForm
from regard.data.labels import Labels
from regard.data.prepare import Counts, Preparation, prepare
from regard.data.prepared import Prepared
from regard.data.settings import Split, Texts
from regard.data.source import Source
from regard.data.vocabularies import learn_pair, learn_tokenizer
from regard.errors import SettingsError
from regard.models.settings import Encoder, ModelSettings, Vision
from regard.tasks import image, masked
from regard.tasks.batching import Batching
from regard.tasks.image import ImageTask
from regard.tasks.language import LanguageTask
from regard.tasks.masked import MaskedTask
from regard.tasks.plain import PlainTask
from regard.tasks.recipe import Job, job_model, reach, with_vocabulary
from regard.tasks.settings import Bleu, Image, Language, Masked, TokenizerFile, Translate
from regard.tasks.translate import TranslateTask, Trial
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.training.settings import Train
from regard.weights.warm_start import Start

Tell: TypeAlias = Callable[[str], None]
"""Is told, now and then, what is being done."""

TOO_LONG = {"skip": "too long, skipped", "truncate": "too long, cut", "split": "too long, split"}
"""What `data.too_long` does, told."""


@dataclass(frozen=True)
class Ready:
    """A job whose data lie prepared."""

    task: PlainTask
    model: ModelSettings
    """With the vocabulary and the heads that the data ask for."""
    head: str | None
    """The head that is trained, in the families that have heads."""
    tokenizers: TokenizerPair | None
    labels: Labels | None
    preparations: Mapping[Split, Preparation]
    too_long: str = "skip"
    """What was done with examples that are: skip, truncate or split."""

    @property
    def about(self) -> dict[str, Any]:
        """What there is to learn from, for the log's first line."""
        splits = {split: _told(made.counts) for split, made in self.preparations.items()}
        if isinstance(self.model, Vision):
            for split, told in splits.items():  # what is counted there are bytes; a model reads patches
                told["tokens"] = self.preparations[split].counts.examples * self.model.tokens
        notes = [
            note
            for split, made in self.preparations.items()
            for note in (*made.notes, *_left_out(split, made, self.too_long))
        ]
        return {**{str(split): told for split, told in splits.items()}, "notes": notes}

    def require_sound(self, train: Train) -> None:
        """Refuses, before anything is written, what training could only stumble over later."""
        for split in self.preparations:
            self.task.batches(split, Share())
        if self.task.has("valid") and train.select not in self.task.scores:
            known = ", ".join(self.task.scores)
            raise SettingsError(f"train.select ({train.select}) is no figure of this task; choose one of {known}")

    @property
    def fingerprints(self) -> dict[str, list[str]]:
        """Names of the prepared data, which their content decides."""
        return {
            split: [prepared.directory.name for prepared in made.variants] for split, made in self.preparations.items()
        }


def _told(counts: Counts) -> dict[str, Any]:
    def number(reasons: Mapping[str, Any]) -> int:
        return sum(reason.count for reason in reasons.values())

    tokens = sum(counts.tokens.values())
    return {
        "examples": counts.examples,
        "tokens": tokens,
        "skipped": number(counts.skipped),
        "removed": number(counts.removed),
        "too_long": number(counts.too_long),
        "unseen": number(counts.unseen),
        "unknown": sum(counts.unknown.values()) / max(tokens, 1),
    }


def _left_out(split: Split, made: Preparation, too_long: str) -> Iterator[str]:
    """What was left out of a split or cut, and where: a number alone helps nobody to mend a file."""
    counts = made.counts
    for what, reasons in (
        ("skipped", counts.skipped),
        ("removed", counts.removed),
        (TOO_LONG[too_long], counts.too_long),
        ("unseen", counts.unseen),
    ):
        for reason, told in reasons.items():
            yield f"{split}, {what}: {told.count:,} × {reason}; first {told.first[0]}"


def make_ready(
    job: Job,
    device: torch.device,
    start: Start | None = None,
    tokenizers: TokenizerPair | None = None,
    tell: Tell = lambda text: None,
    splits: tuple[Split, ...] = ("train", "valid"),
    labels: Labels | None = None,
) -> Ready:
    """Tokenizers (those given, or the job's), the model, and the data of the splits that there are, in this order.

    Without the training data, the labels of images must be given.
    """
    model = job_model(job, None if start is None else start.settings)
    splits = tuple(split for split in splits if split == "train" or split in job.data.splits)
    if isinstance(job.task, Image):
        return _images(job, model, device, tell, splits, labels)
    for split in splits:
        require_there(Source(job.data, split).files)
    if tokenizers is None:
        tokenizers = _tokenizers(job, start, tell)
    named = "vocabulary" in job.model and start is None
    model = with_vocabulary(model, tokenizers.sizes, tokenizers.shared, named)
    head = None
    if isinstance(job.task, Masked):
        assert isinstance(model, Encoder)
        model, head = masked.with_head(model)
    form, longest = _form(job, tokenizers), _longest(job, model)
    made = {split: _one(job, split, form, longest, tell) for split in splits}
    assemblers = {
        split: [_assembler(job, tokenizers, each) for each in preparation.variants]
        for split, preparation in made.items()
    }
    batching = Batching(assemblers, job.train, device)
    too_long = getattr(job.data, "too_long", "skip")
    return Ready(_task(job, head, batching, tokenizers, model), model, head, tokenizers, None, made, too_long)


def _task(job: Job, head: str | None, batching: Batching, tokenizers: TokenizerPair, model: ModelSettings) -> PlainTask:
    match job.task:
        case Translate(bleu=Bleu() as bleu) if "valid" in job.data.splits:
            trial = Trial.of(bleu, Source(job.data, "valid"), tokenizers, reach(model))
            return TranslateTask(job.task, batching, trial)
        case Translate():
            return TranslateTask(job.task, batching)
        case Language():
            return LanguageTask(job.task, batching)
        case _:
            assert head is not None
            return MaskedTask(head, batching)


# --------------------------------------------------------------------------------------------------------- tokenizers


def _tokenizers(job: Job, start: Start | None, tell: Tell) -> TokenizerPair:
    """One for each side of pairs, or the same twice."""
    if job.text is None:
        if start is None or start.tokenizer is None:
            raise SettingsError(
                f"train.start ({job.train.start}) holds no tokenizer; name one: text.kind=file text.path=FILE"
            )
        return start.tokenizer
    if isinstance(job.text, TokenizerFile):
        return TokenizerPair.load(job.text.path)
    source = Source(job.data, "train")
    size = getattr(job.text, "size", None)
    what = f"a {job.text.kind} tokenizer" + (f" of {size:,} tokens" if size else "")

    def report(stage: str, done: int, total: int | None) -> None:
        if stage != "done":
            texts = "texts" if total is None else f"{total:,} texts"
            tell(f"learning {what} from {texts}: {done:,} read")

    if isinstance(job.task, Translate):
        return learn_pair(source, job.text, report=report)
    return TokenizerPair.of(learn_tokenizer(source, job.text, report=report))


# --------------------------------------------------------------------------------------------------------------- data


def _one(job: Job, split: Split, form: Form, longest: int | None, tell: Tell) -> Preparation:
    def told(done: int, total: int | None) -> None:
        tell(f"preparing {split}: {done:,} {'examples' if total is None else f'of {total:,} examples'}")

    return prepare(Source(job.data, split), form, longest=longest, seed=job.train.seed, tell=told)


def _form(job: Job, tokenizers: TokenizerPair) -> Form:
    match job.task:
        case Translate():
            return PairForm(tokenizers)
        case Language() | Masked() if job.task.across:
            return TextForm(tokenizers.source, "stream")
        case Masked():
            return TextForm(tokenizers.source, "encoder")
        case _:
            return TextForm(tokenizers.source, "document")


def _longest(job: Job, model: ModelSettings) -> int | None:
    """The most tokens of an example: what the task sees at once, what the positions reach, what a step holds.

    What has no say is left out, since data are prepared again for another limit.
    """
    limit = reach(model)
    if isinstance(job.task, Translate):
        # Not train.micro: a resumed run may be given another, and its data must stay what they were.
        named = job.data.longest if isinstance(job.data, Texts) else None
        fits = named is not None and named <= job.train.tokens
        return limit if fits else min(job.train.tokens, limit or job.train.tokens)
    assert isinstance(job.task, Language | Masked)
    context = job.task.context
    if limit is not None and context > limit:
        raise SettingsError(
            f"task.context ({context:,}) exceeds the model's positions ({limit:,}); lower it, or set "
            f"model.position.length={context}"
        )
    held = min(job.train.tokens, job.train.micro or job.train.tokens)
    if context > held:
        what = "train.micro" if job.train.micro else "train.tokens"
        raise SettingsError(f"task.context ({context:,}) exceeds {what} ({held:,}), so no step holds it; change one")
    return None if job.task.across else context


def _assembler(job: Job, tokenizers: TokenizerPair, prepared: Prepared) -> Assembler:
    tokenizer = tokenizers.source
    pad = tokenizer.roles.get("pad", 0)
    match job.task:
        case Translate():
            return Pairs(prepared, pad)
        case Language():
            return Windows(prepared, pad, job.task.context) if job.task.across else Documents(prepared, pad)
        case Masked():
            masking = _masking(job.task, tokenizer)
            if job.task.across:
                return MaskedWindows(prepared, pad, masking, job.task.context)
            return MaskedDocuments(prepared, pad, masking)
        case _:
            raise AssertionError(job.task.kind)


def _masking(task: Masked, tokenizer: Tokenizer) -> Masking:
    special = {*tokenizer.roles.values(), *tokenizer.extra.values()}
    mask = tokenizer.role("mask")
    return Masking(mask, tokenizer.size, tuple(sorted(special - {mask})), task.rate, task.hidden, task.random)


def _images(
    job: Job,
    model: ModelSettings,
    device: torch.device,
    tell: Tell,
    splits: tuple[Split, ...],
    labels: Labels | None,
) -> Ready:
    assert isinstance(model, Vision)
    assert isinstance(job.task, Image)
    if model.channels not in (1, 3):
        raise SettingsError(f"model.channels ({model.channels}) must be 1 (grey) or 3 (colours) to read images")
    form = ImageForm(model.image, 1 if model.channels == 1 else 3)
    made: dict[Split, Preparation] = {}
    for split in splits:  # the training data come first: they say which labels there are
        made[split] = _one(job, split, replace(form, labels=labels), None, tell)
        labels = labels or made[split].labels
    assert labels is not None
    model, head = image.with_head(model, len(labels))
    shape = (model.channels, *model.image)
    assemblers: dict[Split, list[Assembler]] = {
        split: [Images(each, shape, model.tokens) for each in preparation.variants]
        for split, preparation in made.items()
    }
    task = ImageTask(job.task, head, Batching(assemblers, job.train, device))
    return Ready(task, model, head, None, labels, made)
