"""Trains small jobs and writes their parameters: what `torchrun` starts in tests. Argument: a JSON file of jobs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from training_cases import Job

from regard.settings import parse
from regard.training.distribution import connected, whole
from regard.training.settings import Train


def main(jobs: str) -> None:
    torch.set_num_threads(1)
    with connected("cpu") as workers:
        for family, train, directory, out in json.loads(Path(jobs).read_text()):
            job = Job(family, parse(Train, train), Path(directory), valid=12 if "ema" in train else 0)
            trainer = job.trainer(workers, run=Path(f"{out}.run"))
            trainer.run()
            tensors = whole(dict(trainer.model.named_parameters()))
            if workers.leads:
                save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, out)
            workers.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # as the command does: PyTorch's threads may abort a process that takes them apart
