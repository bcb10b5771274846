"""`regard.load`: opens a shipped model, a run directory, a Hugging Face directory or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from regard.blocks.settings import PoolingKind
from regard.data.examples import Labels, Sort
from regard.decoding.alignment import Look
from regard.decoding.settings import Ends, GenerateOptions, TranslateOptions
from regard.errors import InputError, SettingsError, WeightsError
from regard.files import parse_json, read_json
from regard.models.build import Model, Place, find_device
from regard.models.cpu import prepared
from regard.models.families import Decoder, Encoder, EncoderDecoder, Vision
from regard.models.settings import ModelSettings, reach
from regard.settings import Table, shown
from regard.text.tokenizer import FILE, TokenizerPair, check_texts
from regard.weights import directory as run_directory
from regard.weights.directory import load_model
from regard.weights.huggingface.directory import named_labels
from regard.weights.huggingface.tables import CONFIG_JSON, GENERATION
from regard.weights.location import find_model

if TYPE_CHECKING:
    from regard.decoding.settings import AllKeywords, GenerateKeywords, Keywords
    from regard.tasks.masked import MaskedTask
    from regard.tasks.task import Task
    from regard.use.generator import Generation
    from regard.use.translator import Alignment, Translation, Translator

    @dataclass(frozen=True)
    class AlignedTranslation(Translation):  # noqa: D101
        alignment: Alignment

    AnyTranslation: TypeAlias = str | Translation | list[Translation]

# mypy: disable-error-code="overload-overlap"
# A str is a sequence of str too; its overloads come first.
Texts: TypeAlias = Sequence[str]
Options: TypeAlias = TranslateOptions | None
Yes: TypeAlias = Literal[True]
Keys: TypeAlias = dict[str, tuple[str, Callable[[Any], Any]]]
"""The keys of `generation_config.json` that are read, and our options. Later ones win."""
AnyOptions = TypeVar("AnyOptions", TranslateOptions, GenerateOptions)
Use: TypeAlias = Literal["translate", "predict", "fill", "embed"]
"""What a loaded model can do: the names of its methods."""
ShippedName: TypeAlias = Literal["de-en", "en-de", "german-english"]


@dataclass(frozen=True)
class Frame:
    """The special tokens that an encoder-decoder expects around its texts."""

    ends: Ends
    foreign: bool = False
    """Whether sources get the frame of the tokenizer, as in Hugging Face models; otherwise only an end."""
    prefix: tuple[int, ...] = ()
    """Tokens at the start of every translation."""
    never: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that never occur."""
    defaults: TranslateOptions = field(default_factory=TranslateOptions)
    """Options that hold where a request names no others."""
    look: Look | None = None
    """The attention heads that align words; None: the default."""


class Loaded:
    """A model with its tokenizers and its configuration. Example: `regard.load("de-en").settings.width`."""

    def __init__(
        self, name: str, directory: Path, network: Model, tokenizers: TokenizerPair | None, config: Table
    ) -> None:
        self.name = name
        self.directory = directory
        self.network = network
        """A `torch.nn.Module`."""
        self.tokenizers = tokenizers
        """The tokenizers of source and target (the same object twice if there is one), or None."""
        self.config = config
        """The tables of `config.toml` of a run, or of `config.json` of a Hugging Face directory."""

    @property
    def settings(self) -> ModelSettings:
        """The settings of the network."""
        return self.network.settings

    @cached_property
    def uses(self) -> frozenset[Use]:
        """What the model can do."""
        from regard.tasks.task import Task

        found: set[Use] = {"fill"} if self._fill_task is not None else set()
        with suppress(InputError):
            found |= {"predict"} if type(self._task).predict is not Task.predict else set()
        return frozenset(found | {"embed"} if self._embeds else found)

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """The prediction for each input by the task that the model was trained for: see `Task.predict`."""
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
            raise InputError(f"inputs is of type {type(inputs).__name__}, expected a list; write [input]")
        return self._task.predict(self.network, inputs)

    def fill(self, text: str, best: int = 5) -> list[dict[str, float]]:
        """The most likely tokens for each mask token of a text, with their probabilities, the most likely first.

        >>> [tokens] = model.fill("The [MASK] of the river")  # doctest: +SKIP
        """
        if not isinstance(text, str):
            raise InputError(f"text is of type {type(text).__name__}, expected str")
        if self._fill_task is None:
            raise InputError(f"model {self.name} has no head for masked tokens; train one with task masked")
        return self._fill_task.predict(self.network, [text], best)[0]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector of length 1 for each text, `[texts, width]`: the mean of the hidden states, or the model's pooling.

        >>> one, other = model.embed(["a dog", "a cat"])  # doctest: +SKIP
        >>> cosine = one @ other  # doctest: +SKIP
        """
        from regard.tasks.embed import Embed, EmbedTask

        check_texts(texts)
        if self.tokenizers is None or not self._embeds:
            raise InputError(f"model {self.name} has kind {self.settings.kind} and cannot embed texts; load an encoder")
        task = self._task if task_kind(self.config) == "embed" else None
        if not isinstance(task, EmbedTask):
            task = EmbedTask(Embed(), _sentence_limit(self.directory, self.settings), self.tokenizers)
            task.pooled = _sentence_pooling(self.directory)
        return np.array(task.predict(self.network, texts), np.float32).reshape(len(texts), self.settings.width)

    @property
    def _embeds(self) -> bool:
        return self.tokenizers is not None and isinstance(self.network, Encoder | Decoder)

    @cached_property
    def _fill_task(self) -> MaskedTask | None:
        from regard.tasks.masked import MaskedTask

        task = self._task_for("masked")
        return task if isinstance(task, MaskedTask) else None

    @cached_property
    def _task(self) -> Task:
        from regard.tasks.task import HEAD_TASKS, load_task  # not needed to translate

        if "task" in self.config:
            return load_task(self.directory, self.network)
        heads = getattr(self.settings, "heads", {}).values()
        if self.config.get("problem_type") == "multi_label_classification":
            raise InputError(f"model {self.name} predicts several labels (problem_type), but only one is supported")
        if isinstance(self.network, Vision) and any(head.kind == "classification" for head in heads):
            from regard.tasks.image import Image, ImageTask

            of_images = ImageTask(Image(), self.settings, labels=self._labels)
            of_images.fit()
            return of_images
        kinds = [HEAD_TASKS[head.kind] for head in heads if head.kind in HEAD_TASKS]
        task = self._task_for(kinds[0]) if kinds and self.tokenizers is not None else None
        if task is None:
            raise InputError(f"model {self.name} has no task, so it cannot predict; give a run of regard train")
        return task

    @property
    def _labels(self) -> dict[Sort, Labels]:
        """The names of classes in `labels.json`, or else those of a Hugging Face config."""
        return named_labels(self.config) | run_directory.load_labels(self.directory)

    def _task_for(self, kind: str) -> Task | None:
        """The task of a kind, with the model's own settings if it was trained for it; None if it has no head for it."""
        from regard.tasks.task import head_task

        if self.tokenizers is None:
            return None
        if task_kind(self.config) == kind:
            return self._task
        return head_task(kind, self.network, self.tokenizers, self._labels)

    @overload
    def translate(self, text: str, **changes: Unpack[Keywords]) -> str: ...
    @overload
    def translate(self, text: str, *, details: Yes, align: bool = ..., **changes: Unpack[Keywords]) -> Translation: ...
    @overload
    def translate(self, text: str, *, align: Yes, **changes: Unpack[Keywords]) -> AlignedTranslation: ...
    @overload
    def translate(self, text: str, *, nbest: int, **changes: Unpack[AllKeywords]) -> list[Translation]: ...
    @overload
    def translate(
        self, text: str, options: Options = ..., *, nbest: int = ..., **changes: Unpack[AllKeywords]
    ) -> AnyTranslation: ...
    @overload
    def translate(self, text: Texts, **changes: Unpack[Keywords]) -> list[str]: ...
    @overload
    def translate(
        self, text: Texts, *, details: Yes, align: bool = ..., **changes: Unpack[Keywords]
    ) -> list[Translation]: ...
    @overload
    def translate(self, text: Texts, *, align: Yes, **changes: Unpack[Keywords]) -> list[AlignedTranslation]: ...
    @overload
    def translate(self, text: Texts, *, nbest: int, **changes: Unpack[AllKeywords]) -> list[list[Translation]]: ...
    @overload
    def translate(
        self, text: Texts, options: Options = ..., *, nbest: int = ..., **changes: Unpack[AllKeywords]
    ) -> list[AnyTranslation]: ...
    def translate(self, text: Any, options: TranslateOptions | None = None, **changes: Any) -> Any:
        """Translates a text or a list of texts.

        Keywords are the fields of `TranslateOptions` (`to`, `beam`, `nbest`, `align`, `must`, ...). For a text the
        result is a string; with `details` or `align` a `Translation`; with `nbest` above 1 a list of them. For a list
        of texts it is a list.

        >>> regard.load("de-en").translate("Ein Hund läuft durch den Schnee.")
        'A dog runs through the snow.'
        """
        return self._translate(text, options, changes)

    def _translate(self, text: Any, options: TranslateOptions | None, changes: Table) -> Any:
        raise self._cannot("translate", EncoderDecoder, "encoder-decoder")

    def _cannot(self, verb: str, family: type[Model], kind: str) -> InputError:
        problem = f"model {self.name} has no {FILE}, so it cannot {verb}; copy one into its directory"
        if not isinstance(self.network, family):
            problem = f"model {self.name} has kind {self.settings.kind} and cannot {verb}; load one of kind {kind}"
        return InputError(problem)

    @overload
    def generate(self, prompt: str, **changes: Unpack[GenerateKeywords]) -> str: ...
    @overload
    def generate(self, prompt: str, *, details: Yes, **changes: Unpack[GenerateKeywords]) -> Generation: ...
    @overload
    def generate(
        self, prompt: str, *, logprobs: int, details: bool = ..., **changes: Unpack[GenerateKeywords]
    ) -> Generation: ...
    @overload
    def generate(self, prompt: Texts, **changes: Unpack[GenerateKeywords]) -> list[str]: ...
    @overload
    def generate(self, prompt: Texts, *, details: Yes, **changes: Unpack[GenerateKeywords]) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: str | Texts,
        options: GenerateOptions | None = ...,
        *,
        n: int = ...,
        logprobs: int | None = ...,
        details: bool = ...,
        **changes: Unpack[GenerateKeywords],
    ) -> Any: ...
    def generate(self, prompt: Any, options: GenerateOptions | None = None, **changes: Any) -> Any:
        """Continues a prompt or a list of prompts.

        Keywords are the fields of `GenerateOptions` (`tokens`, `temperature`, `top_p`, `stop`, `n`, `seed`, ...). For a
        prompt the result is a string; with `details` or `logprobs` a `Generation`; with `n` above 1 a list of them. For
        a list of prompts it is a list.

        >>> model.generate("It was", tokens=20, temperature=0.8)  # doctest: +SKIP
        """
        return self._generate(prompt, options, changes)

    def _generate(self, prompt: Any, options: GenerateOptions | None, changes: Table) -> Any:
        raise self._cannot("generate", Decoder, "decoder")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.settings.kind})"


@overload
def load(
    name: ShippedName, device: Place = ..., dtype: torch.dtype | None = ..., int8: bool = ..., int4: bool = ...
) -> Translator: ...
@overload
def load(
    name: Path | str, device: Place = ..., dtype: torch.dtype | None = ..., int8: bool = ..., int4: bool = ...
) -> Loaded: ...
def load(
    name: Path | str, device: Place = None, dtype: torch.dtype | None = None, int8: bool = False, int4: bool = False
) -> Loaded:
    """Opens a model: a shipped name (`de-en`), a run directory, a Hugging Face directory or a GGUF file.

    The result is a `Translator` if the model translates, a `Generator` if it continues texts. `device` is a GPU by
    default, if there is one. `dtype` is that of the file by default, except that 16-bit models become float32 on a CPU,
    where they are slow. `int8` computes with 8-bit weights on a CPU: faster, less exact; `int4` with 4-bit weights, for
    generating one text at a time.

    Example: `regard.load("de-en")`.
    """
    from regard.use.translator import Translator  # a subclass of Loaded

    if int8 and int4:
        raise InputError("int8 and int4 exclude each other; choose one")
    place, direction = find_model(str(name))
    chosen = find_device("cpu" if (int8 or int4) and device is None else device)
    network = load_model(place, chosen, dtype)
    half = next(network.parameters()).dtype in (torch.float16, torch.bfloat16)
    if dtype is None and chosen.type == "cpu" and half:
        network = network.float()
    if int8 or int4:
        network = prepared(network, "int8" if int8 else "int4")
    tokenizers = TokenizerPair.find(place)
    foreign = not (place / run_directory.CONFIG).is_file()
    config = read_json(place / CONFIG_JSON) if foreign else run_directory.read_config(place)
    if isinstance(network, Decoder) and tokenizers is not None:
        from regard.use import generator  # a subclass of Loaded

        _require_rows(place, [("target", network.settings.vocabulary, tokenizers.target.size)])
        given = (network, tokenizers, config)
        stated = config if foreign else config.get("generation")  # of a Hugging Face model that was converted
        if stated is None:
            text_frame = generator.run_frame(*given)
        else:
            text_frame = generator.foreign_frame(place, network, tokenizers, stated)
        return generator.Generator(str(name), place, *given, text_frame)
    if not isinstance(network, EncoderDecoder) or tokenizers is None or task_kind(config) not in (None, "translate"):
        return Loaded(str(name), place, network, tokenizers, config)
    sizes = (network.settings.vocabulary, network.settings.target_size)
    _require_rows(place, zip(("source", "target"), sizes, tokenizers.sizes, strict=True))
    frame = _foreign_frame(place, config, tokenizers) if foreign else _run_frame(tokenizers, config)
    return Translator(str(name), place, network, tokenizers, config, frame, direction)


def _require_rows(place: Path, sides: Iterable[tuple[str, int, int]]) -> None:
    for side, has, needs in sides:
        if needs > has:
            raise WeightsError(
                f"the {side} tokenizer in {place} has {needs:,} tokens, but the model has {has:,}; copy the tokenizer "
                "that it was trained with"
            )


def _sentence_limit(directory: Path, settings: ModelSettings) -> ModelSettings:
    """The settings with the length at which sentence-transformers cuts texts, if it is below the model's positions."""
    limit = None
    for name, key in (("tokenizer_config.json", "model_max_length"), ("sentence_bert_config.json", "max_seq_length")):
        if (file := directory / name).is_file():
            limit = read_json(file).get(key) or limit
    shorter = isinstance(limit, int) and 0 < limit < (reach(settings) or 0)
    return settings.changed({"position.length": limit}) if shorter else settings


def _sentence_pooling(directory: Path) -> PoolingKind:
    """The pooling of a directory of sentence-transformers; the mean of all tokens by default."""
    modules = directory / "modules.json"
    if not modules.is_file():
        return "mean"
    listed = parse_json(modules.read_text(encoding="utf-8"))
    types = [str(each.get("type")).rpartition(".")[2] for each in listed] if isinstance(listed, list) else []
    if other := {*types} - {"Transformer", "Pooling", "Normalize"}:
        raise WeightsError(f"{modules} names the module {other.pop()}, which is not supported; only pooling is")
    place = next((str(each.get("path")) for each in listed if str(each.get("type")).endswith("Pooling")), "1_Pooling")
    config = read_json(directory / place / CONFIG_JSON)
    names: dict[str, PoolingKind] = {"mean": "mean", "cls": "class", "max": "max", "lasttoken": "last"}
    older = [key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on]
    modes = config.get("pooling_mode") or older  # one key since version 6
    mode = modes if isinstance(modes, str) else "+".join(map(str, modes))
    mode = mode.removesuffix("_tokens").removesuffix("_token")
    if mode not in names:
        raise WeightsError(f"{directory / place} has the pooling {mode}; only {', '.join(names)} are supported")
    return names[mode]


def task_kind(config: Table) -> str | None:
    """The task of a run; None for other models."""
    task = config.get("task")
    return task.get("kind") if isinstance(task, dict) else task


def _run_frame(tokenizers: TokenizerPair, config: Table) -> Frame:
    """The frame of a run. The table `[align]` of its configuration may name the heads that align words."""
    table, look = config.get("align"), None
    if isinstance(table, dict):
        try:
            look = Look(tuple((int(layer), int(head)) for layer, head in table["heads"]), bool(table["consumed"]))
        except (KeyError, TypeError, ValueError):
            raise WeightsError(
                f"[align] ({table}) of config.toml needs heads, such as [[0, 1]], and consumed; remove it, or write it "
                "with regard align --choose --save-choice"
            ) from None
    target = tokenizers.target
    return Frame(Ends(target.role("start"), target.role("end")), prefix=tuple(target.opening), look=look)


def _foreign_frame(place: Path, config: Table, tokenizers: TokenizerPair) -> Frame:
    """The frame of a Hugging Face model; `generation_config.json` wins over `config.json`."""
    stated, generation = read_generation(place, config)
    if (place / GENERATION).is_file():  # in transformers, a missing value then means this
        stated |= {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False} | generation
    for name in ("eos_token_id", "decoder_start_token_id", "bos_token_id", "forced_bos_token_id"):
        value = stated.get(name, 0)
        if not all(type(each) is int for each in (value if isinstance(value, list) and value else [value])):
            raise WeightsError(f"{name} ({shown(value)}) in {place} must be a token's number; copy its files again")
    end = stated.get("eos_token_id", tokenizers.target.roles.get("end"))
    start = stated.get("decoder_start_token_id", stated.get("bos_token_id"))
    if start is None:
        raise WeightsError(f"{place} does not state decoder_start_token_id; add it to config.json")
    first = stated.get("forced_bos_token_id")
    try:
        never = tuple(tuple(map(int, words)) for words in stated.get("bad_words_ids") or ())
        never += tuple((int(token),) for token in stated.get("suppress_tokens") or ())
    except (TypeError, ValueError, OverflowError):
        raise WeightsError(f"{place} has bad_words_ids or suppress_tokens that are not tokens; remove them") from None
    ends = Ends(start, end[0] if isinstance(end, list) else end)
    prefix = () if first is None else (first[0] if isinstance(first, list) else first,)
    options = stated_options(TranslateOptions(), stated, _GENERATION_KEYS, _NEUTRAL, place)
    return Frame(ends, True, prefix, never, options)


def read_generation(place: Path, config: Table) -> tuple[Table, Table]:
    """What a Hugging Face model states: all, and that of `generation_config.json`, which wins over `config.json`."""
    file = place / GENERATION
    tables = (config, read_json(file) if file.is_file() else {})
    base, generation = ({key: value for key, value in table.items() if value is not None} for table in tables)
    return base | generation, generation


def stated_options(options: AnyOptions, stated: Table, keys: Keys, neutral: Table, place: Path) -> AnyOptions:
    """The options with those that a Hugging Face model states."""
    for key in (key for key in (*keys, *neutral) if key in stated):
        try:
            if key in keys:
                ours, read = keys[key]
                options = options.changed({ours: read(stated[key])})
            elif stated[key] != neutral[key]:
                raise ValueError
        except (SettingsError, TypeError, ValueError):
            problem = f"{key} ({shown(stated[key])}) of its generation is not supported"
            raise WeightsError(f"{place}: {problem}; remove or correct it") from None
    return options


_STOPS = {True: "first", False: "best", "never": "all"}
_GENERATION_KEYS: Keys = {
    "num_beams": ("beam", lambda value: value),
    "length_penalty": ("length", lambda value: {"kind": "power", "alpha": float(value)}),
    "early_stopping": ("stop", lambda value: _STOPS.get(value, value)),
    "no_repeat_ngram_size": ("rules.ngram", lambda value: value),
    "repetition_penalty": ("rules.repetition", float),
    "renormalize_logits": ("rules.renormalize", lambda value: value),
    "forced_eos_token_id": ("rules.end_at_longest", lambda value: True),
    "max_length": ("rules.longest", lambda value: {"kind": "absolute", "tokens": value - 1}),
    "max_new_tokens": ("rules.longest", lambda value: {"kind": "absolute", "tokens": value}),
    "min_length": ("rules.shortest", lambda value: max(value - 1, 0)),
    "min_new_tokens": ("rules.shortest", lambda value: value),
}
"""A length includes the start token."""
_NEUTRAL: Table = {
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "begin_suppress_tokens": [],
}
"""Keys that are not supported, with the values that change nothing."""
