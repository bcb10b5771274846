"""Speed of two versions of Regard, old and new, in alternating runs on one machine.

    git worktree add OLD COMMIT
    python bench/before_after.py OLD . --lines newstest2013.de [--rounds 5] [--only translate] [--out result.json]

Each measurement is a fresh process that imports one of the two source trees. A job prints one number, where more is
better, or seconds, where less is better. The table shows the medians, and the speed of the new version as a multiple of
the old one. Jobs that need a GPU are left out where there is none. CPU jobs count CPU seconds, so that other work on
the machine disturbs them less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from measured import environment

COMMAND = "import runpy, sys; sys.argv = ['regard', *{arguments}]; runpy.run_module('regard', run_name='__main__')"

COMMANDS = ("help", "one sentence", "wrong name")

TRANSLATE = """
import resource, sys, time, torch, regard
torch.set_num_threads(1)
model = regard.load("de-en", int8={int8})
lines = open({lines!r}, encoding="utf-8").read().split("\\n")[:{count}]
model.translate(lines[:8])
begun = time.process_time()
model.translate(lines)
print(time.process_time() - begun)
"""

FIRST_VIEW = """
import sys, time
sys.path.insert(0, {bench!r})
from paths import page_app
from starlette.testclient import TestClient
app = page_app()
begun = time.process_time()
with TestClient(app, base_url="http://localhost") as client:
    run = client.post("/api/run", json={{"text": "Ein Hund läuft durch den Schnee."}}).raise_for_status().json()["run"]
    client.post("/api/output", json={{"run": run}}).raise_for_status()
    client.get("/api/tensor", params={{"run": run, "name": "decoder.1.cross.weights"}}).raise_for_status()
    client.post("/api/notes", json={{"run": run, "at": "decoder.1.cross"}}).raise_for_status()
print(time.process_time() - begun)
"""

TRAIN = """
import json, os, random, sys, tempfile, regard
from pathlib import Path
folder = Path(tempfile.mkdtemp())
os.environ["REGARD_CACHE"] = str(folder / "cache")
draw = random.Random(0)
words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(6000)]
def sentence():
    return " ".join(draw.choices(words, k=max(2, min(90, round(draw.lognormvariate(3.0, 0.5))))))
pairs = "\\n".join(f"{{sentence()}}\\t{{sentence()}}" for _ in range({pairs}))
(folder / "train.tsv").write_text(pairs, encoding="utf-8")
(folder / "recipe.toml").write_text({recipe!r}, encoding="utf-8")
os.chdir(folder)
regard.train("recipe.toml")
records = [json.loads(line) for line in open("runs/recipe/log.jsonl", encoding="utf-8")]
speeds = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
print(sorted(speeds[len(speeds) // 2:])[len(speeds) // 4])
"""

DECODE_GPU = """
import statistics, time, torch, regard
from regard.decoding.decode import decode
from regard.decoding import settings
from regard.models.build import build
try:
    from regard.decoding.settings import Ends
except ImportError:  # before the redesign
    from regard.decoding.request import Ends
torch.manual_seed(0)
model = build(regard.preset("transformer-base", vocabulary=32000), "cuda", torch.bfloat16).eval()
inputs = torch.randint(3, 32000, (64, 32)).tolist()
rules = settings.Rules(longest=settings.Absolute(tokens=32))
search = {search}
seconds = []
for _ in range(60):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    decode(model, inputs, Ends(start=0), search, rules, batch_tokens=10**6)
    torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begun)
print(64 / statistics.median(seconds[10:]))
"""
SEARCHES = {
    "beam": "settings.Beam(size=4, length=settings.Power(alpha=1.0), stop='best')",
    "greedy": "settings.Greedy()",
}

RECIPE = """
task = "translate"
[data]
kind = "parallel-tsv"
train = ["train.tsv"]
[text]
kind = "bpe"
size = {size}
[model]
preset = "{preset}"
[train]
tokens = {tokens}
steps = {steps}
log_every = 10
"""


def jobs(lines: str) -> dict[str, tuple[str, bool]]:
    """The code of each job, and whether its result is in seconds."""
    bench = str(Path(__file__).parent)
    base = RECIPE.format(size=16_000, preset="transformer-base", tokens=25_600, steps=200)
    tiny = RECIPE.format(size=1_000, preset="transformer-tiny", tokens=1_024, steps=40)
    found = {
        "help": (COMMAND.format(arguments=["--help"]), True),
        "one sentence": (COMMAND.format(arguments=["translate", "de-en", "Hallo."]), True),
        "wrong name": (COMMAND.format(arguments=["translate", "de-eng", "Hallo."]), True),
        "translate float32": (TRANSLATE.format(int8=False, lines=lines, count=96), True),
        "translate int8": (TRANSLATE.format(int8=True, lines=lines, count=96), True),
        "first view": (FIRST_VIEW.format(bench=bench), True),
        "train step, CPU": (TRAIN.format(pairs=2_000, recipe=tiny), False),
    }
    if torch.cuda.is_available():
        found = {f"{name}, GPU": (DECODE_GPU.format(search=search), False) for name, search in SEARCHES.items()}
        found["train step, GPU"] = TRAIN.format(pairs=60_000, recipe=base), False
    return found


def measure(tree: Path, code: str, whole_process: bool) -> tuple[float, float]:
    """The number that a job prints, or the CPU seconds of its whole process; and the seconds of its process."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])}
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False)
    after = os.times()
    if done.returncode and not whole_process:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    wall = after.elapsed - before.elapsed
    if whole_process:
        return (after.children_user + after.children_system) - (before.children_user + before.children_system), wall
    return float(done.stdout.strip().splitlines()[-1]), wall


def loader_speeds(tree: Path) -> dict[str, float]:
    """Target tokens a second by kind of batch, from each version's own bench/loader.py."""
    out = Path(f"loader-{os.getpid()}.json").resolve()
    command = [sys.executable, str(tree / "bench/loader.py"), "--pairs", "100000", "--seconds", "2", "--out", str(out)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree / "src")}, check=True, capture_output=True)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    out.unlink()
    return {f"loader: {row['data']}, {row['pairs']:,}": row["tokens_per_s"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--lines", type=Path, default=Path("newstest2013.de"), help="German sentences, one per line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    trees = {"old": options.old.resolve(), "new": options.new.resolve()}
    found: dict[str, dict[str, list[float]]] = {}
    lower_is_better = set()
    for name, (code, seconds) in jobs(str(options.lines.resolve())).items():
        if options.only and name not in options.only:
            continue
        if seconds:
            lower_is_better.add(name)
        for _ in range(options.rounds):
            for version, tree in trees.items():
                value, wall = measure(tree, code, name in COMMANDS)
                found.setdefault(name, {}).setdefault(version, []).append(value)
                if name in COMMANDS:
                    lower_is_better.add(f"{name}, wall")
                    found.setdefault(f"{name}, wall", {}).setdefault(version, []).append(wall)
    if not torch.cuda.is_available() and (not options.only or "loader" in options.only):
        for _ in range(options.rounds):
            for version, tree in trees.items():
                for name, value in loader_speeds(tree).items():
                    found.setdefault(name, {}).setdefault(version, []).append(value)
    rows: list[dict[str, Any]] = []
    for name, values in found.items():
        old, new = (statistics.median(values[version]) for version in ("old", "new"))
        speed = old / new if name in lower_is_better else new / old
        rows.append({"job": name, "old": old, "new": new, "speed": round(speed, 3), "runs": values})
        print(f"{name:40} old {old:12,.3f}  new {new:12,.3f}  speed {speed:.3f} ×", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
