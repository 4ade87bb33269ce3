#include "step_inputs.hpp"

#include <cstring>

#include <kvbound/cuda/merging/score_ema.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
void StepInput<T>::write(const StepView& step, const LayerShape& shape, int64_t position, float log_seen,
                         std::byte* block) {
  const Header header{position, log_seen};
  std::memset(block, 0, kHeaderBytes);
  std::memcpy(block, &header, sizeof(header));
  const auto store = [&](MatrixView rows, const uint16_t* bits, int64_t byte) {
    store_rows(HostRows<T>(rows, step.bits.dtype, bits), reinterpret_cast<T*>(block + byte));
  };
  store(step.keys, step.bits.keys, kHeaderBytes);
  store(step.values, step.bits.values, kHeaderBytes + entry_bytes(shape));
  store(step.queries, step.bits.queries, kHeaderBytes + 2 * entry_bytes(shape));
}

template <Storage T>
void StepInputs<T>::upload(std::span<const StepView> steps, int64_t position,
                           const std::optional<PredictedScores>& prediction, Stream stream) {
  const int64_t block_bytes = StepInput<T>::bytes(shape_);
  blocks_.upload_rows(
      std::ssize(steps), block_bytes,
      [&](int64_t first, int64_t blocks, std::byte* to) {
        for (int64_t t = first; t < first + blocks; ++t, to += block_bytes) {
          const float log_seen = prediction ? log_seen_share(*prediction, position + t + 1) : 0;
          StepInput<T>::write(steps[static_cast<size_t>(t)], shape_, position + t, log_seen, to);
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
