"""``bundle plan``: which variants there are, which this machine builds, and why the others are left out."""

from __future__ import annotations

import argparse
import json

from rich.table import Table
from rich.text import Text

from bundle import buildfile, matrix, options, process
from bundle.matrix import Cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a GitHub Actions matrix of what the project builds, whatever this machine can compile",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    build = buildfile.read(args.root)
    cells = matrix.plan(build, args.only, here=not args.json)
    if args.json:
        print(json.dumps(github_matrix(cells)))
        return 0
    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    table.add_column("plan", no_wrap=True)
    table.add_column("why")
    for cell in cells:
        table.add_row(str(cell.variant), "build" if cell.left_out is None else "left out", Text(cell.left_out or ""))
    process.console.print(table)
    return 0


def github_matrix(cells: tuple[Cell, ...]) -> dict[str, list[dict[str, str]]]:
    """``{"include": [{variant, backend, runner}]}`` of the cells that are built."""
    return {
        "include": [
            {"variant": str(cell.variant), "backend": cell.variant.backend, "runner": cell.runner}
            for cell in cells
            if cell.left_out is None
        ]
    }
