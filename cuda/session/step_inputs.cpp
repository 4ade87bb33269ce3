#include "step_inputs.hpp"

#include <cstring>

#include <kvbound/cuda/merging/score_ema.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
void StepInputs<T>::upload(std::span<const StepView> steps, int64_t position,
                           const std::optional<PredictedScores>& prediction, Stream stream) {
  const auto count = std::ssize(steps);
  alone_ = count == 1;
  if (!alone_ && uploaded_.size() < count * block_bytes())
    uploaded_ = Buffer<std::byte>(count * block_bytes());
  (alone_ ? current_ : uploaded_)
      .upload_rows(
          count, block_bytes(),
          [&](int64_t first, int64_t blocks, std::byte* to) {
            for (int64_t t = first; t < first + blocks; ++t, to += block_bytes()) {
              const float log_seen = prediction ? log_seen_share(*prediction, position + t + 1) : 0;
              write(steps[static_cast<size_t>(t)], {position + t, log_seen}, to);
            }
          },
          stream);
}

template <Storage T>
void StepInputs<T>::select(int64_t t, Stream stream) {
  if (!alone_) current_.copy_from(uploaded_, t * block_bytes(), stream);
}

template <Storage T>
void StepInputs<T>::write(const StepView& step, const Header& header, std::byte* block) const {
  std::memset(block, 0, kHeaderBytes);
  std::memcpy(block, &header, sizeof(header));
  const auto store = [&](MatrixView rows, const uint16_t* bits, int64_t byte) {
    store_rows(HostRows<T>(rows, step.bits.dtype, bits), reinterpret_cast<T*>(block + byte));
  };
  store(step.keys, step.bits.keys, kHeaderBytes);
  store(step.values, step.bits.values, kHeaderBytes + entry_bytes());
  store(step.queries, step.bits.queries, kHeaderBytes + 2 * entry_bytes());
}

template class StepInputs<float>;
template class StepInputs<Float16>;
template class StepInputs<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
