"""``bundle check``: prove that built variants keep the rules (checks/)."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bundle import buildfile, checks, matrix, options, process
from bundle.checks import Finding, Subject
from bundle.errors import CheckError

SHOWN = 10
"""Violations of one check that are printed; the rest is counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument(
        "variants",
        nargs="*",
        type=options.directory,
        metavar="DIR",
        help="check these variant directories as they are, say downloaded ones, instead of what this checkout builds",
    )


def run(args: argparse.Namespace) -> int:
    """Check every selected variant; CheckError when one breaks a rule."""
    broken = [target for target in _subjects(args) if not check(target)]
    if broken:
        names = ", ".join(str(target.variant) for target in broken)
        raise CheckError(f"{names} must not be published", hint="Each line marked failed says what to change.")
    return 0


def _subjects(args: argparse.Namespace) -> list[Subject]:
    if args.variants:
        return [checks.subject(directory) for directory in args.variants]
    out, scratch = options.places(args)
    selected = matrix.select(buildfile.read(args.root), args.only)
    return [checks.subject(out / str(name), root=args.root, scratch=scratch) for name in selected]


def check(target: Subject) -> bool:
    """Run every check on ``target``, print the outcome; whether all hold."""
    findings = checks.run_all(target)
    process.console.print(table(target.directory, findings))
    return not any(finding.violations for finding in findings)


def table(directory: Path, findings: tuple[Finding, ...]) -> Table:
    """One line a check, one more for each further violation."""
    grid = Table(title=str(directory), title_justify="left", box=None, pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        if finding.violations:
            for count, violation in enumerate(finding.violations[:SHOWN]):
                grid.add_row(*(("", "") if count else (finding.check, "[red]failed[/red]")), Text(violation))
            if len(finding.violations) > SHOWN:
                grid.add_row("", "", Text(f"and {len(finding.violations) - SHOWN} more"))
        elif finding.skipped is not None:
            grid.add_row(finding.check, "[yellow]skipped[/yellow]", Text(finding.skipped))
        else:
            grid.add_row(finding.check, "[green]ok[/green]")
    return grid
