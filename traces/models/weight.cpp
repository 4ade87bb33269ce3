#include "weight.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/view.hpp>
#include <kvbound/reference/numerics/largest.hpp>

#include "../messages.hpp"

namespace kvbound::traces {
namespace {

// Whether a row's numbers are finite. A scale of a block that is not makes all of the block's numbers NaN or
// infinite, and none are otherwise, so that one number tells of a block.
bool is_finite(std::span<const float> row, int64_t block_elements) {
  if (block_elements == 1) return reference::all_finite(row);
  for (int64_t i = 0; i < std::ssize(row); i += block_elements) {
    if (!std::isfinite(row[i])) return false;
  }
  return true;
}

}  // namespace

void Weight::read(int64_t first_row, std::span<float> out) const {
  const int64_t count = std::ssize(out) / cols;
  if (std::ssize(out) % cols != 0 || first_row < 0 || count > rows - first_row) {
    throw ShapeMismatch(std::to_string(out.size()) + " numbers from row " + std::to_string(first_row) +
                        " on of " + printable(name) + " [" + std::to_string(rows) + ", " +
                        std::to_string(cols) + "]");
  }
  const WeightFormatTraits& own = traits(format);
  const int64_t first_byte = begin + first_row * row_bytes();
  std::vector<char, kvbound::detail::NumberAllocator<char>> bytes(static_cast<size_t>(count * row_bytes()));
  file->read(first_byte, bytes, printable(name));
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {  // while a row is in the cache
    const std::span<float> row = out.subspan(i * cols, cols);
    decode(format, std::span(bytes).subspan(i * row_bytes(), row_bytes()), row);
    finite = finite && is_finite(row, own.block_elements);
  }
  if (finite) return;
  const auto bad = std::ranges::find_if_not(out, [](float x) { return std::isfinite(x); });
  const int64_t block = (bad - out.begin()) / own.block_elements;
  throw TraceError(file->path(), first_byte + block * own.block_bytes, printable(name),
                   own.block_elements == 1
                       ? "is not a finite number here"
                       : "has a number that is not finite in this block of " + std::string(own.name));
}

}  // namespace kvbound::traces
