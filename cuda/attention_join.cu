// Attention's second kernel: combines the splits' partial results in a fixed order.
#include <kvbound/cuda/primitives/reduction.hpp>

#include "attention_splits.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace attention_splits {
namespace {

// A block has 64 columns of one query's output, four for each of 16 threads, and 16 slices of the splits.
constexpr int kJoinThreads = 256;
constexpr int kJoinWarps = kJoinThreads / 32;
constexpr int kJoinColumns = 16;
static_assert(kJoinThreads == kJoinColumns * kJoinSlices);

struct JoinShared {
  float* by_warp;   // [kJoinWarps]
  int* rows;        // [kJoinWarps]: of each warp, where a query's dominant row is looked for
  float* factors;   // [kJoinThreads]: of successive splits
  float4* outputs;  // [kJoinSlices, kJoinColumns]

  __host__ __device__ explicit JoinShared(SharedMemory& memory)
      : by_warp(memory.array<float>(kJoinWarps)),
        rows(memory.array<int>(kJoinWarps)),
        factors(memory.array<float>(kJoinThreads)),
        outputs(memory.array<float4>(kJoinThreads)) {}
};

// The factor that rescales a split's sums from its own largest z to the largest z of all splits.
__device__ float rescaling(float largest_of_split, float largest) {
  return largest_of_split == kNothing ? 0 : expf(largest_of_split - largest);
}

__device__ float4 add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The splits of the block's query.
struct HeadSplits {
  int64_t count;
  int64_t first,
      step;  // where the partial results of the first one lie, and how far apart those of two splits

  __device__ explicit HeadSplits(const JoinArguments& p) : step(p.partials.group_queries) {
    const Splits all(p.deal, p.entries, p.kv_heads);
    const int64_t g = blockIdx.x / step;
    count = all.of_head(g);
    first = all.before_head(g) * step + blockIdx.x % step;
  }
  __device__ int64_t place(int64_t split) const { return first + split * step; }
};

// Adds to `sum` the outputs of splits first, first + 1, ... < end of the thread's slice, for the thread's four columns.
//
// factors  [kJoinThreads], shared memory: of these splits
__device__ float4 add_outputs(const JoinArguments& p, const HeadSplits& splits, const float* factors,
                              int64_t first, int64_t end, float4 sum) {
  const int64_t column = (blockIdx.y * kJoinColumns + threadIdx.x % kJoinColumns) * 4;
  if (column >= p.head_dim) return sum;
  for (int64_t s = first + threadIdx.x / kJoinColumns; s < end; s += kJoinPart * kJoinSlices) {
    float4 part = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kJoinPart; ++i) {
      const int64_t split = s + i * kJoinSlices;
      if (split >= end) break;
      const float factor = factors[split - first];
      const float4 four = *reinterpret_cast<const float4*>(p.partials.outputs +
                                                           splits.place(split) * p.partials.row + column);
      part = add(part, make_float4(factor * four.x, factor * four.y, factor * four.z, factor * four.w));
    }
    sum = add(sum, part);
  }
  return sum;
}

// The slices' sums, added as a tree; threads 0..15 return the block's sums.
__device__ float4 add_slices(float4 sum, float4* outputs) {
  const int slice = static_cast<int>(threadIdx.x) / kJoinColumns;
  outputs[threadIdx.x] = sum;
  for (int half = kJoinSlices / 2; half > 0; half /= 2) {
    __syncthreads();
    if (slice >= half) continue;
    const float4 other = outputs[threadIdx.x + half * kJoinColumns];
    sum = add(sum, other);
    outputs[threadIdx.x] = sum;
  }
  return sum;
}

// Writes the row that holds more than half of the query's attention, if there is one, and its logit. It can only be the row of
// the largest z, whose share is 1 / sum. The block calls it.
//
// sum  of all exp(z - largest)
__device__ void write_dominant(const JoinArguments& p, const JoinShared& shared, const HeadSplits& splits,
                               float largest, float sum) {
  int row = INT32_MAX;
  for (int64_t s = threadIdx.x; s < splits.count; s += kJoinThreads) {
    if (p.partials.largest[splits.place(s)] == largest)
      row = min(row, p.partials.largest_rows[splits.place(s)]);
  }
  row = join_block<kJoinWarps>(row, shared.rows, Smaller());
  if (threadIdx.x > 0) return;
  const int64_t query = blockIdx.x;
  const bool is_dominant = sum != 0 && sum < 2;
  p.dominants[query] = is_dominant ? row : -1;
  if (!is_dominant) return;
  const float* const logits = p.result.logits;
  p.dominant_logits[query] = logits ? logits[query * p.capacity + row] : largest;
}

// Combines the splits of a query head, or of each of its queries: output and log-sum-exp.
//
//                  columns 0..3     4..7    ...   60..63
//       slice  0   thread 0       thread 1  ...  thread 15     splits  0, 16, 32, ...
//       slice  1   thread 16      thread 17 ...  thread 31     splits  1, 17, 33, ...
//       ...                                                    then a tree over the 16 slices
//       slice 15   thread 240     ...            thread 255    splits 15, 31, 47, ...
//
// grid       (queries, ceil(head_dim / 64))
// block      256
// shared     5,184 bytes: 264 floats, 8 integers, 256 float4
// registers  98 (sm_90a), 112 (sm_80)
// bytes      read: (4 round_up(head_dim, 4) + 8 ceil(head_dim / 64)) for each query and split in use, and the splits' largest
//            z again from the L1 cache, and for dominant entries their rows; all KV heads' entries; written: 4 head_dim + 4
//            for each query, and 12 for its dominant entry
// FLOP       2 head_dim for each query and split in use, and an exponential for each of them and 64 columns
__global__ void __launch_bounds__(kJoinThreads) attention_join_kernel(JoinArguments p) {
  SharedMemory memory;
  const JoinShared shared(memory);
  const int64_t query = blockIdx.x;
  const HeadSplits splits(p);
  float largest = kNothing;
  for (int64_t s = threadIdx.x; s < splits.count; s += kJoinThreads) {
    largest = fmaxf(largest, p.partials.largest[splits.place(s)]);
  }
  largest = block_max<kJoinWarps>(largest, shared.by_warp);
  float sum = 0;
  float4 outputs = make_float4(0, 0, 0, 0);
  for (int64_t first = 0; first < splits.count; first += kJoinThreads) {
    const int64_t s = first + threadIdx.x;
    __syncthreads();  // no thread reads the previous factors any more
    if (s < splits.count) {
      const int64_t place = splits.place(s);
      const float factor = rescaling(p.partials.largest[place], largest);
      shared.factors[threadIdx.x] = factor;
      sum += factor * p.partials.sums[place];
    }
    __syncthreads();
    outputs = add_outputs(p, splits, shared.factors, first, min(first + kJoinThreads, splits.count), outputs);
  }
  sum = block_sum<kJoinWarps>(sum, shared.by_warp);
  const float log_sum_exp = sum == 0 ? kNothing : largest + logf(sum);
  if (blockIdx.y == 0 && threadIdx.x == 0) p.result.log_sum_exp[query] = log_sum_exp;
  if (blockIdx.y == 0 && p.dominants) write_dominant(p, shared, splits, largest, sum);
  outputs = add_slices(outputs, shared.outputs);
  if (threadIdx.x >= kJoinColumns) return;
  const float four[4] = {outputs.x, outputs.y, outputs.z, outputs.w};
  const int64_t column = (blockIdx.y * kJoinColumns + threadIdx.x) * 4;
  for (int i = 0; i < 4 && column + i < p.head_dim; ++i) {
    p.result.output[query * p.head_dim + column + i] = sum == 0 ? 0 : four[i] / sum;
  }
}

}  // namespace

void join_splits(const JoinArguments& arguments, Stream stream) {
  const int64_t queries = arguments.kv_heads * arguments.partials.group_queries;
  launch<attention_join_kernel>({extent(queries, ceil_division(arguments.head_dim, 4 * kJoinColumns)),
                                 dim3(kJoinThreads), shared_bytes<JoinShared>(), stream},
                                arguments);
}

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
