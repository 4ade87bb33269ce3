// Trace files built byte by byte, so that a test can break any part, and a temporary folder for them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/message_of.hpp"

namespace kvbound::test {

/// A folder that is deleted with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvbound-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }
  /// Writes a file into the folder and returns its path.
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }
  /// The number of files in the folder.
  int64_t size() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of a number in memory, which is little-endian.
template <class Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

/// A safetensors file with any header, well-formed or not.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = "") {
  return bytes_of(uint64_t{header.size()}).append(header).append(data);
}

/// A safetensors file in parts. Texts are put into the header as they are: nothing is checked or escaped.
struct SafetensorsParts {
  struct TensorPart {
    std::string name;
    std::string dtype;
    std::string shape;  ///< as JSON: "[2, 3]"
    std::string data;
    std::string data_offsets;  ///< as JSON; empty: where the data really is
  };
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<TensorPart> tensors;

  std::string bytes() const {
    std::string header = "{\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      header += (header.back() == '{' ? "\"" : ",\"") + key + "\":\"" + value + "\"";
    }
    header += "}";
    std::string data;
    for (const TensorPart& tensor : tensors) {
      const std::string begin = std::to_string(data.size());
      data += tensor.data;
      const std::string offsets = "[" + begin + "," + std::to_string(data.size()) + "]";
      header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":" + tensor.shape +
                ",\"data_offsets\":" + (tensor.data_offsets.empty() ? offsets : tensor.data_offsets) + "}";
    }
    return safetensors_bytes(header + "}", data);
  }

  TensorPart& tensor(std::string_view name) {
    for (TensorPart& candidate : tensors) {
      if (candidate.name == name) return candidate;
    }
    throw std::out_of_range(std::string(name));
  }
  void erase_tensor(std::string_view name) {
    std::erase_if(tensors, [&](const TensorPart& candidate) { return candidate.name == name; });
  }
  void set(const std::string& key, const std::string& value) {
    for (auto& [existing, text] : metadata) {
      if (existing == key) {
        text = value;
        return;
      }
    }
    metadata.emplace_back(key, value);
  }
  void erase(const std::string& key) {
    std::erase_if(metadata, [&](const auto& field) { return field.first == key; });
  }
};

/// `count` F32 numbers that cycle through magnitude * -1, -3/4, -1/2, ..., 3/4.
inline std::string f32_data(int64_t count, double magnitude = 1) {
  std::string data;
  for (int64_t i = 0; i < count; ++i) {
    data += bytes_of(static_cast<float>(magnitude * static_cast<double>(i % 8 - 4) / 4));
  }
  return data;
}

/// A valid trace of 2 layers: 4 query heads, 2 KV heads, head_dim 2, model_dim 3, 6 prompt and 2 decode
/// tokens, 4 recorded prompt queries. Larger magnitudes make larger logits; 0 makes all of them equal.
inline SafetensorsParts small_trace(double magnitude = 1) {
  SafetensorsParts parts;
  parts.metadata = {{"format", "kvbound-trace"}, {"version", "1"},       {"model", "small"},
                    {"source", "a test"},        {"layers", "2"},        {"query_heads", "4"},
                    {"kv_heads", "2"},           {"head_dim", "2"},      {"model_dim", "3"},
                    {"prompt_tokens", "6"},      {"decode_tokens", "2"}, {"window_queries", "4"},
                    {"rope", "applied"}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    parts.tensors.push_back({layer + "key", "F32", "[2,8,2]", f32_data(32, magnitude), ""});
    parts.tensors.push_back({layer + "value", "F32", "[2,8,2]", f32_data(32), ""});
    parts.tensors.push_back({layer + "query", "F32", "[4,6,2]", f32_data(48, magnitude), ""});
    parts.tensors.push_back({layer + "output_projection", "F32", "[8,3]", f32_data(24), ""});
  }
  return parts;
}

}  // namespace kvbound::test
