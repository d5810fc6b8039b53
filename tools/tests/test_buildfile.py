"""build.toml: what is read from it, and that each mistake is named before anything is compiled."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from bundle import buildfile, options
from bundle.errors import ConfigError


def edit(root: Path, old: str, new: str) -> None:
    path = root / "build.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_values(checkout: Path) -> None:
    build = buildfile.read(checkout)
    assert (build.name, build.python_name, build.version) == ("tiny-kernel", "tiny_kernel", 1)
    assert build.stable_abi == {"cpu": (2, 11)}
    assert build.package == PurePosixPath("torch-ext/tiny_kernel")
    binding, generic, avx2 = build.sections("cpu")
    assert (binding.backend, generic.name, avx2.cxx_flags) == (None, "scale_cpu", ("-mavx2", "-mfma"))
    assert avx2.sources == (PurePosixPath("kernel-src/scale/cpu/kernel_avx2.cpp"),)
    assert avx2.headers == (PurePosixPath("kernel-src/scale/scale.h"),)
    assert build.sections("cuda") == (binding,)


def test_listed_names_a_shared_header_once(checkout: Path) -> None:
    listed = list(buildfile.read(checkout).listed())
    assert listed.count(PurePosixPath("kernel-src/scale/scale.h")) == 1
    assert len(listed) == 4


def test_one_stable_abi_for_all_backends(checkout: Path) -> None:
    edit(checkout, '[torch.stable-abi]\ncpu = "2.11"\n', "")
    edit(checkout, '"kernel-src/scale/scale.h"]\n\n\n', '"kernel-src/scale/scale.h"]\nstable-abi = "2.12"\n\n')
    assert buildfile.read(checkout).stable_abi == {"cpu": (2, 12)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'license = "Apache-2.0"',
            'license = "Apache-2.0"\ncolour = "blue"',
            "^build.toml: Unknown field colour. Expected one of",
        ),
        ("edition = 5", "edition = 99", "build.toml: "),
        ("version = 1", 'version = "one"', "build.toml: "),
        ('backend = "cpu"', 'backend = "abacus"', "build.toml: "),
        ("[torch]", "[torch", "build.toml: "),
        ("kernel_generic.cpp", "kernel_gone.cpp", "lists kernel-src/scale/cpu/kernel_gone.cpp, which does not exist"),
        (
            "kernel-src/scale/cpu/kernel_generic.cpp",
            "../elsewhere.cpp",
            "../elsewhere.cpp must be a path below the root",
        ),
        (
            "kernel_generic.cpp",
            "kernel_avx2.cpp",
            r"kernel_avx2.cpp is compiled by \[scale_cpu\] and by \[scale_cpu_avx2\]",
        ),
    ],
)
def test_mistakes_are_named(checkout: Path, old: str, new: str, message: str) -> None:
    edit(checkout, old, new)
    with pytest.raises(ConfigError, match=message):
        buildfile.read(checkout)


def test_no_build_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"build\.toml does not exist") as caught:
        buildfile.read(tmp_path)
    assert caught.value.hint is not None


def test_a_pure_python_kernel_is_not_ours(checkout: Path) -> None:
    head = (checkout / "build.toml").read_text(encoding="utf-8").split("[torch]")[0]
    (checkout / "build.toml").write_text(head + "[torch-noarch]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a \[torch\] section is wanted"):
        buildfile.read(checkout)


def test_the_real_one_reads() -> None:
    build = buildfile.read(options.REPOSITORY)
    assert build.name == "padfree-flash2"
    assert build.stable_abi["cpu"] == (2, 11)
