// Where in our source something was called: std::source_location, which Clang 14 does not have.
#pragma once

namespace kvbound {

/// As the last parameter `CallSite where = CallSite::current()`, the caller's place.
struct CallSite {
  const char* file = nullptr;
  int line = 0;
  const char* function = "";

  static constexpr CallSite current(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                                    const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
};

}  // namespace kvbound
