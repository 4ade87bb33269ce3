// The layer that the gates of cuda/measure.sh work on: one of Llama-3.1-8B, or with --tiny one
// that the emulation can run.
#pragma once

#include <cstdint>
#include <vector>

#include <kvbound/reference/core/session.hpp>

#include "parity/support.hpp"

namespace kvbound::measure {

using Stored = cuda::Bfloat16;

struct GateShape {
  LayerShape layer;
  int64_t tokens = 0;
  int64_t window = 0;  ///< observation queries

  double scale() const;
};

/// The shape of this run: with --tiny on the command line a tiny one.
const GateShape& gate_shape();
/// The same for K1's tile shapes, with --tiny of heads so small that they have enough entries
/// for two tiles in a split.
const GateShape& split_shape();
bool is_tiny();
/// Reads the program's arguments, those of GoogleTest taken off. Returns false for anything else than --tiny.
bool read_gate_arguments(int count, char** arguments);

/// Numbers exact in BF16, for the host and the device. Rows and places that no operation may
/// read are NaN on the device.
class GateTensor {
 public:
  GateTensor(uint64_t seed, int64_t slices, int64_t rows, int64_t cols, double size)
      : numbers_(parity::rounded<Stored>(parity::random_tensor(seed, slices, rows, cols, size))),
        on_device_(numbers_) {}

  TensorView host() const { return numbers_; }
  cuda::DeviceTensor<const Stored> device() const { return on_device_.view(); }

 private:
  Tensor numbers_;
  parity::Uploaded<Stored> on_device_;
};

/// Keys and queries of twice the usual size, so that few of tens of thousands of entries
/// have most of the attention.
GateTensor gate_keys(const GateShape& shape = gate_shape());
GateTensor gate_values(const GateShape& shape = gate_shape());
GateTensor gate_queries(int64_t window);  ///< [query_heads, window, head_dim]
GateTensor gate_projection();             ///< [query_heads, head_dim, model_dim]

/// These KV heads of a tensor.
Tensor slices_of(TensorView tensor, const std::vector<int64_t>& slices);
/// These rows of every slice.
Tensor rows_of(TensorView tensor, const std::vector<int64_t>& rows);
/// Places in 0..count - 1, ascending: both ends, both sides of multiples of 64, and as many at random.
std::vector<int64_t> sampled(int64_t count);

}  // namespace kvbound::measure
