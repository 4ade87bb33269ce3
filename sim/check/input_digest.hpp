// A digest of what a kernel computed from, which tells whether two kernels computed from the same.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <kvbound/reference/core/view.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {

class InputDigest {
 public:
  /// Adds inputs that are not tensors, as text: lengths, settings.
  InputDigest& add(const std::string& settings);
  /// A tensor's numbers in double precision, to the last bit: the type that they are
  /// stored in does not count.
  InputDigest& add(std::initializer_list<int64_t> shape, VectorView numbers);

  /// 64 hexadecimal digits. Call it once.
  std::string text() { return hash_.hexadecimal(); }

 private:
  traces::Sha256 hash_;
};

}  // namespace kvbound::sim
