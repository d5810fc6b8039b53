"""Two processes over gloo: data parallel training, and ring attention built on merging partial results by their lse."""

import kernels
import pytest
import reference
import torch
import torch.distributed as dist
from cases import cu_seqlens, randn
from tolerance import assert_close, assert_same_bits

WORLD = 2
pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")


def on_two_processes(function, tmp_path):
    """Runs ``function(rank, padfree)`` in two processes that share a gloo group; an exception in one fails here."""
    torch.multiprocessing.spawn(enter, args=(function, str(tmp_path)), nprocs=WORLD, join=True)


def enter(rank, function, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=WORLD)
    try:
        function(rank, kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu"))
    finally:
        dist.destroy_process_group()


class ToNext(torch.autograd.Function):
    """Hands a tensor to the next process of the ring; its gradient travels the other way."""

    @staticmethod
    def forward(ctx, tensor):
        return exchange(tensor, +1)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, -1)


def exchange(tensor, step):
    rank = dist.get_rank()
    arrived = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    send = dist.isend(tensor.contiguous(), (rank + step) % WORLD)
    dist.recv(arrived, (rank - step) % WORLD)
    send.wait()
    return arrived


def ring_attention(padfree, q, k, v):
    """Causal attention of this process' chunk of queries over the chunks of keys of all processes, passed round."""
    rank, total, total_lse = dist.get_rank(), None, None
    for step in range(WORLD):
        owner = (rank - step) % WORLD
        if step:
            k, v = ToNext.apply(k), ToNext.apply(v)
        if owner > rank:  # every one of these keys lies in the future
            total = total + 0 * (k.sum() + v.sum())  # keeps the exchange in this process' graph: the other one waits
            continue
        out, lse, _ = padfree.flash_attn_func(q, k, v, causal=owner == rank, return_attn_probs=True)
        lse = lse.transpose(1, 2).unsqueeze(-1)
        if total is None:
            total, total_lse = out, lse
        else:
            merged = torch.logaddexp(total_lse, lse)
            total = total * torch.exp(total_lse - merged) + out * torch.exp(lse - merged)
            total_lse = merged
    return total


def ring_equals_one_process(rank, padfree):
    q, k, v = (randn(2, 64, heads, 16, seed=seed) for seed, heads in ((0, 4), (1, 2), (2, 2)))
    dout = randn(2, 64, 4, 16, seed=3)
    wanted = reference.attention(q, k, v, dout=dout, causal=True)
    mine = slice(rank * 32, rank * 32 + 32)
    chunk = [tensor[:, mine].clone().requires_grad_() for tensor in (q, k, v)]
    out = ring_attention(padfree, *chunk)
    gradients = torch.autograd.grad(out, chunk, dout[:, mine])
    for name, got in zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True):
        value, allowance = wanted[name]
        # Every part keeps the whole's allowance or less, and the merge is one more step of the kernel's own rescaling.
        assert_close(got, value[:, mine], WORLD * allowance[:, mine], name)


def test_ring_attention(tmp_path):
    on_two_processes(ring_equals_one_process, tmp_path)


class Layer(torch.nn.Module):
    """One attention layer over a packed batch."""

    def __init__(self, padfree):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.qkv, self.out = (
            padfree.flash_attn_varlen_func,
            torch.nn.Linear(32, 96),
            torch.nn.Linear(32, 1),
        )

    def forward(self, x, ends, longest):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).unbind(1)
        return self.out(self.attend(q, k, v, ends, ends, longest, longest, causal=True).flatten(1)).square().mean()


def ddp_averages_gradients(rank, padfree):
    batches = [
        (randn(16, 32, seed=seed), cu_seqlens(lengths), max(lengths))
        for lengths, seed in (([9, 4, 3], 0), ([2, 14], 1))
    ]
    model = torch.nn.parallel.DistributedDataParallel(Layer(padfree))
    model(*batches[rank]).backward()
    alone = Layer(padfree)
    each = [torch.autograd.grad(alone(*batch), list(alone.parameters())) for batch in batches]
    for parameter, *gradients in zip(model.module.parameters(), *each, strict=True):
        assert_same_bits(parameter.grad, sum(gradients) / WORLD)


def test_data_parallel_averages_the_gradients(tmp_path):
    on_two_processes(ddp_averages_gradients, tmp_path)
