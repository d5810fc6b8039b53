"""Attention against the strongest thing a user could write with torch: ``scaled_dot_product_attention`` (sdpa) as
transformers calls it, with inputs upcast to float32 (torch has no fast 16-bit product on AVX2), sequence by sequence,
or under the block-diagonal mask that transformers builds for packed batches.

``CASES`` is what ``bundle bench`` times; the classes are for ``kernels benchmark``.
"""

import itertools

import torch
import torch.nn.functional as F
from kernels.benchmark import Benchmark

CAUSAL_SHAPES = ((1, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 4096, 128), (4, 8, 1024, 64))
DOCUMENTS = (1024, 768, 640, 512, 448, 320, 256, 128)
OPTION_SHAPE = (1, 8, 1024, 64)
OPTIONS = ("alibi", "softcap", "sink", "bool mask", "float mask")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def sdpa(q, k, v, **options):
    """sdpa on tensors laid out as ours, (batch, seqlen, heads, head_dim)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


def upcast(attention):
    """The same in float32, rounded at the end."""

    def attend(q, k, v, **options):
        return attention(q.float(), k.float(), v.float(), **options).to(q.dtype)

    return attend


def strongest(dtype, name, attention):
    """``attention`` as it is, and upcast where the dtype has 16 bits."""
    return {name: attention} if dtype == torch.float32 else {name: attention, f"{name}, upcast": upcast(attention)}


def with_gradients(attention, q, k, v, grad):
    """Forward and backward in one call: out, dq, dk, dv."""
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]

    def step():
        out = attention(*leaves)
        return (out, *torch.autograd.grad(out, leaves, grad))

    return step


def case(candidate, baselines, inputs, flops, grad=None):
    """What bench.py wants, from functions of (q, k, v). With ``grad``: forward and backward, 3.5 times the products."""
    moved = sum(tensor.numel() * tensor.element_size() for tensor in inputs) * 4 / 3
    if grad is None:
        calls = {name: lambda call=call: call(*inputs) for name, call in baselines.items()}
        return {"candidate": lambda: candidate(*inputs), "baselines": calls, "flops": flops, "bytes": moved}
    calls = {name: with_gradients(call, *inputs, grad) for name, call in baselines.items()}
    mine = with_gradients(candidate, *inputs, grad)
    return {"candidate": mine, "baselines": calls, "flops": 3.5 * flops, "bytes": 2.5 * moved}


def dense(shape, dtype, causal, backward):
    """One batch of full sequences."""

    def build(kernel):
        torch.manual_seed(0)
        batch, heads, seqlen, dim = shape
        q, k, v, grad = (torch.randn(batch, seqlen, heads, dim).to(dtype) for _ in range(4))
        flops = 4 * batch * heads * seqlen * seqlen * dim / (2 if causal else 1)
        baselines = strongest(dtype, "sdpa", lambda q, k, v: sdpa(q, k, v, is_causal=causal))
        return case(
            lambda q, k, v: kernel.flash_attn_func(q, k, v, causal=causal),
            baselines,
            (q, k, v),
            flops,
            grad if backward else None,
        )

    return build


def packed(dtype, backward, masked):
    """Documents in one row, causal: sequence by sequence, or (masked) under a block-diagonal mask."""

    def build(kernel):
        torch.manual_seed(0)
        heads, dim, total = 8, 64, sum(DOCUMENTS)
        ends = list(itertools.accumulate(DOCUMENTS, initial=0))
        cu_seqlens = torch.tensor(ends, dtype=torch.int32)
        q, k, v, grad = (torch.randn(1, total, heads, dim).to(dtype) for _ in range(4))
        ids = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS))
        mask = (ids[:, None] == ids[None, :]).tril()[None, None]

        def each_document(q, k, v):
            parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
            return torch.cat([sdpa(q[:, p], k[:, p], v[:, p], is_causal=True) for p in parts], 1)

        def ours(q, k, v):
            longest = max(DOCUMENTS)
            out = kernel.flash_attn_varlen_func(q[0], k[0], v[0], cu_seqlens, cu_seqlens, longest, longest, causal=True)
            return out[None]

        baseline = (lambda q, k, v: sdpa(q, k, v, attn_mask=mask)) if masked else each_document
        name = "sdpa, block-diagonal mask" if masked else "sdpa, one document at a time"
        flops = sum(2 * heads * length * length * dim for length in DOCUMENTS)
        return case(ours, strongest(dtype, name, baseline), (q, k, v), flops, grad if backward else None)

    return build


def sliding_window(dtype, seqlen, window):
    """Causal with a window: sdpa needs a mask, and computes what the mask hides."""

    def build(kernel):
        torch.manual_seed(0)
        heads, dim = 8, 64
        q, k, v = (torch.randn(1, seqlen, heads, dim).to(dtype) for _ in range(3))
        rows = torch.arange(seqlen)
        mask = (rows[None] <= rows[:, None]) & (rows[None] > rows[:, None] - window)
        baselines = strongest(dtype, "sdpa, window mask", lambda q, k, v: sdpa(q, k, v, attn_mask=mask))
        return case(
            lambda q, k, v: kernel.flash_attn_func(q, k, v, causal=True, window_size=(window - 1, 0)),
            baselines,
            (q, k, v),
            4 * heads * dim * seqlen * window,
        )

    return build


def eager(q, k, v, hidden, softcap=0.0, sink=None):
    """Products, softcap, mask and softmax beside a sink, written out as in transformers' eager attention."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(hidden, -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return (scores.softmax(-1)[..., : k.shape[2]] @ v).transpose(1, 2)


def with_option(option, backward):
    """Causal, float32, with one option more; masks and biases of the baselines are made before the clock starts."""

    def build(kernel):
        torch.manual_seed(0)
        batch, heads, seqlen, dim = OPTION_SHAPE
        q, k, v, grad = (torch.randn(batch, seqlen, heads, dim) for _ in range(4))
        rows = torch.arange(seqlen)
        seen = rows[None] <= rows[:, None]
        slopes, sink = 2.0 ** -torch.arange(1.0, heads + 1), torch.randn(heads)
        added = torch.zeros(1, 1, seqlen, seqlen).masked_fill(~seen, -torch.inf)
        distance = -(rows[:, None] - rows[None]).abs() * slopes[:, None, None]
        biased = (added + distance[None]).contiguous()

        def ours(**options):
            return lambda q, k, v: kernel.flash_attn_func(q, k, v, causal=True, **options)

        def under(mask):
            return lambda q, k, v: sdpa(q, k, v, attn_mask=mask)

        candidate, name, baseline = {
            "alibi": (ours(alibi_slopes=slopes), "sdpa, float mask", under(biased)),
            "softcap": (ours(softcap=30.0), "eager", lambda q, k, v: eager(q, k, v, ~seen, softcap=30.0)),
            "sink": (ours(s_aux=sink), "eager", lambda q, k, v: eager(q, k, v, ~seen, sink=sink)),
            "bool mask": (
                lambda q, k, v: kernel.attention_with_mask(q, k, v, seen[None, None]),
                "sdpa, boolean mask",
                under(seen[None, None]),
            ),
            "float mask": (
                lambda q, k, v: kernel.attention_with_mask(q, k, v, added),
                "sdpa, float mask",
                under(added),
            ),
        }[option]
        flops = 2 * batch * heads * seqlen * seqlen * dim
        return case(candidate, {name: baseline}, (q, k, v), flops, grad if backward else None)

    return build


def decode(dtype, heads_q, heads_kv, page_size):
    """One query over a cache of 16384 keys: sdpa on a cache laid out for it, heads of a group as its queries; the
    pages gathered first."""

    def build(kernel):
        torch.manual_seed(0)
        seqlen, dim = 16384, 64
        q = torch.randn(1, 1, heads_q, dim).to(dtype)
        k, v = (torch.randn(1, seqlen, heads_kv, dim).to(dtype) for _ in range(2))
        lengths = torch.tensor([seqlen], dtype=torch.int32)
        grouped = q.view(1, heads_kv, heads_q // heads_kv, dim)
        k_heads, v_heads = (tensor.transpose(1, 2).contiguous() for tensor in (k, v))
        options = {"cache_seqlens": lengths}
        caches = (k, v)
        if page_size:
            table = torch.randperm(seqlen // page_size).to(torch.int32)[None]
            caches = tuple(torch.empty(seqlen // page_size, page_size, heads_kv, dim, dtype=dtype) for _ in "kv")
            for cache, tensor in zip(caches, (k, v), strict=True):
                cache[table[0].long()] = tensor.view(-1, page_size, heads_kv, dim)
            options["block_table"] = table

        def attend(k, v):
            if page_size:
                pages = options["block_table"][0].long()
                k, v = (cache[pages].view(1, seqlen, heads_kv, dim).transpose(1, 2) for cache in caches)
            return F.scaled_dot_product_attention(grouped.to(k.dtype), k, v).reshape(1, 1, heads_q, dim).to(dtype)

        baselines = {"sdpa, packed groups": lambda: attend(k_heads, v_heads)}
        if dtype != torch.float32 and not page_size:
            baselines["sdpa, packed groups, upcast"] = lambda: attend(k_heads.float(), v_heads.float())
        return {
            "candidate": lambda: kernel.flash_attn_with_kvcache(q, *caches, **options),
            "baselines": baselines,
            "flops": 4 * heads_q * seqlen * dim,
            "bytes": 2 * k.numel() * k.element_size(),
        }

    return build


def all_cases():
    """``(name, build)`` in the order of the table in kernel-src/attention/README.md."""
    for backward, causal, (name, dtype), shape in itertools.product(
        (False, True), (True, False), DTYPES.items(), CAUSAL_SHAPES
    ):
        if backward and not causal:
            continue
        words = ("forward+backward" if backward else "forward", "causal" if causal else "full", name)
        yield f"{' '.join(words)} {'x'.join(map(str, shape))}", dense(shape, dtype, causal, backward)
    for backward, (name, dtype) in itertools.product((False, True), DTYPES.items()):
        yield f"{'forward+backward' if backward else 'forward'} packed {name}", packed(dtype, backward, masked=False)
    for name in ("fp32", "bf16"):
        yield f"forward packed-mask {name}", packed(DTYPES[name], False, masked=True)
        yield f"forward window {name} 512 of 4096", sliding_window(DTYPES[name], 4096, 512)
    for backward, option in itertools.product((False, True), OPTIONS):
        words = "forward+backward" if backward else "forward"
        yield f"{words} causal, {option}, fp32 {'x'.join(map(str, OPTION_SHAPE))}", with_option(option, backward)
    for name, dtype in DTYPES.items():
        yield f"decode {name} heads 8 of 8", decode(dtype, 8, 8, 0)
    yield "decode bf16 heads 32 of 8", decode(torch.bfloat16, 32, 8, 0)
    yield "decode bf16 heads 32 of 8, pages of 256", decode(torch.bfloat16, 32, 8, 256)


CASES = dict(all_cases())

LARGEST = "1x8x4096x128"
GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {"work": "causal forward fp32, 4 shapes", "cases": "forward causal fp32 *", "floor": 1.4, "goal": 1.8},
    {"work": f"causal forward fp32 {LARGEST}", "cases": f"forward causal fp32 {LARGEST}", "goal": 0.85, "of": "peak"},
    {"work": "causal forward bf16, 4 shapes", "cases": "forward causal bf16 *", "floor": 1.5, "goal": 2},
    {"work": "causal forward fp16, 4 shapes", "cases": "forward causal fp16 *", "floor": 1.6, "goal": 2},
    {"work": "full forward fp32, 4 shapes", "cases": "forward full fp32 *", "floor": 1.05, "goal": 1.3},
    {"work": "full forward bf16, 4 shapes", "cases": "forward full bf16 *", "floor": 1.15, "goal": 1.5},
    {"work": "causal forward + backward fp32", "cases": "forward+backward causal fp32 *", "floor": 1.3, "goal": 1.8},
    {"work": "causal forward + backward bf16", "cases": "forward+backward causal bf16 *", "floor": 1.5, "goal": 2.5},
    {"work": "causal forward + backward fp16", "cases": "forward+backward causal fp16 *", "floor": 1.5, "goal": 2.5},
    *(
        {"work": f"packed, 8 documents, forward {name}", "cases": f"forward packed {name}", "floor": 1.6, "goal": 2.2}
        for name in DTYPES
    ),
    *(
        {
            "work": f"packed, 8 documents, forward + backward {name}",
            "cases": f"forward+backward packed {name}",
            "floor": 1.4,
            "goal": 2,
        }
        for name in DTYPES
    ),
    {"work": "packed vs the block-diagonal mask", "cases": "forward packed-mask fp32", "floor": 12, "goal": 17},
    *(
        {
            "work": f"decode, 1 query, 16384 keys, heads 8/8 {name}",
            "cases": f"decode {name} heads 8 of 8",
            "floor": floor,
            "goal": 0.85,
            "of": "reading",
        }
        for name, floor in (("fp32", 1.3), ("bf16", 5), ("fp16", 9))
    ),
    {
        "work": "decode, heads 32/8 bf16",
        "cases": "decode bf16 heads 32 of 8",
        "floor": 1.7,
        "floors": {2: 1.3},
        "goal": 3,
    },
    {"work": "sliding window 512 of 4096 fp32", "cases": "forward window fp32 512 of 4096", "floor": 5, "goal": 8},
    {"work": "sliding window 512 of 4096 bf16", "cases": "forward window bf16 512 of 4096", "floor": 5, "goal": 8},
    {"work": "paged decode bf16", "cases": "decode bf16 heads 32 of 8, pages of 256", "floor": 1.5, "goal": 2},
]


class AttentionBenchmark(Benchmark):
    """``kernels benchmark``: causal forward, (1, 2048, 8, 64), float32."""

    seed = 0

    def setup(self):
        """Inputs of every workload."""
        self.q, self.k, self.v = (torch.randn(1, 2048, 8, 64, device=self.device) for _ in range(3))

    def benchmark_causal(self):
        """One causal forward."""
        self.out = self.kernel.flash_attn_func(self.q, self.k, self.v, causal=True)

    def verify_causal(self):
        """The same by sdpa."""
        return sdpa(self.q, self.k, self.v, is_causal=True)
