// A file's __metadata__, field by field: what does not fit is refused by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <kvbound/reference/core/dtype.hpp>

#include "safetensors.hpp"

namespace kvbound::traces {

/// Every member function throws TraceError, at the field's name, for a field that is missing or says anything else than
/// expected. The metadata outlives it.
class MetadataFields {
 public:
  explicit MetadataFields(const Metadata& metadata) : metadata_(metadata) {}

  bool has(const std::string& field) const { return metadata_.strings.contains(field); }
  const std::string& text(const std::string& field) const;
  /// That it says this very text.
  void require(const std::string& field, const std::string& expected) const;
  /// An integer in plain digits: no sign, no space, no leading zero.
  int64_t count(const std::string& field, int64_t least, int64_t most) const;
  /// A decimal number that is finite and above 0.
  double positive(const std::string& field) const;
  /// One of some types, by its safetensors name.
  Dtype dtype(const std::string& field, std::span<const Dtype> allowed) const;

  [[noreturn]] void fail(const std::string& field, const std::string& problem) const;
  /// "is 'text'; expected ...".
  [[noreturn]] void refuse(const std::string& field, const std::string& expected) const;

 private:
  const Metadata& metadata_;
};

}  // namespace kvbound::traces
