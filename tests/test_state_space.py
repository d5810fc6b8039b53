"""The state-space scan (Mamba 2) against the float64 oracle, forward and backward, dense and packed."""

import pytest
import torch
from cases import DTYPES, dtype_id
from state_space_case import check, inputs

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)

# Below, at and past a register tile (6), a vector (8), a panel (16) and a chunk (64); issue lengths 255, 256, 257.
LENGTHS = [1, 2, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_chunk_edge(padfree, device, length):
    check(padfree, inputs([length], device=device))


@ALL_DTYPES
def test_packed_with_empty_sequences_and_slack(padfree, device, dtype):
    lengths = [0, 70, 1, 0, 64, 3, 0]
    got = check(padfree, inputs(lengths, dtype=dtype, device=device, packed=True, slack=5, gate=True))
    for name in ("out", "dx", "ddt", "dB", "dC", "dz"):
        assert torch.count_nonzero(got[name][:, sum(lengths) :]) == 0, name
