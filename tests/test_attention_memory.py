"""What attention holds beside its inputs and outputs does not grow with seqlen_q x seqlen_k."""

import re
from pathlib import Path

import pytest
import torch
from cases import randn

SEQLEN, DIM = 8192, 64
MEBIBYTE = 1 << 20


def resident(field):
    """VmRSS (now) or VmHWM (the most since the last reset) of this process, in bytes."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def peak_of(call):
    """Bytes that the process held during ``call`` beyond what it held before, and the result."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = resident("VmRSS")
    result = call()
    return resident("VmHWM") - before, result


def qkv(seqlen, device):
    return [randn(1, seqlen, 1, DIM, seed=seed, device=device).requires_grad_() for seed in range(3)]


def test_forward_and_backward_hold_no_square(padfree, device):
    if device.type != "cpu":
        pytest.skip("measures the memory of the process")
    small, inputs = qkv(256, device), qkv(SEQLEN, device)
    first = padfree.flash_attn_func(*small, causal=True)
    torch.autograd.grad(first, small, torch.ones_like(first))  # what a process sets up once, modules of torch included
    forward, out = peak_of(lambda: padfree.flash_attn_func(*inputs, causal=True))
    grad = torch.ones_like(out)
    backward, _ = peak_of(lambda: torch.autograd.grad(out, inputs, grad))
    # Forward: out, and a state of twice its size at most; backward: three gradients and a sum for dq. The rest is for
    # the workspace of tiles and for whatever else the process does meanwhile.
    allowed = 5 * SEQLEN * DIM * 4 + 16 * MEBIBYTE
    assert allowed < SEQLEN * SEQLEN * 4 / 8
    assert forward < allowed, f"forward held {forward / MEBIBYTE:.1f} MB, allowed {allowed / MEBIBYTE:.1f} MB"
    assert backward < allowed, f"backward held {backward / MEBIBYTE:.1f} MB, allowed {allowed / MEBIBYTE:.1f} MB"
