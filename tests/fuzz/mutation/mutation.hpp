// Mutations of inputs that keep their form: lengths, counts, offsets and checksums are mended, so that a
// change reaches what is read behind them. What has lost its form is changed as bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "fuzz/readers/reader.hpp"

namespace kvbound::fuzz {

/// Draws numbers that are uniform but for a bias that does not matter here.
class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}
  /// In 0..count-1; 0 for no count.
  size_t below(size_t count) { return count == 0 ? 0 : engine_() % count; }
  bool one_in(size_t count) { return below(count) == 0; }
  /// 1, 10, 100, ... 10^digits, times 1 to 9.
  size_t magnitude(size_t digits);

 private:
  std::minstd_rand engine_;
};

/// How a text is changed: the new one has at most `room` bytes, or whoever called drops it.
using ChangeText = std::function<std::string(std::string_view text, size_t room, Draw& draw)>;

/// An input of the same reader, of at most `most` bytes.
std::string mutated(std::string_view input, size_t most, Draw& draw);
/// The input with something of another one of the same reader.
std::string crossed(std::string_view input, std::string_view other, size_t most, Draw& draw);

/// The bytes as libFuzzer changes them, by its dictionary, too.
std::string changed_bytes(std::string_view bytes, size_t room);

/// Changes values and items, repeats them, nests them, and takes extremes, in JSON and all other text that
/// has brackets, quotes or commas.
std::string changed_text(std::string_view text, size_t room, Draw& draw);
/// Puts a value of `other` in the place of one of `text`.
std::string spliced_text(std::string_view text, std::string_view other, Draw& draw);

// Changes the texts of files, or their other parts, and mends lengths, counts, offsets and checksums; none:
// this is no such file, or has lost its form.

std::optional<std::string> changed_cbor(std::string_view file, size_t room, const ChangeText& change,
                                        Draw& draw);
std::optional<std::string> changed_safetensors(std::string_view file, size_t room, const ChangeText& change,
                                               Draw& draw);
std::optional<std::string> changed_npz(std::string_view file, size_t room, const ChangeText& change,
                                       Draw& draw);
std::optional<std::string> changed_gguf(std::string_view file, size_t room, const ChangeText& change,
                                        Draw& draw);

}  // namespace kvbound::fuzz
