"""Pitfalls of comparison: a baseline that is not matched, an intervention without its control."""

from __future__ import annotations

from faudit.pitfalls.record import Pitfall
from faudit.pitfalls.tiny import Task, learn, task

EPOCHS = 12


def unmatched_baseline(seed: int = 0) -> Pitfall:
    """Trained blocks held against a baseline that was trained for a quarter of the time.

    >>> found = unmatched_baseline()
    >>> found.wrong > 10, found.right < 2
    (True, True)
    """
    on = task(seed)
    trained = learn(on, "dfa", epochs=EPOCHS).accuracy()
    matched = learn(on, "dfa", epochs=EPOCHS, trainable_blocks=0).accuracy()
    short = learn(on, "dfa", epochs=EPOCHS // 4, trainable_blocks=0).accuracy()
    return Pitfall(
        code="unmatched-baseline",
        title="A baseline that is not matched",
        quantity="pp that trained blocks gain over frozen ones",
        wrong=100 * (trained - short),
        wrong_way=f"over a baseline of {EPOCHS // 4} epochs",
        right=100 * (trained - matched),
        right_way=f"over one of {EPOCHS} epochs, like the run",
        explanation=(
            "Frozen blocks need the same data, schedule, width and number of epochs; any"
            " advantage left to the trained run is counted as depth."
        ),
        fix="change one thing: which blocks learn (faudit.baselines.frozen does)",
        details={"accuracy": trained, "frozen, matched": matched, "frozen, short": short},
    )


def no_null(seed: int = 0) -> Pitfall:
    """A penalty that helps DFA, until backpropagation gets the same penalty.

    >>> found = no_null()
    >>> found.wrong > found.right
    True
    """
    on = task(seed, samples=128, noise=3.0)
    dfa, bp = _gain("dfa", on), _gain("bp", on)
    return Pitfall(
        code="no-null",
        title="An intervention without its control",
        quantity="pp of accuracy that a penalty gives to credit by DFA",
        wrong=dfa,
        wrong_way="with and without it",
        right=dfa - bp,
        right_way="beyond what it gives to backpropagation",
        explanation=(
            "On few and noisy labels a penalty regularises any network. Backpropagation, whose"
            " credit cannot be improved, gains from it too: that part is no better credit."
        ),
        fix="give the same intervention to a control: exact gradients, or fresh feedback",
        details={"gain of DFA": dfa, "gain of BP": bp},
    )


def _gain(rule: str, on: Task) -> float:
    """Points of test accuracy that the penalty adds."""
    without, penalised = (
        learn(on, rule, epochs=30, batch=128, lr=6e-3, penalty=penalty).accuracy()
        for penalty in (0.0, 1.0)
    )
    return 100 * (penalised - without)
