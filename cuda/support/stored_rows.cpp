#include "stored_rows.hpp"

#include <algorithm>
#include <cstring>

#include <kvbound/reference/numerics/rounding.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

void round_rows(MatrixView numbers, Bfloat16* to, int64_t row_stride) {
  reference::round_to_bfloat16(numbers, &to->bits, row_stride);
}

void round_rows(MatrixView numbers, Float16* to, int64_t row_stride) {
  reference::round_to_float16(numbers, &to->bits, row_stride);
}

void round_rows(MatrixView numbers, float* to, int64_t row_stride) {
  for (int64_t r = 0; r < numbers.rows; ++r) {
    std::ranges::transform(numbers.row(r), to + r * row_stride,
                           [](double x) { return static_cast<float>(x); });
  }
}

}  // namespace

template <Storage T>
void store_rows(const HostRows<T>& rows, T* to) {
  const auto [numbers, bits] = rows;
  const int64_t row_stride = padded<T>(numbers.cols);
  if (bits) {
    for (int64_t r = 0; r < numbers.rows; ++r) {
      std::memcpy(static_cast<void*>(to + r * row_stride), bits + r * numbers.row_stride,
                  static_cast<size_t>(numbers.cols) * sizeof(T));
    }
  } else {
    round_rows(numbers, to, row_stride);
  }
  if (row_stride == numbers.cols) return;
  for (int64_t r = 0; r < numbers.rows; ++r) {
    std::fill(to + r * row_stride + numbers.cols, to + (r + 1) * row_stride, T{});
  }
}

template void store_rows(const HostRows<float>&, float*);
template void store_rows(const HostRows<Float16>&, Float16*);
template void store_rows(const HostRows<Bfloat16>&, Bfloat16*);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
