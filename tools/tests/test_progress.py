"""A step says how far it is also where nobody watches a bar."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bundle import progress


def test_lines_where_the_output_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 16.0, 17.0, 18.0, 40.0])
    with progress.shown(Console(file=io.StringIO()), clock=lambda: next(times)) as show:
        for what, done, of in [("compiling", 1, 9), ("compiling", 2, 9), ("compiling", 5, 9), ("compiling", 6, 9)]:
            show(what, done, of)
        show("training", 0, None)
        show("training", 3, None)
    assert capsys.readouterr().err.splitlines() == [
        "compiling",
        "compiling: 5 of 9 after 16 s",
        "training",
        "training: 3 of ? after 22 s",
    ]


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress.shown(screen) as show:
        show("compiling", 4, 9)
    assert isinstance(screen.file, io.StringIO)
    assert "4/9" in screen.file.getvalue()
    assert capsys.readouterr().err == ""
