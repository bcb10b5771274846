"""The rollout of a run, as a map: of a stack's own inputs, or of the source in the decoder of a translator.

H: heads, T: positions, K: keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from regard.errors import InputError
from regard.look.rollout import Rollout, rolled, through_both
from regard.look.study import Run, Study

PREFIX = "rollout."
SOURCE = f"{PREFIX}source"
"""What each position of the decoder holds of the source."""


def rollouts_of(study: Study) -> list[str]:
    """The maps that there are: `rollout.encoder`, `rollout.decoder`, `rollout.source`."""
    places = study.attentions
    return [SOURCE if place.kind == "cross" else f"{PREFIX}{place.stack}" for place in places]


def rollout_map(study: Study, run: Run, name: str) -> Tensor:
    """`[1, T, K]`: one of `rollouts_of`, with the run's heads silent."""
    known = rollouts_of(study)
    if name not in known:
        raise InputError(f"name ({name[:40]}) is no rollout of this model; choose {' or '.join(known)}")
    found = run_rollout(study, run, "decoder" if name == SOURCE else name.removeprefix(PREFIX))
    if name != SOURCE:
        return found.own_BTT
    assert found.source_BTS is not None  # there is cross-attention
    return found.source_BTS


def run_rollout(study: Study, run: Run, stack: str) -> Rollout:
    """The rollout of one stack of a run. One layer of weights is held at a time, and the heads' mean of each."""
    own = list(_means(study, run, f"{stack}.*.attention"))
    cross = list(_means(study, run, f"{stack}.*.cross"))
    if not cross:
        return Rollout(rolled(own), None)
    return through_both(own, cross, rolled(_means(study, run, "encoder.*.attention")))


def _means(study: Study, run: Run, attention: str) -> Iterator[Tensor]:
    """`[1, 1, T, K]` of each layer: the mean of the heads."""
    stack, _, kind = attention.split(".")
    for place in study.attentions:
        if (place.stack, place.kind) == (stack, kind):
            for layer in range(place.layers):
                yield study.tensor(run.key, f"{stack}.{layer}.{kind}.weights").mean(0)[None, None]
