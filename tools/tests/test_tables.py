"""The tables of the documents: what they render to, and that a stale table or a test that is gone is found."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle import buildfile, tables
from bundle.checks import api
from bundle.errors import CheckError
from bundle.options import REPOSITORY

CLAIMS = tables.load(REPOSITORY / "tests")
BUILD = buildfile.read(REPOSITORY)


def test_the_tables_of_this_checkout_are_as_claimed() -> None:
    assert tables.run(argparse.Namespace(root=REPOSITORY, write=False, speed=[])) == 0


def test_every_public_name_is_in_a_table() -> None:
    rows = {name for row in CLAIMS.FEATURES for name in row.functions}
    rows |= {name for way in CLAIMS.WAYS for name in way.arguments}
    modules = {name.partition(".")[0] for name in rows if "." in name}
    assert rows | modules | {*CLAIMS.PLAIN, *CLAIMS.NOT_SHOWN} == set(api.names(api.list_of(BUILD.version)))


def test_functions_without_a_row_are_named_below_the_table() -> None:
    claims = argparse.Namespace(FEATURES=(), NOT_SHOWN=("a", "b"))
    assert list(tables.features(claims, BUILD))[-2:] == ["", "Here, without the tests that a row names: `a`, `b`."]
    assert len(list(tables.features(argparse.Namespace(FEATURES=(), NOT_SHOWN=()), BUILD))) == 2


def test_a_stale_table_is_found_and_written_anew(tmp_path: Path) -> None:
    document = "README.md"
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    assert tables.filled(document, text, CLAIMS, BUILD) == text
    for stale in (text.replace("sinks (differentiable)", "sinks"), text.replace("| **leaks** |", "| right |", 1)):
        assert stale != text
        assert tables.filled(document, stale, CLAIMS, BUILD) == text


@pytest.mark.parametrize("text", ["", "<!-- table names -->\n<!-- end names -->\n" * 2], ids=["none", "two"])
def test_a_document_without_one_place_for_its_table_is_refused(text: str) -> None:
    with pytest.raises(CheckError, match=r"docs/migration\.md must hold <!-- table names --> and .* once"):
        tables.filled("docs/migration.md", text, CLAIMS, BUILD)


def test_a_named_test_that_does_not_exist_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    named = {"test_a.py::test_one", "test_a.py::test_two", "test_gone.py::test_x"}
    assert list(tables.missing_tests(tmp_path, named)) == [
        "tests/test_a.py must define test_two: a claim names it",
        "tests/test_gone.py must define test_x: a claim names it",
    ]


def test_backends_come_from_the_build_file() -> None:
    def with_sections(*names: str) -> buildfile.BuildFile:
        section = BUILD.kernels[0]
        return replace(BUILD, kernels=tuple(replace(section, name=name, backend="cpu") for name in names))

    assert tables._backends(None, BUILD) == "cpu"
    assert tables._backends("conv", with_sections("conv_cpu")) == "cpu: generic"
    assert tables._backends("conv", with_sections("conv_cpu", "conv_cpu_avx2", "conv_cpu_avx512", "x_cpu")) == (
        "cpu: avx512, avx2, generic"
    )
    with pytest.raises(CheckError, match=r"op must be a .* of build\.toml, got conv"):
        tables._backends("conv", with_sections("other_cpu"))


def test_names_with_one_verdict_share_a_row() -> None:
    def original(name: str, **fields: Any) -> argparse.Namespace:
        defaults = {"home": "pkg", "names": (name,), "verdict": "differs", "words": "w", "lacks": (), "by_name": ()}
        return argparse.Namespace(**{**defaults, **fields})

    originals = (original("a"), original("b"), original("c", lacks=("x",)), original("d", verdict="same", words=""))
    package = argparse.Namespace(name="pkg", version="1", source="s", originals=originals)
    lines = list(tables.migration(argparse.Namespace(PACKAGES=(package,)), BUILD))
    assert lines[-3:] == [
        "| `pkg` | `a`, `b` | *differs* in: w |",
        "| `pkg` | `c` | *differs* in: w; not taken: `x` |",
        "| `pkg` | `d` | *same* |",
    ]
