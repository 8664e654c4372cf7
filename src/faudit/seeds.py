"""Independent random streams from one seed: nothing random shares a stream with anything else."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch

from faudit.errors import FauditError


def derive(*parts: int) -> int:
    """One seed from several whole numbers; near inputs give unrelated outputs.

    >>> derive(42, 0) == derive(42, 0), derive(42, 0) == derive(42, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def check_seed(seed: object) -> None:
    """Refuse what no random source could start from.

    >>> check_seed(2**64)
    Traceback (most recent call last):
    ...
    faudit.errors.FauditError: seed is 18446744073709551616; give a whole number from 0 to 2**63 - 1
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise FauditError(f"seed is {seed!r}; give a whole number from 0 to 2**63 - 1")


def seeded(*parts: int) -> torch.Generator:
    """A generator of its own for these numbers.

    >>> bool(torch.rand(1, generator=seeded(1, 2)) == torch.rand(1, generator=seeded(1, 2)))
    True
    """
    return torch.Generator().manual_seed(derive(*parts))
