"""``bundle tables``: the tables of README.md and docs/ that come from tests/claims*.py; checks them, or writes them.
Measured speeds it only writes (speed.py).

A table lies between ``<!-- table NAME ... -->`` and ``<!-- end NAME -->``. What its rows claim is proven by the tests
that they name, which must exist; that each of them passes is for the tests' own run to say (tests/claims_run.py).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bundle import buildfile, matrix, options, process, speed, speed_rows
from bundle.buildfile import BuildFile
from bundle.errors import CheckError

MODULES = ("claims", "claims_features", "claims_migration", "claims_families")
ISAS = ("avx512", "avx2")
"""Instruction sets in the order they are listed; every op has a generic path beside them."""

Claims = Any
"""The names of the claims modules in one namespace; their classes are the tests'."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout to read"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    parser.add_argument(
        "--speed",
        type=options.directory,
        nargs="+",
        default=[],
        metavar="FILE",
        help="write the tables of speeds from what `bench --json FILE` wrote, and nothing else",
    )


def run(args: argparse.Namespace) -> int:
    """Write the tables, or CheckError that names each one, and each test, that is not as claimed."""
    if args.speed:
        return write_speeds(args.root, args.speed)
    claims, build = load(args.root / "tests"), buildfile.read(args.root)
    found = list(missing_tests(args.root / "tests", claims.named_tests()))
    for name in sorted({document for document, _ in TABLES}):
        path = args.root / name
        text = path.read_text(encoding="utf-8")
        wanted = filled(name, text, claims, build)
        if text == wanted:
            continue
        if args.write:
            path.write_text(wanted, encoding="utf-8")
            process.say(f"{name}: written")
        else:
            found.append(f"{name}: a table is not what tests/claims*.py say")
    if found:
        raise CheckError("\n".join(found), hint="`python -m bundle tables --write` writes the tables; commit them.")
    return 0


def write_speeds(root: Path, files: Sequence[Path]) -> int:
    """Put the figures of a run of ``bundle bench`` into README's table and into those of the kernels it timed."""
    run = speed.read(files)
    summary = [*table(speed.HEADS, speed.table(speed_rows.README, run.results)), "", run.policy]
    documents = {"README.md": summary}
    for name, rows in speed_rows.KERNELS.items():
        if cells := list(speed.table(rows, run.results, more=True)):
            documents[name] = [*table(speed.HEADS, cells), "", run.foot()]
    for name, lines in documents.items():
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(placed(name, text, "speed", lines), encoding="utf-8")
    every = (*speed_rows.README, *itertools.chain.from_iterable(speed_rows.KERNELS.values()))
    missing = "".join(f"\n  no result: {row}" for row in speed.absent(every, run.results))
    process.say(f"{', '.join(documents)}: speeds written{missing}")
    return 0


def load(tests: Path) -> Claims:
    """The claims modules of a checkout."""
    with _importable(tests):
        modules = [importlib.import_module(name) for name in MODULES]
        named: frozenset[str] = modules[0].named_tests()
    values = {key: value for module in modules for key, value in vars(module).items() if key.isupper()}
    return SimpleNamespace(**values, named_tests=lambda: named)


@contextmanager
def _importable(tests: Path) -> Iterator[None]:
    """``tests`` on the path, and nothing of it left behind in this process."""
    sys.path.insert(0, str(tests))
    try:
        yield
    finally:
        sys.path.remove(str(tests))
        for name in MODULES:
            sys.modules.pop(name, None)


def missing_tests(tests: Path, named: Iterable[str]) -> Iterator[str]:
    """A line for each named test, ``test_x.py::test_y``, that its file does not define."""
    defined: dict[str, set[str]] = {}
    for test in sorted(named):
        file, _, function = test.partition("::")
        if file not in defined:
            path = tests / file
            tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
            defined[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if function not in defined[file]:
            yield f"tests/{file} must define {function}: a claim names it"


def filled(document: str, text: str, claims: Claims, build: BuildFile) -> str:
    """``text`` with every table of ``document`` as it should be; CheckError where a table has no place."""
    for (name, table), render in TABLES.items():
        if name != document:
            continue
        text = placed(document, text, table, render(claims, build))
    return text


def placed(document: str, text: str, name: str, lines: Iterable[str]) -> str:
    """``text`` with ``lines`` as table ``name``; CheckError where it has no place in ``document``."""
    place = re.compile(rf"(<!-- table {name}\b[^>]*-->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise CheckError(f"{document} must hold <!-- table {name} --> and <!-- end {name} --> once")
    rendered = "\n".join(lines)
    return place.sub(lambda match: f"{match[1]}{rendered}\n{match[2]}", text)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def features(claims: Claims, build: BuildFile) -> Iterator[str]:
    """What is supported, op by op."""
    rows = (
        (
            row.title or _names(row.functions),
            _backends(row.op, build),
            row.dtypes.words,
            row.forward.words,
            row.backward.words,
            ", ".join(option.words for option in row.options),
        )
        for row in claims.FEATURES
    )
    yield from table(("op", "backends", "dtypes", "forward", "backward", "options"), rows)
    if claims.NOT_SHOWN:
        yield from ("", f"Here, without the tests that a row names: {_names(claims.NOT_SHOWN)}.")


def _backends(op: str | None, build: BuildFile) -> str:
    """Where an op is built, from the sections of build.toml; plain torch (None) runs on the CPU."""
    if op is None:
        return "cpu"
    published = {name.backend for name, _, draft in matrix.read() if draft is None}
    sections = {section.name for backend in published for section in build.sections(backend)}
    found = []
    if f"{op}_cpu" in sections:
        found.append(f"cpu: {', '.join([*(isa for isa in ISAS if f'{op}_cpu_{isa}' in sections), 'generic'])}")
    if any(name.startswith(f"{op}_cuda") for name in sections):
        found.append("cuda")
    if not found:
        raise CheckError(f"tests/claims_features.py: op must be a [kernel.<op>_<backend>] of build.toml, got {op}")
    return "; ".join(found)


def ways(claims: Claims, _: BuildFile) -> Iterator[str]:
    """The ways in; each row's words hold both cells."""
    return table(("ways in", ""), ([way.words] for way in claims.WAYS))


def families(claims: Claims, _: BuildFile) -> Iterator[str]:
    """What becomes of a packed batch, before and after."""
    carries = list(claims.CARRIES)
    heads = ("models", f"transformers alone: {carries[0]}", *carries[1:], f"this bundle: {carries[0]}", *carries[1:])
    rows = (
        (family.title, *(_marked(word) for word in (*family.without, *family.with_bundle)))
        for family in claims.FAMILIES
    )
    return table(heads, rows)


def layers(claims: Claims, _: BuildFile) -> Iterator[str]:
    """What `enable` makes of each family's layers."""
    rows = ((family.title, *family.layers) for family in claims.FAMILIES)
    return table(("family", "attention", "convolution", "recurrence"), rows)


def _marked(word: str) -> str:
    return f"**{word}**" if word == "leaks" else word


def summary(claims: Claims, _: BuildFile) -> Iterator[str]:
    """One row a package: which names are the same, which differ, how many are refused."""

    def row(package: Any) -> Iterator[str]:
        yield f"{package.name} {package.version}"
        for verdict in ("same", "differs"):
            yield _names(
                name for original in package.originals if original.verdict == verdict for name in original.names
            )
        yield str(sum(len(original.names) for original in package.originals if original.verdict == "refused"))

    return table(("package", "same", "differs", "refused"), (tuple(row(package)) for package in claims.PACKAGES))


def migration(claims: Claims, _: BuildFile) -> Iterator[str]:
    """Every public name of every package; names with the same verdict share a row."""
    for package in claims.PACKAGES:
        yield from ("", f"## {package.name} {package.version}", "", f"Read in {package.source}.", "")
        names: dict[tuple[str, str], list[str]] = {}
        for original in package.originals:
            names.setdefault((original.home, _verdict(original)), []).extend(original.names)
        rows = ((f"`{home}`", _names(some), verdict) for (home, verdict), some in names.items())
        yield from table(("from", "names", "here"), rows)


def _verdict(original: Any) -> str:
    details = [original.words] if original.words else []
    for what, names in (("not taken", original.lacks), ("by name only", original.by_name)):
        if names:
            details.append(f"{what}: {_names(names)}")
    word = f"*{original.verdict}*" + (" in" if original.verdict == "differs" else "")
    return f"{word}: {'; '.join(details)}" if details else word


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


TABLES: dict[tuple[str, str], Callable[[Claims, BuildFile], Iterator[str]]] = {
    ("README.md", "features"): features,
    ("README.md", "ways"): ways,
    ("README.md", "families"): families,
    ("README.md", "migration"): summary,
    ("docs/integration.md", "layers"): layers,
    ("docs/migration.md", "names"): migration,
}
"""Document and name of each table, and what renders it."""
