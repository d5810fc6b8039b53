"""How far float32 arithmetic may drift in a long recurrence: Monte Carlo arithmetic (Parker, 1997).

Worst-case bounds multiply over hundreds of dependent steps until they say nothing. Instead the oracle is run again, in
float64, with a random relative error at every operation a float32 kernel makes, forward and backward; the spread of the
results says what such errors come to where they matter. A sum of ``terms`` products gets ``sqrt(terms)`` roundoffs on
each of them, the size that errors of random sign reach (Higham and Mary, 2019). Results may be ``SIGMAS`` standard
deviations off. Nothing here is fitted to a result.
"""

import math
import os

import torch
from tolerance import rounded, unit_roundoff

SIGMAS = 6
SAMPLES = int(os.environ.get("PADFREE_SAMPLES", "10"))
"""Few runs suffice for the calls that tests make, which are always the same. Where calls are random (the soak), some
element among millions has a deviation that ten runs underrate by chance."""


class _Perturb(torch.autograd.Function):
    """x times (1 + error), its gradient times (1 + another error)."""

    @staticmethod
    def forward(ctx, x, perturbation, size, size_backward):
        ctx.perturbation, ctx.size = perturbation, size_backward
        return x * perturbation.factor(x.shape, size)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.perturbation.factor(gradient.shape, ctx.size), None, None, None


class Perturbation:
    """``perturb(x, terms)`` for x with a leading dimension of ``1 + SAMPLES`` runs, of which the first stays exact."""

    def __init__(self, dtype=torch.float32, seed=0):
        self.unit = unit_roundoff(dtype)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, x, terms=1, terms_backward=None):
        """``terms``: roundings in a row, a number or a tensor that broadcasts against x; the gradient has its own."""
        terms_backward = terms if terms_backward is None else terms_backward
        return _Perturb.apply(x, self, *(n**0.5 for n in (terms, terms_backward)))

    def factor(self, shape, size):
        error = torch.empty(shape).uniform_(-math.sqrt(3), math.sqrt(3), generator=self.generator)  # of variance 1
        error[0] = 0
        return 1 + self.unit * size * error.double()


def repeated(tensor):
    """A float64 leaf that holds ``tensor`` once for each run."""
    copies = tensor.detach().cpu().double().expand(1 + SAMPLES, *tensor.shape)
    return copies.clone().requires_grad_()


def spread(runs, dtype, pooled):
    """(exact, allowance) of a result: runs of it, and the dimensions over which an element's neighbours speak for it.

    Few runs know one element's deviation badly: the larger of its own and of its neighbours' root mean square counts.
    """
    exact = runs[0].detach()
    variance = (runs[1:].detach() - exact).square().mean(0)
    if exact.numel():
        variance = torch.maximum(variance, variance.mean(pooled, keepdim=True))
    return exact, rounded(exact, SIGMAS * variance.sqrt(), dtype)
