"""Run everything, print it, and write it into ``latest.json``: ``python -m benchmarks``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import perf_counter

import torch

from benchmarks import growth, measure, memory, throughput, whole
from faudit.provenance import code_fingerprint, git_commit, machine, versions
from faudit.routes import chosen

LATEST = Path(__file__).with_name("latest.json")


def main() -> None:
    """All sections, in the order that disturbs them least."""
    began, before, found = perf_counter(), os.getloadavg()[0], []
    torch.set_num_threads(1)
    for part in (throughput, measure, growth, memory, whole):
        for section in part.sections():
            print(section, flush=True)
            found.append(section)
    rows = [row for section in found for row in section.rows if row.met is not None]
    about = {
        "processor": machine("cpu"),
        "cores": os.cpu_count(),
        "load": {"before": round(before, 2), "after": round(os.getloadavg()[0], 2)},
        "route": chosen(),
        "versions": versions(),
        "code": code_fingerprint(),
        "commit": git_commit(),
        "seconds": round(perf_counter() - began),
    }
    met = sum(bool(row.met) for row in rows)
    told = {
        "about": about,
        "met": f"{met} of {len(rows)}",
        "sections": [s.to_dict() for s in found],
    }
    LATEST.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    print(f"{met} of {len(rows)} targets met, in {about['seconds']} s; written to {LATEST}")


if __name__ == "__main__":
    main()
