#include "tensor_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>

#include "messages.hpp"
#include "npz.hpp"
#include "safetensors.hpp"
#include "widen.hpp"

namespace kvbound::traces {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;

template <class Stored>
void widen_integers(std::span<const char> bytes, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));  // may be misaligned
    out[i] = stored;
  }
}

void require_dtype(const std::string& path, const TensorEntry& tensor, bool suits, const char* expected) {
  if (suits) return;
  throw TraceError(path, tensor.header_offset, printable(tensor.name) + ".dtype",
                   "is " + std::string(name(tensor.dtype)) + "; expected " + expected);
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + "]";
}

void TensorFile::set_tensors(std::vector<TensorEntry> tensors) {
  tensors_ = std::move(tensors);
  for (const TensorEntry& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
}

const TensorEntry* TensorFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

template <class Number, class Widen>
void TensorFile::read_in_chunks(const TensorEntry& tensor, int64_t first, std::span<Number> out,
                                const Widen& widen) const {
  const int64_t size = size_of(tensor.dtype), per_chunk = kChunk / size;
  const auto count = std::ssize(out);
  if (first < 0 || first > tensor.elements || count > tensor.elements - first) {
    throw ShapeMismatch("elements " + std::to_string(first) + " to " + std::to_string(first + count) +
                        " of " + printable(tensor.name) + ", which has " + std::to_string(tensor.elements));
  }
  const int64_t chunks = (count + per_chunk - 1) / per_chunk;
  reference::parallel_for(chunks, [&](int64_t c) {
    const int64_t done = c * per_chunk, now = std::min(per_chunk, count - done);
    const auto bytes = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(now * size));
    const std::span<char> chunk(bytes.get(), static_cast<size_t>(now * size));
    read_bytes(tensor, (first + done) * size, chunk);
    widen(chunk, out.subspan(static_cast<size_t>(done), static_cast<size_t>(now)), first + done);
  });
}

void TensorFile::refuse_non_finite(const TensorEntry& tensor, std::span<const double> numbers,
                                   int64_t begin) const {
  const auto bad = std::find_if(numbers.begin(), numbers.end(), [](double x) { return !std::isfinite(x); });
  const int64_t element = begin + (bad - numbers.begin());
  throw TraceError(path(), tensor.begin < 0 ? -1 : tensor.begin + element * size_of(tensor.dtype),
                   printable(tensor.name),
                   "element " + std::to_string(element) + " is " + (std::isnan(*bad) ? "NaN" : "infinite") +
                       "; expected a finite number");
}

void TensorFile::read(const TensorEntry& tensor, int64_t first, std::span<double> out,
                      NonFiniteNumbers non_finite) const {
  require_dtype(path(), tensor, is_real(tensor.dtype), "F64, F32, F16 or BF16");
  read_in_chunks(tensor, first, out,
                 [&](std::span<const char> bytes, std::span<double> numbers, int64_t begin) {
                   if (widen(tensor.dtype, bytes, numbers) || non_finite == NonFiniteNumbers::allowed) return;
                   refuse_non_finite(tensor, numbers, begin);
                 });
}

void TensorFile::read(const TensorEntry& tensor, std::span<double> out, std::span<uint16_t> bits) const {
  require_dtype(path(), tensor, tensor.dtype == Dtype::f16 || tensor.dtype == Dtype::bf16, "F16 or BF16");
  require_equal("numbers of " + printable(tensor.name), std::ssize(out), "its elements", tensor.elements);
  require_equal("bits of " + printable(tensor.name), std::ssize(bits), "its elements", tensor.elements);
  read_in_chunks(tensor, 0, out, [&](std::span<const char> bytes, std::span<double> numbers, int64_t begin) {
    std::memcpy(bits.data() + begin, bytes.data(), bytes.size());
    if (!widen(tensor.dtype, bytes, numbers)) refuse_non_finite(tensor, numbers, begin);
  });
}

void TensorFile::read(const TensorEntry& tensor, int64_t first, std::span<int64_t> out) const {
  const bool is_read = tensor.dtype == Dtype::i64 || tensor.dtype == Dtype::i32 || tensor.dtype == Dtype::u32;
  require_dtype(path(), tensor, is_read, "I64, I32 or U32");
  read_in_chunks(tensor, first, out, [&](std::span<const char> bytes, std::span<int64_t> numbers, int64_t) {
    if (tensor.dtype == Dtype::i64) return widen_integers<int64_t>(bytes, numbers);
    tensor.dtype == Dtype::i32 ? widen_integers<int32_t>(bytes, numbers)
                               : widen_integers<uint32_t>(bytes, numbers);
  });
}

std::unique_ptr<TensorFile> open_tensors(const std::string& path, int64_t header_limit) {
  // As lengths of a header these are beyond any limit.
  constexpr std::array<std::string_view, 2> kArchives{"PK\3\4", "PK\5\6"};
  std::array<char, 4> first{};
  if (const InputFile file(path); file.size() >= std::ssize(first)) file.read(0, first, "first bytes");
  const std::string_view begin(first.data(), first.size());
  if (std::ranges::find(kArchives, begin) != kArchives.end()) return std::make_unique<NpzFile>(path);
  return std::make_unique<SafetensorsFile>(path, header_limit);
}

}  // namespace kvbound::traces
