// CaM's merges of a layer's KV heads on the device: values of evicted entries are dropped or
// spread over those that follow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <kvbound/cuda/merging/cam.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>

#include "merges.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
class Spreads final : public Merges<T> {
 public:
  Spreads(const Cam& options, const DeviceLayer<T>& layer, bool decodes)
      : options_(options), shape_(layer.shape), scale_(layer.scale), decodes_(decodes) {}
  /// The same method for another shape.
  Spreads(const Spreads& other, const LayerShape& shape)
      : options_(other.options_), shape_(shape), scale_(other.scale_), decodes_(other.decodes_) {}

  void compress(const SelectedLayer<T>& selected, LayerCache<T>& cache, Queue& queue,
                std::vector<HeadMerge>& records) override;
  std::unique_ptr<Merges<T>> joined(std::span<Merges<T>* const> parts, int64_t capacity,
                                    Queue& queue) const override;
  float* key_norms() override { return nullptr; }
  void observe(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
               Queue& queue) override;
  void merge(const StepInput<T>& step, const ScoredQuery<T>& query, LayerCache<T>& cache,
             Queue& queue) override;
  PositionLists changed() override { return decoding_->changed_list(); }
  void record(Readback& reads, StepRecord& record) const override;

 private:
  // Memory for one step.
  struct Decoding {
    Decoding(const LayerShape& shape, int64_t capacity, int64_t most);

    PositionLists changed_list() { return {changed.data(), count.data(), changed.stride()}; }

    DeviceMatrix attention;                        // [kv_heads, capacity]
    IndexLists changed;                            // [kv_heads, most]: slots
    Buffer<int64_t> count, merged_into;            // [kv_heads]
    IndexLists positions;                          // [kv_heads, most]: of the changed entries
    StoredTensor<T> changed_keys, changed_values;  // [kv_heads, most, head_dim]
  };

  Cam options_;
  LayerShape shape_;
  double scale_;
  bool decodes_;
  std::optional<Decoding> decoding_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
