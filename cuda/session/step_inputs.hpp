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

/// A decode step's entries and queries in device memory.
template <Storage T>
class StepInput {
 public:
  /// block  bytes(shape), as StepInputs uploads them
  StepInput(const LayerShape& shape, const std::byte* block) : shape_(shape), block_(block) {}

  const int64_t* position() const { return &header()->position; }
  const float* log_seen() const { return &header()->log_seen; }
  DeviceTensor<const T> keys() const { return entries(kHeaderBytes); }  ///< [kv_heads, 1, head_dim]
  DeviceTensor<const T> values() const { return entries(kHeaderBytes + entry_bytes(shape_)); }  ///< likewise
  /// [1, query_heads, head_dim]
  DeviceTensor<const T> queries() const {
    const int64_t stride = padded<T>(shape_.head_dim);
    return {numbers(kHeaderBytes + 2 * entry_bytes(shape_)),
            1,
            shape_.query_heads,
            shape_.head_dim,
            stride,
            shape_.query_heads * stride};
  }

  static int64_t bytes(const LayerShape& shape) {
    return kHeaderBytes + 2 * entry_bytes(shape) + shape.query_heads * row_bytes(shape);
  }
  /// Writes a step's block.
  static void write(const StepView& step, const LayerShape& shape, int64_t position, float log_seen,
                    std::byte* block);

 private:
  struct Header {
    int64_t position;
    float log_seen;
  };
  static constexpr int64_t kHeaderBytes = 256;

  static int64_t row_bytes(const LayerShape& shape) {
    return padded<T>(shape.head_dim) * static_cast<int64_t>(sizeof(T));
  }
  static int64_t entry_bytes(const LayerShape& shape) { return shape.kv_heads * row_bytes(shape); }

  const Header* header() const { return reinterpret_cast<const Header*>(block_); }
  const T* numbers(int64_t byte) const { return reinterpret_cast<const T*>(block_ + byte); }
  DeviceTensor<const T> entries(int64_t byte) const {
    const int64_t stride = padded<T>(shape_.head_dim);
    return {numbers(byte), shape_.kv_heads, 1, shape_.head_dim, stride, stride};
  }

  LayerShape shape_;
  const std::byte* block_;
};

/// The inputs of the steps that are taken at once, at places that stay the same.
template <Storage T>
class StepInputs {
 public:
  /// most  steps
  StepInputs(const LayerShape& shape, int64_t most)
      : shape_(shape), blocks_(most * StepInput<T>::bytes(shape)) {}

  /// Queues the transfer of successive steps in one copy, behind the work with those before them.
  ///
  /// position    of the first one's entries
  /// prediction  as in MergeRules
  void upload(std::span<const StepView> steps, int64_t position,
              const std::optional<PredictedScores>& prediction, Stream stream);

  /// The t-th of them.
  StepInput<T> operator[](int64_t t) const {
    return {shape_, blocks_.data() + t * StepInput<T>::bytes(shape_)};
  }

 private:
  LayerShape shape_;
  Buffer<std::byte> blocks_;  // [most, bytes of a step]
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
