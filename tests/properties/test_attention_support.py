"""Every cell of the support table that runs on a CPU, with random shapes, against an oracle written in NumPy.

All layouts are compared with the same oracle, sequence by sequence; so packed equals padded and cached equals full.
"""

from __future__ import annotations

from collections.abc import Callable

import attention_cases as cases
import attention_support as support
import numpy as np
import torch

from regard.blocks.kernels import use_backend

CELLS = [cell for cell in support.cells() if cell.backend in ("reference", "sdpa")]
WHOLE = [cell for cell in CELLS if cell.layout != "cached"]
SEEDS = 2
"""Random problems of each cell."""


def each_problem(cells: list[support.Cell], check: Callable[[cases.Problem, support.Cell, int], None]) -> None:
    """Runs a check for all cells with their backend; a failure names the cell."""
    for cell in cells:
        for seed in range(SEEDS):
            try:
                with use_backend(cell.backend):
                    check(cases.random_problem(cell.layout, cell.rule, cell.position, seed), cell, seed)
            except Exception as error:
                error.add_note(f"in {cell}, seed {seed}")
                raise


def test_equals_the_definition() -> None:
    def check(problem: cases.Problem, cell: support.Cell, seed: int) -> None:
        expected = cases.expected(problem)
        result = cases.run(problem)
        for got, wanted in zip(result.queries.take(result.out), expected, strict=True):
            np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=0, atol=1e-10)
        if cell.backend == "sdpa":
            result = cases.run(problem.to("cpu", torch.float32))
            for got, wanted in zip(result.queries.take(result.out), expected, strict=True):
                atol = 1e-5 * max(1.0, np.abs(wanted).max(initial=0))
                np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-5, atol=atol)

    each_problem(WHOLE, check)


def test_cached_equals_the_definition() -> None:
    def check(problem: cases.Problem, cell: support.Cell, seed: int) -> None:
        for fixed in (False, True):
            with torch.no_grad():
                result = cases.run_cached(problem, fixed)
            for got, wanted in zip(result, cases.expected(problem), strict=True):
                np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-10)

    each_problem([cell for cell in CELLS if cell.layout == "cached"], check)


def test_no_gradient_from_a_hidden_position() -> None:
    def check(problem: cases.Problem, cell: support.Cell, seed: int) -> None:
        result = cases.run(problem)
        tokens = [(s, i) for s, n in enumerate(problem.lengths) for i in range(n)]
        if not tokens:
            return
        s, i = tokens[(seed + len(cell.position)) % len(tokens)]
        result.out[result.queries.cells[s][i]].sum().backward()
        gradient = result.keys.tokens.grad
        allowed = torch.zeros(gradient.shape[:-1], dtype=torch.bool)
        for j, cell_of_key in enumerate(result.keys.cells[s]):
            allowed[cell_of_key] = cases.sees(problem, s, i, j)
        seen = allowed.clone()
        if not problem.rule.cross:
            allowed[result.queries.cells[s][i]] = True  # its own query
        assert torch.all(gradient[~allowed] == 0), "a hidden position leaks"
        assert torch.all(gradient[seen].abs().sum(-1) > 0), "a visible position has no influence"

    each_problem(WHOLE, check)


def test_padding_and_batch_order_change_nothing() -> None:
    def check(problem: cases.Problem, cell: support.Cell, seed: int) -> None:
        with torch.no_grad():
            result, junk = cases.run(problem), cases.run(problem, junk=-50.0)
            before = result.queries.take(result.out)
            for got, wanted in zip(junk.queries.take(junk.out), before, strict=True):
                assert torch.equal(got, wanted)
            for name in ("sequences", "sources", "lengths"):
                value = getattr(problem, name)
                setattr(problem, name, value[::-1])
            turned = cases.run(problem)
            for got, wanted in zip(turned.queries.take(turned.out), before[::-1], strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)

    each_problem(WHOLE, check)


def test_queries_that_see_nothing_get_zero_and_finite_gradients() -> None:
    def check(problem: cases.Problem, cell: support.Cell, seed: int) -> None:
        # An empty sequence next to others: its padding, or in cross-attention its queries, see nothing.
        if problem.rule.cross:
            problem.sources[0] = problem.sources[0][:0]
        elif problem.layout == "ragged":
            problem.sequences[0] = problem.sequences[0][:0]
            problem.lengths[0] = 0
        result = cases.run(problem)
        # Zero enters the output projection, so its bias remains.
        bias = problem.attention.out.bias
        nothing = torch.zeros(cases.WIDTH, dtype=torch.float64) if bias is None else bias
        if problem.rule.cross:
            for cell_of_query in result.queries.cells[0]:
                assert torch.equal(result.out[cell_of_query], nothing)
        elif problem.layout == "ragged":
            padding = ~result.queries.layout.real(torch.device("cpu"))
            assert torch.equal(result.out[padding], nothing.expand(int(padding.sum()), -1))
        result.out.square().sum().backward()
        for leaf in (result.queries.tokens, result.keys.tokens, *problem.attention.parameters()):
            assert leaf.grad is None or bool(torch.isfinite(leaf.grad).all())

    each_problem([cell for cell in WHOLE if cell.layout != "full"], check)


def test_soft_cap_equals_the_definition() -> None:
    for layout in ("full", "ragged", "packed"):
        for position in ("none", "alibi", "rotary", "transformer-xl"):
            for seed, cap in enumerate((0.5, 3.0, 30.0)):
                problem = cases.random_problem(layout, "causal", position, seed)
                problem.attention.soft_cap = cap
                result = cases.run(problem)
                for got, wanted in zip(result.queries.take(result.out), cases.expected(problem, cap), strict=True):
                    np.testing.assert_allclose(
                        got.detach().numpy(), wanted, rtol=0, atol=1e-10, err_msg=f"{layout} {position} {cap}"
                    )
