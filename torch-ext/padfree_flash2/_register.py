"""Fake kernels and autograd of every op; the only file that names ``torch.library``."""

from ._ops import ops

_ISA_NAMES = ("generic", "avx2", "avx512")

# Read once, at import: a wrong PADFREE_ISA stops the load with its own message instead of a later call.
_ISA = _ISA_NAMES[ops.cpu_isa()]


def isa() -> str:
    """Name of the CPU instruction-set path in use: ``"generic"``, ``"avx2"`` or ``"avx512"``.

    The environment variable ``PADFREE_ISA``, read once when the bundle is loaded, forces a path.
    """
    return _ISA
