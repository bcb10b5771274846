"""A Hugging Face model type as two tables, each used in both directions: config values and tensor names.

A new family is a subclass of `Family`, and one name in the list at the end of its file:

- `fields` maps config keys to settings. `constants` are settings that every model of this type has; `required` are
  config keys with the only supported value.
- `names` maps our modules to theirs, with `{i}` for the layer.

What a table cannot express (heads, ties) goes into `read_rest` and `write_rest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.blocks.settings import Activation, Body, Rotary
from regard.errors import SettingsError, WeightsError
from regard.models.settings import ModelSettings, complete, differences
from regard.settings import nested, parse, shown
from regard.weights.tensors import check, listed

CONFIG_JSON = "config.json"
GENERATION = "generation_config.json"
GGUF_FILE = "gguf_file"
"""The key of a `config.json` that stands for a GGUF file."""
FULL, WINDOW = "full_attention", "sliding_attention"
KINDS = {FULL: "full", WINDOW: "window"}
"""Their types of layers, and ours."""
TRAINING_ONLY = {"dropout", "stochastic_depth", "initial"}
"""Settings that do not change the output of a trained model. They may be lost."""
REFUSED = ("is_decoder", "add_cross_attention", "cross_attention_hidden_size", "pruned_heads", "quantization_config")


@dataclass(frozen=True)
class Config:
    """The values of one config.json. Errors name the file, the key and its value."""

    values: Mapping[str, Any]
    source: str = CONFIG_JSON

    def error(self, key: str, problem: str) -> WeightsError:
        return WeightsError(f"{self.source}: {key} ({shown(self.values.get(key))}) {problem}")

    def read(self, key: str, default: Any, codec: Codec | None = None) -> Any:
        """Return a checked value; an absent or null key has the default."""
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            return None
        try:
            return (codec or codec_for(default)).read(value)
        except ValueError as problem:
            raise self.error(key, str(problem)) from None

    def require(self, wanted: Mapping[str, Any]) -> None:
        """Refuse any key with another value than the wanted one; an absent key and an empty value pass."""
        for key, value in wanted.items():
            found = self.values.get(key)
            if found is not None and found != value and (found or value):
                raise self.error(key, f"is not supported, only {value!r} is; convert the model without it")

    def architecture(self, known: tuple[str, ...]) -> str:
        """Return the class that saved the weights.

        The error suggests no similar name: RobertaModel resembles BertModel, loads as one and gives wrong results.
        """
        names = self.values.get("architectures")
        if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
            raise self.error("architectures", f"is not supported; it must be one of {', '.join(known)}")
        return str(names[0])

    def labels(self) -> int:
        """Return the number of classes; transformers has 2 by default."""
        names = self.values.get("id2label")
        return len(names) if isinstance(names, dict) and names else int(self.read("num_labels", 2))


@dataclass(frozen=True)
class Codec:
    """Converts one value from their form to ours and back."""

    read: Callable[[Any], Any]
    """Theirs to ours; raises a `ValueError` that completes the sentence "key (value) …"."""
    write: Callable[[Any], Any] = lambda value: value


ACTIVATIONS: dict[Activation, tuple[str, ...]] = {
    "relu": ("relu",),
    "gelu": ("gelu", "gelu_python"),
    "gelu-tanh": ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"),
    "silu": ("silu", "swish"),
    "relu2": ("relu2",),
    "gelu-quick": ("quick_gelu",),
}
"""Their names of each activation. The first is written."""


def _read_activation(name: Any) -> Activation:
    for ours, names in ACTIVATIONS.items():
        if name in names:
            return ours
    known = ", ".join(each for names in ACTIVATIONS.values() for each in names)
    raise ValueError(f"is not a supported activation; choose one of {known}")


ACTIVATION = Codec(_read_activation, lambda ours: ACTIVATIONS[ours][0])


def codec_for(default: object) -> Codec:
    """Return the codec for values of the default's type; None means an optional size."""

    def read(value: Any) -> Any:
        if isinstance(default, bool):
            wanted, valid = "true or false", type(value) is bool
        elif isinstance(default, float):
            wanted, valid = "a number", type(value) in (int, float)
        else:
            wanted, valid = "a positive integer", type(value) is int and value > 0
        if not valid:
            raise ValueError(f"must be {wanted}; correct it")
        return value

    return Codec(read)


@dataclass(frozen=True)
class Row:
    """One setting and its config key."""

    ours: str
    """The dotted setting."""
    theirs: str
    default: Any
    """The value of an absent key, in their form."""
    codec: Codec | None = None
    """None: by the type of the default."""
    also: str | None = None
    """A second config key, which must have the same value (the decoder's)."""
    optional: bool = False
    """Whether null means none instead of the default."""

    def read(self, config: Config) -> Any:
        if self.optional and config.values.get(self.theirs, self.default) is None:
            return None
        value = config.read(self.theirs, self.default, self.codec)
        if self.also is None or self.ours.rpartition(".")[2] in TRAINING_ONLY:
            return value
        if config.read(self.also, value, self.codec) != value:
            problem = f"differs from {self.theirs} ({value}); convert a model with equal layers in both stacks"
            raise config.error(self.also, problem)
        return value

    def write(self, ours: Any) -> dict[str, Any]:
        value = (self.codec or codec_for(self.default)).write(ours)
        return {self.theirs: value} | ({} if self.also is None else {self.also: value})


def varied(fields: tuple[Row, ...], without: tuple[str, ...] = (), /, **defaults: Any) -> tuple[Row, ...]:
    """Return the fields of a similar type: with other defaults, and `without` some config keys."""
    rows = (row for row in fields if row.theirs not in without)
    return tuple(replace(row, default=defaults.get(row.theirs, row.default)) for row in rows)


USUAL = (
    Row("vocabulary", "vocab_size", 30522),
    Row("width", "hidden_size", 768),
    Row("depth", "num_hidden_layers", 12),
    Row("attention.heads", "num_attention_heads", 12),
    Row("ffn.hidden", "intermediate_size", 3072),
    Row("ffn.activation", "hidden_act", "gelu", ACTIVATION),
    Row("initial.deviation", "initializer_range", 0.02),
)
"""The fields of most types, with the sizes of BERT."""

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Form:
    """How our tensors become one of theirs, and back. It also maps shapes, so it must work on the meta device."""

    write: Callable[[Tensors], Tensor]
    read: Callable[[Tensor], Tensors]


def leading(ones: int) -> Form:
    """A tensor that they keep with `ones` leading dimensions of size one."""
    return Form(lambda own: own[0].reshape((1,) * ones + own[0].shape), lambda t: (t.reshape(t.shape[ones:]),))


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mT if tensor.dim() == 2 else tensor


SAME = Form(lambda own: own[0], lambda tensor: (tensor,))
TRANSPOSED = Form(lambda own: _transposed(own[0]), lambda tensor: (_transposed(tensor),))
"""Weights that they keep as [in, out]; biases are the same."""
JOINED = Form(lambda own: _transposed(torch.cat(own)), lambda tensor: _transposed(tensor).chunk(3))
"""Query, key and value in one tensor, as [in, out]."""


def joined(sizes: list[int]) -> Form:
    """Several tensors one after the other in one tensor, as [out, in]."""
    return Form(torch.cat, lambda tensor: torch.split_with_sizes(tensor, sizes))


def equal_parts(count: int) -> Form:
    """The same for tensors of one size."""
    return Form(torch.cat, lambda tensor: tensor.chunk(count))


Names = dict[str, tuple[str, Form]]
"""Our modules or tensors, with `{i}` for the layer, and theirs. Several of ours with one of theirs are joined."""


def under(ours: str, theirs: str, form: Form = SAME, /, **names: str) -> Names:
    """Return the names of several modules below one of ours and one of theirs."""
    return {f"{ours}.{name}": (f"{theirs}.{other}", form) for name, other in names.items()}


def moved(names: Names, old: str, new: str) -> Names:
    """Return the names of a similar type, with another prefix."""
    return {ours: (theirs.replace(old, new, 1), form) for ours, (theirs, form) in names.items()}


@dataclass
class TensorMap:
    """Where the tensors of one model lie in their file."""

    rules: list[tuple[tuple[str, ...], str, Form]]
    """Our names, their name, and the form."""
    copies: dict[str, str] = field(default_factory=dict)
    """Tied tensors: the name of a copy and of its original. They are not written; in a file they must be equal."""
    spares: dict[str, str] = field(default_factory=dict)
    """Second names of a tensor. They are written; in a file, they stand in for the first name."""
    fixed: dict[str, tuple[tuple[int, ...], Callable[[], Tensor]]] = field(default_factory=dict)
    """Values that are not learned, as a shape and a function. They are written; in a file they must be equal."""

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {theirs: form.write(tuple(ours[name] for name in names)) for names, theirs, form in self.rules}

    def to_file(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        theirs = self.to_theirs(ours)
        spares = {name: theirs[first].clone() for name, first in self.spares.items()}
        like = next(iter(theirs.values()))
        return theirs | spares | {name: value().to(like, copy=True) for name, (_, value) in self.fixed.items()}

    def to_ours(self, theirs: Mapping[str, Tensor], shapes: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """Return our tensors, after all checks. `shapes` are our parameters on the meta device."""
        tensors = dict(theirs)
        for copy, original in self.copies.items():
            if copy not in tensors:
                continue
            if not torch.equal(tensors[copy], tensors.setdefault(original, tensors[copy])):
                problem = f"{source} has different values in {copy} and {original}, which are tied by config.json"
                raise WeightsError(f"{problem}; set tie_word_embeddings to false if they should differ")
            del tensors[copy]
        for name, (shape, value) in self.fixed.items():
            found = tensors.pop(name, None)
            if found is None:
                continue
            rounding = 2 * torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
            same = tuple(found.shape) == shape
            if not same or not torch.allclose(found.double(), value().double(), rtol=rounding, atol=rounding):
                raise WeightsError(f"{name} in {source} is not the fixed table that is computed here")
        for spare, first in self.spares.items():
            if spare in tensors:
                tensors.setdefault(first, tensors.pop(spare))
        expected = {name: tuple(tensor.shape) for name, tensor in self.to_theirs(shapes).items()}
        check(expected, tensors, source, "config.json must be the one that belongs to these weights")
        return {
            name: tensor
            for names, name_there, form in self.rules
            for name, tensor in zip(names, form.read(tensors[name_there]), strict=True)
        }


class Family:
    """One `model_type`."""

    model_type: ClassVar[str]
    settings: ClassVar[type[Body]]
    architectures: ClassVar[tuple[str, ...]]
    """The supported classes; the first is written where the settings do not decide."""
    base: ClassVar[str] = ""
    """The class that saves its tensors without the prefix."""
    prefix: ClassVar[str] = ""
    """What stands before all names but those of heads. Some files of other classes leave it out too."""
    head_names: ClassVar[tuple[str, ...]] = ("\0",)
    """How the names of heads start."""
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Patterns of names that other versions wrote, and their replacements."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Patterns of buffers that other versions wrote and that hold nothing learned."""
    from_tensors: ClassVar[frozenset[str]] = frozenset()
    """Settings that only the tensors give, not the config."""

    fields: ClassVar[tuple[Row, ...]]
    constants: ClassVar[Mapping[str, Any]] = {}
    """Our settings that this type always has. The kinds are dense, layer and normal by default."""
    required: ClassVar[Mapping[str, Any]] = {}
    """Their keys with the only supported value."""
    written: ClassVar[Mapping[str, Any]] = {}
    """Their keys that are always written."""
    names: ClassVar[Names] = {}

    def read_rest(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return further settings by dotted name. `tensors` have their current names; there may be none."""
        return {}

    def write_rest(self, settings: Any) -> dict[str, Any]:
        """Return further config values, or raise `self.cannot(...)`."""
        return {}

    def architecture_for(self, settings: Any) -> str:
        return self.architectures[0]

    def names_for(self, settings: Any) -> Names:
        return self.names

    def add_ties(self, mapping: TensorMap, settings: Any, config: Config) -> None:
        """Add copies, spares and fixed values to a mapping; by default the tied output of a decoder."""
        if settings.kind == "decoder" and settings.tied:
            mapping.copies = {f"{self.names['output'][0]}.weight": f"{self.names['embedding.tokens'][0]}.weight"}

    def equivalent(self, settings: Any) -> Any:
        """Return settings that compute the same and that this type can express."""
        return settings

    def rewritten(self, tensors: dict[str, Tensor], settings: Any) -> dict[str, Tensor]:
        """Return the tensors of a model with `settings` as those of its `equivalent`."""
        return tensors

    def read_settings(self, config: Config, tensors: Mapping[str, Tensor]) -> Any:
        kinds = {"ffn.kind": "dense", "norm.kind": "layer", "initial.kind": "normal"}
        try:
            return parse(self.settings, nested({**kinds, **self.constants, **self.read_values(config, tensors)}))
        except SettingsError as error:
            raise WeightsError(f"{config.source} describes an impossible model: {error}; correct it") from None

    def read_values(self, config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return all settings but the constants, by dotted name."""
        config.require(dict.fromkeys(REFUSED, False) | dict(self.required))
        config.architecture(self.architectures)
        return {row.ours: row.read(config) for row in self.fields} | self.read_rest(config, tensors)

    def write_config(self, settings: Any, extra: Mapping[str, Any] | None = None) -> Config:
        values = {"model_type": self.model_type, "architectures": [self.architecture_for(settings)], **self.written}
        ours = complete(settings)
        for row in self.fields:
            if row.ours in ours:
                values = row.write(ours[row.ours]) | values
            elif row.optional:
                values.setdefault(row.theirs, None)
        values |= self.write_rest(settings)
        for head in getattr(settings, "heads", {}).values():
            if head.kind in ("classification", "tagging"):
                names = [f"LABEL_{index}" for index in range(head.classes)]
                values["id2label"] = {str(index): name for index, name in enumerate(names)}
                values["label2id"] = {name: index for index, name in enumerate(names)}
        return Config(values | dict(extra or {}))

    def require_expressible(self, settings: Any, config: Config, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Refuse settings that come back changed. Without tensors, only those in the config are compared."""
        back = self.read_settings(config, tensors or {})
        # A bias of zeros is read as none.
        free = TRAINING_ONLY | ({"output_bias"} & self.from_tensors if tensors else self.from_tensors)
        lost = [
            f"{key} is {ours}, only {'none' if theirs is None else theirs} is supported"
            for key, (ours, theirs) in differences(_heads_by_kind(settings), _heads_by_kind(back)).items()
            if not free & {key.partition(".")[0], key.rpartition(".")[2]}
        ]
        if lost:
            raise self.cannot(listed(lost))

    def cannot(self, problem: str) -> WeightsError:
        return WeightsError(
            f"the model cannot be written as {self.model_type}: {problem}; "
            "keep it as a run directory, or train it with other settings"
        )

    def tensor_map(self, settings: Any, config: Config, shapes: Mapping[str, Tensor]) -> TensorMap:
        """Return where each of our parameters lies in their file. The names of heads are replaced by their kinds."""
        known = self.names_for(settings)
        groups: dict[str, tuple[list[str], Form]] = {}
        for name in shapes:
            layer = re.search(r"\.(\d+)\.", name)
            pattern = name.replace(f".{layer[1]}.", ".{i}.", 1) if layer else name
            if name.startswith("heads."):
                _, head, rest = name.split(".", 2)
                pattern = f"heads.{settings.heads[head].kind}.{rest}"
            module, _, tensor = pattern.rpartition(".")
            theirs, form = known[pattern] if pattern in known else known[module]
            theirs = theirs.replace("{i}", layer[1] if layer else "")
            theirs = theirs if pattern in known else f"{theirs}.{tensor}"
            groups.setdefault(theirs, ([], form))[0].append(name)
        mapping = TensorMap([(tuple(names), theirs, form) for theirs, (names, form) in groups.items()])
        self.add_ties(mapping, settings, config)
        return mapping

    def current_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under the names of the newest files, with the prefix, without old buffers."""
        bare = not any(name.startswith(self.prefix) for name in tensors)
        result = {}
        for name, tensor in tensors.items():
            for pattern, replacement in self.renamed:
                name = re.sub(pattern, replacement, name)
            if any(re.search(pattern, name) for pattern in self.ignored):
                continue
            if bare and not name.startswith(self.head_names):
                name = self.prefix + name
            if name in result:
                raise WeightsError(f"the weights hold {name} twice, under an old and a new name; remove one of them")
            result[name] = tensor
        return result


def rotation_base(config: Config, kind: str, key: str, default: float) -> float:
    """Return the base of the rotations in one type of layers. Older files have it under a key of its own."""
    stated = config.values.get("rope_parameters") or {}
    rope = Config(stated.get(kind) or {}, f"{config.source}: rope_parameters.{kind}")
    rope.require({"rope_type": "default"})
    return float(rope.read("rope_theta", config.read(key, default)))


def rotation_bases(position: Rotary) -> dict[str, dict[str, Any]]:
    """Return `rope_parameters` of a model with another base in layers with a window."""
    bases = {FULL: position.base, WINDOW: position.window_base or position.base}
    return {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}


def window_settings(config: Config, usual: Callable[[Config], list[str]]) -> dict[str, Any]:
    """Return our settings for the types of layers, which a config lists as `layer_types`, or for the usual ones."""
    kinds = config.values.get("layer_types") or usual(config)
    if not isinstance(kinds, list) or len(kinds) != config.read("num_hidden_layers", len(kinds)):
        raise config.error("layer_types", "must be a list with an entry for each layer; correct it")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise config.error("layer_types", f"has {unknown[0]}, only {' and '.join(KINDS)} are supported")
    pattern = [KINDS[kind] for kind in kinds]
    if "window" not in pattern:
        return {"attention.window": None, "position.window_base": None}
    period = next(n for n in range(1, len(pattern) + 1) if pattern == (pattern[:n] * len(pattern))[: len(pattern)])
    return {"attention.pattern": pattern[:period]} if "full" in pattern else {}


def layer_types(settings: Body) -> list[str]:
    return [FULL if window is None else WINDOW for window in settings.attention.windows(settings.depth)]


def _heads_by_kind(settings: ModelSettings) -> ModelSettings:
    """Return the settings with heads named by their kinds, so that names do not count as a difference."""
    heads = getattr(settings, "heads", None)
    return settings.model_copy(update={"heads": {head.kind: head for head in heads.values()}}) if heads else settings
