#include "terminal_width.hpp"

#include <sys/ioctl.h>
#include <algorithm>
#include <cstdlib>

#include "number.hpp"

namespace kvbound::sim {

std::optional<int64_t> terminal_width(int descriptor) {
  constexpr int64_t kNarrowest = 40, kWidest = 1000;
  const char* said = std::getenv("COLUMNS");
  if (const auto columns = parse_integer(said ? said : ""); columns && *columns > 0)
    return std::clamp(*columns, kNarrowest, kWidest);
  winsize size{};  // of no columns where a terminal does not know its own
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return std::clamp<int64_t>(size.ws_col, kNarrowest, kWidest);
}

}  // namespace kvbound::sim
