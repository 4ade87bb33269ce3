// The numbers of decode steps in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <kvbound/cuda/support/stored_tensor.hpp>
#include <kvbound/reference/core/session.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// The current decode step's entries and queries, at places that stay the same from step to step.
template <Storage T>
class StepInputs {
 public:
  explicit StepInputs(const LayerShape& shape) : shape_(shape), current_(block_bytes()) {}

  /// Queues the transfer of successive steps in one copy, behind the work with those before them. None of
  /// them is the current one yet, but for a step that is alone.
  ///
  /// position    of the first one's entries
  /// prediction  as in MergeRules
  void upload(std::span<const StepView> steps, int64_t position,
              const std::optional<PredictedScores>& prediction, Stream stream);
  /// Queues that the t-th of the uploaded steps becomes the current one.
  void select(int64_t t, Stream stream);

  const int64_t* position() const { return &header()->position; }
  const float* log_seen() const { return &header()->log_seen; }
  DeviceTensor<const T> keys() const { return entries(kHeaderBytes); }  ///< [kv_heads, 1, head_dim]
  DeviceTensor<const T> values() const { return entries(kHeaderBytes + entry_bytes()); }  ///< likewise
  /// [1, query_heads, head_dim]
  DeviceTensor<const T> queries() const {
    const int64_t stride = padded<T>(shape_.head_dim);
    return {numbers(kHeaderBytes + 2 * entry_bytes()),
            1,
            shape_.query_heads,
            shape_.head_dim,
            stride,
            shape_.query_heads * stride};
  }

 private:
  struct Header {
    int64_t position;
    float log_seen;
  };
  static constexpr int64_t kHeaderBytes = 256;

  int64_t row_bytes() const { return padded<T>(shape_.head_dim) * static_cast<int64_t>(sizeof(T)); }
  int64_t entry_bytes() const { return shape_.kv_heads * row_bytes(); }
  int64_t block_bytes() const { return kHeaderBytes + 2 * entry_bytes() + shape_.query_heads * row_bytes(); }

  void write(const StepView& step, const Header& header, std::byte* block) const;
  const Header* header() const { return reinterpret_cast<const Header*>(current_.data()); }
  const T* numbers(int64_t byte) const { return reinterpret_cast<const T*>(current_.data() + byte); }
  DeviceTensor<const T> entries(int64_t byte) const {
    const int64_t stride = padded<T>(shape_.head_dim);
    return {numbers(byte), shape_.kv_heads, 1, shape_.head_dim, stride, stride};
  }

  LayerShape shape_;
  Buffer<std::byte> current_;
  Buffer<std::byte> uploaded_;  // [steps, block_bytes()]; not used for a step that is alone
  bool alone_ = false;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
