// Reads a file's __metadata__ field by field; errors name the field.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <kvbound/reference/core/dtype.hpp>

#include "safetensors.hpp"

namespace kvbound::traces {

/// Every member function throws TraceError, naming the field, if the field is missing or its value is not as
/// expected. The metadata must outlive the object.
class MetadataFields {
 public:
  explicit MetadataFields(const Metadata& metadata) : metadata_(metadata) {}

  bool has(const std::string& field) const { return metadata_.strings.contains(field); }
  const std::string& text(const std::string& field) const;
  /// Requires this exact text.
  void require(const std::string& field, const std::string& expected) const;
  /// An integer in least..most, in plain digits: no sign, no space, no leading zero.
  int64_t count(const std::string& field, int64_t least, int64_t most) const;
  /// A finite decimal number above 0.
  double positive(const std::string& field) const;
  /// A finite decimal number, 0 or more.
  double not_negative(const std::string& field) const;
  /// true or false; also as Python and C print them.
  bool boolean(const std::string& field) const;
  /// One of the allowed types, by its safetensors name.
  Dtype dtype(const std::string& field, std::span<const Dtype> allowed) const;

  [[noreturn]] void fail(const std::string& field, const std::string& problem) const;
  /// Throws "is 'TEXT'; expected EXPECTED", where TEXT is the field's.
  [[noreturn]] void refuse(const std::string& field, const std::string& expected) const;

 private:
  const Metadata& metadata_;
};

}  // namespace kvbound::traces
