"""How far a result may be from the float64 oracle, and the comparison that says where it is not.

Every allowance is a bound from rounding-error analysis, computed from the arithmetic a kernel is documented to use:
inputs are read exactly as stored, sums and products are float32, results are rounded once to the storage dtype.
With unit roundoff ``u`` a sum of ``n`` products is off by at most ``gamma(n) * sum |a_i b_i|``, ``gamma(n) = n u /
(1 - n u)``, in whatever order it is added (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). No
constant here is fitted to a result.
"""

import torch

# An elementary function (exp, log, tanh, sigmoid) evaluated in float32 is documented good to this many roundoffs.
FUNCTION_ULPS = 4


def unit_roundoff(dtype):
    """Half the distance from 1 to the next number: the relative error of one correctly rounded operation."""
    return torch.finfo(dtype).eps / 2


def gamma(terms, dtype=torch.float32):
    """Relative error bound of ``terms`` operations in a row in ``dtype``; a tensor of counts gives a tensor."""
    growth = terms * unit_roundoff(dtype)
    return growth / (1 - growth)


def rounded(wanted, error, dtype):
    """Allowance of a value known to ``error`` and then stored as ``dtype``: one rounding, at least a subnormal step."""
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    return error + unit_roundoff(dtype) * (wanted.abs() + error) + smallest


def dot_allowance(wanted, magnitude, terms, dtype):
    """Allowance of sums of ``terms`` products: ``magnitude`` is the same sum over absolute values."""
    return rounded(wanted, gamma(terms) * magnitude, dtype)


def assert_close(got, wanted, allowance, what="result"):
    """Fails unless ``|got - wanted| <= allowance`` element by element; infinities and NaN must sit at the same places.

    ``wanted`` is float64; ``allowance`` broadcasts against it. The failure names index, got, wanted and allowance.
    """
    assert tuple(got.shape) == tuple(wanted.shape), f"{what}: shape {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    got = got.detach().cpu().double()
    wanted = wanted.detach().cpu().double()
    allowance = torch.as_tensor(allowance, dtype=torch.float64).cpu().expand(wanted.shape)
    _fail_where(got.isnan() != wanted.isnan(), got, wanted, allowance, f"{what}: NaN placement")
    _fail_where(_infinity(got) != _infinity(wanted), got, wanted, allowance, f"{what}: infinity placement")
    finite = wanted.isfinite()
    _fail_where(finite & ~((got - wanted).abs() <= allowance), got, wanted, allowance, what)


def assert_near(got, wanted, eager, what="result", scale=0):
    """Fails unless ``got`` is at most twice as far from ``wanted`` (float64) as plain code, and one rounding.

    For results of many parts, where no bound says much: ``eager`` is what torch's own operations give in the precision
    of ``got``, one result or several (see `one_unit_off`), the worst of which counts; two right implementations round
    differently, and neither is known to be the better one. The rounding is that of the largest element wanted, or of
    ``scale``.
    """
    runs = [eager] if isinstance(eager, torch.Tensor) else eager
    worst = max((run.double() - wanted).abs().max() for run in runs)
    assert_close(got, wanted, 2 * worst + torch.finfo(got.dtype).eps * max(wanted.abs().max(), scale), what)


def one_unit_off(tensor, seed):
    """A copy with each element moved by one unit in the last place, up or down at random.

    A small tensor is a small sample of rounding errors: one run may be right by luck. Moved inputs are as good as the
    given ones, as far as their precision can tell, so several runs say what it is good for.
    """
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * (1 + torch.finfo(tensor.dtype).eps * sign.to(tensor.device))


def assert_same_bits(got, wanted, what="result"):
    """Fails unless both tensors hold the same bits (so that NaN equals NaN and 0 differs from -0)."""
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, wanted {wanted.dtype}"
    assert got.shape == wanted.shape, f"{what}: shape {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    differs = got.detach().contiguous().view(integer) != wanted.detach().contiguous().view(integer)
    _fail_where(differs.cpu(), got.detach().cpu(), wanted.detach().cpu(), torch.zeros(got.shape), f"{what}: bits")


def _infinity(tensor):
    return torch.where(tensor.isinf(), tensor.sign(), torch.zeros_like(tensor))


def _fail_where(wrong, got, wanted, allowance, what):
    if not wrong.any():
        return
    excess = torch.where(wrong, (got - wanted).abs().double().nan_to_num(torch.inf, torch.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} elements wrong; worst at {index}: got {got[index].item()!r}, "
        f"wanted {wanted[index].item()!r}, allowance {allowance[index].item()!r}"
    )
