"""What several tests start from: a tiny checkout of the project's shape, and a Hub over an empty store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.hub.server import RunningHub, running_hub

BUILD_TOML = """\
[general]
name = "tiny-kernel"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cpu"]

[torch]
include = ["kernel-src"]
src = ["torch-ext/torch_binding.cpp", "kernel-src/scale/scale.h"]

[torch.stable-abi]
cpu = "2.11"

[kernel.scale_cpu]
backend = "cpu"
depends = []
include = ["kernel-src"]
src = ["kernel-src/scale/cpu/kernel_generic.cpp", "kernel-src/scale/scale.h"]

[kernel.scale_cpu_avx2]
backend = "cpu"
depends = []
include = ["kernel-src"]
cxx-flags = ["-mavx2", "-mfma"]
src = ["kernel-src/scale/cpu/kernel_avx2.cpp", "kernel-src/scale/scale.h"]
"""

BINDING = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "registration.h"
#include "scale/scale.h"

torch::stable::Tensor scale(const torch::stable::Tensor& x, double factor) {
  torch::stable::Tensor y = torch::stable::empty_like(x);
  auto body = __builtin_cpu_supports("avx2") ? padfree::scale::avx2::run : padfree::scale::generic::run;
  body(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.numel(), float(factor));
  return y;
}

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, ops) { ops.def("scale(Tensor x, float factor) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("scale", TORCH_BOX(&scale)); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

HEADER = """\
#pragma once
namespace padfree::scale::generic { void run(const float* x, float* y, long n, float factor); }
namespace padfree::scale::avx2 { void run(const float* x, float* y, long n, float factor); }
"""

KERNEL = """\
#include "scale/scale.h"
namespace padfree::scale::{isa} {{
void run(const float* x, float* y, long n, float factor) {{
  for (long i = 0; i < n; ++i) y[i] = factor * x[i];
}}
}}
"""

INIT = """\
from ._ops import ops

__all__ = ["scale"]


def scale(x, factor):
    return ops.scale(x, factor)
"""

CUDA_KERNEL = """\
#include "scale/scale.h"
namespace padfree::scale::cuda {
template <int kPerThread>
__global__ void kernel(const float* x, float* y, long n, float factor) {
  for (int i = 0; i < kPerThread; ++i) {
    long at = (blockIdx.x * long(blockDim.x) + threadIdx.x) * kPerThread + i;
    if (at < n) y[at] = factor * x[at];
  }
}
void run(const float* x, float* y, long n, float factor, void* stream) {
  kernel<2><<<(n + 511) / 512, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n, factor);
}
}  // namespace padfree::scale::cuda
"""

CUDA_BINDING = """\
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "registration.h"
#include "scale/scale.h"

extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

torch::stable::Tensor scale(const torch::stable::Tensor& x, double factor) {
  torch::stable::Tensor y = torch::stable::empty_like(x);
  void* stream = nullptr;
  aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream);
  padfree::scale::cuda::run(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.numel(),
                            float(factor), stream);
  return y;
}

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, ops) { ops.def("scale(Tensor x, float factor) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("scale", TORCH_BOX(&scale)); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

CUDA_TOML = """
[kernel.scale_cuda]
backend = "cuda"
depends = ["torch"]
include = ["kernel-src"]
cuda-capabilities = ["8.0", "9.0", "12.1+PTX"]
src = ["kernel-src/scale/cuda/kernel.cu", "kernel-src/scale/scale.h"]
"""

FILES = {
    "build.toml": BUILD_TOML,
    "torch-ext/torch_binding.cpp": BINDING,
    "torch-ext/tiny_kernel/__init__.py": INIT,
    "kernel-src/scale/scale.h": HEADER,
    "kernel-src/scale/cpu/kernel_generic.cpp": KERNEL.format(isa="generic"),
    "kernel-src/scale/cpu/kernel_avx2.cpp": KERNEL.format(isa="avx2"),
    "tests/test_scale.py": "def test_scale():\n    pass\n",
    "README.md": "not staged\n",
}


def git(root: Path, *words: str) -> str:
    """Run git in ``root`` as nobody in particular; its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(root), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_checkout(root: Path) -> Path:
    """Write the tiny project into ``root`` and commit it."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "tiny")
    return root


def write_cuda_checkout(root: Path) -> Path:
    """The tiny project on CUDA instead: the binding asks for the stream and launches a kernel."""
    write_checkout(root)
    toml = root / "build.toml"
    text = toml.read_text(encoding="utf-8").split("[kernel.scale_cpu]")[0] + CUDA_TOML
    toml.write_text(text.replace('["cpu"]', '["cuda"]').replace('cpu = "2.11"', 'cuda = "2.11"'), encoding="utf-8")
    header = root / "kernel-src/scale/scale.h"
    header.write_text(
        "#pragma once\nnamespace padfree::scale::cuda {\n"
        "void run(const float* x, float* y, long n, float factor, void* stream);\n}\n",
        encoding="utf-8",
    )
    (root / "torch-ext/torch_binding.cpp").write_text(CUDA_BINDING, encoding="utf-8")
    kernel = root / "kernel-src/scale/cuda/kernel.cu"
    kernel.parent.mkdir()
    kernel.write_text(CUDA_KERNEL, encoding="utf-8")
    git(root, "rm", "-r", "--quiet", "kernel-src/scale/cpu")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "cuda")
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh committed checkout, free to be spoilt."""
    return write_checkout(tmp_path / "checkout")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What a test writes need not survive a power cut: without the syncs the Hub's tests take half the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    """A Hub of the test's own."""
    with running_hub(tmp_path / "store") as running:
        yield running
