"""What was recorded: values by name, call after call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError, RecordError
from regard.settings import did_you_mean


@dataclass(frozen=True)
class Event:
    """A value that flowed by."""

    name: str
    call: int
    """How often the name was heard before."""
    step: int | None
    """In cached decoding, how many passes the cache has seen before: step t writes token t. None without a cache."""
    value: Tensor


class Seen(Mapping[str, Tensor | list[Tensor]]):
    """What `regard.record` gives: a mapping of the names that were heard to their values."""

    def __init__(self, names: Iterable[str], grad: bool, limit: int) -> None:
        self.wanted = list(names)
        """The names that are listened to, in the order in which a model computes them."""
        self.grad = grad
        self.limit = limit
        self.bytes = 0
        """Memory that the values take."""
        self.events: list[Event] = []
        """All that was heard, as it came."""
        self._by_name: dict[str, list[Event]] = {name: [] for name in self.wanted}

    def names(self) -> list[str]:
        """The names that were heard, in the order in which a model computes them."""
        return [name for name in self.wanted if self._by_name[name]]

    def calls(self, name: str) -> list[Tensor]:
        """The values of every call, however many there were."""
        return [event.value for event in self.heard(name)]

    def heard(self, name: str) -> list[Event]:
        """The same with their steps."""
        events = self._by_name.get(name)
        if events is None:
            raise InputError(
                f"{name} was not recorded{did_you_mean(name, self.wanted)}; name it in regard.record(model, ...)"
            )
        return events

    def __getitem__(self, name: str) -> Tensor | list[Tensor]:
        """The value of the only call; a list where there were several, or where a model decoded step by step."""
        events = self.heard(name)
        if not events:
            raise InputError(f"{name} was listened to, but the model has not computed it; run it within the block")
        if len(events) == 1 and events[0].step is None:
            return events[0].value
        return [event.value for event in events]

    def __contains__(self, name: object) -> bool:
        return bool(self._by_name.get(name)) if isinstance(name, str) else False

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __repr__(self) -> str:
        return f"Seen({len(self)} names, {len(self.events)} values, {self.bytes / 2**20:.1f} MiB)"

    # ------------------------------------------------------------------------------------------------------- listening

    def keep(self, name: str, x: Tensor, step: int | None) -> None:
        """Takes a value: a copy on the CPU in float32 (float64 as it is), or with `grad` the very tensor."""
        dtype = x.dtype if self.grad or x.dtype == torch.float64 else torch.float32
        self.require_room(name, x.numel() * dtype.itemsize)
        self.bytes += x.numel() * dtype.itemsize
        event = Event(name, len(self._by_name[name]), step, x if self.grad else _copied(x, dtype))
        self.events.append(event)
        self._by_name[name].append(event)

    def require_room(self, name: str, more: int) -> None:
        """Refuses what would go beyond the limit, before memory is taken for it."""
        if self.bytes + more > self.limit:
            raise RecordError(
                f"limit ({self.limit / 2**30:.3g} GiB) is reached: {name} would take {more / 2**20:,.1f} MiB beside "
                f"the {self.bytes / 2**20:,.1f} MiB of {len(self.events):,} values; record fewer names or shorter "
                "inputs, or raise the limit (in bytes)"
            )


def _copied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An ordinary tensor, whatever mode the model runs in."""
    with torch.inference_mode(False), torch.no_grad():
        return x.detach().to("cpu", dtype, copy=True)
