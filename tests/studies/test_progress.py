"""Progress: a table on a terminal, plain lines elsewhere, and no name can break either."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faudit.recipe import Recipe
from faudit.studies.progress import (
    Clock,
    Lines,
    Running,
    Screen,
    Silent,
    Status,
    board,
    label,
    running,
)

STATUS = Status(
    total=10,
    cached=4,
    finished=2,
    failed=1,
    running=[Running("dfa", epoch=5, epochs=10, share=0.5, rate=1234.0, accuracy=0.5)],
)


def test_the_counts_in_words() -> None:
    assert STATUS.line() == "2 of 6 runs finished, 1 failed, 1 running, 4 were there"


def test_the_time_left_follows_the_work_done() -> None:
    # 3.55 of 6 runs in 71 s: 20 s a run, 2.45 runs to go.
    assert round(Clock(now=iter([0.0, 71.0]).__next__).left(STATUS) or 0) == 49


def test_work_found_in_checkpoints_is_not_counted_as_speed() -> None:
    found = Status(total=2, running=[Running("a", epoch=6, epochs=10)], found=0.5)
    assert round(Clock(now=iter([0.0, 10.0]).__next__).left(found) or 0) == 140
    assert Clock(now=iter([0.0, 10.0]).__next__).left(Status(total=2)) is None


def test_long_runs_count_for_more_than_short_ones() -> None:
    # A run of four fifths of the work has begun, and the other has ended: as far as the times go,
    # 0.4 + 0.8 of 2 usual runs are behind, and not one and a half.
    long = Running("a", epoch=5, epochs=10, size=1.6)
    sized = Status(total=2, finished=1, running=[long], made=0.4)
    assert round(sized.behind, 6) == 1.2
    assert round(Clock(now=iter([0.0, 12.0]).__next__).left(sized) or 0) == 8


def test_lines_are_plain_and_seldom() -> None:
    out = io.StringIO()
    lines = Lines(out, every=3600)
    lines.show(STATUS)
    lines.note("dfa: done")
    assert out.getvalue() == "dfa: done\n"
    Lines(out, every=0).show(STATUS)
    assert (
        out.getvalue()
        .splitlines()[-1]
        .startswith(
            "2 of 6 runs finished, 1 failed, 1 running, 4 were there; 1,234 samples/s, about"
        )
    )


@given(st.text())
def test_no_name_breaks_a_board_or_drives_a_terminal(name: str) -> None:
    shown = Status(total=1, running=[Running(label(Recipe(rule=name)))])  # type: ignore[arg-type]
    plain, rich = io.StringIO(), io.StringIO()
    screen = Screen(Console(file=rich, width=200))
    for each in (Lines(plain, every=0), screen):
        each.show(shown)
        each.note(name)
        each.close()
    assert all(c.isprintable() or c in "\n" for c in plain.getvalue())
    assert "\x1b" not in rich.getvalue()


def test_a_terminal_shows_every_run() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=120, force_terminal=True))
    screen.show(STATUS)
    screen.live.refresh()
    screen.close()
    assert "dfa" in out.getvalue()
    assert "5/10" in out.getvalue()
    assert "55 %" in out.getvalue()


def test_where_output_goes_decides() -> None:
    assert isinstance(board(out=io.StringIO()), Lines)
    assert isinstance(board(quiet=True), Silent)


def test_a_run_under_way_from_its_diary() -> None:
    said = {"epoch": 3, "share": 0.5, "rate": 10.0, "accuracy": 0.25, "train_loss": 1.0}
    shown = running(Recipe(), said)
    assert (shown.epoch, shown.epochs, shown.done, shown.accuracy) == (3, 100, 0.035, 0.25)
    assert running(Recipe(), {}).done == 0.0
