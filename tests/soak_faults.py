"""Turns right arguments into wrong ones: what a buggy caller may hand over, and what an attacker would."""

import torch

INTEGERS = [0, 1, -1, -2, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**62]
FLOATS = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 1e-320]
DTYPES = [
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.float16,
    torch.float32,
    torch.uint8,
    torch.complex64,
]


def spoil(arguments, random):
    """A copy of the arguments, one to three of them wrong."""
    spoiled = dict(arguments)
    for name in random.sample(sorted(spoiled), min(len(spoiled), random.choice([1, 1, 1, 2, 3]))):
        spoiled[name] = _other(spoiled[name], random, arguments)
    return spoiled


def _other(value, random, arguments):
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
    if random.random() < 0.08:
        return random.choice([None, *tensors, torch.zeros(0), torch.zeros((), dtype=torch.int32)])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([*INTEGERS, value - 1, value + 1])
    if isinstance(value, float):
        return random.choice(FLOATS)
    if isinstance(value, tuple):
        return random.choice([value[:1], (*value, 0), *((x, y) for x in INTEGERS for y in (*value[1:], None))])
    if isinstance(value, str):
        return random.choice(["", value.upper(), 0])
    if isinstance(value, torch.dtype):
        return random.choice(DTYPES)
    if value is None:
        return random.choice(tensors)
    return random.choice(TENSOR_FAULTS)(value, random)


def _resized(tensor, random):
    if tensor.dim() == 0:
        return tensor.new_zeros(2)
    dim = random.randrange(tensor.dim())
    size = max(0, random.choice([tensor.shape[dim] - 1, tensor.shape[dim] + 1, 0, 1, 2 * tensor.shape[dim]]))
    shape = [*tensor.shape]
    shape[dim] = size
    return tensor.new_zeros(shape) if random.random() < 0.5 else tensor.narrow(dim, 0, min(size, tensor.shape[dim]))


def _reshaped(tensor, random):
    choices = [
        tensor[None],
        tensor.flatten(),
        tensor.new_zeros(()),
        tensor.transpose(0, -1) if tensor.dim() else tensor,
    ]
    if tensor.dim() > 1 and tensor.shape[0]:
        choices.append(tensor[0])
    return random.choice(choices)


def _retyped(tensor, random):
    return tensor.to(random.choice(DTYPES))


def _spread(tensor, random):
    """The first element of a dimension, over and over: strides of 0."""
    if tensor.dim() == 0:
        return tensor
    dim = random.randrange(tensor.dim())
    if tensor.shape[dim] == 0:
        return tensor
    return tensor.narrow(dim, 0, 1).expand(tensor.shape)


def _elsewhere(tensor, random):
    return tensor.to("meta") if random.random() < 0.3 else tensor.contiguous().clone()


def _revalued(tensor, random):
    """Some or all of the numbers replaced; for integers, those that index something are the ones that hurt."""
    changed = tensor.clone(memory_format=torch.contiguous_format)
    if changed.numel() == 0:
        return changed
    flat = changed.view(-1)
    for _ in range(random.choice([1, 1, 3, 20])):
        at = random.randrange(flat.numel())
        if changed.is_floating_point():
            flat[at] = random.choice([*FLOATS[:7], 3e38])
        elif changed.dtype != torch.bool:
            limits = torch.iinfo(changed.dtype)
            wanted = random.choice([-1, 0, 1, limits.max, limits.min, int(flat[at]) + 1, int(flat[at]) - 1])
            flat[at] = min(max(wanted, limits.min), limits.max)
    return changed


def _reversed(tensor, random):
    return tensor.flip(0) if tensor.dim() else tensor


TENSOR_FAULTS = (
    _resized,
    _resized,
    _reshaped,
    _retyped,
    _spread,
    _elsewhere,
    _revalued,
    _revalued,
    _revalued,
    _reversed,
)
