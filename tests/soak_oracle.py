"""Random right calls of the public functions, compared with the oracle in every result and gradient."""

import attention_case
import delta_case
import reference
import scan_case
import state_space_case
import torch
from cases import LAYOUTS
from tolerance import assert_close


def attention(padfree, drawn):
    random = drawn.random
    packed, heads_kv = random.random() < 0.5, random.randrange(1, 4)
    pairs = [(drawn.length(), drawn.length()) for _ in range(random.randrange(1, 4))]
    pairs = pairs if packed else [pairs[0]] * len(pairs)
    heads = (heads_kv * random.randrange(1, 4), heads_kv)
    lengths_q, lengths_k = zip(*pairs, strict=True)
    case = attention_case.inputs(
        lengths_q,
        lengths_k,
        heads,
        (drawn.dim(), drawn.dim()),
        drawn.dtype,
        packed=packed,
        seed=random.randrange(10**6),
    )
    layout = LAYOUTS[random.choice(sorted(LAYOUTS))]
    case |= {name: layout(case[name]) for name in ("q", "k", "v", "dout")}
    attention_case.check(
        padfree, case, causal=random.random() < 0.5, softcap=random.choice([0.0, 0.0, 2.0, 30.0]),
        window_size=random.choice([(-1, -1), (random.randrange(-1, 80), random.randrange(-1, 80))]),
        s_aux=drawn.maybe(lambda: torch.randn(heads[0], generator=drawn.generator)),
        softmax_scale=random.choice([None, 0.3]),
    )  # fmt: skip


def causal_conv1d(padfree, drawn):
    random = drawn.random
    batch, channels, length = random.randrange(1, 4), random.choice([1, 7, 8, 33, 260]), max(1, drawn.length())
    width, activation = random.randrange(2, 5), random.choice([None, "silu"])
    x, weight, dout = (
        torch.randn(shape, generator=drawn.generator).to(drawn.dtype)
        for shape in ((batch, channels, length), (channels, width), (batch, channels, length))
    )
    bias = drawn.maybe(lambda: torch.randn(channels, generator=drawn.generator).to(drawn.dtype), 0.5)
    layout = LAYOUTS[random.choice(sorted(LAYOUTS))]
    leaves = {"dx": x, "dweight": weight, "dbias": bias}
    leaves = {n: t.clone().requires_grad_() for n, t in leaves.items() if t is not None}
    out = padfree.causal_conv1d_fn(layout(leaves["dx"]), leaves["dweight"], leaves.get("dbias"), activation=activation)
    gradients = torch.autograd.grad(out, list(leaves.values()), layout(dout))
    got = {"out": out, **dict(zip(leaves, gradients, strict=True))}
    wanted = reference.causal_conv1d(x, weight, bias, activation=activation, dout=dout)
    for name, result in got.items():
        assert_close(result, *wanted[name], name)


def gated_delta_rule(padfree, drawn):
    random = drawn.random
    packed, heads_k = random.random() < 0.5, random.randrange(1, 3)
    lengths = [random.choice([1, 2, 17, 65, random.randrange(1, 90)]) for _ in range(random.randrange(1, 3))]
    case = delta_case.inputs(
        lengths if packed else [lengths[0]] * len(lengths), "head", (heads_k, heads_k * random.randrange(1, 3)),
        (random.randrange(1, 50), random.randrange(1, 50)), drawn.dtype, packed=packed, state=random.random() < 0.5,
        seed=random.randrange(10**6),
    )  # fmt: skip
    delta_case.check(padfree, case)


def state_space(padfree, drawn):
    random = drawn.random
    packed, groups = random.random() < 0.5, random.randrange(1, 3)
    lengths = [random.choice([1, 2, 17, 65, random.randrange(1, 90)]) for _ in range(random.randrange(1, 3))]
    case = state_space_case.inputs(
        lengths if packed else [lengths[0]] * len(lengths), (groups * random.randrange(1, 4), groups),
        (random.randrange(1, 50), random.randrange(1, 50)), drawn.dtype, packed=packed, state=random.random() < 0.5,
        gate=random.random() < 0.5, skip=random.choice([None, "head", "channel"]), seed=random.randrange(10**6),
    )  # fmt: skip
    state_space_case.check(padfree, case)


def kimi_delta_attention(padfree, drawn):
    random, heads_k = drawn.random, drawn.random.randrange(1, 3)
    lengths = [random.choice([0, 1, 17, 65, random.randrange(1, 90)]) for _ in range(random.randrange(1, 3))]
    case = delta_case.inputs(
        lengths, "channel", (heads_k, heads_k * random.randrange(1, 3)),
        (random.randrange(1, 50), random.randrange(1, 50)), drawn.dtype, packed=True, state=random.random() < 0.5,
        slack=random.choice([0, 3]), seed=random.randrange(10**6),
    )  # fmt: skip
    delta_case.check(padfree, case)


def selective_scan(padfree, drawn):
    random, groups = drawn.random, drawn.random.randrange(1, 3)
    lengths = [random.randrange(1, 80) for _ in range(random.randrange(1, 4))]
    packed = {"lengths": lengths, "padding": random.randrange(3)} if random.random() < 0.5 else {}
    case = scan_case.inputs(
        (random.randrange(1, 3), groups * random.randrange(1, 30), random.randrange(100)), random.randrange(1, 20),
        groups, drawn.dtype, **packed, seed=random.randrange(10**6),
    )  # fmt: skip
    absent = [name for name in ("D", "z", "delta_bias", "initial_states") if random.random() < 0.3]
    scan_case.check(padfree, scan_case.only(case, *absent))


CALLS = (
    attention, attention, causal_conv1d, gated_delta_rule, kimi_delta_attention, state_space, selective_scan,
)  # fmt: skip
