// What the C++ library of a newer gcc takes from its shared half although manylinux_2_28 machines have an
// older one. Defined here, kept inside our library by the linker's version script.
#include <sys/single_threaded.h>

#include <cstdlib>
#include <exception>
#include <ios>
#include <sstream>
#include <string>

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

#if defined(__GLIBCXX__) && defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 13

// GLIBCXX_3.4.31: the slow path of string::replace.
template void std::string::_M_replace_cold(pointer, size_type, const char*, const size_type, const size_type);

// GLIBCXX_3.4.32: from gcc 13 on <iostream> counts on the shared library to make std::cout. An older one
// makes it when asked, so we ask.
namespace std {
void ios_base_library_init() {}
}  // namespace std
static const std::ios_base::Init kStandardStreams;

// CXXABI_1.3.15: an exception that leaves a noexcept function, from gcc 14 on.
extern "C" {
void* __cxa_begin_catch(void*) noexcept;
void __cxa_call_terminate(void* exception) noexcept {
  if (exception != nullptr) {
    __cxa_begin_catch(exception);
  }
  std::terminate();
}
}

#endif
