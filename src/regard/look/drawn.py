"""The views of a model as pictures, by their names. A view joins with a line in `PICTURES`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

from regard.errors import InputError
from regard.look.atlas import atlas
from regard.look.compare import compare, control, usual_changes
from regard.look.drawing import require_ending
from regard.look.drawn_comparison import Maps, compare_picture
from regard.look.drawn_heads import heads_picture
from regard.look.drawn_image import image_picture
from regard.look.drawn_lens import lens_picture
from regard.look.drawn_maps import positions_picture, vectors_picture
from regard.look.drawn_tree import decode_picture
from regard.look.drawn_walk import walk_picture
from regard.look.lensed import lensed
from regard.look.nearness import placed
from regard.look.patches import CLASS, Query, over_patches
from regard.look.samples import sample_for
from regard.look.study import Run, Study
from regard.models.settings import Vision
from regard.settings import did_you_mean

Draw: TypeAlias = Callable[[Study, Run, Path, str, str], None]
"""Of a study and a run, into a file, at an address (empty: the usual one), below a title (empty: one of its own)."""


def _image(study: Study, run: Run, path: Path, at: str, title: str) -> None:
    """The rollout, then the heads of a layer: that of the address, or the last."""
    settings, image = study.loaded.settings, run.given.image
    assert isinstance(settings, Vision)  # it is a view of no other
    assert image is not None  # it has read one
    place, named, head = study.place(at)
    layer = place.layers - 1 if named is None else named
    heads = range(place.heads) if head is None else [head]
    token = CLASS if run.sides["encoder"].tokens[0].id < 0 else None
    queries = {"rollout": Query(token, rollout=True)} | {
        f"layer {layer}, head {n}": Query(token, layer, n) for n in heads
    }
    maps = [(name, over_patches(study, run, query).patches_N) for name, query in queries.items()]
    image_picture(image, settings.patch, maps, path, title)


def _lens(study: Study, run: Run, path: Path, at: str, title: str) -> None:
    side = "decoder" if "decoder" in run.sides else "encoder"
    lens_picture(lensed(study, run), [token.text for token in run.sides[side].tokens], path, title=title)


def _vectors(study: Study, run: Run, path: Path, at: str, title: str) -> None:
    sample = sample_for(study.loaded, run.given.to)
    vectors_picture(atlas(study.loaded, sample.lines, run.given.to), path, sample.word, title=title)


def _positions(study: Study, run: Run, path: Path, at: str, title: str) -> None:
    positions_picture(placed(study.loaded), path, title)


def _compare(study: Study, run: Run, path: Path, at: str, title: str) -> None:
    """Beside another model, without the run's silent heads, or without the head of the address."""
    place, _, named = study.place(at)
    plain, head = run.plain or run, named or 0
    changes = [at] if named is not None and not study.beside else usual_changes(study, run, place, head)
    found = compare(study, plain, changes)
    maps = None
    if found.same:
        name = f"{place.stack}.{place.layers - 1}.{place.kind}.weights"
        pair = [study.holding(key).tensor(key, name)[head] for key in (plain.key, found.other)]
        tokens = [[token.text for token in run.sides[side].tokens] for side in (place.queries, place.keys)]
        maps = Maps(pair[0], pair[1], tokens[0], tokens[1])
    compare_picture(found, path, control(study, plain, changes), maps, title)


PICTURES: dict[str, Draw] = {
    "image": _image,
    "heads": heads_picture,
    "walk": walk_picture,
    "decode": decode_picture,
    "lens": _lens,
    "vectors": _vectors,
    "positions": _positions,
    "compare": _compare,
}


def draw(study: Study, run: Run, path: Path, view: str = "heads", at: str = "", title: str = "") -> None:
    """One view of a run as a picture: PNG, SVG or PDF, by the file's ending."""
    require_ending(path)
    require_view(view, study.views)
    PICTURES[view](study, run, path, at, title)


def require_view(name: str, known: Collection[str]) -> None:
    """Refuses a view that this model does not have."""
    if name not in known:
        near = did_you_mean(name, known)
        raise InputError(f"view ({name[:40]}) is not among those of this model: {', '.join(known)}{near}; choose one")
