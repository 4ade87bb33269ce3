// Files for `check`, of F64, F32 and I64 tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kvbound/sim/check/check_file.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::test {

struct KernelFile {
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<double>>> reals, singles;  // F64, F32
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<int64_t>>> integers;
  std::map<std::string, std::string> options;

  /// What check(CheckFile&) returns for the file.
  template <class Check>
  auto checked(const Check& check) const {
    SafetensorsParts parts;
    for (const auto& [name, tensor] : reals) add(parts, name, "F64", tensor);
    for (const auto& [name, tensor] : singles) {
      const std::vector<float> numbers(tensor.second.begin(), tensor.second.end());
      add(parts, name, "F32", std::pair(tensor.first, numbers));
    }
    for (const auto& [name, tensor] : integers) add(parts, name, "I64", tensor);
    const TemporaryFolder folder;
    sim::CheckFile file(folder.write("kernel.safetensors", parts.bytes()), traces::kDefaultHeaderLimit,
                        options);
    return check(file);
  }

 private:
  template <class Number>
  static void add(SafetensorsParts& parts, const std::string& name, const char* dtype,
                  const std::pair<std::vector<int64_t>, std::vector<Number>>& tensor) {
    std::string data;
    for (const Number number : tensor.second) data += bytes_of(number);
    parts.tensors.push_back({name, dtype, traces::shape_text(tensor.first), data, ""});
  }
};

}  // namespace kvbound::test
