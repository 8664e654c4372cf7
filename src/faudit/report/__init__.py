"""Report: bundles in, one offline page with its tables and figures out; needs no torch.

Bundles are read into a ``dossier`` of settings and groups; ``tables`` and ``figures`` are functions
of these, ``narrative`` puts them in words, and ``document`` writes it all.
"""

from faudit.report.cells import Check, Mark, Value
from faudit.report.document import write_report
from faudit.report.dossier import Dossier, Group, Run, Setting, read
from faudit.report.plate import Panel, Plate
from faudit.report.table import Table

__all__ = [
    "Check",
    "Dossier",
    "Group",
    "Mark",
    "Panel",
    "Plate",
    "Run",
    "Setting",
    "Table",
    "Value",
    "read",
    "write_report",
]
