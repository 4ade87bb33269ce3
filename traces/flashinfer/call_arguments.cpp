#include "call_arguments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include <kvbound/reference/core/error.hpp>

#include "../messages.hpp"

namespace kvbound::traces {

std::string numbered(const char* what, int64_t index) { return what + (" " + std::to_string(index)); }

std::string field_of(const TensorEntry& entry, const std::string& parameter) {
  return printable(entry.name) + " (" + parameter + ")";
}

void require_shape(const SafetensorsFile& file, const TensorEntry& entry, const std::string& parameter,
                   const std::vector<int64_t>& shape, const std::string& meaning) {
  if (entry.shape == shape) return;
  throw TraceError(file.path(), entry.header_offset, field_of(entry, parameter) + ".shape",
                   "is " + shape_text(entry.shape) + "; expected " + meaning + " = " + shape_text(shape));
}

void require_rank(const SafetensorsFile& file, const TensorEntry& entry, const std::string& parameter,
                  size_t rank, const std::string& meaning) {
  if (entry.shape.size() == rank && entry.elements > 0) return;
  throw TraceError(file.path(), entry.header_offset, field_of(entry, parameter) + ".shape",
                   "is " + shape_text(entry.shape) + "; expected " + meaning);
}

void require_stored_type(const SafetensorsFile& file, const TensorEntry& entry,
                         const std::string& parameter) {
  if (entry.dtype == Dtype::f32 || entry.dtype == Dtype::f16 || entry.dtype == Dtype::bf16) return;
  throw TraceError(file.path(), entry.header_offset, field_of(entry, parameter) + ".dtype",
                   "is " + std::string(name(entry.dtype)) + "; expected F32, F16 or BF16");
}

const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name,
                            const std::string& parameter) {
  if (const TensorEntry* entry = file.find(name)) return *entry;
  throw TraceError(file.path(), -1, printable(name) + " (" + parameter + ")", "this tensor is missing");
}

const TensorEntry& tensor_argument(const RecordedCall& call, const SafetensorsFile& file,
                                   const std::string& parameter) {
  const Argument argument = call.argument(parameter);
  if (argument.tensors.size() != 1)
    call.refuse(argument, "is " + description(argument) + "; expected a tensor");
  return entry_of(file, argument.tensors.front(), parameter);
}

std::vector<int64_t> integers_argument(const RecordedCall& call, const SafetensorsFile& file,
                                       const std::string& parameter) {
  const TensorEntry& entry = tensor_argument(call, file, parameter);
  const auto is_one = [](int64_t length) { return length == 1; };
  if (entry.shape.empty() || !std::all_of(entry.shape.begin() + 1, entry.shape.end(), is_one)) {
    throw TraceError(file.path(), entry.header_offset, field_of(entry, parameter) + ".shape",
                     "is " + shape_text(entry.shape) + "; expected a vector");
  }
  std::vector<int64_t> numbers(static_cast<size_t>(entry.elements));
  file.read(entry, 0, std::span(numbers));
  return numbers;
}

std::vector<int64_t> offsets_argument(const RecordedCall& call, const SafetensorsFile& file,
                                      const std::string& parameter) {
  std::vector<int64_t> numbers = integers_argument(call, file, parameter);
  const std::string field = field_of(tensor_argument(call, file, parameter), parameter);
  if (numbers.size() < 2 || numbers.front() != 0) {
    throw TraceError(file.path(), -1, field,
                     "does not begin with 0; expected an offset per request, and the end");
  }
  const auto fall = std::ranges::is_sorted_until(numbers);
  if (fall == numbers.end()) return numbers;
  throw TraceError(file.path(), -1, field,
                   numbered("element", fall - numbers.begin()) + " is " + std::to_string(*fall) + " after " +
                       std::to_string(*(fall - 1)) + "; expected offsets that do not descend");
}

int64_t count_argument(const RecordedCall& call, const std::string& parameter) {
  const Argument argument = call.argument(parameter);
  const std::optional<double> number = argument.number();
  if (number && *number >= 1 && *number <= std::numeric_limits<int32_t>::max() &&
      std::floor(*number) == *number) {
    return static_cast<int64_t>(*number);
  }
  call.refuse(argument, "is " + description(argument) + "; expected a number from 1 to 2^31 - 1");
}

bool truth_argument(const RecordedCall& call, const std::string& parameter) {
  const Argument argument = call.argument(parameter);
  if (argument.is_none()) return false;
  const std::optional<bool> truth = argument.truth();
  if (!truth) call.refuse(argument, "is " + description(argument) + "; expected true or false");
  return *truth;
}

}  // namespace kvbound::traces
