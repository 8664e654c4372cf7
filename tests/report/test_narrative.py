"""The sentences follow from the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faudit.protocol import walk_back
from faudit.report import Dossier, read
from faudit.report.narrative import early_evidence, headline, stories
from tests.report import samples
from tests.report.samples import bundle, recipe


def test_the_headline_counts_cases_and_what_the_usual_report_would_miss() -> None:
    assert headline(read(samples.audit(4))) == (
        "4 of 6 audited cases fail the protocol. The usual report, accuracy and aggregate cosine,"
        " would have let every one of them stand."
    )


def test_a_usual_report_that_objects_is_given_credit() -> None:
    made = bundle(recipe("dfa", epochs=4))
    assert made.evidence is not None
    opposed = replace(made, evidence=made.evidence.replace(gamma=-0.1))
    baseline = bundle(recipe("dfa", epochs=4, blocks=0))
    assert headline(read([opposed, baseline])).endswith("aggregate cosine, objects to it too.")


def test_the_headline_of_one_failure_is_in_the_singular() -> None:
    made = [recipe("dfa", epochs=4), recipe("dfa", epochs=4, blocks=0)]
    assert headline(read([bundle(r) for r in made])) == (
        "1 of 1 audited cases fails the protocol. The usual report, accuracy and aggregate cosine,"
        " would have let it stand."
    )


def test_the_headline_of_a_success_claims_no_more_than_that() -> None:
    made = [recipe("bp", epochs=4), recipe("bp", epochs=4, blocks=0)]
    assert headline(read([bundle(r) for r in made])) == "The one audited case does not fail."


def test_the_headline_never_hides_what_is_open(small: Dossier) -> None:
    assert "something to judge; see below" in headline(small)


def test_baselines_alone_are_no_audit() -> None:
    assert "no method" in headline(read([bundle(recipe("bp", epochs=3, blocks=0))]))


def test_every_method_that_can_be_judged_has_its_story(dossier: Dossier) -> None:
    told = stories(dossier)
    assert [story.group for story in told] == list(dossier.methods)
    assert all(len(story.chain.steps) == 4 for story in told)


def test_a_story_knows_what_happened_early_under_a_penalty_and_elsewhere(dossier: Dossier) -> None:
    here = {(s.group.label, s.group.setting): s for s in stories(dossier)}
    chain = here["DFA", "ResMLP d256 L4, CIFAR-10, 30 epochs"].chain
    assert "A check first fired at epoch" in chain.steps[3].answer
    assert "On other networks: ViT-Mini" in chain.steps[3].answer
    assert here["BP", "ViT-Mini d128 L4, CIFAR-10, 30 epochs"].decision == "stands"


def test_early_evidence_is_that_of_the_first_epoch_measured() -> None:
    (run,) = read([bundle(recipe("dfa", epochs=30))]).runs
    early = early_evidence(run)
    assert early is not None
    assert early.reference_norm == tuple(run.history[1]["reference_norm"])
    assert early.deep_cosine == pytest.approx(run.history[1]["deep_cosine"])
    assert run.verdict is not None
    assert walk_back(early, run.verdict)


def test_a_history_without_measurements_is_no_early_evidence() -> None:
    made = bundle(recipe("dfa", epochs=3))
    bare = made.__class__(**{**made.__dict__, "history": ({"epoch": 1, "train_loss": 2.0},)})
    assert early_evidence(read([bare]).runs[0]) is None
