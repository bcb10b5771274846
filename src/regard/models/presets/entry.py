"""What a preset is: settings under a name, with what their authors printed about them."""

from __future__ import annotations

from dataclasses import dataclass

from regard.models.settings import ModelSettings


@dataclass(frozen=True)
class Published:
    """A model's size as its authors printed it, which is rounded and may leave parts out."""

    text: str
    """As printed: "65 M"."""
    source: str
    """Where it is printed."""

    @property
    def parameters(self) -> int:
        """The printed size as a number."""
        amount, unit = self.text.split()
        return round(float(amount) * {"k": 10**3, "M": 10**6, "B": 10**9}[unit])


@dataclass(frozen=True)
class Preset:
    """Settings under the name that people type."""

    name: str
    settings: ModelSettings
    description: str
    """One line."""
    published: Published | None = None
    """None where the authors print no size."""
    counted_only: bool = False
    """Whether the model is here to be counted, too large or too special to be run."""
