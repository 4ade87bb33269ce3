// GGUF files built byte by byte, so that a test can break any part.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/safetensors_bytes.hpp"

namespace kvbound::test {

/// A text as GGUF writes it: its length, then its bytes.
inline std::string gguf_text(const std::string& text) { return bytes_of(uint64_t{text.size()}) + text; }

/// A GGUF file in parts. Nothing is checked.
struct GgufParts {
  struct Entry {
    std::string key;
    uint32_t type;
    std::string value;  ///< its bytes
  };
  struct TensorPart {
    std::string name;
    std::vector<uint64_t> dimensions;  ///< of a row first
    uint32_t type;
    std::string data;
    int64_t offset = -1;  ///< negative: behind the tensor before
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<Entry> metadata;
  std::vector<TensorPart> tensors;
  int64_t counted_tensors = -1, counted_entries = -1;  ///< what the file says; negative: the truth
  std::string behind;                                  ///< bytes behind the last tensor

  void set(const std::string& key, uint32_t value) { metadata.push_back({key, 4, bytes_of(value)}); }
  void set(const std::string& key, float value) { metadata.push_back({key, 6, bytes_of(value)}); }
  void set(const std::string& key, const std::string& value) {
    metadata.push_back({key, 8, gguf_text(value)});
  }

  std::string bytes() const {
    const auto count = [](int64_t said, size_t real) {
      return bytes_of(said < 0 ? uint64_t{real} : static_cast<uint64_t>(said));
    };
    std::string file = magic + bytes_of(version) + count(counted_tensors, tensors.size()) +
                       count(counted_entries, metadata.size());
    for (const Entry& entry : metadata) file += gguf_text(entry.key) + bytes_of(entry.type) + entry.value;
    std::string data;
    for (const TensorPart& tensor : tensors) {
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      file += gguf_text(tensor.name) + bytes_of(static_cast<uint32_t>(tensor.dimensions.size()));
      for (const uint64_t dimension : tensor.dimensions) file += bytes_of(dimension);
      file += bytes_of(tensor.type) +
              bytes_of(tensor.offset < 0 ? uint64_t{data.size()} : static_cast<uint64_t>(tensor.offset));
      data += tensor.data;
    }
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data + behind;
  }
};

}  // namespace kvbound::test
