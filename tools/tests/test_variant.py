"""Variant names and their parts are exact inverses, and they agree with the loader's own parser."""

import pytest
from kernels.variants import parse_variant

from bundle import variant
from bundle.errors import ConfigError
from bundle.variant import Variant

NAMES = [
    "torch-stable-abi211-cpu-x86_64-linux",
    "torch-stable-abi210-cpu-aarch64-linux",
    "torch-stable-abi211-cu130-x86_64-linux",
    "torch213-cxx11-cpu-x86_64-linux",
    "torch213-cxx11-cu130-x86_64-linux",
    "torch28-cxx98-cu126-aarch64-linux",
    "torch212-xpu20252-x86_64-linux",
    "torch213-metal-aarch64-darwin",
    "torch30-cpu-x86_64-windows",
    "torch-cpu",
    "torch-cuda",
    "torch-universal",
]


@pytest.mark.parametrize("name", NAMES)
def test_name_to_parts_and_back(name: str) -> None:
    parsed = variant.parse(name)
    assert str(parsed) == name
    assert variant.parse(str(parsed)) == parsed


@pytest.mark.parametrize("name", NAMES)
def test_the_loader_reads_the_same_name(name: str) -> None:
    theirs = parse_variant(name)
    assert theirs.variant_str == str(variant.parse(name))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "torch-stable-abi211-cpu-x86_64-linux",
            Variant("cpu", (2, 11), stable_abi=True, platform="x86_64", os="linux"),
        ),
        ("torch213-cxx11-cu130-x86_64-linux", Variant("cu130", (2, 13), False, "cxx11", "x86_64", "linux")),
        ("torch-cpu", Variant("cpu")),
    ],
)
def test_parts(name: str, parts: Variant) -> None:
    assert variant.parse(name) == parts
    assert str(parts) == name


@pytest.mark.parametrize(
    ("name", "backend", "system"),
    [
        ("torch-stable-abi211-cu130-x86_64-linux", "cuda", "x86_64-linux"),
        ("torch-stable-abi211-cpu-aarch64-linux", "cpu", "aarch64-linux"),
        ("torch-universal", "universal", None),
    ],
)
def test_backend_and_system(name: str, backend: str, system: str | None) -> None:
    parsed = variant.parse(name)
    assert (parsed.backend, parsed.system) == (backend, system)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "torch",
        "torch-",
        "torch-stable-abi-cpu-x86_64-linux",
        "torch-stable-abi211-cxx11-cpu-x86_64-linux",
        "torch-stable-abi211-cpu-x86_64",
        "torch-stable-abi211-cpu-x86_64-linux-extra",
        "torch213-cxx12-cpu-x86_64-linux",
        "torch2013x-cpu-x86_64-linux",
        "tensorflow-cpu",
        "torch-stable-abi211-cpu-x86_64-linux\n",
        "../torch-cpu",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="variant must be named like"):
        variant.parse(name)
