"""How did it go? The budget, the end, and what changed on the way. No torch in here."""

from __future__ import annotations

from regard.format import percent
from regard.training.checks.evidence import Evidence
from regard.training.checks.finding import Finding, fine

MATTERS = ("regard", "commit", "python", "torch", "numpy", "tokenizers", "cuda", "cpu", "device", "threads")
"""A change of any of these may change results. The same as `regard.training.environment` names, which imports torch."""


def ended(run: Evidence) -> Finding | None:
    """Whether the run came to its end."""
    spent = "" if run.spent is None else f", {percent(run.spent)} of its budget spent"
    told = f"at step {max(run.last_step, int(run.status.get('step') or 0)):,}{spent}"
    reason = str(run.status.get("reason") or run.end.get("reason") or "")
    again = f"go on with `regard train --resume {run.directory}`"
    match run.state:
        case "finished":
            return fine("the run finished", told if reason in ("", "budget") else f"{told}; by {reason}")
        case "running":
            return Finding("note", "the run is still going on", told, "ask again later: what is said here may change")
        case "stopped":
            return Finding("note", "the run was stopped before its budget was spent", _joined(told, reason), again)
        case "failed":
            return Finding("bad", "the run failed", _joined(told, reason), f"mend what the message says, then {again}")
        case _:
            return Finding("odd", "the run was killed", _joined(told, reason), again)


def same_ground(run: Evidence) -> Finding | None:
    """Whether it was resumed where, and with what, it began."""
    resumes = run.environment.get("resumes") or []
    if not resumes:
        return None
    changes = [
        f"{name} {old} → {new}"
        for resume in resumes
        for name, (old, new) in resume.get("changed", {}).items()
        if name in MATTERS
    ]
    changes += [str(event.get("text", "")) for event in run.events if event.get("what") == "changed"]
    times = "once" if len(resumes) == 1 else f"{len(resumes)} times"
    if changes:
        return Finding(
            "note",
            "something changed when the run was resumed",
            f"resumed {times}: {'; '.join(dict.fromkeys(changes))}",
            "it is a sound run, but not the one that an uninterrupted run would have been; resume with the same "
            "versions and OMP_NUM_THREADS for equal bits",
        )
    return fine("it was resumed on the same ground", f"resumed {times}, nothing that matters changed")


def _joined(told: str, reason: str) -> str:
    return f"{told}: {reason}" if reason else told
