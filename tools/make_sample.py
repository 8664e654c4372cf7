"""Build the embedded Fashion-MNIST sample from the original idx files.

    python tools/make_sample.py ROOT src/faudit/assets/fashion_mnist/sample.npz

ROOT is a folder from which ``faudit.data.load("fashion-mnist", ROOT)`` reads.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from faudit.data import Split, load

SEED = 20170825
PER_CLASS = {"train": 600, "test": 200}


def choose(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Row numbers of a balanced sample: each run of one row per class holds every class once."""
    draw = np.random.default_rng(seed)
    columns = [
        draw.choice(np.flatnonzero(labels == label), per_class, replace=False)
        for label in np.unique(labels)
    ]
    return draw.permuted(np.stack(columns, axis=1), axis=1).ravel()


def sample(split: Split, name: str) -> dict[str, Any]:
    """The chosen images and labels of one split, and the rows they come from."""
    rows = choose(split.labels.numpy(), PER_CLASS[name], SEED)
    return {
        f"{name}_images": split.images.numpy()[rows, 0],
        f"{name}_labels": split.labels.numpy()[rows].astype(np.uint8),
        f"{name}_rows": rows.astype(np.uint16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    data = load("fashion-mnist", given.root)
    np.savez_compressed(given.target, **sample(data.train, "train"), **sample(data.test, "test"))
    raw = given.target.read_bytes()
    print(f"{given.target}: {len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()}")


if __name__ == "__main__":
    main()
