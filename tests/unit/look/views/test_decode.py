"""Decode view: the same tokens as decoding itself."""

from __future__ import annotations

import pytest
from study_cases import run_of

from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Paper, Rules, Sampling
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.decode import _job, beam_tree, decode_steps


def test_steps_and_tree_are_those_of_decode(studies: dict[str, Study]) -> None:
    rules = Rules(frequency=0.5, presence=0.25, longest=Absolute(tokens=12))
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=7)
    beam = Beam(size=3, length=Paper(alpha=1.0))
    for family in ("translator", "decoder"):
        study, run = run_of(studies, family)
        network, tokens, ends, wish = _job(study, run, ())
        assert tokens == run.sides["encoder" if family == "translator" else "decoder"].ids
        ((found,),) = decode(network, [tokens], ends, sampling, rules, [wish])
        drawn = decode_steps(study, run, sampling, rules, draws=True)
        assert [step["token"]["id"] for step in drawn["steps"]][: len(found.tokens)] == found.tokens
        assert all(step["kept"] <= 20 and step["token"]["chance"] > 0 for step in drawn["steps"])
        best = decode_steps(study, run, Sampling(), rules)
        assert all(step["token"] == step["options"][0] for step in best["steps"])
        ((first, *_),) = decode(network, [tokens], ends, beam, rules, [wish])
        assert beam_tree(study, run, beam, rules).found[0].tokens == first.tokens


def test_a_given_prefix(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    rules = Rules(longest=Absolute(tokens=4))
    steps = decode_steps(study, run, Sampling(), rules, prefix=(70, 71))["steps"]
    assert [step["token"]["id"] for step in steps[:2]] == [70, 71]
    assert [step["forced"] for step in steps] == [True, True, False, False][: len(steps)]
    with pytest.raises(InputError, match="writes no text"):
        decode_steps(*run_of(studies, "vision"), Sampling(), rules)
