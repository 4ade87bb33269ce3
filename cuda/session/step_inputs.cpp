#include "step_inputs.hpp"

#include <algorithm>

#include <kvbound/cuda/merging/score_ema.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
void StepInput<T>::write(const StepView& step, const LayerShape& shape, int64_t kv_head, int64_t position,
                         float log_seen, std::byte* block) {
  std::fill_n(reinterpret_cast<int64_t*>(block) + kv_head, step.keys.rows, position);
  std::fill_n(
      reinterpret_cast<float*>(block + shape.kv_heads * static_cast<int64_t>(sizeof(int64_t))) + kv_head,
      step.keys.rows, log_seen);
  const auto store = [&](MatrixView rows, const uint16_t* bits, int64_t byte, int64_t head) {
    store_rows(HostRows<T>(rows, step.bits.dtype, bits),
               reinterpret_cast<T*>(block + byte + head * row_bytes(shape)));
  };
  store(step.keys, step.bits.keys, keys_at(shape), kv_head);
  store(step.values, step.bits.values, values_at(shape), kv_head);
  store(step.queries, step.bits.queries, queries_at(shape), kv_head * shape.group_size());
}

template <Storage T>
void StepInputs<T>::upload(std::span<const std::span<const StepView>> segments,
                           std::span<const int64_t> positions,
                           const std::optional<PredictedScores>& prediction, Stream stream) {
  const int64_t block_bytes = StepInput<T>::bytes(shape_);
  const int64_t kv_heads = shape_.kv_heads / std::ssize(segments);
  blocks_.upload_rows(
      std::ssize(segments.front()), block_bytes,
      [&](int64_t first, int64_t blocks, std::byte* to) {
        for (int64_t t = first; t < first + blocks; ++t, to += block_bytes) {
          for (size_t s = 0; s < segments.size(); ++s) {
            const int64_t position = positions[s] + t;
            const float log_seen = prediction ? log_seen_share(*prediction, position + 1) : 0;
            StepInput<T>::write(segments[s][t], shape_, static_cast<int64_t>(s) * kv_heads, position,
                                log_seen, to);
          }
        }
      },
      stream);
}

template class StepInput<float>;
template class StepInput<Float16>;
template class StepInput<Bfloat16>;
template class StepInputs<float>;
template class StepInputs<Float16>;
template class StepInputs<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
