"""A step's random numbers follow from the seed, its number and the process, and from nothing else."""

from __future__ import annotations

from itertools import product

import torch

from regard.training.randomness import seed_step


def drawn(seed: int, step: int, rank: int = 0) -> tuple[float, ...]:
    seed_step(seed, step, rank)
    return tuple(torch.rand(4, dtype=torch.float64).tolist())


def test_the_same_step_draws_the_same_whatever_came_before() -> None:
    first = drawn(1, 17, 2)
    torch.rand(1000)
    drawn(1, 18, 2)
    assert drawn(1, 17, 2) == first


def test_other_steps_seeds_and_processes_draw_otherwise() -> None:
    """Numbers that sum up, or read one behind the other, to the same are told apart too: (1, 11) and (11, 1)."""
    places = [*product((0, 1, 2, 11, 111), (1, 2, 11, 12, 111), (0, 1, 2, 11))]
    assert len({drawn(*place) for place in places}) == len(places)


def test_large_seeds_are_taken_whole() -> None:
    assert drawn(2**40 + 1, 1) != drawn(1, 1)
    assert drawn(2**63, 1) != drawn(2**62, 1)


def test_what_is_drawn_is_uniform() -> None:
    """The first number of each of 1,000 steps: a poor mixing of neighbouring numbers would show in its mean."""
    first = torch.tensor([drawn(1, step)[0] for step in range(1000)])
    assert abs(float(first.mean()) - 0.5) < 4 * (1 / 12 / 1000) ** 0.5
    neighbours = torch.corrcoef(torch.stack([first[:-1], first[1:]]))[0, 1]
    assert abs(float(neighbours)) < 4 / 1000**0.5
