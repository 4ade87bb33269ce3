#include "safetensors_writer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/float16.hpp>

#include "messages.hpp"

namespace kvbound::traces {

namespace {

// Text of any origin: what is not UTF-8 becomes U+FFFD.
std::string json_of_any(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(in_quotes(text) + " is not valid UTF-8");
  }
}

int64_t element_count(const TensorDeclaration& tensor) {
  int64_t elements = 1;
  int64_t bytes = 0;
  for (const int64_t dimension : tensor.shape) {
    if (dimension < 0 || __builtin_mul_overflow(elements, dimension, &elements)) {
      throw ShapeMismatch(tensor.name + " of shape " + shape_text(tensor.shape));
    }
  }
  if (__builtin_mul_overflow(elements, size_of(tensor.dtype), &bytes)) {
    throw ShapeMismatch(tensor.name + " of shape " + shape_text(tensor.shape) + " has too many bytes");
  }
  return elements;
}

std::string header_text(const SafetensorsWriter::Strings& metadata,
                        const std::vector<TensorDeclaration>& tensors,
                        const std::vector<int64_t>& element_counts) {
  std::string text = "{";
  std::set<std::string> names;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!names.insert(name).second) throw Error(in_quotes(name) + " is written twice");
    if (text.back() != '{') text += ",";
    text += json_text(name) + ":" + value;
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) add(key, json_of_any(value));
    text += "}";
  }
  names = {"__metadata__"};
  int64_t end = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t begin = end;
    if (__builtin_add_overflow(end, element_counts[i] * size_of(tensors[i].dtype), &end)) {
      throw ShapeMismatch(tensors[i].name + " ends beyond 2^63 - 1 bytes");
    }
    add(tensors[i].name, "{\"dtype\":\"" + std::string(name(tensors[i].dtype)) + "\",\"shape\":" +
                             nlohmann::json(tensors[i].shape).dump() + ",\"data_offsets\":[" +
                             std::to_string(begin) + "," + std::to_string(end) + "]}");
  }
  return text + "}";
}

/// Returns `stored` if it is finite, or if NaN and infinity are allowed and `number` was
/// not finite before rounding.
template <class Stored>
Stored require_finite(double number, Stored stored, double widened, const TensorDeclaration& tensor,
                      NonFiniteNumbers non_finite) {
  if (std::isfinite(widened)) return stored;
  if (!std::isfinite(number) && non_finite == NonFiniteNumbers::allowed) return stored;
  throw NonFinite(tensor.name + ": " + std::to_string(number) +
                  (std::isfinite(number) ? " is too large for " : " is no number to store as ") +
                  std::string(name(tensor.dtype)));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const Strings& metadata,
                                     std::vector<TensorDeclaration> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  for (const TensorDeclaration& tensor : tensors_) elements_left_.push_back(element_count(tensor));
  const std::string header = header_text(metadata, tensors_, elements_left_);
  const auto length = std::bit_cast<std::array<char, 8>>(uint64_t{header.size()});
  file_.write({length.data(), length.size()});
  file_.write(header);
}

const TensorDeclaration& SafetensorsWriter::take(std::string_view tensor, size_t count) {
  // A complete tensor remains current until its successor's first numbers, so that empty
  // pieces at its end are legal.
  while (current_ < tensors_.size() && elements_left_[current_] == 0 && tensors_[current_].name != tensor) {
    ++current_;
  }
  if (current_ == tensors_.size() || tensors_[current_].name != tensor) {
    throw ShapeMismatch(path() + ": numbers of " + std::string(tensor) + " where those of " +
                        (current_ == tensors_.size() ? "no tensor" : tensors_[current_].name) +
                        " are expected");
  }
  if (count > static_cast<uint64_t>(elements_left_[current_])) {
    throw ShapeMismatch(path() + ": " + std::to_string(count) + " numbers of " + std::string(tensor) +
                        ", which has " + std::to_string(elements_left_[current_]) + " elements left");
  }
  elements_left_[current_] -= static_cast<int64_t>(count);
  return tensors_[current_];
}

template <class Stored, class Number, class Convert>
void SafetensorsWriter::write_all(std::span<const Number> numbers, const Convert& convert) {
  constexpr size_t kChunk = size_t{1} << 16;
  std::vector<Stored> stored;
  for (size_t done = 0; done < numbers.size(); done += stored.size()) {
    const auto now = numbers.subspan(done, std::min(kChunk, numbers.size() - done));
    stored.resize(now.size());
    std::transform(now.begin(), now.end(), stored.begin(), convert);
    file_.write({reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(Stored)});
  }
}

void SafetensorsWriter::append(std::string_view tensor_name, std::span<const double> numbers,
                               NonFiniteNumbers non_finite) {
  const TensorDeclaration& tensor = take(tensor_name, numbers.size());
  if (tensor.dtype == Dtype::f64) {
    return write_all<double>(numbers, [&](double x) { return require_finite(x, x, x, tensor, non_finite); });
  }
  if (tensor.dtype == Dtype::f32) {
    return write_all<float>(numbers, [&](double x) {
      const auto stored = static_cast<float>(x);
      return require_finite(x, stored, stored, tensor, non_finite);
    });
  }
  if (tensor.dtype == Dtype::f16) {
    return write_all<uint16_t>(numbers, [&](double x) {
      const uint16_t stored = to_float16(x);
      return require_finite(x, stored, from_float16(stored), tensor, non_finite);
    });
  }
  if (tensor.dtype == Dtype::bf16) {
    return write_all<uint16_t>(numbers, [&](double x) {
      const uint16_t stored = to_bfloat16(x);
      return require_finite(x, stored, from_bfloat16(stored), tensor, non_finite);
    });
  }
  throw Error(tensor.name + " is " + std::string(name(tensor.dtype)) + "; real numbers have no place there");
}

void SafetensorsWriter::append(std::string_view tensor_name, std::span<const int64_t> numbers) {
  const TensorDeclaration& tensor = take(tensor_name, numbers.size());
  if (tensor.dtype != Dtype::i64) {
    throw Error(tensor.name + " is " + std::string(name(tensor.dtype)) + "; expected I64 for integers");
  }
  write_all<int64_t>(numbers, [](int64_t x) { return x; });
}

void SafetensorsWriter::prepare() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (elements_left_[i] == 0) continue;
    throw ShapeMismatch(path() + ": " + std::to_string(elements_left_[i]) + " numbers of " +
                        tensors_[i].name + " were not written");
  }
  file_.prepare();
  prepared_ = true;
}

void SafetensorsWriter::finish() {
  if (!prepared_) prepare();
  file_.commit();
}

}  // namespace kvbound::traces
