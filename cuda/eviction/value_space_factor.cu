// The Cholesky factors of Gram matrices in double precision: any type, any device.
#include <cmath>

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/support/shape_check.hpp>
#include <kvbound/reference/core/arithmetic.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

constexpr int kMostThreads = 256;
constexpr int kPanel = 32;  // columns that are factored at a time
static_assert(kMostThreads >= kMostHeadDim);

struct Shared {
  double* known;   // [kPanel, kPanel]: of the panel's rows, as many columns of the factor, transposed
  double* column;  // [2, kPanel]: of the panel's rows, the column that is next

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : known(memory.array<double>(kPanel * kPanel)), column(memory.array<double>(2 * kPanel)) {}
};

// A head's matrix: G on and left of the diagonal, and then the factor in its place.
struct Head {
  double* numbers;  // [size, size]
  int size;

  __device__ double* row(int number) const { return numbers + int64_t{number} * size; }
};

// A thread's row of the panel of columns that begins with `first`.
struct PanelRow {
  int row, first;
  double numbers[kPanel];

  __device__ PanelRow(const Head& head, int own, int panel, double shift) : row(own), first(panel) {
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      const int column = first + i;
      numbers[i] = row < head.size && column <= row ? head.row(row)[column] : 0;
      if (column == row) numbers[i] += shift * numbers[i];
    }
  }

  // Subtracts the products with the panel's rows of the columns that are factored.
  __device__ void subtract_known(const Head& head, const Shared& shared) {
    for (int begin = 0; begin < first; begin += kPanel) {
      __syncthreads();
      for (int n = static_cast<int>(threadIdx.x); n < kPanel * kPanel; n += static_cast<int>(blockDim.x)) {
        const int of = n / kPanel, k = n % kPanel;
        shared.known[k * kPanel + of] = first + of < head.size ? head.row(first + of)[begin + k] : 0;
      }
      __syncthreads();
      if (row < first || row >= head.size) continue;
#pragma unroll 1
      for (int k = 0; k < kPanel; ++k) {
        const double own = head.row(row)[begin + k];
#pragma unroll
        for (int i = 0; i < kPanel; ++i) numbers[i] = fma(-own, shared.known[k * kPanel + i], numbers[i]);
      }
    }
  }

  // Factors the panel: column after column is divided by the root of its pivot, and multiplied by the numbers
  // that the panel's rows have in it.
  __device__ void factor(const Shared& shared) {
#pragma unroll
    for (int j = 0; j < kPanel; ++j) {
      double* const column = shared.column + j % 2 * kPanel;
      if (row >= first && row < first + kPanel) column[row - first] = numbers[j];
      __syncthreads();
      const double pivot = column[j], inverse = pivot == 0 ? 0 : 1 / sqrt(pivot);
      numbers[j] *= inverse;
      const double by = numbers[j] * inverse;
#pragma unroll
      for (int i = j + 1; i < kPanel; ++i) numbers[i] = fma(-by, column[i], numbers[i]);
    }
  }
};

// The factor L of one head's Gram matrix, whose diagonal is increased by `shift` of itself. A thread has a
// row; the numbers of the panel's columns that rows behind it do not have are not looked at.
//
//                    columns: factored      the panel, 32
//                             +-----------+
//                             |           | .
//       the panel's 32 rows   |   L       | P .       in shared memory, 32 columns of L at a time
//                             |-----------+-----
//       rows behind them      |   L       |  P  |     P - L L^T, in registers; its own columns one by one
//                             +-----------+-----+
//
// grid       (query_heads)
// block      head_dim, rounded up to 32
// shared     8,704 bytes
// registers  106 (sm_90a), 108 (sm_80)
// bytes      read and written: 8 query_heads head_dim^2 of `gram`, mostly from the L2 cache; written:
//            4 query_heads head_dim^2
// FLOP       fp64, query_heads head_dim^3 / 3
__global__ void __launch_bounds__(kMostThreads)
    factor_kernel(double* gram, int head_dim, double shift, float* factor) {
  SharedMemory memory;
  const Shared shared(memory);
  const auto row = static_cast<int>(threadIdx.x);
  const int64_t squares = int64_t{head_dim} * head_dim;
  const Head head{gram + blockIdx.x * squares, head_dim};
  float* const to = factor + blockIdx.x * squares + int64_t{row} * head_dim;
  for (int first = 0; first < head_dim; first += kPanel) {
    PanelRow own(head, row, first, shift);
    own.subtract_known(head, shared);
    own.factor(shared);
    if (row >= head_dim) continue;
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      const int column = first + i;
      if (column >= head_dim) break;
      if (column <= row) head.row(row)[column] = own.numbers[i];
      to[column] = column <= row ? static_cast<float>(own.numbers[i]) : 0;
    }
  }
}

}  // namespace

void launch_factor(double* gram, int64_t heads, int64_t head_dim, int64_t model_dim, float* factor,
                   Stream stream) {
  launch<factor_kernel>(
      {extent(heads), extent(round_up(head_dim, int64_t{32})), shared_bytes<Shared>(), stream}, gram,
      static_cast<int>(head_dim), gram_shift(head_dim, model_dim), factor);
}

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
