"""The plan: which cells are built, and a reason for each that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle import buildfile, compiler, matrix, options, plan
from bundle.errors import ConfigError, EmptySelectionError

X86 = "torch-stable-abi211-cpu-x86_64-linux"
ARM = "torch-stable-abi211-cpu-aarch64-linux"


@pytest.fixture(autouse=True)
def _on_x86_without_cross_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "host_system", lambda: "x86_64-linux")
    monkeypatch.setattr(compiler, "_cross_command", lambda system: None)


@pytest.fixture
def portable(checkout: Path) -> Path:
    """The checkout without its AVX2 section."""
    path = checkout / "build.toml"
    path.write_text(path.read_text(encoding="utf-8").split("[kernel.scale_cpu_avx2]")[0], encoding="utf-8")
    return checkout


def planned(root: Path, *only: str, here: bool = True) -> dict[str, str | None]:
    return {str(cell.variant): cell.left_out for cell in matrix.plan(buildfile.read(root), only, here=here)}


def test_every_cell_is_built_or_has_a_reason(checkout: Path) -> None:
    cells = planned(checkout)
    assert len(cells) == len(matrix.read())
    assert cells.pop(X86) is None
    assert all(reason and len(reason) > 10 for reason in cells.values())


def test_reasons(portable: Path) -> None:
    cells = planned(portable)
    assert cells[ARM] == ("needs aarch64-linux or a cross compiler (g++-aarch64-linux-gnu); this is x86_64-linux")
    cuda = cells["torch-stable-abi211-cu130-x86_64-linux"]
    assert cuda == "no cuda sources yet (build.toml: backends = ['cpu'])"


def test_x86_flags_leave_other_machines_out_everywhere(checkout: Path) -> None:
    reason = "[kernel.scale_cpu_avx2] is built with -mavx2 -mfma, which only x86_64 compilers take"
    assert planned(checkout)[ARM] == reason
    assert planned(checkout, here=False)[ARM] == reason


def test_a_cross_compiler_brings_the_cell_in(portable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_cross_command", lambda system: "aarch64-linux-gnu-g++-12")
    assert planned(portable)[ARM] is None


def test_another_machine_builds_what_this_one_cannot(portable: Path) -> None:
    assert planned(portable, here=False)[ARM] is None


def test_another_stable_abi_is_left_out(checkout: Path) -> None:
    path = checkout / "build.toml"
    path.write_text(path.read_text().replace('cpu = "2.11"', 'cpu = "2.12"'))
    assert planned(checkout)[X86] == "build.toml asks for stable ABI 2.12 on cpu"


def test_only_selects_by_glob(checkout: Path) -> None:
    assert set(planned(checkout, "*cpu*")) == {X86, ARM}
    assert set(planned(checkout, "*cu126*", "*aarch64*")) == {"torch-stable-abi211-cu126-x86_64-linux", ARM}


def test_select_takes_what_can_be_built(checkout: Path) -> None:
    assert [str(name) for name in matrix.select(buildfile.read(checkout), ["*cpu*"])] == [X86]


def test_an_empty_selection_is_an_error(checkout: Path) -> None:
    build = buildfile.read(checkout)
    with pytest.raises(EmptySelectionError, match=r"no variant matches --only \*rocm\*"):
        matrix.plan(build, ["*rocm*"])
    with pytest.raises(EmptySelectionError, match=r"every selected variant is left out:\n.*cu130.*: no cuda sources"):
        matrix.select(build, ["*cu130*"])


def test_github_matrix(portable: Path) -> None:
    cells = matrix.plan(buildfile.read(portable), here=False)
    assert plan.github_matrix(cells) == {
        "include": [
            {"variant": X86, "backend": "cpu", "runner": "ubuntu-24.04"},
            {"variant": ARM, "backend": "cpu", "runner": "ubuntu-24.04-arm"},
        ]
    }


def test_the_project_builds_on_x86() -> None:
    assert X86 in {str(name) for name in matrix.select(buildfile.read(options.REPOSITORY), ["*cpu*"])}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[cell]]\nvariant = 'torch-cpu'\n", "variant and runner wanted, got 'runner'"),
        ("[[cell]]\nvariant = 'torch-cpu'\nrunner = 'a'\n" * 2, "torch-cpu is listed twice"),
        ("[[cell]]\nvariant = 'nonsense'\nrunner = 'a'\n", "variant must be named like"),
        ("[[cell]", "matrix.toml: "),
        ("", "variant and runner wanted, got 'cell'"),
    ],
)
def test_a_wrong_matrix_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        matrix.read(path)


def test_a_draft_is_built_and_not_published(tmp_path: Path, checkout: Path) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(
        f'[[cell]]\nvariant = "{X86}"\nrunner = "somewhere"\ndraft = "nobody has run it"\n', encoding="utf-8"
    )
    build = buildfile.read(checkout)
    assert [cell.left_out for cell in matrix.plan(build, path=path)] == [None]
    assert [cell.left_out for cell in matrix.plan(build, path=path, here=False)] == ["a draft: nobody has run it"]


def test_nothing_of_cuda_is_published_yet() -> None:
    drafts = {name.backend for name, _, draft in matrix.read() if draft is not None}
    assert drafts == {"cuda"}
