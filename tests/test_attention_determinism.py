"""The same call gives the same bits: every run, with any number of threads, under torch's deterministic mode."""

import pytest
import torch
from attention_case import call, inputs
from cases import DTYPES, dtype_id
from tolerance import assert_same_bits

LENGTHS = [150, 3, 70, 0, 65]


@pytest.fixture
def deterministic_algorithms():
    """torch's deterministic mode: it also fills fresh memory with NaN, so that an element nobody writes shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def run(padfree, dtype, device, **options):
    case = inputs(LENGTHS, LENGTHS, (6, 2), (32, 32), dtype, device, packed=True)
    return call(padfree, **case, causal=True, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_twenty_runs_give_the_same_bits(padfree, device, dtype, threads):
    first = run(padfree, dtype, device, deterministic=True)
    for _ in range(19):
        again = run(padfree, dtype, device, deterministic=True)
        for name in first:
            assert_same_bits(again[name], first[name], name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_threads_do_not_change_a_bit(padfree, device, dtype, packed):
    lengths = LENGTHS if packed else [130, 130]
    case = inputs(lengths, lengths, (6, 2), (32, 32), dtype, device, packed=packed)
    results = []
    before = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(call(padfree, **case, causal=True))
    torch.set_num_threads(before)
    for other in results[1:]:
        for name, value in results[0].items():
            assert_same_bits(other[name], value, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_deterministic_mode_changes_nothing(padfree, device, dtype, request):
    plain = run(padfree, dtype, device)
    request.getfixturevalue("deterministic_algorithms")
    under_mode = run(padfree, dtype, device)
    for name in plain:
        assert_same_bits(under_mode[name], plain[name], name)


def test_deterministic_false_gives_the_same_bits(padfree, device):
    on, off = run(padfree, torch.float32, device, deterministic=True), run(padfree, torch.float32, device)
    for name in on:
        assert_same_bits(on[name], off[name], name)
