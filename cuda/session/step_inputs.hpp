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

/// A decode step's entries and queries in device memory: of a layer, or of several segments, layers or
/// requests, one after the other.
template <Storage T>
class StepInput {
 public:
  /// block  bytes(shape), as StepInputs uploads them
  StepInput(const LayerShape& shape, const std::byte* block) : shape_(shape), block_(block) {}

  const int64_t* positions() const { return reinterpret_cast<const int64_t*>(block_); }  ///< [kv_heads]
  /// [kv_heads]: log_seen_share of the tokens so far, for policies that predict scores
  const float* log_seen() const { return reinterpret_cast<const float*>(positions() + shape_.kv_heads); }
  DeviceTensor<const T> keys() const { return entries(keys_at(shape_)); }      ///< [kv_heads, 1, head_dim]
  DeviceTensor<const T> values() const { return entries(values_at(shape_)); }  ///< likewise
  /// [1, query_heads, head_dim]
  DeviceTensor<const T> queries() const {
    const int64_t stride = padded<T>(shape_.head_dim);
    return {numbers(queries_at(shape_)), 1, shape_.query_heads, shape_.head_dim, stride,
            shape_.query_heads * stride};
  }

  static int64_t bytes(const LayerShape& shape) {
    return queries_at(shape) + shape.query_heads * row_bytes(shape);
  }
  /// Writes a segment's step into a block.
  ///
  /// shape     of all segments
  /// kv_head   the segment's first one
  /// log_seen  of each of its KV heads
  static void write(const StepView& step, const LayerShape& shape, int64_t kv_head, int64_t position,
                    float log_seen, std::byte* block);

 private:
  static int64_t row_bytes(const LayerShape& shape) {
    return padded<T>(shape.head_dim) * static_cast<int64_t>(sizeof(T));
  }
  static int64_t entry_bytes(const LayerShape& shape) { return shape.kv_heads * row_bytes(shape); }
  // Bytes before the keys, before the values and before the queries.
  static int64_t keys_at(const LayerShape& shape) {
    constexpr int64_t kAligned = 256, kOfHead = sizeof(int64_t) + sizeof(float);
    return (shape.kv_heads * kOfHead + kAligned - 1) / kAligned * kAligned;
  }
  static int64_t values_at(const LayerShape& shape) { return keys_at(shape) + entry_bytes(shape); }
  static int64_t queries_at(const LayerShape& shape) { return values_at(shape) + entry_bytes(shape); }

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
  /// segments    the steps of each, as many of all
  /// positions   [segments]: of the first steps' entries
  /// prediction  as in MergeRules
  void upload(std::span<const std::span<const StepView>> segments, std::span<const int64_t> positions,
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
