// The numbers that the kernels of select_greedy share, all in double precision and in device memory.
#pragma once

#include <kvbound/cuda/primitives/kernel.hpp>
#include <kvbound/cuda/primitives/reduction.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace greedy_state {

/// How many of each there are.
struct Sizes {
  int64_t kv_heads = 0;
  int64_t rows = 0;  ///< window queries of a KV head's group
  int64_t window = 0;
  int64_t tokens = 0;
  int64_t candidates = 0;
  int64_t head_dim = 0;

  int64_t all_rows() const { return kv_heads * rows; }
};

/// For one query i, over the members of a set of entries, with o its output over all entries and B the
/// softmax over the entries that were members when the sums were formed:
///
///     change = sum_members B_j (v_j - o),   mass = sum_members B_j
///     output over the members - o = change / mass
struct Members {
  double* log_sum_exp;  ///< [rows]
  double* mass;         ///< [rows]
  double* change;       ///< [rows, head_dim]
};

/// The state of all KV heads; a kernel's block uses that of one, `of`.
struct State {
  Sizes sizes;
  double* values;           ///< [tokens, head_dim]: minus their mean
  double* logits;           ///< [rows, tokens]: -infinity for tokens in a query's future
  double* outputs;          ///< o [rows, head_dim], over all entries
  Members all;              ///< over all remaining entries
  Members others;           ///< without the dominant entry, where there is one
  double* along;            ///< [rows]: change . o
  double* length;           ///< [rows]: change . change
  double* weights;          ///< B [rows, candidates]
  double* distances;        ///< ||v_j - o||^2 [rows, candidates]
  double* output_products;  ///< o . v_j [rows, candidates]
  double* change_products;  ///< change . v_j [rows, candidates]
  double* value_products;   ///< v_x . v_j [candidates], for the entry x that is removed
  int64_t* dominant;        ///< [rows]: the candidate that holds more than half of what is left; -1: none
  uint8_t* left;            ///< [candidates]: 1 if it has not been removed

  /// Counts bytes if memory is null.
  State(const Sizes& all_sizes, void* memory) : sizes(all_sizes), next_(static_cast<unsigned char*>(memory)) {
    const int64_t heads = sizes.kv_heads, rows = sizes.all_rows(), dim = sizes.head_dim;
    const int64_t products = rows * sizes.candidates;
    values = take<double>(heads * sizes.tokens * dim);
    logits = take<double>(rows * sizes.tokens);
    outputs = take<double>(rows * dim);
    for (Members* members : {&all, &others}) {
      *members = {take<double>(rows), take<double>(rows), take<double>(rows * dim)};
    }
    along = take<double>(rows);
    length = take<double>(rows);
    for (double** matrix : {&weights, &distances, &output_products, &change_products}) {
      *matrix = take<double>(products);
    }
    value_products = take<double>(heads * sizes.candidates);
    dominant = take<int64_t>(rows);
    left = take<uint8_t>(heads * sizes.candidates);
  }
  int64_t bytes() const { return bytes_; }

  /// The part of one KV head.
  __device__ State of(int64_t g) const {
    State own = *this;
    const int64_t row = g * sizes.rows, product = row * sizes.candidates, dim = sizes.head_dim;
    own.values += g * sizes.tokens * dim;
    own.logits += row * sizes.tokens;
    own.outputs += row * dim;
    for (Members* members : {&own.all, &own.others}) {
      members->log_sum_exp += row;
      members->mass += row;
      members->change += row * dim;
    }
    own.along += row;
    own.length += row;
    own.weights += product;
    own.distances += product;
    own.output_products += product;
    own.change_products += product;
    own.value_products += g * sizes.candidates;
    own.dominant += row;
    own.left += g * sizes.candidates;
    return own;
  }

 private:
  template <class Number>
  Number* take(int64_t count) {
    Number* const memory = next_ ? reinterpret_cast<Number*>(next_ + bytes_) : nullptr;
    bytes_ += round_up(count * static_cast<int64_t>(sizeof(Number)), 16);
    return memory;
  }

  unsigned char* next_;
  int64_t bytes_ = 0;
};

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr double kNone = -std::numeric_limits<double>::infinity();

/// Shared memory of a block.
struct Shared {
  double* by_warp;  ///< [kWarps]
  double* columns;  ///< [kThreads]
  int64_t* chosen;  ///< [kWarps]

  __host__ __device__ explicit Shared(SharedMemory& memory)
      : by_warp(memory.array<double>(kWarps)),
        columns(memory.array<double>(kThreads)),
        chosen(memory.array<int64_t>(kWarps)) {}
};

__device__ inline double product(const double* one, const double* other, int64_t count) {
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += one[c] * other[c];
  return sum;
}

/// Forms the sums of query i over the members. All threads call it; the sums are there
/// behind the next barrier.
///
/// member  whether the entry at a position is one
template <class Member>
__device__ void gather(const State& s, int64_t i, const Member& member, const Members& to,
                       const Shared& shared) {
  const double* logits = s.logits + i * s.sizes.tokens;
  double largest = kNone;
  for (int64_t j = threadIdx.x; j < s.sizes.tokens; j += kThreads) {
    if (member(j)) largest = max(largest, logits[j]);
  }
  largest = block_max<kWarps>(largest, shared.by_warp);
  double sum = 0;
  for (int64_t j = threadIdx.x; j < s.sizes.tokens; j += kThreads) {
    if (member(j)) sum += exp(logits[j] - largest);
  }
  sum = block_sum<kWarps>(sum, shared.by_warp);
  const double log_sum = largest + log(sum);
  double mass = 0;
  for (int64_t j = threadIdx.x; j < s.sizes.tokens; j += kThreads) {
    if (member(j)) mass += exp(logits[j] - log_sum);
  }
  mass = block_sum<kWarps>(mass, shared.by_warp);
  if (threadIdx.x == 0) to.log_sum_exp[i] = log_sum, to.mass[i] = mass;
  // A column's tokens are distributed to the threads that have it; the first of them adds their sums.
  const auto lanes = static_cast<int>(kThreads / s.sizes.head_dim);
  const auto column = static_cast<int64_t>(threadIdx.x) % s.sizes.head_dim;
  const auto first = static_cast<int64_t>(threadIdx.x) / s.sizes.head_dim;
  double part = 0;
  if (first < lanes) {
    const double output = s.outputs[i * s.sizes.head_dim + column];
    for (int64_t j = first; j < s.sizes.tokens; j += lanes) {
      if (member(j)) part += exp(logits[j] - log_sum) * (s.values[j * s.sizes.head_dim + column] - output);
    }
  }
  shared.columns[threadIdx.x] = part;
  __syncthreads();
  if (first > 0) return;
  for (int l = 1; l < lanes; ++l) part += shared.columns[l * s.sizes.head_dim + column];
  to.change[i * s.sizes.head_dim + column] = part;
}

}  // namespace greedy_state
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
