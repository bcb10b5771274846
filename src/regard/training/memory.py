"""Running out of memory: how it shows, and what smaller parts a step is then taken in."""

from __future__ import annotations

import torch

from regard.errors import RunError


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; the CPU's allocator tells it in words alone."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def halved(held: int, longest: int) -> int:
    """Half of the tokens held at once; an error where an example alone does not fit."""
    if held <= longest:
        raise RunError(
            f"memory ran out with {held:,} tokens at once, and an example, or a packed row, has up to {longest:,}; "
            "choose a smaller model, set data.longest, train.row or train.recompute=true, or train on another device"
        )
    return max(held // 2, longest)
