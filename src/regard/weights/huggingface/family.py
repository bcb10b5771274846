"""What one of their model types must tell: its settings, its config and its key table; and what can be expressed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from regard.errors import SettingsError, WeightsError
from regard.models.settings import Body, ModelSettings
from regard.settings import Settings
from regard.weights.compare import complete, equal, flat
from regard.weights.huggingface.config import Config
from regard.weights.huggingface.keys import Table
from regard.weights.tensors import listed

S = TypeVar("S", bound=ModelSettings)
V = TypeVar("V", bound=Settings)

TRAINING_ONLY = {"dropout", "stochastic_depth", "initial"}
"""Settings that do not change what a trained model computes; they are kept only where their config has a place."""


class Family(ABC, Generic[S]):
    """One `model_type`."""

    model_type: ClassVar[str]
    settings: ClassVar[type[Body]]
    architectures: ClassVar[tuple[str, ...]]
    """The classes whose weights are known."""
    base: ClassVar[str] = ""
    """The one among them that keeps its tensors without the prefix."""
    prefix: ClassVar[str] = ""
    """What stands before the names of all tensors but the heads'; some files of other classes leave it out too."""
    heads: ClassVar[tuple[str, ...]] = ()
    """How the names of the heads' tensors start."""
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Patterns of other names that some versions wrote, with their replacements, applied in turn."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Patterns of buffers that some versions wrote and that hold nothing learned."""
    told_by_tensors: ClassVar[frozenset[str]] = frozenset()
    """Settings that a config alone does not tell."""
    told_by_values: ClassVar[frozenset[str]] = frozenset()
    """Those among them that come back as others while nothing is lost: a bias of zeros is read as none."""

    @abstractmethod
    def settings_from(self, config: Config, tensors: Mapping[str, Tensor]) -> S:
        """The settings of the model in a directory. `tensors` have their usual names, and may be none."""

    @abstractmethod
    def config_from(self, settings: S, architecture: str) -> dict[str, Any]:
        """The config.json of a model."""

    @abstractmethod
    def architecture_for(self, settings: S) -> str:
        """The class that has the same heads."""

    @abstractmethod
    def table(self, settings: S, config: Config) -> Table:
        """Where each tensor lies."""

    def equivalent(self, settings: S) -> S:
        """The settings of a model that computes the same, in the terms of this model type where it has its own."""
        return settings

    def rewritten(self, tensors: Mapping[str, Tensor], settings: S) -> dict[str, Tensor]:
        """The tensors of a model with `settings` as those of its `equivalent`."""
        return dict(tensors)

    def checked_settings(self, config: Config, tensors: Mapping[str, Tensor]) -> S:
        """`settings_from`, or what is wrong with the values of a config."""
        try:
            return self.settings_from(config, tensors)
        except SettingsError as error:
            raise WeightsError(f"{config.source} describes no possible model: {error}; correct it") from None

    def usual_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors under the names of the newest files, with the prefix, without old buffers."""
        bare = not any(name.startswith(self.prefix) for name in tensors)
        result = {}
        for name, tensor in tensors.items():
            for pattern, replacement in self.renamed:
                name = re.sub(pattern, replacement, name)
            if any(re.search(pattern, name) for pattern in self.ignored):
                continue
            if bare and not name.startswith(self.heads or ("\0",)):
                name = self.prefix + name
            if name in result:
                raise WeightsError(f"the weights hold {name} twice, under an old and a new name; remove one of them")
            result[name] = tensor
        return result

    def names_for(self, architecture: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors under the names that a class has for them."""
        if architecture != self.base:
            return dict(tensors)
        return {name.removeprefix(self.prefix): tensor for name, tensor in tensors.items()}

    def whole_config(self, settings: S, architecture: str, extra: Mapping[str, Any] | None = None) -> Config:
        """The config.json of a model, `extra` values laid over it."""
        head = {"model_type": self.model_type, "architectures": [architecture]}
        return Config(head | self.config_from(settings, architecture) | dict(extra or {}))

    def require_expressible(self, settings: S, config: Config, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Refuse settings that would come back as others. Without tensors, only what a config tells is compared."""
        back = self.checked_settings(config, tensors or {})
        untold = self.told_by_values if tensors else self.told_by_tensors
        lost = list(_differences(_essence(settings), _essence(back), untold))
        if lost:
            raise self.cannot(listed(lost))

    def cannot(self, what: str) -> WeightsError:
        """The error for settings that this model type cannot express."""
        return WeightsError(
            f"the model cannot be expressed as {self.model_type}: {what}; "
            "keep it as a run directory (regard.weights.directory.save), or build it with the settings named"
        )

    def expect(self, value: Settings, kind: type[V], where: str) -> V:
        """`value`, which must be of the one kind that this model type knows."""
        if not isinstance(value, kind):
            given, wanted = getattr(value, "kind", type(value).__name__), kind.model_fields["kind"].default
            raise self.cannot(f"{where}.kind is {given} and only {wanted} can be expressed")
        return value


def _essence(settings: ModelSettings) -> dict[str, Any]:
    """The settings as a flat table, complete; heads by their kind, whatever they are called."""
    table = complete(settings)
    if "heads" in table:
        table["heads"] = {head["kind"]: head for head in table["heads"].values()}
    return dict(flat(table))


def _differences(settings: Mapping[str, Any], back: Mapping[str, Any], untold: frozenset[str]) -> Iterator[str]:
    for key in sorted({*settings, *back}):
        first, *_, last = key.split(".") * 2
        ours, theirs = settings.get(key), back.get(key)
        if not equal(ours, theirs) and first not in untold and not TRAINING_ONLY & {first, last}:
            yield f"{key} is {_said(ours)} and only {_said(theirs)} can be expressed"


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
