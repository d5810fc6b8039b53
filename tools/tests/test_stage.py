"""Staging: exactly what Nix would see, rewritten only where it differs, swapped in whole."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from conftest import git

from bundle import buildfile, provenance, stage
from bundle.errors import UsageError

STAGED = {
    "build.toml",
    "kernel-src/scale/cpu/kernel_avx2.cpp",
    "kernel-src/scale/cpu/kernel_generic.cpp",
    "kernel-src/scale/scale.h",
    "tests/test_scale.py",
    "torch-ext/tiny_kernel/__init__.py",
    "torch-ext/torch_binding.cpp",
}


def present(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_only_what_nix_sees(checkout: Path, tmp_path: Path) -> None:
    (checkout / "kernel-src" / "scale" / "unlisted.h").write_text("")
    (checkout / "torch-ext" / "tiny_kernel" / "table.csv").write_text("")
    (checkout / "torch-ext" / "tiny_kernel" / "_ops.py").write_text("# left by kernel-builder")
    (checkout / "torch-ext" / "registration.h").write_text("// left by kernel-builder")
    stage.write(buildfile.read(checkout), tmp_path / "src")
    assert present(tmp_path / "src") == STAGED


def test_nested_packages_and_stubs_are_seen(checkout: Path, tmp_path: Path) -> None:
    inner = checkout / "torch-ext" / "tiny_kernel" / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("")
    (inner / "api.pyi").write_text("")
    stage.write(buildfile.read(checkout), tmp_path / "src")
    extra = {"torch-ext/tiny_kernel/inner/__init__.py", "torch-ext/tiny_kernel/inner/api.pyi"}
    assert present(tmp_path / "src") == STAGED | extra


def test_an_unchanged_file_keeps_its_time(checkout: Path, tmp_path: Path) -> None:
    build, target = buildfile.read(checkout), tmp_path / "src"
    stage.write(build, target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*") if path.is_file()}
    header = checkout / "kernel-src" / "scale" / "scale.h"
    header.write_text(header.read_text() + "// more\n")
    stage.write(build, target)
    changed = [path for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == [target / "kernel-src" / "scale" / "scale.h"]
    assert changed[0].read_text() == header.read_text()


def test_what_is_no_longer_listed_goes(checkout: Path, tmp_path: Path) -> None:
    target = tmp_path / "src"
    stage.write(buildfile.read(checkout), target)
    (target / "torch-ext" / "registration.h").write_text("// generated")
    (checkout / "tests" / "test_scale.py").unlink()
    stage.write(buildfile.read(checkout), target)
    assert present(target) == (STAGED - {"tests/test_scale.py"}) | {"torch-ext/registration.h"}


@pytest.mark.parametrize(
    "output",
    [
        "a.cpp:3:10: fatal error: scale/extra.h: No such file or directory\n    3 | #include",
        "a.cpp:3:10: fatal error: 'scale/extra.h' file not found",
    ],
)
def test_an_unlisted_header_is_recognised(checkout: Path, output: str) -> None:
    build = buildfile.read(checkout)
    assert stage.unlisted_header(build, output) is None  # there is no such header at all
    (checkout / "kernel-src" / "scale" / "extra.h").write_text("")
    assert stage.unlisted_header(build, output) == PurePosixPath("kernel-src/scale/extra.h")
    assert stage.unlisted_header(build, "error: expected ';'") is None


def test_a_listed_header_is_not_blamed(checkout: Path) -> None:
    output = "fatal error: scale/scale.h: No such file or directory"
    assert stage.unlisted_header(buildfile.read(checkout), output) is None


def test_replace_tree(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for text in ("one", "two"):
        new = tmp_path / "new"
        new.mkdir()
        (new / text).write_text(text)
        stage.replace_tree(new, target)
        assert present(target) == {text}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_replace_tree_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_exchange", lambda one, other: False)
    test_replace_tree(tmp_path)


def test_uid_of_a_clean_tree_is_the_tree(checkout: Path) -> None:
    origin = provenance.of(buildfile.read(checkout))
    assert origin.uid == git(checkout, "rev-parse", "HEAD^{tree}")[:7]
    assert (origin.commit, origin.dirty) == (git(checkout, "rev-parse", "HEAD").strip(), False)


def test_two_dirty_trees_have_two_uids(checkout: Path) -> None:
    build, seen = buildfile.read(checkout), set()
    for text in ("// one\n", "// two\n"):
        (checkout / "kernel-src" / "scale" / "scale.h").write_text(text)
        origin = provenance.of(build)
        assert origin.dirty
        assert origin.uid.startswith(git(checkout, "rev-parse", "HEAD^{tree}")[:7] + "_dirty_")
        seen.add(origin.uid)
    assert len(seen) == 2


def test_a_staged_file_that_git_does_not_know_is_dirty(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("not staged")
    assert not provenance.of(buildfile.read(checkout)).dirty
    (checkout / "torch-ext" / "tiny_kernel" / "more.py").write_text("")
    assert provenance.of(buildfile.read(checkout)).dirty


def test_without_git_the_content_names_the_build(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_git", lambda root, *words: None)
    build = buildfile.read(checkout)
    origin = provenance.of(build)
    assert origin.uid == f"nogit_{stage.content_hash(build)[:7]}"
    assert "kernel" not in origin.table()


def test_uid_given(checkout: Path) -> None:
    build = buildfile.read(checkout)
    assert provenance.of(build, "left").uid == "left"
    for wrong in ("", "Big", "with-dash", "a" * 41, "a.b", "../x"):
        with pytest.raises(UsageError, match="--uid must be 1 to 40"):
            provenance.of(build, wrong)
