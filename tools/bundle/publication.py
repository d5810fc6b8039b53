"""What a publication consists of, and every reason to refuse it that can be found without a network.

The card goes to ``main`` as README.md; the variants and benchmarks go to ``v<version>``, which is what
``kernels.get_kernel(repo, version=N)`` loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bundle import check, checks, matrix, provenance
from bundle.buildfile import BuildFile
from bundle.checks import Subject, api
from bundle.errors import EmptySelectionError, PublishError
from bundle.matrix import Cell

CARD = "CARD.md"
MAIN = "main"
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Publication:
    """The files of one publication by their path in the repository. ``missing`` are cells other machines build."""

    repo_id: str
    version: int
    variants: tuple[str, ...]
    files: dict[str, Path]
    card: bytes
    missing: tuple[Cell, ...]

    @property
    def branch(self) -> str:
        """The branch that holds this version."""
        return f"v{self.version}"


def prepare(
    build: BuildFile,
    *,
    out: Path,
    scratch: Path,
    only: Sequence[str] = (),
    repo_id: str | None = None,
    allow_dirty: bool = False,
    everywhere: bool = False,
) -> Publication:
    """The publication of what lies in ``out``; PublishError, with the next step, where it must not be made.

    ``everywhere`` wants every variant the project builds, also those that this machine cannot compile.
    """
    cells, missing = _complete(build, only, out, everywhere)
    targets = [
        checks.subject(out / str(cell.variant), root=build.root, scratch=scratch if cell.left_out is None else None)
        for cell in cells
    ]
    _refuse_another_build(build, targets)
    if not allow_dirty:
        _refuse_dirty(build, targets)
    _refuse_broken(targets)
    names = tuple(str(target.variant) for target in targets)
    repo = repo_id or build.repository
    files = dict(_variant_files(targets)) | dict(_benchmarks(build.root))
    return Publication(repo, build.version, names, files, _card(build, repo, names), missing)


def _complete(
    build: BuildFile, only: Sequence[str], out: Path, everywhere: bool
) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """The planned cells that lie in ``out``, and those that do not because another machine builds them."""
    here = {cell.variant: cell for cell in matrix.plan(build, only)}
    planned = [here[cell.variant] for cell in matrix.plan(build, only, here=False) if cell.left_out is None]
    built = [cell for cell in planned if (out / str(cell.variant) / "metadata.json").is_file()]
    absent = [cell for cell in planned if cell not in built]
    wanted = [cell for cell in absent if everywhere or cell.left_out is None]
    if wanted:
        names = ", ".join(str(cell.variant) for cell in wanted)
        raise PublishError(
            f"{names} {'is' if len(wanted) == 1 else 'are'} planned but not in {out}",
            hint="Build or fetch what is missing, or choose what to publish with --only.",
        )
    if not built:
        raise EmptySelectionError(
            f"nothing to publish: no selected variant lies in {out}",
            hint="`python -m bundle plan` says why each is left out.",
        )
    return tuple(built), tuple(absent)


def _refuse_another_build(build: BuildFile, targets: Sequence[Subject]) -> None:
    """A variant that was built before name or version changed."""
    for target in targets:
        found = (str(target.metadata.name), target.metadata.version)
        if found != (build.name, build.version):
            raise PublishError(
                f"{target.variant} was built as {found[0]} version {found[1]}, "
                f"build.toml says {build.name} version {build.version}",
                hint="Build it again: python -m bundle build.",
            )


def _refuse_dirty(build: BuildFile, targets: Sequence[Subject]) -> None:
    """What is published must be what a commit says, so that anyone can build it again."""
    reasons = ["the checkout has changes that are not committed"] if provenance.is_dirty(build) else []
    head = provenance.of(build).commit
    for target in targets:
        origin = json.loads((target.directory / "metadata.json").read_bytes()).get("provenance", {}).get("kernel")
        if origin is None:
            reasons.append(f"{target.variant} was built outside git")
        elif origin.get("dirty"):
            reasons.append(f"{target.variant} was built from changes that were not committed")
        elif origin.get("commit") != head:
            reasons.append(f"{target.variant} was built from commit {origin.get('commit')}, the checkout is at {head}")
    if reasons:
        raise PublishError("; ".join(reasons), hint="Commit, build again, publish; or say --allow-dirty.")


def _refuse_broken(targets: Sequence[Subject]) -> None:
    broken = [str(target.variant) for target in targets if not check.check(target)]
    if broken:
        raise PublishError(
            f"{', '.join(broken)} breaks a rule", hint="Each line marked failed above says what to change."
        )


def _variant_files(targets: Sequence[Subject]) -> Iterator[tuple[str, Path]]:
    for target in targets:
        for path in sorted(target.directory.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"build/{target.variant}/{path.relative_to(target.directory).as_posix()}", path


def _benchmarks(root: Path) -> Iterator[tuple[str, Path]]:
    """``kernels benchmark`` runs the classes in these files."""
    for path in sorted(root.glob("benchmarks/benchmark*.py")):
        yield f"benchmarks/{path.name}", path


def _card(build: BuildFile, repo_id: str, variants: Sequence[str]) -> bytes:
    """CARD.md with its ``{{ words }}`` filled from the build."""
    path = build.root / CARD
    if not path.is_file():
        raise PublishError(f"{CARD} is missing: it becomes the page of {repo_id}", hint=f"Write {path}.")
    names = api.names(api.list_of(build.version))
    words = {
        "repo_id": repo_id,
        "name": build.name,
        "version": str(build.version),
        "license": build.license,
        "variants": _bullets(variants),
        "functions": _bullets([name for name in names if not name[0].isupper()]),
        "layers": _bullets([name for name in names if name[0].isupper()]),
    }

    def fill(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise PublishError(f"{CARD} asks for {match[0]}", hint=f"It may ask for {', '.join(words)}.")
        return words[match[1]]

    return _PLACEHOLDER.sub(fill, path.read_text(encoding="utf-8")).encode()


def _bullets(names: Sequence[str]) -> str:
    return "\n".join(f"- `{name}`" for name in names) or "None yet."
