// Squared lengths after W^O by mma.sync: 16-bit types, compute capability 8.0.
//
// Tensor cores multiply 16-bit numbers: a number of G is the sum of three of BF16, a value's number is one,
// or the sum of two where it is FP16. All of these sums are exact (number_parts.hpp), so that only the sums
// of products round. Since G is symmetric, a squared length is
//
//     v G v = 2 sum_c v_c (sum of v_k G_ck over the tiles left of c's tile on the diagonal
//                          + half of the one over that tile)
//
// which takes 36 of the 64 tiles of 16 x 16 for head_dim 128.
#include <algorithm>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/number_parts.hpp>

#include "gram_rows.hpp"
#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

using Parts = NumberParts<Bfloat16>;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kSection = 64;  // rows of G in shared memory at a time

// BF16 numbers whose sum a value's number is, and tiles of 16 tokens of a warp, as many as its
// registers have room for.
template <Storage16 T>
inline constexpr int kValueParts = std::is_same_v<T, Bfloat16> ? 1 : 2;
template <Storage16 T, int kSteps>
inline constexpr int kTokenTiles = kValueParts<T>* kSteps <= 8 ? 2 : 1;
template <Storage16 T, int kSteps>
inline constexpr int kBlockTokens = kWarps* kTokenTiles<T, kSteps>* kTile;

template <Storage16 T, int kSteps>
struct Shared {
  static constexpr int kRows = std::max(kBlockTokens<T, kSteps>, Parts::kCount* kSection);
  // [kRows, stride]: the block's values, and then a section of G: [Parts::kCount, kSection, stride]
  uint4* rows;

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : rows(memory.array<uint4>(kRows * PaddedRows<kSteps>::kStride)) {}
};

// A warp's values as A operands.
template <Storage16 T, int kSteps>
struct Values {
  static constexpr int kTiles = kTokenTiles<T, kSteps>;
  RowTile parts[kValueParts<T>][kTiles][kSteps];

  __device__ explicit Values(const uint4* rows) {
#pragma unroll
    for (int i = 0; i < kTiles * kSteps; ++i) {
      const int tile = i / kSteps, step = i % kSteps;
      const RowTile own = RowTile::load<kSteps>(rows + tile * kTile * PaddedRows<kSteps>::kStride, 2 * step);
      if constexpr (kValueParts<T> == 1) {
        parts[0][tile][step] = own;
      } else {
        split(own, tile, step);
      }
    }
  }

  // The values' numbers behind word w of a fragment.
  __device__ float2 pair(int tile, int step, int w) const {
    float2 sum{0, 0};
#pragma unroll
    for (int part = kValueParts<T> - 1; part >= 0; --part) {
      const uint32_t word = parts[part][tile][step].words[w];
      sum.x += to_float(Bfloat16{static_cast<uint16_t>(word)});
      sum.y += to_float(Bfloat16{static_cast<uint16_t>(word >> 16)});
    }
    return sum;
  }

 private:
  __device__ void split(const RowTile& own, int tile, int step) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t word = own.words[w];
      const Parts both(to_float(T{static_cast<uint16_t>(word)}),
                       to_float(T{static_cast<uint16_t>(word >> 16)}));
#pragma unroll
      for (int part = 0; part < kValueParts<T>; ++part) parts[part][tile][step].words[w] = both.pairs[part];
    }
  }
};

// Copies rows first..first + 63 of a head's G to shared memory, in parts: of each the tiles up to the
// diagonal, of that on it half.
template <int kSteps>
__device__ void load_section(const float* gram, int first, int head_dim, uint4* rows) {
  constexpr int kWords = 4 * PaddedRows<kSteps>::kStride;
  auto* const to = reinterpret_cast<uint32_t*>(rows);
  const int pairs = min(first + kSection, kSteps * kTile) / 2;
#pragma unroll 4
  for (int row = warp(); row < kSection; row += kWarps) {
    const int own = first + row < head_dim ? head_dim : 0;
    for (int n = lane(); n < pairs; n += 32) {
      const float2 pair = load_pair(gram + (first + row) * head_dim, 2 * n, own);
      const float factor = 2 * n / kTile == (first + row) / kTile ? 0.5f : 1;
      const Parts both(factor * pair.x, factor * pair.y);
#pragma unroll
      for (int part = 0; part < Parts::kCount; ++part)
        to[(part * kSection + row) * kWords + n] = both.pairs[part];
    }
  }
}

// The sums over 16 columns c of v_c times the sums of v_k G_ck, of a warp's tokens.
template <Storage16 T, int kSteps>
struct ColumnSums {
  static constexpr int kTiles = kTokenTiles<T, kSteps>;
  float largest[kTiles][2][4] = {};  // of the largest parts' products: the sums of chains
  float chain[kTiles][2][4] = {};
  float smaller[kTiles][2][4] = {};  // of all other parts' products

  // Adds the products of 16 numbers of the values with those of G's rows; `rows` are
  // 16 columns of G's part 0.
  __device__ void add(const Values<T, kSteps>& values, const uint4* rows, int step) {
#pragma unroll
    for (int part = Parts::kCount - 1; part >= 0; --part) {
      const RowTile by =
          RowTile::load<kSteps>(rows + part * kSection * PaddedRows<kSteps>::kStride, 2 * step);
#pragma unroll
      for (int i = kTiles * kValueParts<T> - 1; i >= 0; --i) {
        const int tile = i % kTiles, of = i / kTiles;
        values.parts[of][tile][step].template add_product<Bfloat16>(
            part + of == 0 ? chain[tile] : smaller[tile], by);
      }
    }
    if (step % kRowChain == kRowChain - 1) end_chain();
  }
  __device__ void end_chain() {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) {
      float& sum = chain[i / 8][i / 4 % 2][i % 4];
      largest[i / 8][i / 4 % 2][i % 4] += sum;
      sum = 0;
    }
  }
  // Adds the columns' terms to the squares of tokens lane / 4 + 8 r of each tile; the columns are
  // numbers 16 step.. of values.
  __device__ void add_terms(const Values<T, kSteps>& values, int step, float (&squares)[kTiles][2]) const {
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const int tile = i / 2, r = i % 2;
      float terms = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 value = values.pair(tile, step, r + 2 * half);
        terms = fmaf(value.x, product(tile, half, 2 * r), terms);
        terms = fmaf(value.y, product(tile, half, 2 * r + 1), terms);
      }
      squares[tile][r] += terms;
    }
  }

 private:
  __device__ float product(int tile, int half, int i) const {
    return largest[tile][half][i] + chain[tile][half][i] + smaller[tile][half][i];
  }
};

// Adds to the squares what 16 columns give, up to whose tile on the diagonal, number `last` of
// kSteps, values are multiplied.
template <Storage16 T, int kSteps>
__device__ void add_columns(const Values<T, kSteps>& values, const uint4* rows, int last,
                            float (&squares)[kTokenTiles<T, kSteps>][2]) {
  ColumnSums<T, kSteps> sums;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    sums.add(values, rows, step);
    if (step == last) {
      sums.add_terms(values, step, squares);
      return;
    }
  }
}

// The squared lengths of a block's tokens after one query head's W^O: a warp has the values of 16 or 32
// tokens in registers, and G passes through shared memory in sections of 64 rows, of which tensor cores take
// the tiles up to the diagonal.
//
//                                   G, in three parts: rows c
//                                   +---+
//                                   |1/2|             v_k G_ck, in registers
//                                   +---+---+
//       values, in registers        |   |1/2|         times v_c, summed over c
//       +---+---+---+---+           +---+---+---+
//       | 16| 16| 16| ..|           |   |   |1/2|     a section: 64 rows, four tiles
//       +---+---+---+---+           +---+---+---+---+
//       head_dim, kSteps tiles      |   |   |   |1/2|
//                                   +---+---+---+---+
//
// grid       (ceil(tokens / block's tokens), query_heads): 256 tokens, 128 for FP16 and
//            kSteps 8 and for kSteps 16
// block      256
// shared     kSteps 4: 36,864, 8: 69,632 (BF16), 52,224 (FP16), 16: 101,376
// registers  kSteps 4, 8, 16: 118, 152, 121 of BF16, 202, 160, 249 of FP16 (sm_90a; within 5 on sm_80)
// bytes      read: 2 head_dim for each token and query head, 2 to 4 head_dim^2 of G for each block, mostly
//            from the L2 cache; written: 4 query_heads tokens
// FLOP       on tensor cores 3 query_heads tokens d (d + 16) for BF16, d = 16 kSteps, twice as many for FP16
template <Storage16 T, int kSteps>
__global__ void __launch_bounds__(kThreads) squares_mma_kernel(Arguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<T, kSteps> shared(memory);
  constexpr int kStride = PaddedRows<kSteps>::kStride, kTiles = kTokenTiles<T, kSteps>;
  const int64_t head = row_of_block(), block = static_cast<int64_t>(blockIdx.x) * kBlockTokens<T, kSteps>;
  if (head >= p.query_heads) return;
  const auto count = static_cast<int>(min(p.values.rows - block, int64_t{kBlockTokens<T, kSteps>}));
  const auto head_dim = static_cast<int>(p.values.cols);
  const int first = warp() * kTiles * kTile;
  typename PaddedRows<kSteps>::Share(TokenRows(p.values, p.kv_head_of(head)), block)
      .copy(0, count, shared.rows);
  async_commit();
  async_wait<0>();
  __syncthreads();
  const Values<T, kSteps> values(shared.rows + first * kStride);
  const float* const gram = p.gram + head * head_dim * head_dim;
  float squares[kTiles][2] = {};
  for (int section = 0; section < head_dim; section += kSection) {
    __syncthreads();  // no warp reads the values or the section before any more
    load_section<kSteps>(gram, section, head_dim, shared.rows);
    __syncthreads();
    if (first >= count) continue;
#pragma unroll 1
    for (int row = 0; row < min(kSection, head_dim - section); row += kTile)
      add_columns(values, shared.rows + row * kStride, (section + row) / kTile, squares);
  }
  float* const norms = p.norms + head * p.values.rows + block;
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    float& square = squares[i / 2][i % 2];
    square += __shfl_xor_sync(kAllLanes, square, 1);
    square += __shfl_xor_sync(kAllLanes, square, 2);
    const int token = first + i / 2 * kTile + i % 2 * 8 + lane() / 4;
    if (lane() % 4 == 0 && token < count) norms[token] = gram_rows::not_negative(2 * square);
  }
}

}  // namespace

template <Storage16 T>
void launch_squares_mma(const Arguments<T>& arguments, Stream stream) {
  with_few_row_steps(arguments.values.cols, [&]<int kSteps>(std::integral_constant<int, kSteps>) {
    launch_dependent<squares_mma_kernel<T, kSteps>>(
        {extent_of_rows(ceil_division(arguments.values.rows, int64_t{kBlockTokens<T, kSteps>}),
                        arguments.query_heads),
         extent(kThreads), shared_bytes<Shared<T, kSteps>>(), stream},
        arguments);
  });
}
template void launch_squares_mma(const Arguments<Float16>&, Stream);
template void launch_squares_mma(const Arguments<Bfloat16>&, Stream);

// The chains of the largest parts and the sum of the others; four columns' terms, tiles
// of 16 columns, four lanes.
int64_t mma_square_depth(int64_t head_dim) {
  return ceil_division(head_dim, kRowChain * kStepNumbers) + 1 + 3 + ceil_division(head_dim, kTile) + 2;
}

// As output_product_sums: the smaller parts' terms are 2^-8 (1 + 2^-5) of all at most, in a
// chain of 80 sums at most.
double mma_square_sums(int64_t head_dim) {
  const double of_chain = static_cast<double>(row_product_chain(head_dim)) * kChainedTensorSums;
  return of_chain * (1 + of_chain) * (1 + 0x3p-4);
}

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
