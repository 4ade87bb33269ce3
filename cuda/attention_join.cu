// Attention's second kernel: combines the splits' partial results in a fixed order.
#include <kvbound/cuda/primitives/reduction.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

// A block has 64 columns of one query head's output, four for each of 16 threads, and 16 slices of the splits.
constexpr int kJoinThreads = 256;
constexpr int kJoinWarps = kJoinThreads / 32;
constexpr int kJoinColumns = 16;
static_assert(kJoinThreads == kJoinColumns * kJoinSlices);

struct JoinShared {
  float* by_warp;   // [kJoinWarps]
  float4* outputs;  // [kJoinSlices, kJoinColumns]

  __host__ __device__ explicit JoinShared(SharedMemory& memory)
      : by_warp(memory.array<float>(kJoinWarps)), outputs(memory.array<float4>(kJoinThreads)) {}
};

// The factor that rescales a split's sums from its own largest z to the largest z of all splits.
__device__ float rescaling(float largest_of_split, float largest) {
  return largest_of_split == kNothing ? 0 : expf(largest_of_split - largest);
}

__device__ float4 add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The splits of the block's query head.
struct HeadSplits {
  int64_t count;
  int64_t first,
      step;  // where the partial results of the first one lie, and how far apart those of two splits

  __device__ explicit HeadSplits(const JoinArguments& p) : step(p.partials.group_size) {
    const Splits all(p.deal, p.entries, p.kv_heads);
    const int64_t g = blockIdx.x / step;
    count = all.of_head(g);
    first = all.before_head(g) * step + blockIdx.x % step;
  }
  __device__ int64_t place(int64_t split) const { return first + split * step; }
};

// The sum over splits of rescaling * outputs, for four columns; threads 0..15 return the block's sums.
__device__ float4 join_outputs(const JoinArguments& p, const JoinShared& shared, const HeadSplits& splits,
                               float largest) {
  const int64_t column = (blockIdx.y * kJoinColumns + threadIdx.x % kJoinColumns) * 4;
  const int slice = static_cast<int>(threadIdx.x) / kJoinColumns;
  float4 sum = make_float4(0, 0, 0, 0);
  if (column < p.head_dim) {
    for (int64_t s = slice; s < splits.count; s += kJoinPart * kJoinSlices) {
      float4 part = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kJoinPart; ++i) {
        if (s + i * kJoinSlices >= splits.count) break;
        const int64_t place = splits.place(s + i * kJoinSlices);
        const float factor = rescaling(p.partials.largest[place], largest);
        const float4 four =
            *reinterpret_cast<const float4*>(p.partials.outputs + place * p.partials.row + column);
        part = add(part, make_float4(factor * four.x, factor * four.y, factor * four.z, factor * four.w));
      }
      sum = add(sum, part);
    }
  }
  shared.outputs[threadIdx.x] = sum;
  for (int half = kJoinSlices / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice < half) {
      shared.outputs[threadIdx.x] =
          add(shared.outputs[threadIdx.x], shared.outputs[threadIdx.x + half * kJoinColumns]);
    }
  }
  return shared.outputs[threadIdx.x];
}

// Combines the splits of a query head: output and log-sum-exp.
//
//                  columns 0..3     4..7    ...   60..63
//       slice  0   thread 0       thread 1  ...  thread 15     splits  0, 16, 32, ...
//       slice  1   thread 16      thread 17 ...  thread 31     splits  1, 17, 33, ...
//       ...                                                    then a tree over the 16 slices
//       slice 15   thread 240     ...            thread 255    splits 15, 31, 47, ...
//
// grid       (query_heads, ceil(head_dim / 64))
// block      256
// shared     4,128 bytes: 8 floats, 256 float4
// registers  48 (sm_90a and sm_80)
// bytes      read: (4 round_up(head_dim, 4) + 8 ceil(head_dim / 64)) for each query head and split in use, and the
//            splits' largest z again from the L1 cache; all KV heads' entries; written: 4 head_dim + 4 for each query head
// FLOP       2 head_dim for each query head and split in use, and 17 exponentials for each of them and 64 columns
__global__ void __launch_bounds__(kJoinThreads) attention_join_kernel(JoinArguments p) {
  SharedMemory memory;
  const JoinShared shared(memory);
  const int64_t head = blockIdx.x;
  const HeadSplits splits(p);
  float largest = kNothing;
  for (int64_t s = threadIdx.x; s < splits.count; s += kJoinThreads) {
    largest = fmaxf(largest, p.partials.largest[splits.place(s)]);
  }
  largest = block_max<kJoinWarps>(largest, shared.by_warp);
  float sum = 0;
  for (int64_t s = threadIdx.x; s < splits.count; s += kJoinThreads) {
    const int64_t place = splits.place(s);
    sum += rescaling(p.partials.largest[place], largest) * p.partials.sums[place];
  }
  sum = block_sum<kJoinWarps>(sum, shared.by_warp);
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    p.result.log_sum_exp[head] = sum == 0 ? kNothing : largest + logf(sum);
  }
  const float4 outputs = join_outputs(p, shared, splits, largest);
  if (threadIdx.x >= kJoinColumns) return;
  const float four[4] = {outputs.x, outputs.y, outputs.z, outputs.w};
  const int64_t column = (blockIdx.y * kJoinColumns + threadIdx.x) * 4;
  for (int i = 0; i < 4 && column + i < p.head_dim; ++i) {
    p.result.output[head * p.head_dim + column + i] = sum == 0 ? 0 : four[i] / sum;
  }
}

}  // namespace

void join_splits(const JoinArguments& arguments, Stream stream) {
  const int64_t query_heads = arguments.kv_heads * arguments.partials.group_size;
  launch<attention_join_kernel>({extent(query_heads, ceil_division(arguments.head_dim, 4 * kJoinColumns)),
                                 dim3(kJoinThreads), shared_bytes<JoinShared>(), stream},
                                arguments);
}

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
