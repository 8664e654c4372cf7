"""The protocol: arithmetic on evidence that ends in a verdict. Nothing here imports torch.

*The paper* is "What Accuracy and Gradient Cosine Miss: Evaluating Feedback Alignment via Scale
Stability, Reference Validity, and Depth Utility"; the *first* and *second draft* are its earlier
versions under the title "Beyond Accuracy and Alignment: A Diagnostic Evaluation Protocol for
Feedback Alignment", as LaTeX and as PDF.
"""

from faudit.protocol.ablation import (
    DRAFT,
    PAPER,
    STRATEGIES,
    Case,
    DecisionTable,
    Sensitivity,
    decision_table,
    threshold_sensitivity,
)
from faudit.protocol.calibrate import Calibration, Proposal, calibrate
from faudit.protocol.diagnosis import Verdict, diagnose, judge
from faudit.protocol.findings import Finding, Thresholds
from faudit.protocol.flags import FACTS, Flag, reliability
from faudit.protocol.interval import Interval, paired_interval, unpaired_interval
from faudit.protocol.replay import EarlyStop, Epoch, Replay, replay
from faudit.protocol.walkback import Step, WalkBack, walk_back

__all__ = [
    "DRAFT",
    "FACTS",
    "PAPER",
    "STRATEGIES",
    "Calibration",
    "Case",
    "DecisionTable",
    "EarlyStop",
    "Epoch",
    "Finding",
    "Flag",
    "Interval",
    "Proposal",
    "Replay",
    "Sensitivity",
    "Step",
    "Thresholds",
    "Verdict",
    "WalkBack",
    "calibrate",
    "decision_table",
    "diagnose",
    "judge",
    "paired_interval",
    "reliability",
    "replay",
    "threshold_sensitivity",
    "unpaired_interval",
    "walk_back",
]
