#include "layer_cache.hpp"

#include <algorithm>
#include <array>
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
  const int64_t heads_with_votes = parts.front()->votes_.rows() > 0 ? kv_heads_ : 0;
  allocate_rows(capacity, parts.front()->pages_.page_size(), parts.front()->keys_.view().cols,
                queue.stream());
  for (const auto numbers : {&LayerCache::entries_, &LayerCache::free_, &LayerCache::newest_})
    this->*numbers = Buffer<int64_t>(kv_heads_);
  positions_ = IndexLists(kv_heads_, capacity);
  votes_ = DeviceMatrix(heads_with_votes, capacity);
  log_votes_ = DeviceMatrix(heads_with_votes, capacity);
  for (size_t s = 0; s < parts.size(); ++s)
    put_rows(*parts[s], static_cast<int64_t>(s) * parts[s]->kv_heads_, queue.stream());
  for (const auto numbers : {&LayerCache::entries_, &LayerCache::free_, &LayerCache::newest_})
    join(parts, numbers, *this, queue.stream());
  join(parts, &LayerCache::positions_, *this, queue.stream());
  for (const auto votes : {&LayerCache::votes_, &LayerCache::log_votes_})
    join(parts, votes, *this, queue.stream());
}

// Takes memory for the rows of all KV heads.
template <Storage T>
void LayerCache<T>::allocate_rows(int64_t capacity, int64_t page_size, int64_t head_dim, Stream stream) {
  pages_ = page_size > 0 ? CachePages(kv_heads_, capacity, page_size, stream) : CachePages();
  for (StoredTensor<T>* tensor : {&keys_, &values_}) {
    *tensor = page_size > 0 ? StoredTensor<T>(pages_.count(), page_size, head_dim)
                            : StoredTensor<T>(kv_heads_, capacity, head_dim);
  }
}

// Copies all rows of a cache of smaller or the same capacity to those of KV heads first_head, first_head + 1,
// ... Pages lie in turns: of each turn those of the part's heads are one piece.
template <Storage T>
void LayerCache<T>::put_rows(const LayerCache& part, int64_t first_head, Stream stream) {
  const bool paged = pages_.page_size() > 0;
  for (const auto tensor : {&LayerCache::keys_, &LayerCache::values_}) {
    const DeviceTensor<const T> from = (part.*tensor).view();
    const DeviceTensor<T> to = (this->*tensor).view();
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const int64_t piece = from.slice_stride * kBytes * (paged ? part.kv_heads_ : 1);
    detail::queue_rows_on_device(to.data + first_head * to.slice_stride,
                                 to.slice_stride * kBytes * (paged ? kv_heads_ : 1), from.data, piece, piece,
                                 paged ? part.pages_.of_head() : part.kv_heads_, stream);
  }
}

template <Storage T>
void LayerCache<T>::fill(const DeviceLayer<T>& layer, KeptEntries& kept, bool growing, bool votes,
                         int64_t page_size, Queue& queue) {
  const LayerShape& shape = layer.shape;
  const int64_t capacity = kept.positions.stride();
  kv_heads_ = shape.kv_heads;
  growing_ = growing;
  most_entries_ = std::ranges::max(kept.budgets);
  allocate_rows(capacity, page_size, shape.head_dim, queue.stream());
  const std::vector<int64_t> none(shape.kv_heads, -1);
  free_ = Buffer<int64_t>(std::span<const int64_t>(none), queue.stream());
  newest_ = Buffer<int64_t>(std::span<const int64_t>(none), queue.stream());
  votes_ = votes ? ones(shape.kv_heads, capacity, queue.stream()) : DeviceMatrix();
  log_votes_ = DeviceMatrix(votes ? shape.kv_heads : 0, capacity);
  log_votes_.clear(queue.stream());
  queue.run("compaction", [&] {
    compact<T>(layer.keys, layer.values, kept.positions.data(), capacity, kept.counts.data(), keys_.view(),
               values_.view(), queue.stream(), pages_.view());
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

template <Storage T>
void LayerCache<T>::grow(int64_t capacity, Queue& queue) {
  LayerCache old;
  old.kv_heads_ = kv_heads_;
  old.pages_ = std::move(pages_);
  for (const auto tensor : {&LayerCache::keys_, &LayerCache::values_}) old.*tensor = std::move(this->*tensor);
  const int64_t page_size = old.pages_.page_size();
  capacity = round_up(capacity, std::max<int64_t>(1, page_size));
  allocate_rows(capacity, page_size, old.keys_.view().cols, queue.stream());
  put_rows(old, 0, queue.stream());
  for (const auto numbers : {&LayerCache::votes_, &LayerCache::log_votes_}) {
    old.*numbers = std::move(this->*numbers);
    this->*numbers = DeviceMatrix((old.*numbers).rows(), capacity);
    join(std::array{&old}, numbers, *this, queue.stream());
  }
}

template class LayerCache<float>;
template class LayerCache<Float16>;
template class LayerCache<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
