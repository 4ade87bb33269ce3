// libFuzzer's entries: an input is read, changed, and crossed with another, as
// fuzz/readers and fuzz/mutation say.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "mutation/mutation.hpp"
#include "readers/reader.hpp"

namespace {

std::string_view view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What fits; a custom mutator may not make an input empty.
size_t put(const std::string& input, uint8_t* data, size_t most) {
  const size_t size = std::min(input.size(), most);
  std::memcpy(data, input.data(), size);
  return size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvbound::fuzz::read_input(view(data, size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned int seed) {
  kvbound::fuzz::Draw draw(seed);
  return put(kvbound::fuzz::mutated(view(data, size), most, draw), data, most);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data, size_t size, const uint8_t* other,
                                            size_t other_size, uint8_t* out, size_t most, unsigned int seed) {
  kvbound::fuzz::Draw draw(seed);
  return put(kvbound::fuzz::crossed(view(data, size), view(other, other_size), most, draw), out, most);
}
