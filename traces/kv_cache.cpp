#include "kv_cache.hpp"

#include <algorithm>
#include <iterator>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::traces {
namespace {

constexpr int64_t kMostTokensAtOnce = 256;

}  // namespace

KvSequence PageTable::sequence(int64_t index, const std::string& which) const {
  const auto at = static_cast<size_t>(index);
  const auto own = pages.subspan(offsets[at], offsets[at + 1] - offsets[at]);
  if (own.empty()) return {};
  const int64_t last = last_page_lengths[at];
  if (last < 1 || last > page_size) {
    throw TraceError(path, -1, which,
                     "has " + std::to_string(last) + " tokens in its last page; expected 1 to " +
                         std::to_string(page_size) + ", the page size");
  }
  for (const int64_t page : own) {
    if (0 <= page && page < page_count) continue;
    throw TraceError(path, -1, which,
                     "has the page " + std::to_string(page) + "; the cache has pages 0 to " +
                         std::to_string(page_count - 1));
  }
  return {(std::ssize(own) - 1) * page_size + last, 0, {own.begin(), own.end()}};
}

Tensor read_kv_cache(const TensorFile& file, const TensorEntry& entry, const KvCacheShape& shape,
                     const KvSequence& sequence, int64_t part) {
  const bool paged = !sequence.blocks.empty(), nhd = shape.layout == KvLayout::nhd;
  const int64_t length = shape.block_tokens, head_dim = shape.head_dim;
  Tensor result(shape.kv_heads, sequence.tokens, head_dim);
  std::vector<double> numbers;
  for (int64_t token = 0; token < sequence.tokens;) {
    const int64_t within = paged ? token % length : sequence.first_token + token;
    const int64_t block = paged ? sequence.blocks[static_cast<size_t>(token / length)] : 0;
    const int64_t begin = (block * shape.parts + part) * length * shape.kv_heads * head_dim;
    const int64_t count = std::min({length - within, sequence.tokens - token, kMostTokensAtOnce});
    const int64_t heads = nhd ? shape.kv_heads : 1;  // that are read together
    numbers.resize(static_cast<size_t>(count * heads * head_dim));
    for (int64_t first = 0; first < shape.kv_heads; first += heads) {
      const int64_t row = nhd ? within * shape.kv_heads : first * length + within;
      file.read(entry, begin + row * head_dim, numbers);
      for (int64_t i = 0; i < count * heads; ++i) {
        const auto from = numbers.begin() + i * head_dim;
        std::copy(from, from + head_dim, result.slice(first + i % heads).row(token + i / heads).begin());
      }
    }
    token += count;
  }
  return result;
}

}  // namespace kvbound::traces
