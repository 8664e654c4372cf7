"""The threshold control's numbers: what each run shows, for a reader to judge anew in the page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from faudit.protocol import Thresholds
from faudit.protocol.findings import ROUNDING
from faudit.report import escape
from faudit.report.dossier import Group, Run, standing

PUBLISHED = Thresholds()


def payload(groups: Sequence[Group]) -> dict[str, Any]:
    """Thresholds and runs as the page's script reads them.

    >>> payload([])["published"]
    {'growth': 50.0, 'factor': 10.0, 'margin': 2.0}
    """
    return {
        "published": {
            "growth": PUBLISHED.growth,
            "factor": PUBLISHED.reference_factor,
            "margin": 100 * PUBLISHED.margin,
        },
        "rounding": ROUNDING,
        "groups": [[_numbers(run) for run in group.runs] for group in groups],
    }


def _numbers(run: Run) -> dict[str, Any]:
    verdict, evidence = run.verdict, run.evidence
    if verdict is None or evidence is None or verdict.invalid:
        return {"fixed": escape.plain(run.standing)}
    return {
        "growth": _finite(evidence.largest_growth),
        "whole": bool(evidence.growth) and all(g == g for g in evidence.growth),
        "reference": _finite(evidence.deepest_reference(verdict.thresholds.reference_batch)),
        "eps": verdict.thresholds.eps,
        "margin": verdict.finding("D3").value
        if verdict.finding("D3").flagged is not None
        else None,
    }


def _finite(value: float | None) -> float | None:
    # JSON has no infinity; the largest number is on the same side of every threshold.
    return None if value is None else min(value, sys.float_info.max)


def embedded(groups: Sequence[Group]) -> str:
    """The payload for the inside of a ``<script type="application/json">``."""
    return escape.script(json.dumps(payload(groups), allow_nan=False, separators=(",", ":")))


def moved(groups: Sequence[Group], growth: float, factor: float, margin: float) -> list[str]:
    """Each group's verdict at other thresholds, ``margin`` in points: what the page shows there."""
    return [standing(_moved(run, growth, factor, margin) for run in group.runs) for group in groups]


def _moved(run: Run, growth: float, factor: float, margin: float) -> str:
    if run.verdict is None or run.verdict.invalid:
        return run.standing
    limits = run.verdict.thresholds.replace(
        growth=growth, reference_factor=factor, margin=margin / 100
    )
    return str(run.judged(limits))
