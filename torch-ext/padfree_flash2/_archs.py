"""Refuses to load on a machine none of whose GPUs can run this variant: the library holds code for the architectures in
metadata.json and no other."""

import torch

from . import integrity


def runs(archs, capability) -> bool:
    """Whether code for ``archs`` (``"8.0"``, ``"12.1+PTX"``) runs on a GPU of this (major, minor) compute capability.

    Machine code runs on its own generation from its own minor version on; PTX is compiled for any newer GPU.
    """
    for arch in archs:
        number, _, ptx = arch.partition("+")
        major, minor = map(int, number.split("."))
        if (major == capability[0] and minor <= capability[1]) or (ptx and (major, minor) <= tuple(capability)):
            return True
    return False


def require_a_gpu() -> None:
    """RuntimeError, with both lists, where there are GPUs and this variant, one for CUDA, has code for none of them."""
    archs = integrity.metadata()["backend"].get("archs")
    if not archs or not torch.cuda.is_available():
        return
    found = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    if not any(runs(archs, capability) for capability in found):
        got = ", ".join(f"{major}.{minor}" for major, minor in found)
        raise RuntimeError(
            f"load: a GPU must be of a compute capability this variant is compiled for ({', '.join(archs)}), got {got}"
        )
