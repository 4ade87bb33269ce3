#include "greedy_removal.hpp"

#include <kvbound/cuda/primitives/kernel.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace greedy_removal {
namespace {

using namespace greedy_state;

// The removals of one KV head, as one of the block's threads sees them. Sums that have lost more than half of
// their mass are formed anew before they are used.
struct Removal {
  const State& s;
  const Shared& shared;
  int* status;

  __device__ int64_t candidates() const { return s.sizes.candidates; }
  __device__ int64_t rows() const { return s.sizes.rows; }
  __device__ int64_t dim() const { return s.sizes.head_dim; }
  __device__ bool is_left(int64_t j) const { return j >= candidates() || s.left[j] != 0; }

  // The candidate of query i that holds more than half of what is left; -1: none. The whole warp calls it.
  __device__ int64_t dominant_of(int64_t i) const {
    double most = kNone;
    int64_t at = -1;
    for (int64_t j = lane(); j < candidates(); j += 32) {
      if (s.left[j] == 0 || !(s.weights[i * candidates() + j] > most)) continue;
      most = s.weights[i * candidates() + j];
      at = j;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, most, distance);
      const int64_t place = __shfl_xor_sync(kAllLanes, at, distance);
      if (other > most || (other == most && place < at)) most = other, at = place;
    }
    return most > s.all.mass[i] / 2 ? at : -1;
  }

  // Finds every query's dominant candidate, and forms the sums without it where it is another than before.
  __device__ void find_dominants() const {
    for (int64_t first = 0; first < rows(); first += kWarps) {
      const int64_t own = first + warp();
      const int64_t found = own < rows() ? dominant_of(own) : -1;
      if (lane() == 0) shared.chosen[warp()] = found;
      __syncthreads();
      for (int64_t i = first; i < min(first + kWarps, rows()); ++i) {
        const int64_t dominant = shared.chosen[i - first];
        if (dominant >= 0 && dominant != s.dominant[i]) {
          gather(
              s, i, [&](int64_t j) { return j != dominant && is_left(j); }, s.others, shared);
        }
        __syncthreads();  // all threads have read the dominant candidate of before
        if (threadIdx.x == 0) s.dominant[i] = dominant;
      }
      __syncthreads();
    }
  }

  // The sum over queries of ||o' - o||^2 if candidate j is removed next.
  __device__ double error_without(int64_t j) const {
    double error = 0;
    for (int64_t i = 0; i < rows(); ++i) {
      if (s.dominant[i] == j) {
        const double* change = s.others.change + i * dim();
        error += product(change, change, dim()) / (s.others.mass[i] * s.others.mass[i]);
        continue;
      }
      const int64_t place = i * candidates() + j;
      const double weight = s.weights[place], rest = s.all.mass[i] - weight;
      const double norm =
          s.length[i] - weight * (2 * (s.change_products[place] - s.along[i]) - weight * s.distances[place]);
      error += (norm < 0 ? 0 : norm) / (rest * rest);
    }
    return error;
  }

  // The candidate whose removal gives the smallest error; ties: the larger position. All threads call it.
  __device__ int64_t next() const {
    double least = -kNone;
    int64_t at = -1;
    for (int64_t j = threadIdx.x; j < candidates(); j += kThreads) {
      if (s.left[j] == 0) continue;
      double error = error_without(j);
      if (error != error) {
        *status = 1;     // several threads may write, all of them 1
        error = -kNone;  // so that all threads agree on which candidate is next
      }
      if (at < 0 || error <= least) least = error, at = j;
    }
    const auto join = [](double& one, int64_t& place, double other, int64_t other_place) {
      const bool better =
          other_place >= 0 && (place < 0 || other < one || (other == one && other_place > place));
      if (better) one = other, place = other_place;
    };
    for (int distance = 16; distance > 0; distance /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, least, distance);
      join(least, at, other, __shfl_xor_sync(kAllLanes, at, distance));
    }
    __syncthreads();
    if (lane() == 0) shared.by_warp[warp()] = least, shared.chosen[warp()] = at;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) join(least, at, shared.by_warp[w], shared.chosen[w]);
    return at;
  }

  // Updates all products and sums for the removal of candidate x.
  __device__ void remove(int64_t x) const {
    for (int64_t j = threadIdx.x; j < candidates(); j += kThreads) {
      if (s.left[j] != 0) s.value_products[j] = product(s.values + x * dim(), s.values + j * dim(), dim());
    }
    __syncthreads();
    for (int64_t i = 0; i < rows(); ++i) {
      const double weight = s.weights[i * candidates() + x];
      for (int64_t j = threadIdx.x; j < candidates(); j += kThreads) {
        const int64_t place = i * candidates() + j;
        if (s.left[j] != 0)
          s.change_products[place] -= weight * (s.value_products[j] - s.output_products[place]);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) s.left[x] = 0;
    for (int64_t n = threadIdx.x; n < rows() * dim(); n += kThreads) {
      const int64_t i = n / dim();
      const double difference = s.values[x * dim() + n % dim()] - s.outputs[n];
      s.all.change[n] -= s.weights[i * candidates() + x] * difference;
      if (s.dominant[i] >= 0 && s.dominant[i] != x) s.others.change[n] -= weight_of_others(i, x) * difference;
    }
    for (int64_t i = threadIdx.x; i < rows(); i += kThreads) {
      s.all.mass[i] -= s.weights[i * candidates() + x];
      if (s.dominant[i] >= 0 && s.dominant[i] != x) s.others.mass[i] -= weight_of_others(i, x);
    }
    __syncthreads();
    for (int64_t i = 0; i < rows(); ++i) renew(i, x);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < rows(); i += kThreads) {
      const double* change = s.all.change + i * dim();
      s.length[i] = product(change, change, dim());
      s.along[i] = product(change, s.outputs + i * dim(), dim());
    }
    __syncthreads();
  }

  __device__ double weight_of_others(int64_t i, int64_t x) const {
    return exp(s.logits[i * s.sizes.tokens + x] - s.others.log_sum_exp[i]);
  }

  // Forms the sums of query i anew if they have lost half of their mass. All threads call it.
  __device__ void renew(int64_t i, int64_t removed) const {
    constexpr double kWornOut = 0.5;
    const int64_t dominant = s.dominant[i];
    const bool others = dominant >= 0 && dominant != removed && s.others.mass[i] < kWornOut;
    const bool all = s.all.mass[i] < kWornOut;
    __syncthreads();  // all threads have read the masses, which are overwritten
    if (dominant == removed && threadIdx.x == 0) s.dominant[i] = -1;
    if (others)
      gather(
          s, i, [&](int64_t j) { return j != dominant && is_left(j); }, s.others, shared);
    if (!all) return;
    gather(
        s, i, [&](int64_t j) { return is_left(j); }, s.all, shared);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < candidates(); j += kThreads) {
      if (s.left[j] == 0) continue;
      const int64_t place = i * candidates() + j;
      s.weights[place] = exp(s.logits[i * s.sizes.tokens + j] - s.all.log_sum_exp[i]);
      s.change_products[place] = product(s.all.change + i * dim(), s.values + j * dim(), dim());
    }
  }
};

// Removes candidates of one KV head until k are left, and writes those.
//
// grid       kv_heads
// block      512
// shared     4,352 bytes
// registers  128 (sm_90a and sm_80)
// bytes      a removal reads 8 candidates (4 rows + head_dim) and writes 8 candidates (rows + 1), from the L2
//            cache where it holds them; written at the end: 8 k
// FLOP       a removal takes candidates (12 rows + 2 head_dim), fp64
__global__ void __launch_bounds__(kThreads, 1)
    removals_kernel(State all, const int64_t* k, SelectionResult selection) {
  SharedMemory memory;
  const Shared shared(memory);
  const int64_t g = blockIdx.x;
  const State s = all.of(g);
  const Removal removal{s, shared, selection.status};
  for (int64_t left = s.sizes.candidates; left > k[g]; --left) {
    removal.find_dominants();
    removal.remove(removal.next());
  }
  if (threadIdx.x > 0) return;
  int64_t* to = selection.indices + g * selection.stride;
  for (int64_t j = 0; j < s.sizes.candidates; ++j) {
    if (s.left[j] != 0) *to++ = selection.first + j;
  }
}

}  // namespace

void launch_removals(const State& state, const int64_t* k, const SelectionResult& selection, Stream stream) {
  launch<removals_kernel>({extent(state.sizes.kv_heads), extent(kThreads), shared_bytes<Shared>(), stream},
                          state, k, selection);
}

}  // namespace greedy_removal
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
