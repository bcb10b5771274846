"""Makes the data of the recipes arithmetic and arithmetic-grpo: sums of two numbers of up to three digits.

    python recipes/arithmetic_data.py DIR

`steps.tsv` and `more.tsv` have sums with all steps, from the last digit to the first: `457+86=`, a tab,
`7+6=13 5+8+1=14 4+0+1=5 543`. `sums.tsv`, `valid.tsv` and `test.tsv` have sums and results only. No sum is in two
files.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SIZES = {"steps": 1_000, "more": 9_600, "sums": 20_000, "valid": 500, "test": 1_000}
WITH_STEPS = ("steps", "more")


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    pairs = list(dict.fromkeys((_number(rng), _number(rng)) for _ in range(2 * sum(SIZES.values()))))
    for name, size in SIZES.items():
        chosen, pairs = pairs[:size], pairs[size:]
        lines = [
            f"{one}+{other}=\t{solution(one, other) if name in WITH_STEPS else one + other}" for one, other in chosen
        ]
        (target / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _number(rng: random.Random) -> int:
    return rng.randrange(10 ** rng.choice((1, 2, 3, 3, 3)))


def solution(one: int, other: int) -> str:
    """All steps and the result."""
    steps, carry = [], 0
    for place in range(max(len(str(one)), len(str(other)))):
        first, second = (number // 10**place % 10 for number in (one, other))
        total = first + second + carry
        steps.append(f"{first}+{second}{'+1' if carry else ''}={total}")
        carry = total // 10
    return " ".join([*steps, str(one + other)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
