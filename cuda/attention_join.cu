// Attention's second kernel: combines the splits' partial results in a fixed order.
#include <kvbound/cuda/primitives/dependent_launch.hpp>
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

// The splits of the block's query, of which a thread adds those of its slice to the
// output, for its four columns.
struct HeadSplits {
  int64_t count;
  const SplitWeights* weights;
  const float* outputs;  // of the first split, from the thread's columns on
  int64_t step;          // from a split's outputs to those of the next one
  bool has_columns;

  __device__ explicit HeadSplits(const JoinArguments& p) {
    const auto group = static_cast<unsigned>(p.partials.group_queries);
    const int64_t n = blockIdx.x % group;
    const int g = static_cast<int>(blockIdx.x / group), heads = p.partials.kv_heads;
    const int segment = g / heads;
    const Splits::OfHead own = Splits(p.lengths, p.entries + segment * heads, heads).of_head(g % heads);
    const int64_t first = int64_t{segment} * p.partials.of_segment + own.before;
    count = own.count;
    weights = &p.partials.weights_of(n, first);
    step = group * p.partials.row;
    outputs = p.partials.outputs + first * step + n * p.partials.row + first_column();
    has_columns = first_column() < p.head_dim;
  }

  __device__ static int64_t first_column() {
    return (blockIdx.y * kJoinColumns + threadIdx.x % kJoinColumns) * 4;
  }
  // The first of the thread's splits.
  __device__ static int slice() { return static_cast<int>(threadIdx.x) / kJoinColumns; }
};

// The outputs of kJoinPart splits of a thread's slice, all of whose loads are begun before any is waited for.
struct Part {
  float4 outputs[kJoinPart];

  // Loads those of the splits first, first + kJoinSlices, ... that exist.
  __device__ void load(const HeadSplits& splits, int64_t first) {
#pragma unroll
    for (int i = 0; i < kJoinPart; ++i) {
      const int64_t split = first + i * kJoinSlices;
      if (splits.has_columns && split < splits.count)
        outputs[i] = *reinterpret_cast<const float4*>(splits.outputs + split * splits.step);
    }
  }

  // Their sum; factors: of the first one, kJoinSlices behind it that of the next; count: of
  // those that exist, at least 1.
  __device__ float4 sum(const float* factors, int64_t count) const {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kJoinPart; ++i) {
      if (i * kJoinSlices >= count) break;
      const float factor = factors[i * kJoinSlices];
      const float4& four = outputs[i];
      sum = add(sum, make_float4(factor * four.x, factor * four.y, factor * four.z, factor * four.w));
    }
    return sum;
  }
};

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

// Writes the row that holds more than half of the query's attention, if there is one, and its logit. It can
// only be the row of the largest z, whose share is 1 / sum. The block calls it.
//
// sum  of all exp(z - largest)
__device__ void write_dominant(const JoinArguments& p, const JoinShared& shared, const HeadSplits& splits,
                               float largest, float sum) {
  int row = INT32_MAX;
  for (int64_t s = threadIdx.x; s < splits.count; s += kJoinThreads) {
    const SplitWeights of_split = splits.weights[s];
    if (of_split.largest == largest) row = min(row, of_split.largest_row);
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

// Writes the thread's four numbers of the output, of which the last row may have fewer.
__device__ void write_output(const JoinArguments& p, const float4& outputs, float sum) {
  float four[4] = {outputs.x, outputs.y, outputs.z, outputs.w};
#pragma unroll
  for (float& number : four) number = sum == 0 ? 0 : number / sum;
  const int64_t column = HeadSplits::first_column();
  float* const to = p.result.output + blockIdx.x * p.head_dim + column;
  if (p.head_dim % 4 == 0) {
    *reinterpret_cast<float4*>(to) = make_float4(four[0], four[1], four[2], four[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (column + i < p.head_dim) to[i] = four[i];
  }
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
// registers  62 (sm_90a), 64 (sm_80)
// bytes      read: (4 round_up(head_dim, 4) + 16 ceil(head_dim / 64)) for each query and split in use,
//            and the weights of a query's splits from the 257th on and of dominant entries' queries
//            again from the L1 cache; a segment's entries; written: 4 head_dim + 4 for each query, and
//            12 for its dominant entry
// FLOP       2 head_dim for each query and split in use, and an exponential for each of them and 64 columns
__global__ void __launch_bounds__(kJoinThreads) attention_join_kernel(JoinArguments p) {
  begin_dependent_launch();
  SharedMemory memory;
  const JoinShared shared(memory);
  const int64_t query = blockIdx.x;
  const HeadSplits splits(p);
  Part part;
  part.load(splits, HeadSplits::slice());
  SplitWeights own{kNothing, 0, 0};
  if (threadIdx.x < splits.count) own = splits.weights[threadIdx.x];
  float largest = own.largest;
  for (int64_t s = threadIdx.x + kJoinThreads; s < splits.count; s += kJoinThreads) {
    const SplitWeights of_split = splits.weights[s];
    largest = fmaxf(largest, of_split.largest);
  }
  largest = block_max<kJoinWarps>(largest, shared.by_warp);
  float sum = 0;
  float4 outputs = make_float4(0, 0, 0, 0);
  for (int64_t first = 0; first < splits.count; first += kJoinThreads) {
    if (first > 0) {
      __syncthreads();  // no thread reads the previous factors any more
      if (first + threadIdx.x < splits.count) own = splits.weights[first + threadIdx.x];
    }
    if (first + threadIdx.x < splits.count) {
      const float factor = rescaling(own.largest, largest);
      shared.factors[threadIdx.x] = factor;
      sum += factor * own.sum;
    }
    __syncthreads();
    const int64_t end = min(first + kJoinThreads, splits.count);
    for (int64_t s = first + HeadSplits::slice(); s < end; s += kJoinPart * kJoinSlices) {
      outputs = add(outputs, part.sum(shared.factors + (s - first), end - s));
      part.load(splits, s + kJoinPart * kJoinSlices);
    }
  }
  sum = block_sum<kJoinWarps>(sum, shared.by_warp);
  const float log_sum_exp = sum == 0 ? kNothing : largest + logf(sum);
  if (blockIdx.y == 0 && threadIdx.x == 0) p.result.log_sum_exp[query] = log_sum_exp;
  if (blockIdx.y == 0 && p.dominants) write_dominant(p, shared, splits, largest, sum);
  outputs = add_slices(outputs, shared.outputs);
  if (threadIdx.x < kJoinColumns && splits.has_columns) write_output(p, outputs, sum);
}

}  // namespace

void join_splits(const JoinArguments& arguments, Stream stream) {
  const int64_t queries = arguments.kv_heads * arguments.partials.group_queries;
  launch_dependent<attention_join_kernel>(
      {extent(queries, ceil_division(arguments.head_dim, 4 * kJoinColumns)), dim3(kJoinThreads),
       shared_bytes<JoinShared>(), stream},
      arguments);
}

}  // namespace attention_splits
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
