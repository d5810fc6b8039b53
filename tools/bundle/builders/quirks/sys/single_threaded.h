/* Stands before glibc's header of this name. libstdc++ 12 asks glibc 2.32's __libc_single_threaded in every
   shared_ptr; manylinux_2_28 machines lack it. Ours is hidden, defined in quirks.cpp and always says
   "threads": the safe answer. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
#ifdef __cplusplus
}
#endif
