#include "attention_function.hpp"

#include <algorithm>
#include <array>

namespace kvbound::traces {
namespace {

constexpr std::array kAttentionFunctions{
    AttentionFunction{"single_decode_with_kv_cache", RecordedCache::whole, true},
    AttentionFunction{"single_prefill_with_kv_cache", RecordedCache::whole, false},
    AttentionFunction{"BatchDecodeWithPagedKVCacheWrapper.run", RecordedCache::paged, true},
    AttentionFunction{"CUDAGraphBatchDecodeWithPagedKVCacheWrapper.run", RecordedCache::paged, true},
    AttentionFunction{"BatchPrefillWithPagedKVCacheWrapper.run", RecordedCache::paged, false},
    AttentionFunction{"BatchPrefillWithRaggedKVCacheWrapper.run", RecordedCache::ragged, false},
};

}  // namespace

const AttentionFunction* attention_function_named(std::string_view name) {
  const auto* found = std::ranges::find(kAttentionFunctions, name, &AttentionFunction::name);
  return found == kAttentionFunctions.end() ? nullptr : found;
}

std::string attention_functions() {
  std::string names;
  for (const AttentionFunction& function : kAttentionFunctions) {
    (names += names.empty() ? "" : ", ") += function.name;
  }
  return names;
}

}  // namespace kvbound::traces
