// Generated. The torch macros paste their namespace argument as it is written; these let a macro be that
// argument.
#pragma once

#include <Python.h>

#define PADFREE_PASTE_(a, b) a##b
#define PADFREE_PASTE(a, b) PADFREE_PASTE_(a, b)
#define PADFREE_STRING_(a) #a
#define PADFREE_STRING(a) PADFREE_STRING_(a)

#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)
#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, DEVICE, MODULE) STABLE_TORCH_LIBRARY_IMPL(NAME, DEVICE, MODULE)

// Makes the library importable; importing it runs the registrations above.
#define REGISTER_EXTENSION(NAME)                                                                    \
  PyMODINIT_FUNC PADFREE_PASTE(PyInit_, NAME)() {                                                   \
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, PADFREE_STRING(NAME), nullptr, 0, nullptr}; \
    return PyModule_Create(&module);                                                                \
  }
