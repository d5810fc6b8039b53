"""The comparison itself: it must notice what it is there for, and say where."""

import pytest
import torch
from tolerance import assert_close, assert_near, assert_same_bits, gamma, one_unit_off, rounded

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


def test_assert_near_allows_twice_the_error_of_plain_code():
    wanted = torch.linspace(1, 2, 5, dtype=torch.float64)
    plain = (wanted + 1e-3).float()
    assert_near((wanted - 1.9e-3).float(), wanted, [wanted.float(), plain])
    for off in (4e-3, torch.tensor([0, 0, 0, 0, 2.1e-3])):
        with pytest.raises(AssertionError, match=r"elements wrong; worst at \(4,\)|5 of 5 elements wrong"):
            assert_near((wanted - off).float(), wanted, [wanted.float(), plain])


def test_one_unit_off_moves_every_element_by_its_last_place():
    values = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 1
    moved = one_unit_off(values, 1)
    steps = (moved - values).abs() / torch.finfo(torch.float32).eps
    assert (steps >= 1).all()
    assert (steps <= 2).all()
    assert (moved > values).any()
    assert (moved < values).any()


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
