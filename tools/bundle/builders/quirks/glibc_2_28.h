/* Included before every source: binds the functions that glibc gave a new version after 2.28 to the version
   every machine has. Only assembler directives: it declares and defines nothing. */
#pragma once
#if defined(__x86_64__) && defined(__gnu_linux__)
#define PADFREE_OLD_GLIBC(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
PADFREE_OLD_GLIBC(exp);
PADFREE_OLD_GLIBC(exp2);
PADFREE_OLD_GLIBC(log);
PADFREE_OLD_GLIBC(log2);
PADFREE_OLD_GLIBC(pow);
PADFREE_OLD_GLIBC(hypot);
PADFREE_OLD_GLIBC(dlopen);
PADFREE_OLD_GLIBC(dlsym);
PADFREE_OLD_GLIBC(pthread_once);
#undef PADFREE_OLD_GLIBC
// glibc 2.38 renames these for C23; the old ones differ in binary literals only.
__asm__(".symver __isoc23_strtol,strtol@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoul,strtoul@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoll,strtoll@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoull,strtoull@GLIBC_2.2.5");
__asm__(".symver __isoc23_sscanf,sscanf@GLIBC_2.2.5");
#endif
