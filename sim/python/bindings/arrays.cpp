#include "arrays.hpp"

#include <atomic>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::python {
namespace {

namespace nb = nanobind;
using nb::dlpack::dtype_code;

std::atomic<int64_t> copied = 0;

std::optional<Dtype> dtype_of(nb::dlpack::dtype type) {
  const auto is = [&](dtype_code code, int bits) {
    return type.code == static_cast<uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  if (is(dtype_code::Float, 64)) return Dtype::f64;
  if (is(dtype_code::Float, 32)) return Dtype::f32;
  if (is(dtype_code::Float, 16)) return Dtype::f16;
  if (is(dtype_code::Bfloat, 16)) return Dtype::bf16;
  if (is(dtype_code::Int, 64)) return Dtype::i64;
  if (is(dtype_code::Int, 32)) return Dtype::i32;
  if (is(dtype_code::Int, 16)) return Dtype::i16;
  if (is(dtype_code::Int, 8)) return Dtype::i8;
  if (is(dtype_code::UInt, 64)) return Dtype::u64;
  if (is(dtype_code::UInt, 32)) return Dtype::u32;
  if (is(dtype_code::UInt, 16)) return Dtype::u16;
  if (is(dtype_code::UInt, 8)) return Dtype::u8;
  if (is(dtype_code::Bool, 8)) return Dtype::boolean;
  return std::nullopt;
}

bool is_in_c_order(const Array& array) {
  int64_t stride = 1;
  for (size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) != 1 && array.stride(d) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(d));
  }
  return true;
}

// The numbers in C order, from dimension d on.
char* copy_from(const Array& array, size_t d, const char* from, size_t size, char* to) {
  if (d == array.ndim()) {
    std::memcpy(to, from, size);
    return to + size;
  }
  for (size_t i = 0; i < array.shape(d); ++i)
    to = copy_from(array, d + 1,
                   from + static_cast<int64_t>(i) * array.stride(d) * static_cast<int64_t>(size), size, to);
  return to;
}

}  // namespace

ArrayTensors::ArrayTensors(std::string what, const nb::dict& arrays,
                           const std::map<std::string, std::string>& texts)
    : what_(std::move(what)) {
  metadata_.path = what_;
  metadata_.strings = {texts.begin(), texts.end()};
  for (const auto [key, value] : arrays) {
    const auto name = nb::cast<std::string>(key);
    const bool is_bf16 = nb::isinstance<nb::tuple>(value);
    const nb::object object = is_bf16 ? nb::object(nb::cast<nb::tuple>(value)[0]) : nb::borrow(value);
    Array array;
    if (!nb::try_cast(object, array))
      throw TraceError(what_, -1, traces::printable(name),
                       fmt::format("is a {}; expected an array of numbers on the CPU",
                                   nb::type_name(object.type()).c_str()));
    add(name, std::move(array), is_bf16);
  }
  set_tensors(std::move(entries_));
}

ArrayTensors::~ArrayTensors() = default;

void ArrayTensors::add(const std::string& name, Array array, bool is_bf16) {
  if (array.device_type() != nb::device::cpu::value && array.size() > 0) {
    throw TraceError(what_, -1, traces::printable(name),
                     fmt::format("is on another device; expected the CPU: {}.cpu()", name));
  }
  const std::optional<Dtype> type = is_bf16 ? Dtype::bf16 : dtype_of(array.dtype());
  if (!type) {
    throw TraceError(what_, -1, traces::printable(name) + ".dtype",
                     fmt::format("has {} bits of code {}; expected real numbers or integers",
                                 array.dtype().bits, array.dtype().code));
  }
  traces::TensorEntry entry;
  entry.name = name;
  entry.dtype = *type;
  for (size_t d = 0; d < array.ndim(); ++d) entry.shape.push_back(static_cast<int64_t>(array.shape(d)));
  entry.elements = static_cast<int64_t>(array.size());
  entry.bytes = static_cast<int64_t>(array.nbytes());
  entry.begin = entry.header_offset = -1 - std::ssize(data_);
  const auto* const data = static_cast<const char*>(array.data());
  data_.push_back(data);
  if (entry.elements > 0 && !is_in_c_order(array)) {
    auto& copy = copies_.emplace_back(std::make_unique_for_overwrite<char[]>(array.nbytes()));
    copy_from(array, 0, data, array.itemsize(), copy.get());
    data_.back() = copy.get();
    ++copied;
  }
  arrays_.push_back(std::move(array));
  entries_.push_back(std::move(entry));
}

void ArrayTensors::read_bytes(const traces::TensorEntry& tensor, int64_t first, std::span<char> out) const {
  if (!out.empty())
    std::memcpy(out.data(), data_[static_cast<size_t>(-1 - tensor.begin)] + first, out.size());
}

int64_t ArrayTensors::copies() { return copied; }

}  // namespace kvbound::python
