#include "kv_tensors.hpp"

#include <utility>

#include <fmt/format.h>

namespace kvbound::sim {

using traces::KvLayout;

KvLayout kv_layout(const traces::MetadataFields& options) {
  if (!options.has("kv_layout")) return KvLayout::nhd;
  const std::string& text = options.text("kv_layout");
  if (text != "NHD" && text != "HND") options.refuse("kv_layout", "NHD or HND");
  return text == "NHD" ? KvLayout::nhd : KvLayout::hnd;
}

KvTensors::KvTensors(CheckFile& file, Part part) : file_(file), paged_(file.has("kv_indices")) {
  keys_.layout = values_.layout = kv_layout(file.options());
  if (part != Part::values) key_entry_ = &find("k", "head_dim", keys_);
  if (part != Part::keys) value_entry_ = &find("v", "value_dim", values_);
  if (key_entry_ && value_entry_ && key_entry_->shape.size() != value_entry_->shape.size()) {
    file_.refuse(*value_entry_, ".shape",
                 fmt::format("is {}; expected as many dimensions as k has, {}",
                             traces::shape_text(value_entry_->shape), key_entry_->shape.size()));
  }
  const bool ragged = (key_entry_ ? key_entry_ : value_entry_)->shape.size() == 3;
  if (paged_)
    find_pages();
  else if (ragged)
    find_ragged();
  else
    find_dense();
}

const traces::TensorEntry& KvTensors::find(const char* name, const char* head_dim,
                                           traces::KvCacheShape& shape) {
  const traces::TensorEntry* const found = file_.tensors().find(name);
  const bool ragged = !paged_ && found && found->shape.size() == 3;
  const char* const tokens = paged_ ? "page_size" : ragged ? "total" : "tokens";
  Dimensions dimensions;
  if (!ragged) dimensions.emplace_back(paged_ ? "pages" : "batch");
  dimensions.emplace_back(tokens);
  dimensions.emplace_back("kv_heads");
  if (shape.layout == KvLayout::hnd) std::swap(dimensions.end()[-1], dimensions.end()[-2]);
  dimensions.emplace_back(head_dim);
  const traces::TensorEntry& entry = file_.real(name, dimensions);
  shape.block_tokens = file_.length(tokens);
  shape.kv_heads = file_.length("kv_heads");
  shape.head_dim = file_.length(head_dim);
  if (shape.kv_heads == 0 || shape.head_dim == 0)
    file_.refuse(entry, ".shape", "is " + traces::shape_text(entry.shape));
  return entry;
}

void KvTensors::find_dense() {
  refuse_beside("kv_indptr", "a dense cache, which has lengths, or needs kv_indices");
  const int64_t batch = file_.length("batch"), tokens = file_.length("tokens");
  std::vector<int64_t> lengths(static_cast<size_t>(batch), tokens);
  if (file_.has("lengths")) {
    const traces::TensorEntry& entry = file_.integral("lengths", {"batch"});
    lengths = file_.integers(entry);
    for (const int64_t length : lengths) {
      if (length < 0 || length > tokens)
        file_.refuse(entry, "", fmt::format("has the length {}; the cache has {} tokens", length, tokens));
    }
  }
  for (int64_t b = 0; b < batch; ++b) sequences_.push_back({lengths[b], 0, {b}});
}

void KvTensors::find_ragged() {
  refuse_beside("lengths", "a ragged cache, which has kv_indptr");
  const int64_t total = file_.length("total");
  std::vector<int64_t> offsets{0, total};
  if (file_.has("kv_indptr")) offsets = file_.offsets("kv_indptr", {"batch + 1"}, total);
  for (size_t b = 0; b + 1 < offsets.size(); ++b)
    sequences_.push_back({offsets[b + 1] - offsets[b], offsets[b], {}});
}

void KvTensors::refuse_beside(const char* tensor, const char* cache) const {
  if (const traces::TensorEntry* entry = file_.tensors().find(tensor)) {
    file_.refuse(*entry, "", fmt::format("stands beside {}", cache));
  }
}

void KvTensors::find_pages() {
  const std::vector<int64_t> pages = file_.integers(file_.integral("kv_indices", {"page indices"}));
  // Libraries allocate more room for indices than they use.
  const std::vector<int64_t> offsets = file_.offsets("kv_indptr", {"batch + 1"}, std::ssize(pages), false);
  const int64_t batch = std::ssize(offsets) - 1;
  const std::vector<int64_t> last = file_.integers(file_.integral("kv_last_page_len", {{"batch", batch}}));
  const traces::PageTable table{file_.path(),         offsets, pages, last, file_.length("page_size"),
                                file_.length("pages")};
  for (int64_t b = 0; b < batch; ++b) sequences_.push_back(table.sequence(b, fmt::format("sequence {}", b)));
}

Tensor KvTensors::keys(int64_t sequence) const {
  return traces::read_kv_cache(file_.tensors(), *key_entry_, keys_, sequences_[sequence]);
}

Tensor KvTensors::values(int64_t sequence) const {
  return traces::read_kv_cache(file_.tensors(), *value_entry_, values_, sequences_[sequence]);
}

}  // namespace kvbound::sim
