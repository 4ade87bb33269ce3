// Projected value norms by mma.sync: 16-bit types, head_dim a multiple of 16, compute capability 8.0.
//
// A warp has its tokens' values in registers, as the A operand, for all query heads of its block. W^O is
// copied to shared memory 64 columns at a time, in three stages, and every warp of the block multiplies by
// every stage. The projected values exist only in registers.
//
// The tensor cores accumulate the products of kChain steps of 16; these sums are added in single precision. A
// longer chain takes fewer additions, and has a wider error bound (reference/bounds/error_bounds.md, "The
// model"). Of the main loop for head_dim 128, instructions for 32 HMMA, of them FADD, and the bound of a
// projected value in units of 2^-24 of the sum of its products' absolute values, where nothing is known of
// running sums (sm_80 and sm_90a are alike):
//
//     chain   instructions   FADD   bound
//       1         178         128      42
//       2          -           -       76   spills with 168 registers, those of three blocks
//       4          82          32     146
//       8          66          16     289
//
// 32 HMMA keep the tensor cores of a multiprocessor's partition busy for 256 cycles (sm_80) or 128 (sm_90, if
// they ran at wgmma's rate), and a partition issues an instruction a cycle. So 4 is the shortest chain that
// fits and leaves the rate to the tensor cores. With the running sums' own norms, which the bound of a norm
// uses, 4 costs little: the median of bound over error in parity tests is 440 to 830, as it was for 1.
#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/dependent_launch.hpp>
#include <kvbound/cuda/primitives/tensor_core.hpp>

#include "critical_kv_norms.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace critical_kv_norms {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 3;
constexpr int kTile = 16;  // tokens, columns and depth of the tensor cores' tiles, taken two by two
constexpr int kChain = 4;  // steps of 16 that the tensor cores accumulate
constexpr int kChunk = 8;  // 16-bit numbers in 16 bytes
constexpr int kChunks = kColumns / kChunk;       // of a row of a stage
constexpr int kRowsAtOnce = kThreads / kChunks;  // copied by a block in one iteration
static_assert(kRowsAtOnce % 8 == 0, "a thread's chunk is permuted in the same way in all its rows");
static_assert(kChunks == 8, "eight rows' chunks of the same column lie in different banks");

// kSteps: the tiles of 16 that head_dim is padded to with zeros. A warp has 32 tokens
// for up to 8 steps, else 16.
template <int kSteps>
inline constexpr int kTokenTiles = kSteps <= 8 ? 2 : 1;
template <int kSteps>
inline constexpr int kStageSize = kSteps* kTile* kColumns;

template <int kSteps>
struct Shared {
  uint16_t* stages;  // [kStages, kSteps * kTile, kColumns], a row's chunks permuted by swizzled

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : stages(memory.array<uint16_t>(kStages * kStageSize<kSteps>)) {}
};

// The place of a row's chunk in a stage: ldmatrix reads one chunk of eight rows at a
// time, without bank conflicts.
__device__ int swizzled(int row, int chunk) { return (row * kChunks + (chunk ^ (row % 8))) * kChunk; }

__host__ __device__ int stages_of(int64_t model_dim) {
  return static_cast<int>(ceil_division(model_dim, kColumns));
}

// Starts the copy of the n-th stage, counted over all heads of the block, if it exists; zeros outside W^O.
template <int kSteps, Storage T>
__device__ void load_stage(const Arguments<T>& p, const Heads& heads, int n, uint16_t* stages) {
  const DeviceTensor<const T>& projection = p.output_projection;
  const int stages_per_head = stages_of(projection.cols);
  if (n < heads.count * stages_per_head) {
    const int64_t column = static_cast<int64_t>(n % stages_per_head) * kColumns;
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int first_row = static_cast<int>(threadIdx.x) / kChunks;
    const bool column_inside = column + chunk * kChunk < projection.cols;
    const T* from = projection.data + (heads.first + n / stages_per_head) * projection.slice_stride +
                    first_row * projection.row_stride + column + chunk * kChunk;
    uint16_t* to = stages + n % kStages * kStageSize<kSteps> + swizzled(first_row, chunk);
    for (int row = first_row; row < kSteps * kTile; row += kRowsAtOnce) {
      const bool inside = column_inside && row < projection.rows;
      async_copy16(to, inside ? from : projection.data, inside ? 16 : 0);
      from += kRowsAtOnce * projection.row_stride;
      to += kRowsAtOnce * kColumns;
    }
  }
  async_commit();
}

// A warp's values as the A operands of m16n8k16: lane l has rows l / 4 and l / 4 + 8 of a
// tile, two numbers at a time.
template <int kSteps>
struct Values {
  uint32_t fragments[kTokenTiles<kSteps>][kSteps][4];

  template <Storage T>
  __device__ Values(const DeviceTensor<const T>& values, int64_t g, int64_t first_token) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles<kSteps>; ++tile) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t token = first_token + tile * kTile + lane() / 4 + i % 2 * 8;
          const int dim = step * kTile + lane() % 4 * 2 + i / 2 * 8;
          const T* from = values.data + g * values.slice_stride + token * values.row_stride + dim;
          const bool inside = token < values.rows && dim < values.cols;
          fragments[tile][step][i] = inside ? *reinterpret_cast<const uint32_t*>(from) : 0;
        }
      }
    }
  }
};

// projected[tile][half] += the products of kChain steps, or = for the first ones: of a warp's tokens and 16
// columns of a stage, at whose row lane % 16 and unit `columns` points.
template <Storage T, int kSteps>
__device__ void add_chain(float (&projected)[kTokenTiles<kSteps>][2][4], const uint16_t* columns,
                          const Values<kSteps>& values, int first_step) {
  float chain[kTokenTiles<kSteps>][2][4] = {};
#pragma unroll
  for (int step = first_step; step < first_step + kChain; ++step) {
    uint32_t b[4];  // 16 rows of W^O by twice 8 columns
    ldmatrix_x4_trans(b, columns + step * kTile * kColumns);
    const uint32_t left[2] = {b[0], b[1]};
    const uint32_t right[2] = {b[2], b[3]};
#pragma unroll
    for (int tile = 0; tile < kTokenTiles<kSteps>; ++tile) {
      mma_m16n8k16<T>(chain[tile][0], values.fragments[tile][step], left);
      mma_m16n8k16<T>(chain[tile][1], values.fragments[tile][step], right);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTokenTiles<kSteps>; ++tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& sum = projected[tile][i / 4][i % 4];
      sum = first_step == 0 ? chain[tile][i / 4][i % 4] : sum + chain[tile][i / 4][i % 4];
    }
  }
}

// Adds one stage's terms to sums[tile][half], of the tokens lane / 4 + 8 half of a tile.
template <Storage T, int kSteps>
__device__ void add_stage(const uint16_t* stage, const Values<kSteps>& values,
                          float (&sums)[kTokenTiles<kSteps>][2]) {
  float stage_sums[kTokenTiles<kSteps>][2] = {};
#pragma unroll 1  // unrolled, the addresses of all pairs would take too many registers
  for (int pair = 0; pair < kColumns / kTile; ++pair) {
    const uint16_t* const columns = stage + swizzled(lane() % 16, pair * 2 + lane() / 16);
    float projected[kTokenTiles<kSteps>][2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; step += kChain) add_chain<T>(projected, columns, values, step);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles<kSteps>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&c)[2][4] = projected[tile];
        stage_sums[tile][half] += (fabsf(c[0][2 * half]) + fabsf(c[0][2 * half + 1])) +
                                  (fabsf(c[1][2 * half]) + fabsf(c[1][2 * half + 1]));
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTokenTiles<kSteps>; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[tile][half] += stage_sums[tile][half];
  }
}

// Adds the sums of the four lanes that share a token and writes its norm.
template <int kTiles>
__device__ void write_norms(const float (&sums)[kTiles][2], int64_t first_token, int64_t tokens,
                            float* norms) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums[tile][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int64_t token = first_token + tile * kTile + lane() / 4 + half * 8;
      if (lane() % 4 == 0 && token < tokens) norms[token] = sum;
    }
  }
}

// The norms of 128 tokens' projected values, for the query heads of a block; 16 tokens a warp
// for kSteps 16, not drawn.
//
//                                       W^O of a head, a stage: 64 columns, 3 stages in shared memory
//                                       +------+------+------+------+
//                                       |  16  |  16  |  16  |  16  |  head_dim, in kSteps steps of 16
//                                       +------+------+------+------+
//       values, in registers            +------+------+------+------+
//       warp 0: 32 tokens, head_dim     |      |      |      |      |
//       warp 1: 32 tokens, head_dim     |   projected values, in    |  -> the sums of the absolute values, in
//       warp 2: 32 tokens, head_dim     |   registers, 32 x 16 at   |     registers, over all columns
//       warp 3: 32 tokens, head_dim     |   a time                  |
//                                       +------+------+------+------+
//
// grid       (ceil(tokens / 128), kv_heads * ceil(group / heads_per_block)): launch_blocks;
//            tokens / 64 for kSteps 16
// block      128
// shared     6,144 kSteps bytes: 24,576, 49,152 or 98,304 for kSteps 4, 8 and 16
// registers  kSteps 4: 118-120, 8 and 16: 164 (sm_90a and sm_80)
// bytes      read: the values once for each block of their group; 2 head_dim model_dim of W^O for each query
//            head and block along x, mostly from the L2 cache; written: 4 query_heads tokens
// FLOP       2 query_heads tokens (16 kSteps) model_dim on tensor cores; kSteps / kChain + 1 on fp32 units
//            for each of the query_heads tokens model_dim projected values
template <int kSteps, Storage T>
__global__ void __launch_bounds__(kThreads, 3) norms_mma_kernel(Arguments<T> p) {
  begin_dependent_launch();
  SharedMemory memory;
  const Shared<kSteps> shared(memory);
  const Heads heads(p, row_of_block());
  if (heads.kv_head >= p.values.slices) return;
  constexpr int kTiles = kTokenTiles<kSteps>;
  const int64_t first_token = (static_cast<int64_t>(blockIdx.x) * kWarps + warp()) * (kTiles * kTile);
  const int stages_per_head = stages_of(p.output_projection.cols);
  for (int n = 0; n < kStages - 1; ++n) load_stage<kSteps>(p, heads, n, shared.stages);
  const Values<kSteps> values(p.values, heads.kv_head, first_token);
  int n = 0;
  for (int64_t head = heads.first; head < heads.first + heads.count; ++head) {
    float sums[kTiles][2] = {};
    for (int s = 0; s < stages_per_head; ++s, ++n) {
      async_wait<kStages - 2>();
      __syncthreads();  // all threads see stage n, and none reads the stage that is filled next
      load_stage<kSteps>(p, heads, n + kStages - 1, shared.stages);
      if (first_token >= p.tokens()) continue;
      add_stage<T>(shared.stages + n % kStages * kStageSize<kSteps>, values, sums);
    }
    write_norms(sums, first_token, p.tokens(), p.norms + head * p.tokens());
  }
}

template <int kSteps, Storage T>
void launch_kernel(const Arguments<T>& arguments, Stream stream) {
  constexpr int64_t kTokens = kWarps * kTile * kTokenTiles<kSteps>;
  launch_blocks<norms_mma_kernel<kSteps, T>>(arguments, kTokens, kThreads, shared_bytes<Shared<kSteps>>(),
                                             stream);
}

}  // namespace

template <Storage T>
void launch_mma(const Arguments<T>& arguments, Stream stream) {
  const int64_t head_dim = arguments.values.cols;
  if (head_dim <= 4 * kTile) {
    launch_kernel<4>(arguments, stream);
  } else if (head_dim <= 8 * kTile) {
    launch_kernel<8>(arguments, stream);
  } else {
    launch_kernel<16>(arguments, stream);
  }
}
template void launch_mma(const Arguments<Float16>&, Stream);
template void launch_mma(const Arguments<Bfloat16>&, Stream);

bool mma_can(int64_t head_dim) { return head_dim % kTile == 0 && device().compute_capability >= 80; }

// 4 terms are added by a tree, then 4 such sums of a stage, then the stages in order, then 4 lanes by a tree.
int64_t mma_accumulation_depth(int64_t model_dim) { return 2 + 4 + stages_of(model_dim) + 2; }

int64_t mma_product_depth(int64_t head_dim) { return ceil_division(head_dim, kChain * kTile) - 1; }

int64_t mma_tensor_chain() { return kChain; }

}  // namespace critical_kv_norms
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
