// Lengths of values after W^O by mma.sync: 16-bit types, compute capability 8.0.
//
// The length of v W is that of v L, whose factor L is lower triangular: of 64 tiles of 16 x 16 numbers for
// head_dim 128 it has 36. Tensor cores multiply 16-bit numbers: a number of L is the sum of three of BF16, a
// value's number is one, or the sum of two where it is FP16. All of these sums are exact (number_parts.hpp),
// so that only the sums of products round. The smallest parts' products come first in each chain of sums.
#include <algorithm>
#include <utility>

#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/number_parts.hpp>
#include <kvbound/cuda/primitives/row_fragments.hpp>

#include "value_space_kernels.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace value_space_kernels {
namespace {

using Parts = NumberParts<Bfloat16>;

constexpr int kTile = kRowsAtOnce;  // rows, depth and, two by two, columns of a product
static_assert(kTile == kStepNumbers);

// BF16 numbers whose sum a value's number is, and tiles of 16 tokens of a warp, as many as its registers have
// room for.
template <Storage16 T>
inline constexpr int kValueParts = std::is_same_v<T, Bfloat16> ? 1 : 2;
template <Storage16 T, int kSteps>
inline constexpr int kTokenTiles = kValueParts<T>* kSteps <= 8 ? 2 : 1;

// The blocks that a multiprocessor has registers for, and their warps.
template <Storage16 T, int kSteps>
struct Block {
  static constexpr bool kIsLarge = std::is_same_v<T, Bfloat16> && kSteps == 8;
  static constexpr int kWarps = kIsLarge ? 12 : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocks = kIsLarge || kValueParts<T> * kSteps > 16 ? 1 : 2;
  static constexpr int kTokens = kWarps * kTokenTiles<T, kSteps> * kTile;
};
// Columns of L in shared memory at a time.
template <int kSteps>
inline constexpr int kSection = kSteps <= 8 ? 64 : 32;

// A section of L's parts: rows of 16-bit numbers, from one to the next an odd number of vectors of 16 bytes,
// so that ldmatrix reads the same vector of eight rows from different banks.
template <int kSteps>
struct Section {
  static constexpr int kStride = kSection<kSteps> / 8 + 1;
  static constexpr int kRows = kSteps * kTile, kSize = kRows * kStride;
  uint4* parts;  // [Parts::kCount, kRows, kStride]

  // Copies columns first.. of a head's factor, from row `first` on; zeros for rows that it does not have.
  __device__ void load(const float* factor, int first, int head_dim) const {
    constexpr int kPairs = kSection<kSteps> / 2;
    auto* const to = reinterpret_cast<uint32_t*>(parts);
    for (int n = static_cast<int>(threadIdx.x); n < (kRows - first) * kPairs;
         n += static_cast<int>(blockDim.x)) {
      const int row = first + n / kPairs, pair = n % kPairs;
      const float2 numbers =
          load_pair(factor + int64_t{row} * head_dim, first + 2 * pair, row < head_dim ? head_dim : 0);
      const Parts both(numbers.x, numbers.y);
#pragma unroll
      for (int part = 0; part < Parts::kCount; ++part)
        to[4 * (part * kSize + row * kStride) + pair] = both.pairs[part];
    }
  }

  // Where the lane's address of the first 16 x 16 numbers is, from which those of all others are constants.
  __device__ const uint4* own() const { return parts + lane() % 16 * kStride + lane() / 16; }
  // 16 x 16 numbers of a part, as two B operands of eight columns each; row and column are multiples of 16.
  __device__ static void load_tile(uint32_t (&words)[4], const uint4* own, int part, int row, int column) {
    ldmatrix_x4_trans(words, own + part * kSize + row * kStride + column / 8);
  }
};

template <Storage16 T, int kSteps>
struct Shared {
  static constexpr int kChunk = 4, kStride = 2 * kChunk + 1;  // steps at a time, vectors of a row
  Section<kSteps> section;
  uint4* rows;  // [warps, kTile, kStride]: where a warp's values become operands

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : section{memory.array<uint4>(Parts::kCount * Section<kSteps>::kSize)},
        rows(memory.array<uint4>(Block<T, kSteps>::kWarps * kTile * kStride)) {}
};

// chain += values x 16 x 16 numbers of a factor.
//
// values  of a step of each tile, as A operands
template <int kTiles, int kSteps>
__device__ __forceinline__ void add_products(const uint32_t (&values)[kTiles][kSteps][4], int step,
                                             const uint32_t (&of_factor)[4], float (&chain)[kTiles][2][4]) {
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    const uint32_t b[2] = {of_factor[i % 2 * 2], of_factor[i % 2 * 2 + 1]};
    mma_m16n8k16<Bfloat16>(chain[i / 2][i % 2], values[i / 2][step], b);
  }
}

// A warp's values as A operands.
template <Storage16 T, int kSteps>
struct Values {
  static constexpr int kTiles = kTokenTiles<T, kSteps>, kPasses = Parts::kCount + kValueParts<T> - 1;
  uint32_t words[kValueParts<T>][kTiles][kSteps][4];

  // The tokens from `first` on; zeros for those that there are not.
  __device__ Values(const TokenRows& rows, int first, int count, uint4* memory) {
    using Rows = Shared<T, kSteps>;
    constexpr int kChunks = kSteps / Rows::kChunk, kLoads = kTile / 4;  // four rows of a chunk at a time
    const int row = lane() / 8, vector = lane() % 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint4 loaded[kChunks][kLoads];  // all of them, before the first is waited for
#pragma unroll
      for (int i = 0; i < kChunks * kLoads; ++i) {
        const int token = first + tile * kTile + i % kLoads * 4 + row, of_row = i / kLoads * 8 + vector;
        loaded[i / kLoads][i % kLoads] = token < count && of_row < rows.vectors
                                             ? rows.data[token * rows.stride + of_row]
                                             : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kLoads; ++i) memory[(i * 4 + row) * Rows::kStride + vector] = loaded[chunk][i];
        __syncwarp();
#pragma unroll
        for (int step = 0; step < Rows::kChunk; ++step) {
          uint32_t own[4];
          ldmatrix_x4(own, memory + lane() % 16 * Rows::kStride + 2 * step + lane() / 16);
          put(own, tile, chunk * Rows::kChunk + step);
        }
      }
    }
  }

  // Adds the squares of 16 numbers of v L, whose columns begin at step `diagonal`, to those of tokens
  // lane / 4 + 8 r of each tile.
  //
  // own     Section::own
  // column  of the section
  __device__ __forceinline__ void add_squares(const uint4* own, int column, int diagonal,
                                              float (&squares)[kTiles][2]) const {
    float sums[kTiles][2][4] = {};
#pragma unroll
    for (int begin = diagonal / kRowChain * kRowChain; begin < kSteps; begin += kRowChain) {
      float chain[kTiles][2][4] = {};
      // The last pass has the products of the largest parts, the one before, where values have several, those
      // of their other parts with L's largest.
#pragma unroll
      for (int pass = kPasses - 1; pass >= 0; --pass) {
        const int of_factor = max(pass - kValueParts<T> + 1, 0);
        const int most = pass == 0 ? 0 : kValueParts<T> - 1,
                  least = pass > 0 && pass < kValueParts<T> ? 1 : 0;
#pragma unroll
        for (int step = max(begin, diagonal); step < begin + kRowChain; ++step) {
          uint32_t tile[4];
          Section<kSteps>::load_tile(tile, own, of_factor, step * kTile, column);
#pragma unroll
          for (int part = most; part >= least; --part) add_products<kTiles>(words[part], step, tile, chain);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) sums[i / 8][i / 4 % 2][i % 4] += chain[i / 8][i / 4 % 2][i % 4];
    }
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      float terms = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float number = sums[i / 2][n / 2][i % 2 * 2 + n % 2];
        terms = fmaf(number, number, terms);
      }
      squares[i / 2][i % 2] += terms;
    }
  }

 private:
  __device__ void put(const uint32_t (&own)[4], int tile, int step) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (kValueParts<T> == 1) {
        words[0][tile][step][w] = own[w];
      } else {
        const Parts both(to_float(T{static_cast<uint16_t>(own[w])}),
                         to_float(T{static_cast<uint16_t>(own[w] >> 16)}));
#pragma unroll
        for (int part = 0; part < kValueParts<T>; ++part) words[part][tile][step][w] = both.pairs[part];
      }
    }
  }
};
static_assert(kRowChain == 4, "steps of all instances are whole chains");

// Adds a section's part of the squares of a warp's tokens to `norms`, and takes roots if it is the last one.
template <int kNumber, Storage16 T, int kSteps>
__device__ void add_section(const Arguments<T>& p, const Shared<T, kSteps>& shared, const TokenRows& rows,
                            float* norms, int first) {
  constexpr int kTiles = kTokenTiles<T, kSteps>, kColumns = kSection<kSteps>;
  const auto head_dim = static_cast<int>(p.values.cols), count = static_cast<int>(p.values.rows);
  const Values<T, kSteps> values(rows, first, count,
                                 shared.rows + warp() * kTile * Shared<T, kSteps>::kStride);
  const uint4* const own = shared.section.own();
  float squares[kTiles][2] = {};
#pragma unroll
  for (int column = 0; column < kColumns; column += kTile) {
    if (kNumber * kColumns + column < head_dim)
      values.add_squares(own, column, (kNumber * kColumns + column) / kTile, squares);
  }
  const bool is_last = (kNumber + 1) * kColumns >= head_dim;
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    float square = squares[i / 2][i % 2];
    square += __shfl_xor_sync(kAllLanes, square, 1);
    square += __shfl_xor_sync(kAllLanes, square, 2);
    const int token = first + i / 2 * kTile + i % 2 * 8 + lane() / 4;
    if (lane() % 4 != 0 || token >= count) continue;
    if (kNumber > 0) square += norms[token];
    norms[token] = is_last ? p.length_of(square) : square;
  }
}

// The lengths of values after one query head's W^O. A block has every few tokens of a head, and sections of
// L's columns one after the other; a warp has 16 or 32 tokens at a time, and their numbers in registers.
//
//                                    64 columns of L, in shared memory as three parts
//                                    +----+----+----+----+
//       head_dim, steps of 16        | \  |    |    |    |
//                                    |....|.\..|....|....|
//       a warp's values,             |....|....|.\..|....|
//       16 x 16 at a time        x   |....|....|....|.\..|   ->  numbers of v L, 16 at a time, squared
//                                    |....|....|....|....|
//                                    +----+----+----+----+
//
// grid       (blocks of a head, query_heads), so that every multiprocessor has two; one of 8 steps of BF16
//            and 16 of FP16
// block      256; of 8 steps of BF16 384
// shared     steps 4: 46,080; 8: 73,728, of BF16 82,944; 16: 79,872 bytes
// registers  steps 4: 82, 8: 142, 16: 128 (sm_90a), 82, 140, 128 (sm_80) of BF16; 114, 126, 230 of FP16
// bytes      read: 2 head_dim for each token, query head and section, and 2 (head_dim + 64) head_dim of L for
//            each block, mostly from the L2 cache; written: 4 query_heads tokens for each section
// FLOP       3 query_heads tokens head_dim (head_dim + 16) on tensor cores, of FP16 twice as many
template <Storage16 T, int kSteps>
__global__ void __launch_bounds__(Block<T, kSteps>::kThreads, (Block<T, kSteps>::kBlocks))
    lengths_mma_kernel(Arguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<T, kSteps> shared(memory);
  const int64_t head = row_of_block();
  if (head >= p.query_heads) return;
  const auto head_dim = static_cast<int>(p.values.cols), count = static_cast<int>(p.values.rows);
  const TokenRows rows(p.values, p.kv_head_of(head));
  float* const norms = p.norms + head * p.values.rows;
  const auto with_section = [&]<int kNumber>(std::integral_constant<int, kNumber>) {
    if (kNumber * kSection<kSteps> >= head_dim) return;
    __syncthreads();  // no warp reads the section before any more
    shared.section.load(p.factor_of(head), kNumber * kSection<kSteps>, head_dim);
    __syncthreads();
    constexpr int kTokens = Block<T, kSteps>::kTokens, kOwn = kTokenTiles<T, kSteps> * kTile;
    for (int first = static_cast<int>(blockIdx.x) * kTokens + warp() * kOwn; first < count;
         first += static_cast<int>(gridDim.x) * kTokens) {
      add_section<kNumber>(p, shared, rows, norms, first);
    }
  };
  [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) {
    (with_section(std::integral_constant<int, kNumbers>()), ...);
  }
  (std::make_integer_sequence<int, kSteps * kTile / kSection<kSteps>>());
}

}  // namespace

template <Storage16 T>
void launch_lengths_mma(const Arguments<T>& arguments, Stream stream) {
  with_few_row_steps(arguments.values.cols, [&]<int kSteps>(std::integral_constant<int, kSteps>) {
    const int64_t tiles = ceil_division(arguments.values.rows, int64_t{Block<T, kSteps>::kTokens});
    const int64_t places =
        ceil_division(int64_t{device().multiprocessors} * Block<T, kSteps>::kBlocks, arguments.query_heads);
    launch_dependent<lengths_mma_kernel<T, kSteps>>(
        {extent_of_rows(std::min(tiles, places), arguments.query_heads), extent(Block<T, kSteps>::kThreads),
         shared_bytes<Shared<T, kSteps>>(), stream},
        arguments);
  });
}
template void launch_lengths_mma(const Arguments<Float16>&, Stream);
template void launch_lengths_mma(const Arguments<Bfloat16>&, Stream);

int64_t mma_product_depth(int64_t head_dim) { return ceil_division(head_dim, kRowChain * kStepNumbers); }

// Four numbers of a thread, 16 columns at a time, four lanes, sections.
int64_t mma_square_depth(int64_t head_dim) {
  return 4 + ceil_division(head_dim, kTile) + 2 + ceil_division(head_dim, kSection<16>);
}

// reference/bounds/obcache_errors.md, "Lengths".
double mma_product_sums(int64_t head_dim) {
  const double of_chain = static_cast<double>(row_product_chain(head_dim)) * kChainedTensorSums;
  return of_chain * (1 + of_chain) * (1 + 0x1p-4);
}

}  // namespace value_space_kernels
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
