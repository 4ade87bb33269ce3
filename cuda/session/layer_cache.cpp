#include "layer_cache.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "compaction.hpp"
#include "joined_rows.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

namespace {

DeviceMatrix ones(int64_t rows, int64_t cols, Stream stream) {
  DeviceMatrix matrix(rows, cols);
  matrix.upload(std::vector<float>(rows * cols, 1), stream);
  return matrix;
}

}  // namespace

template <Storage T>
LayerCache<T>::LayerCache(std::span<LayerCache* const> parts, Queue& queue)
    : kv_heads_(std::ssize(parts) * parts.front()->kv_heads_),
      segments_(std::ssize(parts)),
      growing_(parts.front()->growing_) {
  int64_t capacity = 0;
  for (const LayerCache* part : parts) {
    capacity = std::max(capacity, part->capacity());
    most_entries_ = std::max(most_entries_, part->most_entries_);
  }
  const int64_t head_dim = parts.front()->keys_.view().cols;
  const int64_t heads_with_votes = parts.front()->votes_.rows() > 0 ? kv_heads_ : 0;
  keys_ = StoredTensor<T>(kv_heads_, capacity, head_dim);
  values_ = StoredTensor<T>(kv_heads_, capacity, head_dim);
  for (const auto numbers : {&LayerCache::entries_, &LayerCache::free_, &LayerCache::newest_})
    this->*numbers = Buffer<int64_t>(kv_heads_);
  positions_ = IndexLists(kv_heads_, capacity);
  votes_ = DeviceMatrix(heads_with_votes, capacity);
  log_votes_ = DeviceMatrix(heads_with_votes, capacity);
  for (const auto tensor : {&LayerCache::keys_, &LayerCache::values_})
    join(parts, tensor, *this, queue.stream());
  for (const auto numbers : {&LayerCache::entries_, &LayerCache::free_, &LayerCache::newest_})
    join(parts, numbers, *this, queue.stream());
  join(parts, &LayerCache::positions_, *this, queue.stream());
  for (const auto votes : {&LayerCache::votes_, &LayerCache::log_votes_})
    join(parts, votes, *this, queue.stream());
}

template <Storage T>
void LayerCache<T>::fill(const DeviceLayer<T>& layer, KeptEntries& kept, bool growing, bool votes,
                         Queue& queue) {
  const LayerShape& shape = layer.shape;
  const int64_t capacity = kept.positions.stride();
  kv_heads_ = shape.kv_heads;
  growing_ = growing;
  most_entries_ = std::ranges::max(kept.budgets);
  keys_ = StoredTensor<T>(shape.kv_heads, capacity, shape.head_dim);
  values_ = StoredTensor<T>(shape.kv_heads, capacity, shape.head_dim);
  const std::vector<int64_t> none(shape.kv_heads, -1);
  free_ = Buffer<int64_t>(std::span<const int64_t>(none), queue.stream());
  newest_ = Buffer<int64_t>(std::span<const int64_t>(none), queue.stream());
  votes_ = votes ? ones(shape.kv_heads, capacity, queue.stream()) : DeviceMatrix();
  log_votes_ = DeviceMatrix(votes ? shape.kv_heads : 0, capacity);
  log_votes_.clear(queue.stream());
  queue.run("compaction", [&] {
    compact<T>(layer.keys, layer.values, kept.positions.data(), capacity, kept.counts.data(), keys_.view(),
               values_.view(), queue.stream());
  });
  positions_ = std::move(kept.positions);
  entries_ = std::exchange(kept.counts, {});
}

template <Storage T>
bool LayerCache<T>::make_room(int64_t entries, Queue& queue) {
  if (!growing_) return false;
  most_entries_ += entries;
  if (most_entries_ <= capacity()) return false;
  grow(std::max(2 * capacity(), most_entries_), queue);
  return true;
}

template <Storage T>
void LayerCache<T>::append(const StepInput<T>& step, float* key_norms, Queue& queue) {
  cuda::append<T>(step.keys(), step.values(), keys_.view(), values_.view(), slots(), step.positions(),
                  key_norms, queue.stream());
}

template <Storage T>
NewEntries LayerCache<T>::new_entries(const StepInput<T>& step) {
  return cuda::new_entries<T>(step.keys(), step.values(), keys_.view(), values_.view(), slots(),
                              step.positions());
}

// Copies all rows, by the compaction that filled the cache.
template <Storage T>
void LayerCache<T>::grow(int64_t capacity, Queue& queue) {
  std::vector<int64_t> all(this->capacity());
  std::iota(all.begin(), all.end(), 0);
  IndexLists rows(kv_heads_, std::ssize(all));
  for (int64_t g = 0; g < kv_heads_; ++g) rows.upload(g, 0, all, queue.stream());
  for (StoredTensor<T>* tensor : {&keys_, &values_}) {
    const StoredTensor<T> old = std::move(*tensor);
    *tensor = StoredTensor<T>(kv_heads_, capacity, old.view().cols);
    compact<T>(old.view(), rows.data(), rows.stride(), entries_.data(), tensor->view(), queue.stream());
  }
  for (DeviceMatrix* matrix : {&votes_, &log_votes_}) {
    if (matrix->rows() == 0) continue;
    const DeviceMatrix old = std::move(*matrix);
    *matrix = DeviceMatrix(kv_heads_, capacity);
    compact_numbers({old.data(), kv_heads_, old.cols()}, kv_heads_, rows.data(), rows.stride(),
                    entries_.data(), {matrix->data(), kv_heads_, capacity}, queue.stream());
  }
}

template class LayerCache<float>;
template class LayerCache<Float16>;
template class LayerCache<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
