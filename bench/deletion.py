"""Deletion curves of the maps of an image classifier on its test images: does a map find the patches that matter?

    PYTHONPATH=src python bench/deletion.py RUN [--images 100] [--out bench/results/DATE-NAME.json]

For each image that the model classifies correctly, patches are greyed out in the order of a map; the result is the mean
area below the curve of the probability of the answer. Smaller is better; the controls are random order and the centre.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from measured import environment

import regard
from regard.data.examples import Picture
from regard.data.source import Source
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views.image import CLASS, PatchesRequest, deletion
from regard.tasks.image import fitted
from regard.tasks.recipe import make_job
from regard.weights.directory import OF_RUN, read_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    loaded = regard.load(arguments.run)
    config = {name: table for name, table in read_config(arguments.run).items() if name not in OF_RUN}
    data = make_job("deletion", config, {}).data
    study, settings = Study(loaded), loaded.settings
    query = CLASS if settings.class_token else None
    maps = {"gradient": {"gradient": True}, "rollout": {"rollout": True}}
    areas: dict[str, list[float]] = {}
    for picture in Source(data, "test" if "test" in data.splits else "valid"):
        assert isinstance(picture, Picture)
        image = np.ascontiguousarray(fitted(picture.pixels, settings.image, settings.channels))
        if loaded.predict([image.transpose(1, 2, 0)])[0]["label"] != str(picture.label):
            continue
        run = study.run(Input(image=image))
        for name, kind in maps.items():
            area = deletion(study, PatchesRequest(run=run.key, query=query, **kind))["area"]
            areas.setdefault(name, []).append(area["overlay"])
        for name in ("random", "centre"):
            areas.setdefault(name, []).append(area[name])
        if len(areas["random"]) == arguments.images:
            break
    count = len(areas["random"])
    found = {
        name: {"area": fmean(each), "standard_error": stdev(each) / count**0.5 if count > 1 else None}
        for name, each in areas.items()
    }
    for name in maps:
        found[name]["beats_random"] = fmean(a < b for a, b in zip(areas[name], areas["random"], strict=True))
        found[name]["beats_centre"] = fmean(a < b for a, b in zip(areas[name], areas["centre"], strict=True))
    result = {"environment": environment(), "run": arguments.run.name, "images": count, "areas": found}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
