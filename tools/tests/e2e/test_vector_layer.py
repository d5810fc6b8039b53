"""The vector layer on its own, for each instruction set: conversions exhaustively, functions by their accuracy.

The bundle's tests reach this code only through whole kernels, where a wrong rounding of one subnormal half would drown
in the tolerance.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
from pathlib import Path

import pytest
import torch

from bundle import compiler
from bundle.builders.cmake import EMULATED_FLAGS, SIMDE, SIMDE_PACKAGE

ROOT = Path(__file__).resolve().parents[3]

_SOURCE = """
#include "common/cpu/vec_{isa}.h"
#if __has_include("common/cpu/vec_{isa}_quads.h")
#include "common/cpu/vec_{isa}_quads.h"
#endif
#include "common/cpu/vec_math.h"
#include "common/cpu/vec_quads.h"
using namespace padfree;
#define EACH(NAME, IN, OUT, EXPR) \\
  extern "C" void NAME(const IN* in, OUT* out, long n) {{ \\
    long i = 0; \\
    for (; i + Vec::kLanes <= n; i += Vec::kLanes) {{ Vec x = load(in + i); store(out + i, EXPR); }} \\
    if (i < n) {{ Vec x = load_partial(in + i, int(n - i)); store_partial(out + i, EXPR, int(n - i)); }} \\
  }}
EACH(widen_float16, Float16, float, x)
EACH(widen_bfloat16, BFloat16, float, x)
EACH(narrow_float16, float, Float16, x)
EACH(narrow_bfloat16, float, BFloat16, x)
EACH(vec_exp2, float, float, exp2(x))
EACH(vec_exp, float, float, exp(x))
EACH(vec_sigmoid, float, float, sigmoid(x))
EACH(vec_silu, float, float, silu(x))
extern "C" float lane_sum(const float* in) {{ return sum(load(in)); }}
extern "C" float lane_max(const float* in) {{ return max_lane(load(in)); }}
extern "C" float scalar_round_trip_float16(float x) {{ return to_float(from_float<Float16>(x)); }}
extern "C" float scalar_round_trip_bfloat16(float x) {{ return to_float(from_float<BFloat16>(x)); }}
extern "C" void transpose(float* block) {{
  Vec rows[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) rows[i] = load(block + i * Vec::kLanes);
  transpose_lanes(rows);
  for (int i = 0; i < Vec::kLanes; ++i) store(block + i * Vec::kLanes, rows[i]);
}}
template <typename T>
static void quads(const T* in, T* out, float* apart, long stride) {{
  Vec q[4];
  load_quads(in, stride, q);
  for (int k = 0; k < 4; ++k) store(apart + k * Vec::kLanes, q[k]);
  store_quads(out, stride, q);
}}
extern "C" void quads_float32(const float* in, float* out, float* apart, long stride) {{
  quads(in, out, apart, stride);
}}
extern "C" void quads_bfloat16(const BFloat16* in, BFloat16* out, float* apart, long stride) {{
  quads(in, out, apart, stride);
}}
template <typename T>
static void advance(T* places, const T* next, float* before, float* after) {{
  Vec q[4];
  load_dense_quads(places, q);
  for (int k = 0; k < 4; ++k) store(before + k * Vec::kLanes, q[k]);
  advance_dense_quads(places, next, q);
  for (int k = 0; k < 4; ++k) store(after + k * Vec::kLanes, q[k]);
}}
extern "C" void advance_float32(float* places, const float* next, float* before, float* after) {{
  advance(places, next, before, after);
}}
extern "C" void advance_bfloat16(BFloat16* places, const BFloat16* next, float* before, float* after) {{
  advance(places, next, before, after);
}}
extern "C" void advance_float16(Float16* places, const Float16* next, float* before, float* after) {{
  advance(places, next, before, after);
}}
extern "C" int lanes() {{ return Vec::kLanes; }}
"""

_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_FLAGS = {
    "generic": [],
    "avx2": _AVX2,
    "avx512": [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
    "avx512 emulated": [*_AVX2, *EMULATED_FLAGS],
}
_PAIRS = """
#include "common/cpu/vec_avx512bf16.h"
using namespace padfree;
extern "C" void dot(const BFloat16* a, const BFloat16* b, float* sum) {
  store(sum, DotBFloat16::add(load_pairs(a, 32), load_pairs(b, 32), load(sum)));
}
extern "C" void some_pairs(const BFloat16* p, int n, float* out) { store(out, load_pairs(p, n)); }
"""
_PAIRS_FLAGS = {
    "avx512_bf16": [*_FLAGS["avx512"], "-mavx512bf16"],
    "avx512_bf16 emulated": _FLAGS["avx512 emulated"],
}


def _reason_against(path: str) -> str | None:
    isa, _, emulated = path.partition(" ")
    wanted = "avx2" if emulated else isa
    if isa != "generic" and wanted not in Path("/proc/cpuinfo").read_text():
        return f"this machine has no {wanted}"
    if emulated and not compiler.has_header(compiler.find(compiler.host_system()), SIMDE):
        return f"<{SIMDE}> is not installed ({SIMDE_PACKAGE})"
    return None


def _compiled(text: str, flags: list[str], folder: Path) -> ctypes.CDLL:
    source, library = folder / "layer.cpp", folder / "layer.so"
    source.write_text(text)
    command = ["g++", "-std=c++20", "-O3", "-shared", "-fPIC", *flags, f"-I{ROOT / 'kernel-src'}"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module", params=list(_FLAGS))
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if reason := _reason_against(request.param):
        pytest.skip(reason)
    source = _SOURCE.format(isa=request.param.split()[0])
    loaded = _compiled(source, _FLAGS[request.param], tmp_path_factory.mktemp("layer"))
    for name in ("lane_sum", "lane_max", "scalar_round_trip_float16", "scalar_round_trip_bfloat16"):
        getattr(loaded, name).restype = ctypes.c_float
    return loaded


def _apply(layer: ctypes.CDLL, name: str, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(values.shape, dtype=dtype)
    getattr(layer, name)(
        ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(values.numel())
    )
    return out


def _every_float16_neighbourhood() -> torch.Tensor:
    """Each finite half, the midpoint to the next one, and the float32 values around that midpoint; and specials."""
    halves = torch.arange(0, 0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    middle = (halves[:-1] + halves[1:]) / 2
    bits = middle.view(torch.int32)
    values = torch.cat([halves, middle, (bits - 1).view(torch.float32), (bits + 1).view(torch.float32)])
    special = torch.tensor([65519.9, 65520.0, 1e38, math.inf, math.nan, 0.0, 1e-45, 1e-8])
    values = torch.cat([values, special])
    return torch.cat([values, -values])


def _same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits, signs of zeros included; any NaN equals any NaN."""
    nan = wanted.isnan()
    if not torch.equal(got.isnan(), nan):
        return False
    width = torch.int32 if got.dtype == torch.float32 else torch.int16
    return torch.equal(got[~nan].view(width), wanted[~nan].view(width))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_widening_is_exact_for_every_bit_pattern(layer: ctypes.CDLL, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    name = str(dtype).removeprefix("torch.")
    assert _same(_apply(layer, f"widen_{name}", every, torch.float32), every.float())


def test_narrowing_to_float16_rounds_to_nearest_even(layer: ctypes.CDLL) -> None:
    values = _every_float16_neighbourhood()
    assert _same(_apply(layer, "narrow_float16", values, torch.float16), values.half())


def test_narrowing_to_bfloat16_rounds_to_nearest_even(layer: ctypes.CDLL) -> None:
    generator = torch.Generator().manual_seed(1)
    low = torch.tensor([0x0000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    high = torch.arange(-(2**15), 2**15, dtype=torch.int32) << 16
    values = (high[:, None] | low).flatten().view(torch.float32)
    noise = torch.randint(-(2**31), 2**31 - 1, (2**18,), generator=generator).to(torch.int32).view(torch.float32)
    values = torch.cat([values, noise])
    assert _same(_apply(layer, "narrow_bfloat16", values, torch.bfloat16), values.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_scalar_conversion_agrees_with_the_lanes(layer: ctypes.CDLL, dtype: torch.dtype) -> None:
    convert = getattr(layer, "scalar_round_trip_" + str(dtype).removeprefix("torch."))
    for value in (0.1, -3.14159, 1e-7, 65504.0, 7e4, math.inf, -0.0):
        wanted = torch.tensor(value).to(dtype).float().item()
        assert convert(ctypes.c_float(value)) == wanted
    assert math.isnan(convert(ctypes.c_float(math.nan)))


def _worst_relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted) / wanted).abs().max().item()


def test_exp2_is_accurate_over_its_whole_range(layer: ctypes.CDLL) -> None:
    x = torch.linspace(-126, 127.99, 1_000_003)
    assert _worst_relative(_apply(layer, "vec_exp2", x, torch.float32), torch.exp2(x.double())) < 3e-7
    edges = torch.tensor([-math.inf, -200.0, -126.5, 128.0, 1e30, math.inf, math.nan, 0.0, 1.0, -1.0, 127.0])
    got = _apply(layer, "vec_exp2", edges, torch.float32)
    wanted = torch.tensor([0.0, 0.0, 0.0, math.inf, math.inf, math.inf, math.nan, 1.0, 2.0, 0.5, 2.0**127])
    assert _same(got, wanted)


def test_exp_sigmoid_and_silu_are_accurate(layer: ctypes.CDLL) -> None:
    x = torch.linspace(-16, 16, 400_001)
    x = x[x != 0]
    exact = x.double()
    assert _worst_relative(_apply(layer, "vec_exp", x, torch.float32), exact.exp()) < 2e-6
    assert _worst_relative(_apply(layer, "vec_sigmoid", x, torch.float32), exact.sigmoid()) < 2e-6
    assert _worst_relative(_apply(layer, "vec_silu", x, torch.float32), exact * exact.sigmoid()) < 2e-6


def test_sigmoid_and_silu_at_the_edges(layer: ctypes.CDLL) -> None:
    edges = torch.tensor([-math.inf, math.inf, math.nan, 0.0, -1000.0, 1000.0])
    assert _same(_apply(layer, "vec_sigmoid", edges, torch.float32), torch.tensor([0, 1, math.nan, 0.5, 0, 1]))
    finite = edges[3:]
    assert torch.equal(_apply(layer, "vec_silu", finite, torch.float32), torch.tensor([0.0, -0.0, 1000.0]))


def test_reductions_and_transpose(layer: ctypes.CDLL) -> None:
    lanes = layer.lanes()
    values = torch.arange(1, lanes + 1, dtype=torch.float32).roll(3)
    assert layer.lane_sum(ctypes.c_void_p(values.data_ptr())) == lanes * (lanes + 1) / 2
    assert layer.lane_max(ctypes.c_void_p(values.data_ptr())) == lanes
    block = torch.arange(lanes * lanes, dtype=torch.float32).reshape(lanes, lanes)
    wanted = block.T.contiguous()
    layer.transpose(ctypes.c_void_p(block.data_ptr()))
    assert torch.equal(block, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quads_touch_four_neighbours_of_each_place_and_nothing_else(layer: ctypes.CDLL, dtype: torch.dtype) -> None:
    lanes, stride = layer.lanes(), 7
    values = torch.arange(lanes * stride).to(dtype)
    out, apart = torch.full_like(values, -1), torch.empty(4, lanes)
    name = f"quads_{str(dtype).removeprefix('torch.')}"
    getattr(layer, name)(*(ctypes.c_void_p(t.data_ptr()) for t in (values, out, apart)), ctypes.c_long(stride))
    places = values.reshape(lanes, stride)
    assert torch.equal(apart, places[:, :4].T.float())
    assert torch.equal(out.reshape(lanes, stride)[:, :4], places[:, :4])
    assert (out.reshape(lanes, stride)[:, 4:] == -1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dense_quads_move_on_by_one_value(layer: ctypes.CDLL, dtype: torch.dtype) -> None:
    lanes = layer.lanes()
    values = torch.arange(5 * lanes + 4).to(dtype)  # whole numbers, which each of the dtypes holds
    places, next_values = values[: 4 * lanes].clone().reshape(lanes, 4), values[4 * lanes : 5 * lanes]
    surrounded = torch.cat([places.reshape(-1), torch.full((4,), -1).to(dtype)])
    before, after = torch.empty(4, lanes), torch.empty(4, lanes)
    name = f"advance_{str(dtype).removeprefix('torch.')}"
    getattr(layer, name)(*(ctypes.c_void_p(t.data_ptr()) for t in (surrounded, next_values, before, after)))
    moved = torch.cat([places[:, 1:], next_values[:, None]], 1)
    assert torch.equal(before, places.T.float())
    assert torch.equal(after, moved.T.float())
    assert torch.equal(surrounded[: 4 * lanes].reshape(lanes, 4), moved)
    assert (surrounded[4 * lanes :] == -1).all()


@pytest.fixture(scope="module", params=list(_PAIRS_FLAGS))
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if reason := _reason_against(request.param):
        pytest.skip(reason)
    return _compiled(_PAIRS, _PAIRS_FLAGS[request.param], tmp_path_factory.mktemp("pairs"))


def _dot(pairs: ctypes.CDLL, a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """DotBFloat16 of (n, 2) pairs, n a multiple of 16."""
    got = total.clone()
    for i in range(0, len(got), 16):
        pairs.dot(*(ctypes.c_void_p(t[i : i + 16].data_ptr()) for t in (a, b, got)))
    return got


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < 2.0**-126, torch.copysign(torch.zeros_like(x), x), x)


def _dot_in_steps(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """What Intel says VDPBF16PS does: the upper product is added, then the lower one, each sum rounded once; denormals
    are zero. float64 is exact before the rounding where exponents lie within 2**28 of one another."""
    for place in (1, 0):
        products = _flushed(a[:, place].double()) * _flushed(b[:, place].double())
        total = _flushed((_flushed(total.double()) + products).float())
    return total


def test_the_dot_product_of_pairs_adds_the_upper_then_the_lower_product(pairs: ctypes.CDLL) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(2**14, 2, generator=generator).bfloat16() for _ in range(2))
    total = torch.randn(2**14, generator=generator) * torch.exp2(torch.randint(-6, 12, (2**14,), generator=generator))
    wanted = _dot_in_steps(a, b, total)
    assert _same(_dot(pairs, a, b, total), wanted)
    other_way_round = _dot_in_steps(a.flip(1), b.flip(1), total)
    assert not torch.equal(wanted, other_way_round)


@pytest.mark.parametrize(
    ("a", "b", "total", "wanted"),
    [
        ((2.0**-130, 1.0), (2.0**100, 0.5), 0.0, 0.5),  # denormal operands
        ((1.0, 2.0**100), (0.5, -(2.0**-130)), 0.0, 0.5),
        ((0.0, 0.0), (1.0, 1.0), 2.0**-130, 0.0),  # a denormal sum, before and after
        ((2.0**-100, 0.0), (2.0**-40, 0.0), 0.0, 0.0),
        ((-(2.0**-100), 0.0), (2.0**-40, 0.0), 0.0, -0.0),
        ((2.0**-100, 0.0), (2.0**-40, 0.0), 2.0**-120, 2.0**-120 + 2.0**-140),  # a denormal product counts
        ((math.inf, 1.0), (2.0, 1.0), 0.0, math.inf),
        ((math.inf, 1.0), (0.0, 1.0), 0.0, math.nan),
        ((1.0, math.nan), (1.0, 0.0), 0.0, math.nan),
    ],
)
def test_the_dot_product_of_pairs_takes_denormals_for_zero(
    pairs: ctypes.CDLL, a: tuple[float, float], b: tuple[float, float], total: float, wanted: float
) -> None:
    left, right = (torch.tensor([x] * 16, dtype=torch.float64).bfloat16() for x in (a, b))
    got = _dot(pairs, left, right, torch.full((16,), total))
    assert _same(got, torch.full((16,), wanted))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 31, 32, 40])
def test_pairs_end_with_zeros(pairs: ctypes.CDLL, count: int) -> None:
    values = torch.arange(1, 41).to(torch.int16)
    got = torch.full((16,), -1.0)
    pairs.some_pairs(ctypes.c_void_p(values.data_ptr()), count, ctypes.c_void_p(got.data_ptr()))
    wanted = torch.where(torch.arange(32) < count, values[:32], 0)
    assert torch.equal(got.view(torch.int16), wanted)
