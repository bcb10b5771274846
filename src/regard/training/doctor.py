"""Does a run look normal? A list of questions put to its log, each answered with numbers and a remedy. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regard.training.checks import data, history, learning, speed, steps, validation
from regard.training.checks.evidence import Evidence, read_evidence
from regard.training.checks.finding import LEVELS, Check, Finding, Level
from regard.training.checks.reference import reference_checks, reference_of

__all__ = ["CHECKS", "Diagnosis", "Finding", "Level", "diagnose", "diagnose_evidence", "reference_of"]

CHECKS: tuple[Check, ...] = (
    history.ended,
    history.same_ground,
    learning.first_loss,
    learning.finite,
    learning.falls,
    learning.diverges,
    learning.spikes,
    learning.plateau,
    learning.still_improving,
    steps.rate,
    steps.warmup,
    steps.norm,
    steps.clipped,
    validation.overfits,
    validation.far_worse,
    validation.too_good,
    validation.enough_validation,
    validation.best_long_ago,
    data.unknown,
    data.lost,
    speed.wait,
    speed.padding,
    speed.throughput,
    speed.memory,
    speed.compilation,
)


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    findings: list[Finding]
    """The gravest first."""

    @property
    def worst(self) -> Level:
        return self.findings[0].level if self.findings else "fine"

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)


def diagnose(run_dir: Path) -> Diagnosis:
    """What is normal about a run and what is odd."""
    return diagnose_evidence(read_evidence(run_dir))


def diagnose_evidence(run: Evidence) -> Diagnosis:
    answers = [check(run) for check in CHECKS]
    findings = [finding for finding in (*answers, *reference_checks(run)) if finding is not None]
    return Diagnosis(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))
