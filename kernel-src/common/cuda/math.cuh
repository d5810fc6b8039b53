// Elementary functions that are one instruction each.
#pragma once

namespace padfree {

// ex2.approx.ftz: 2 to the x, off by at most 2 ulp; subnormal results are 0.
__device__ __forceinline__ float exp2_approx(float x) {
#if defined(PADFREE_EMULATED)
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

}  // namespace padfree
