// Reads one sequence's keys or values from a tensor that holds the caches of several: one
// after the other, or in pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <kvbound/reference/core/view.hpp>

#include "tensor_file.hpp"

namespace kvbound::traces {

/// The order of a cache's dimensions: tokens before KV heads (NHD), or after them (HND).
enum class KvLayout { nhd, hnd };

/// A tensor of keys or values: [blocks, parts, block_tokens, kv_heads, head_dim], or with HND
/// [blocks, parts, kv_heads, block_tokens, head_dim].
struct KvCacheShape {
  KvLayout layout = KvLayout::nhd;
  int64_t block_tokens = 0;  ///< of a page; without pages: of all sequences together
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t parts = 1;  ///< 2 where a page's keys and values stand in one tensor
};

/// Where a sequence's tokens are.
struct KvSequence {
  int64_t tokens = 0;
  int64_t first_token = 0;      ///< without pages
  std::vector<int64_t> blocks;  ///< its pages, in the order of their tokens; empty: no pages
};

/// The pages of several sequences' caches. What it points to must outlive it.
struct PageTable {
  std::string path;                            ///< of the file that it stands in, for messages
  std::span<const int64_t> offsets;            ///< [sequences + 1] of `pages`, ascending from 0
  std::span<const int64_t> pages;              ///< of one sequence after the other
  std::span<const int64_t> last_page_lengths;  ///< [sequences]: tokens in each one's last page
  int64_t page_size = 0;                       ///< tokens
  int64_t page_count = 0;                      ///< that the cache has

  /// which   names the sequence in messages: "request 3"
  /// throws  TraceError for a page that the cache does not have, or a last page
  ///         without tokens or with too many
  KvSequence sequence(int64_t index, const std::string& which) const;
};

/// part     0: keys, 1: values, of tensors with two parts
/// returns  [kv_heads, tokens, head_dim]
/// throws   TraceError for NaN and infinity; as TensorFile::read
Tensor read_kv_cache(const TensorFile& file, const TensorEntry& entry, const KvCacheShape& shape,
                     const KvSequence& sequence, int64_t part = 0);

}  // namespace kvbound::traces
