"""Inputs that find faults: sizes around every width, storage full of NaN around a view, and awkward layouts."""

import contextlib

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# Below, at and past a vector (8, 16), the register tiles (6 x 16, 12 x 32), and the blocks (64, 96, 128, 256) that
# kernels work in.
LENGTHS = [1, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 255, 256, 257]


@contextlib.contextmanager
def on_threads(count):
    """So many threads for torch and the kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def channel_last(x):
    """(B, D, L) with the channels next to one another."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def dtype_id(dtype):
    """Short name for test ids: ``float32``, ``bfloat16``."""
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else None


def randn(*shape, dtype=torch.float32, seed=0, device=None):
    """Normal numbers of a fixed seed, drawn in float32 on the CPU and rounded: the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device="cpu")
    return drawn.to(device=device or torch.get_default_device(), dtype=dtype)


def cu_seqlens(lengths, dtype=torch.int32, device=None):
    """Boundaries of sequences of these lengths: ``[0, l0, l0 + l1, ...]``."""
    ends = torch.tensor([0, *lengths], dtype=torch.int64, device=device).cumsum(0)
    return ends.to(dtype)


def embed_in_nan(tensor):
    """An equal view whose storage holds NaN (for integers: the largest value) on every side of every dimension.

    A kernel that reads one element before a row, past a row, or past the end meets a value that cannot go unnoticed.
    """
    poison = float("nan") if tensor.dtype.is_floating_point else torch.iinfo(tensor.dtype).max
    padded = torch.full([size + 3 for size in tensor.shape], poison, dtype=tensor.dtype, device=tensor.device)
    view = padded[tuple(slice(1, size + 1) for size in tensor.shape)]
    view.copy_(tensor)
    return view


def _contiguous(tensor):
    return tensor.contiguous()


def _odd_offset(tensor):
    """Contiguous, but three elements into its storage: no vector or 16-byte alignment."""
    storage = torch.full((tensor.numel() + 3,), float("nan"), dtype=tensor.dtype, device=tensor.device)
    view = storage[3:].view(tensor.shape)
    view.copy_(tensor)
    return view


def _last_dim_strided(tensor):
    """Every second element of a wider last dimension; NaN in between."""
    return torch.stack([tensor, torch.full_like(tensor, float("nan"))], dim=-1).flatten(-2)[..., ::2]


def _second_dims_swapped(tensor):
    """The two dimensions before the last are stored in the other order (what ``transpose(1, 2)`` in a model leaves)."""
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _slice_of_concatenation(tensor):
    """The middle third of one wide projection, as a fused qkv layer gives it."""
    noise = torch.full_like(tensor, float("nan"))
    return torch.cat([noise, tensor, noise], dim=-1)[..., tensor.shape[-1] : 2 * tensor.shape[-1]]


LAYOUTS = {
    "contiguous": _contiguous,
    "odd_offset": _odd_offset,
    "last_dim_strided": _last_dim_strided,
    "second_dims_swapped": _second_dims_swapped,
    "slice_of_concatenation": _slice_of_concatenation,
    "embedded_in_nan": embed_in_nan,
}
