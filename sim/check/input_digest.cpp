#include "input_digest.hpp"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvbound::sim {

// Each part begins with its length or shape: parts of two sequences cannot be mistaken for each other's.
InputDigest& InputDigest::add(const std::string& settings) {
  hash_.update(fmt::format("{} characters: {}", settings.size(), settings));
  return *this;
}

InputDigest& InputDigest::add(std::initializer_list<int64_t> shape, VectorView numbers) {
  hash_.update(fmt::format("[{}] numbers: ", fmt::join(shape, ", ")));
  hash_.update({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
  return *this;
}

}  // namespace kvbound::sim
