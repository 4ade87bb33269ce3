#include "step_inputs.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <kvbound/cuda/merging/score_ema.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
void StepInputs<T>::upload(std::span<const StepView> steps, int64_t position,
                           const std::optional<PredictedScores>& prediction, Stream stream) {
  std::vector<std::byte> blocks(std::ssize(steps) * block_bytes());
  for (size_t t = 0; t < steps.size(); ++t) {
    std::byte* const block = blocks.data() + t * block_bytes();
    const auto offset = static_cast<int64_t>(t);
    const Header header{position + offset,
                        prediction ? log_seen_share(*prediction, position + offset + 1) : 0};
    std::memcpy(block, &header, sizeof(header));
    store(steps[t].keys, block + kHeaderBytes);
    store(steps[t].values, block + kHeaderBytes + entry_bytes());
    store(steps[t].queries, block + kHeaderBytes + 2 * entry_bytes());
  }
  alone_ = steps.size() == 1;
  if (alone_) return current_.upload(blocks, stream);
  if (uploaded_.size() < std::ssize(blocks)) uploaded_ = Buffer<std::byte>(std::ssize(blocks));
  uploaded_.upload(blocks, stream);
}

template <Storage T>
void StepInputs<T>::select(int64_t t, Stream stream) {
  if (!alone_) current_.copy_from(uploaded_, t * block_bytes(), stream);
}

template <Storage T>
void StepInputs<T>::store(MatrixView rows, std::byte* to) const {
  std::vector<T> row(padded<T>(rows.cols));
  for (int64_t r = 0; r < rows.rows; ++r) {
    std::ranges::transform(rows.row(r), row.begin(), stored<T>);
    std::memcpy(to + r * row_bytes(), row.data(), row_bytes());
  }
}

template class StepInputs<float>;
template class StepInputs<Float16>;
template class StepInputs<Bfloat16>;

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
