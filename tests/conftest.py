"""What every test shares: one thread, and property tests that draw the same examples each time."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("faudit", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("faudit")
