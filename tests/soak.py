"""Throws random calls at the loaded bundle until the time is up: right ones, judged by the oracle, and wrong ones,
which may only be refused. These go to the raw ops too, where no Python check stands before the kernels.

    LOCAL_KERNELS=... PADFREE_ISA=avx2 python tests/soak.py --seed 7 --seconds 60 --last FILE

Call n of a seed is made from ``seed + n`` alone, so ``--seed (seed + n) --calls 1`` repeats it. FILE always holds the
number of the call under way: what is left there when a sanitizer, or the system, ends the process.
"""

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import kernels
import soak_calls
import soak_faults
import soak_oracle
import soak_public
import torch

REFUSALS = (ValueError, TypeError, NotImplementedError)
RAW_REFUSALS = (*REFUSALS, RuntimeError, IndexError, AttributeError)
"""The raw ops' own checks raise RuntimeError, as does the dispatcher before them. Tensors without data reach the fake
kernels, which are Python and check nothing: there a None raises what Python raises."""

TORCHS_OWN = (
    "can't allocate memory",
    "has been modified by an inplace operation",
    "backward through the graph a second time",
    "a leaf Variable that requires grad",
)
"""In RuntimeErrors of torch that a public function lets through: a wish for more memory than there is (or than the
sanitizer gives), a backward after the caller, in this call or one before, had a result written over an input, a
parameter to write a result to."""
MOST_MEMORY = 6 * 1024
"""MiB that the process may come to hold; right calls take a few hundred. One call alone is stopped by the sanitizer."""


def one_call(padfree, ops, seed):
    """Makes call ``seed``; what it was, and how many calls ended how. Raises where the bundle is at fault."""
    drawn = soak_calls.Drawn(random.Random(seed))
    torch.manual_seed(seed)
    torch.set_num_threads(drawn.random.choice([1, 2, 3]))
    if drawn.random.random() < 0.25:
        make = drawn.random.choice(soak_oracle.CALLS)
        make(padfree, drawn)
        return f"{make.__name__}, oracle", Counter(right=1)
    name, call, arguments = _drawn_call(padfree, ops, drawn)
    kind, refusals = ("raw", RAW_REFUSALS) if _is_raw(call) else ("public", REFUSALS)
    _give(call, arguments)  # right arguments must run
    ends = Counter(right=1)
    for _ in range(10):
        ends[_end(call, soak_faults.spoil(arguments, drawn.random), refusals)] += 1
    return f"{name}, {kind}", ends


def _end(call, arguments, refusals):
    """``refused``, or ``answered``: some faults make another right call, or a wrong value that no check can tell."""
    try:
        _give(call, arguments)
    except refusals:
        return "refused"
    except RuntimeError as error:
        if not any(text in str(error) for text in TORCHS_OWN):
            raise
        return "refused"
    return "answered"


def _drawn_call(padfree, ops, drawn):
    """What is called, and the right arguments: a public function, or a raw op, half of them by their public name."""
    if drawn.random.random() < 0.4:
        make = drawn.random.choice(soak_public.CALLS)
        return make.__name__, *make(padfree, drawn)
    make = drawn.random.choice(soak_calls.RAW)
    arguments = make(ops, drawn)
    public = soak_calls.public(padfree, make.__name__, arguments) if drawn.random.random() < 0.5 else None
    return make.__name__, *(public or (getattr(ops, make.__name__), arguments))


def _is_raw(call):
    return isinstance(call, torch._ops.OpOverloadPacket)


def _give(call, arguments):
    if _is_raw(call):
        call(*arguments.values())
    else:
        soak_public.backward_too(call(**arguments))


def memory():
    """MiB that the process held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(words=None):
    """Runs the calls; 1 when one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--calls", type=int, default=sys.maxsize)
    parser.add_argument("--last", type=Path, required=True)
    args = parser.parse_args(words)
    padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
    ops = getattr(torch.ops, padfree.__name__)
    made, ends = {}, time.monotonic() + args.seconds
    seed = args.seed
    while seed < args.seed + args.calls and time.monotonic() < ends:
        args.last.write_text(str(seed))
        before = memory()
        try:
            what, counts = one_call(padfree, ops, seed)
            made.setdefault(what, Counter()).update(counts)
        except Exception:
            traceback.print_exc()
            print(f"call {seed} went wrong")
            return 1
        if memory() > max(before, MOST_MEMORY):
            print(f"call {seed} went wrong: {what} took {memory()} MiB, of {MOST_MEMORY} allowed")
            return 1
        seed += 1
    _report(made)
    return 0


def _report(made):
    columns = ("right", "refused", "answered")
    print("".join(f"{column:>9}" for column in columns))
    for what, counts in (*sorted(made.items()), ("in all", sum(made.values(), Counter()))):
        print("".join(f"{counts[column]:9}" for column in columns), what)
    print(f"at most {memory()} MiB")


if __name__ == "__main__":
    sys.exit(main())
