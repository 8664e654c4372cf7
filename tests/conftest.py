"""What every test shares: one thread, and the same random numbers each time it runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("faudit", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("faudit")


@pytest.fixture(autouse=True)
def same_chance() -> None:
    """No test passes or fails by luck; the seed is none that a test draws weights from."""
    torch.manual_seed(271828)
