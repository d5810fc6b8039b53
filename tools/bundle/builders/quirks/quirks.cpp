// What libstdc++ 12 takes from its shared library although manylinux_2_28 machines have an older one. Defined
// here, kept inside our library by the linker's version script.
#include <sys/single_threaded.h>

#include <cstdlib>
#include <sstream>

extern "C" {
char __libc_single_threaded = 0;
}

namespace std {

// GLIBCXX_3.4.29: the error of `new T[n]` with an absurd n.
void __throw_bad_array_new_length() {
  abort();
}

// GLIBCXX_3.4.26 and C++20's: default constructors and view members of string streams.
template class basic_stringbuf<char>;
template class basic_istringstream<char>;
template class basic_ostringstream<char>;
template class basic_stringstream<char>;

}  // namespace std
