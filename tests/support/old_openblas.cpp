// Preloaded into a program, it imitates an OpenBLAS that does not recognise the processor, or that
// has kernels for one only.
//
// KVBOUND_OLD_OPENBLAS=unknown-processor    OpenBLAS chooses its Prescott kernels when it is loaded
// KVBOUND_OLD_OPENBLAS=one-core             the same, and reports that it was built without DYNAMIC_ARCH
#include <cstdlib>
#include <cstring>

extern "C" char** environ;

namespace {

char* value_of(const char* name) {
  const size_t length = std::strlen(name);
  for (char** entry = environ; entry && *entry; ++entry) {
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
  }
  return nullptr;
}

bool is(const char* kind) {
  const char* asked = value_of("KVBOUND_OLD_OPENBLAS");
  return asked && std::strcmp(asked, kind) == 0;
}

}  // namespace

// OpenBLAS, while it is being loaded, is the first to read the variable.
extern "C" char* getenv(const char* name) noexcept {
  static bool loaded = false;
  static char prescott[] = "Prescott";
  char* value = value_of(name);
  if (std::strcmp(name, "OPENBLAS_CORETYPE") != 0 || loaded) return value;
  loaded = true;
  return value || !(is("unknown-processor") || is("one-core")) ? value : prescott;
}

extern "C" char* openblas_get_config() {
  static char several[] = "OpenBLAS 0.0.0 DYNAMIC_ARCH", one[] = "OpenBLAS 0.0.0 Prescott";
  return is("one-core") ? one : several;
}
