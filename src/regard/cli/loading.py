"""A model that a command works with. Nothing here imports torch before a command asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.use.translator import Translator


def load_translator(model: str, device: str | None, threads: int | None = None, int8: bool = False) -> Translator:
    """A translator, or an error that says why the model is none."""
    from regard.decoding.memory import bound_caches

    bound_caches()
    import torch

    import regard
    from regard.use.translator import Translator

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = regard.load(model, device=device, int8=int8)
    if not isinstance(loaded, Translator):
        loaded.translate("")  # says why it cannot
        raise AssertionError(model)
    return loaded
