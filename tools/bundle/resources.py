"""``bundle resources``: print what the built CUDA kernels take of a GPU, or write it into the committed table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import astuple, fields

from rich.table import Table

from bundle import buildfile, cuda, matrix, options, process, ptxas, stage
from bundle.ptxas import Row
from bundle.variant import Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument("--write", action="store_true", help="replace the committed table by what was built")


def run(args: argparse.Namespace) -> int:
    """Print what the selected CUDA variants' kernels take, or write it down."""
    _, scratch = options.places(args)
    build = buildfile.read(args.root)
    for name in matrix.select(build, args.only or ["*-cu*"]):
        objects, release = scratch / str(name) / "cmake" / cuda.OBJECTS, cuda.find(name, args.root).release
        notes = ptxas.read(objects)
        if args.write:
            _write(name, release, notes)
        else:
            process.console.print(shown(name, notes))
    return 0


def _write(name: Variant, release: str, rows: tuple[Row, ...]) -> None:
    path = ptxas.table_of(release)
    kept = [row for row in ptxas.committed(path) if row.arch not in {new.arch for new in rows}]
    path.parent.mkdir(exist_ok=True)
    stage.write_if_changed(path, ptxas.rendered((*kept, *rows)).encode())
    process.say(f"{name}: {len(rows)} rows in {path}")


def shown(name: Variant, rows: Iterable[Row]) -> Table:
    """The rows for a person."""
    table = Table(title=str(name), box=None, pad_edge=False)
    for field in fields(Row):
        table.add_column(field.name.replace("_", " "), justify="left" if field.type == "str" else "right")
    for row in rows:
        table.add_row(*map(str, astuple(row)))
    return table
