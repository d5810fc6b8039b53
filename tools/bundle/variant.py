"""Build variant names and what they say, as exact inverses.

``parse(str(v)) == v`` and ``str(parse(s)) == s`` hold for every name the loader (`kernels`) knows for torch:

    torch-stable-abi211-cpu-x86_64-linux      one binary for every torch from 2.11 on
    torch213-cxx11-cu130-x86_64-linux         one torch version, one CUDA version
    torch213-metal-aarch64-darwin             the same without an ABI tag
    torch-cpu, torch-universal                pure Python
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bundle.errors import ConfigError

_ARCH = re.compile(
    r"torch(?P<stable>-stable-abi)?(?P<major>\d)(?P<minor>0|[1-9]\d*)(?:-(?P<abi>cxx11|cxx98))?"
    r"-(?P<backend>[a-z]+\d*)-(?P<platform>[a-z]\w*)-(?P<os>[a-z]+)"
)
_NOARCH = re.compile(r"torch-(?P<backend>[a-z]+)")
_BACKENDS = {"cu": "cuda"}


@dataclass(frozen=True, order=True)
class Variant:
    """One build variant. ``torch`` is None for pure Python; ``accelerator`` is the name's own word: cpu, cu130, xpu."""

    accelerator: str
    torch: tuple[int, int] | None = None
    stable_abi: bool = False
    cxx_abi: str | None = None
    platform: str | None = None
    os: str | None = None

    @property
    def backend(self) -> str:
        """The backend's name in build.toml and metadata.json: cu130 is cuda."""
        word = self.accelerator.rstrip("0123456789")
        return _BACKENDS.get(word, word)

    @property
    def system(self) -> str | None:
        """The machine it runs on, as in the name: x86_64-linux."""
        return f"{self.platform}-{self.os}" if self.platform else None

    def __str__(self) -> str:
        if self.torch is None:
            return f"torch-{self.accelerator}"
        framework = f"torch{'-stable-abi' if self.stable_abi else ''}{self.torch[0]}{self.torch[1]}"
        return "-".join(part for part in (framework, self.cxx_abi, self.accelerator, self.platform, self.os) if part)


def parse(name: str) -> Variant:
    """The variant called ``name``; ConfigError when the loader would not know it."""
    if match := _ARCH.fullmatch(name):
        stable = match["stable"] is not None
        if not (stable and match["abi"]):
            return Variant(
                accelerator=match["backend"],
                torch=(int(match["major"]), int(match["minor"])),
                stable_abi=stable,
                cxx_abi=match["abi"],
                platform=match["platform"],
                os=match["os"],
            )
    elif match := _NOARCH.fullmatch(name):
        return Variant(accelerator=match["backend"])
    raise ConfigError(
        f"variant must be named like torch-stable-abi211-cpu-x86_64-linux, torch213-cxx11-cu130-x86_64-linux "
        f"or torch-cpu, got {name!r}"
    )
