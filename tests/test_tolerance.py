"""The comparison itself: it must notice what it is there for, and say where."""

import pytest
import torch
from tolerance import assert_close, assert_same_bits, gamma, rounded

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("got", "wanted", "text"),
    [
        ([0.0, 1.2], [0.0, 1.0], "1 of 2 elements wrong; worst at (1,): got 1.2000"),
        ([0.0, NAN], [0.0, 1.0], "NaN placement"),
        ([0.0, 1.0], [0.0, NAN], "NaN placement"),
        ([0.0, INF], [0.0, 1.0], "infinity placement"),
        ([0.0, INF], [0.0, -INF], "infinity placement"),
        ([0.0, 1.0], [0.0, -INF], "infinity placement"),
    ],
)
def test_assert_close_fails_and_says_where(got, wanted, text):
    with pytest.raises(AssertionError) as error:
        assert_close(torch.tensor(got), torch.tensor(wanted, dtype=torch.float64), 0.1, "out")
    assert text in str(error.value)
    assert "allowance 0.1" in str(error.value)


def test_assert_close_refuses_to_broadcast():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.zeros(1), torch.zeros(2), 1.0)


def test_assert_close_accepts_equal_infinities_and_nans():
    values = torch.tensor([1.0, INF, -INF, NAN])
    assert_close(values, values.double(), 0.0)


def test_assert_same_bits_tells_zero_from_minus_zero():
    assert_same_bits(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]))
    with pytest.raises(AssertionError, match="bits"):
        assert_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_covers_one_rounding_and_not_three(dtype):
    wanted = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stored = wanted.to(dtype)
    assert_close(stored, wanted, rounded(wanted, 0.0, dtype))
    with pytest.raises(AssertionError):
        assert_close(stored.double() * (1 + 3 * torch.finfo(dtype).eps), wanted, rounded(wanted, 0.0, dtype))


def test_gamma_bounds_a_float32_sum():
    terms = torch.rand(4096, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(())
    for term in terms:
        total = total + term
    exact = terms.double().sum()
    assert_close(total, exact, gamma(4096) * exact)
