"""The CUDA emulator finds each planted fault, under each order of threads, and lets right kernels be right."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bundle.options import REPOSITORY

HOST = REPOSITORY / "tools" / "cuda_host"
SEEDS = ("0", "1", "2", "3")
FLAGS = ("-std=c++20", "-O1", "-DPADFREE_EMULATED", f"-I{HOST.parent}", f"-I{REPOSITORY / 'kernel-src'}")

RIGHT = (
    "atomics", "blocks", "bounds", "hand-over", "local-array", "one-writer", "packets", "product", "reverse",
    "reverse-async", "reverse-twice", "shuffles",
)  # fmt: skip

FAULTS = {
    "exit-before-barrier": "divergent barrier: 32 threads are at their end, 224 threads wait at the barrier in planted",
    "exit-before-shuffle": "divergent barrier: 128 threads are at their end, 128 threads wait for lanes of their warp",
    "misaligned-packet": "misaligned access of 16 bytes",
    "missing-barrier": "reads 4 bytes at shared[byte ",
    "missing-barrier-after-reading": "no barrier lies between this and the ",
    "missing-wait": "has not been waited for",
    "no-such-launch": "no GPU takes a grid of (1, 1, 1) blocks of (2048, 1, 1) threads",
    "read-before-the-start": "out of bounds: nearest is byte -4 of in, which has 1024",
    "read-past-the-end": "out of bounds: nearest is byte 1024 of in, which has 1024",
    "two-barriers": "divergent barrier: here 256 threads are to meet in planted",
    "two-blocks-one-word": "no barrier lies between this and the write by thread",
    "two-lanes-one-word": "no barrier lies between this and the write by thread",
    "two-warps-one-word": "no barrier lies between this and the write by thread",
    "unwritten": "nothing has been written there",
    "waits-for-too-few": "has not been waited for",
    "write-after-arrive": "no barrier lies between this and the ",
    "write-past-shared-memory": "at shared[byte 1024]: out of bounds: the block has 1024",
    "write-past-the-end": "writes 4 bytes of global memory: out of bounds: nearest is byte 1024 of out",
    "write-to-an-input": "in may only be read",
}
"""Words of what the emulator says of each planted fault."""

SANITIZERS_FAULT = "past-a-local-array"
"""Found by the address sanitizer alone."""


def program(place: Path, flags: tuple[str, ...], hooks: tuple[str, ...]) -> Path:
    """The program of planted.cu, linked with the emulator; ``hooks``: how its accesses are observed."""
    compiler = [*(("ccache",) if shutil.which("ccache") else ()), os.environ.get("CXX", "g++")]
    kernel = (*hooks, "-x", "c++", "-include", str(HOST / "cuda_host.h"))
    sources = [(path, ()) for path in sorted(HOST.glob("*.cpp"))]
    objects = []
    for source, own in [*sources, (Path(__file__).parent / "planted.cu", kernel)]:
        objects.append(place / f"{source.stem}.o")
        command = [*compiler, *FLAGS, *flags, *own, "-c", str(source), "-o", str(objects[-1])]
        subprocess.run(command, check=True)
    subprocess.run([compiler[-1], *flags, *map(str, objects), "-o", str(place / "planted")], check=True)
    return place / "planted"


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the emulator's hooks."""
    return program(tmp_path_factory.mktemp("planted"), (), ("-fsanitize=thread",))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the address sanitizer in their place."""
    return program(tmp_path_factory.mktemp("sanitized"), ("-fsanitize=address",), ())


def said(planted: Path, *words: str, seed: str = "0") -> str:
    """What the program prints."""
    environment = {**os.environ, "PADFREE_EMULATOR_SEED": seed}
    ended = subprocess.run([planted, *words], env=environment, capture_output=True, text=True, check=False, timeout=60)
    return ended.stdout.strip()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right(planted: Path, name: str, seed: str) -> None:
    assert said(planted, name, seed=seed) == "right"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(planted: Path, name: str, seed: str) -> None:
    text = said(planted, name, seed=seed)
    assert text.startswith("fault: planted")
    assert FAULTS[name] in text


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right_under_the_address_sanitizer(sanitized: Path, name: str) -> None:
    assert said(sanitized, name) == "right"


def test_the_address_sanitizer_looks_at_the_stacks_of_threads(sanitized: Path) -> None:
    ended = subprocess.run([sanitized, SANITIZERS_FAULT], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode != 0
    assert "AddressSanitizer: stack-buffer-overflow" in ended.stderr
    assert "local_array" in ended.stderr


def test_every_case_is_judged(planted: Path) -> None:
    assert sorted(said(planted).split()) == sorted((*RIGHT, *FAULTS, SANITIZERS_FAULT))
