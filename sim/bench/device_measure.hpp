// How an operation of a device is timed and what it is compared with. Compiled twice, as device_bench.cpp is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/stored_tensor.hpp>

#include "bench.hpp"
#include "bench_layer.hpp"
#include "device_work.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {

using Stored = cuda::Bfloat16;

inline constexpr cuda::Stream kStream = nullptr;

#ifdef KVBOUND_CUDA_NATIVE
inline constexpr bool kNative = true;
#else
inline constexpr bool kNative = false;
#endif

/// Shares of a roofline; of the matrix rate with mma.sync and with wgmma.
inline constexpr double kCopyGoal = 0.85, kMatrixGoal = 0.5, kWarpgroupMatrixGoal = 0.8;
inline constexpr double kLatencyGoal = 15e-6;  ///< seconds, where latency is the limit

inline double as_real(int64_t number) { return static_cast<double>(number); }
inline double scale(const LayerShape& shape) { return 1 / std::sqrt(as_real(shape.head_dim)); }

/// Memory as an operation's scratch memory.
inline cuda::Workspace all_of(cuda::Buffer<std::byte>& memory) { return {memory.data(), memory.bytes()}; }

/// Bytes of arrays.
template <class T>
double bytes_of(const cuda::Buffer<T>& numbers) {
  return as_real(numbers.bytes());
}
template <class Array>
requires requires(const Array& array) { array.numbers(); }
double bytes_of(const Array& array) { return bytes_of(array.numbers()); }
inline double bytes_of(const cuda::IndexLists& lists) { return bytes_of(lists.indices()); }

/// The bytes of an operation that reads or writes each of these arrays once, and no other memory.
template <class... Arrays>
double traffic(const Arrays&... arrays) {
  return (bytes_of(arrays) + ...);
}

/// Several times the L2 cache, so that hardly anything stays in it from one use to the
/// next, whatever it evicts.
inline int64_t beyond_cache() { return 4 * cuda::device().l2_bytes; }

/// Copies of an operation's arguments and results, together larger than the L2 cache; calls use them in turn.
template <class Set>
class Rotation {
 public:
  Rotation(double bytes_of_one, const std::function<Set()>& make) {
    const auto count = static_cast<int64_t>(std::ceil(as_real(beyond_cache()) / bytes_of_one));
    for (int64_t i = 0; i < std::max<int64_t>(count, 2); ++i) sets_.push_back(make());
  }
  /// Of sets that know their bytes().
  explicit Rotation(const std::function<Set()>& make) : Rotation(make().bytes(), make) {}

  double bytes_of_one() const { return sets_.front().bytes(); }

  Set& next() { return sets_[turn_++ % sets_.size()]; }
  void for_each(const std::function<void(Set&)>& work) {
    for (Set& set : sets_) work(set);
  }

 private:
  std::vector<Set> sets_;
  size_t turn_ = 0;
};

/// Queues an operation on a stream.
using Call = std::function<void(cuda::Stream)>;

/// How calls are queued: recorded once and repeated as a whole, so that the time of a short operation is not
/// that of the host, which launches it; or one by one, for calls that may allocate.
enum class Launches { recorded, direct };

/// A call of an operation, timed by the device's clock. Its unit is bytes, or FLOP where it has any.
BenchPiece device_piece(const std::string& name, DeviceWork work, const Call& call,
                        Launches launches = Launches::recorded);

/// The denominator of an operation's ratio.
enum class Roofline { copy_bandwidth, matrix_rate, time };

struct Measured {
  DeviceWork work;
  Roofline roofline;
  std::optional<double> goal;  // a share of the roofline, or seconds
};

/// Times the operation together with the rooflines of the device.
BenchResult measure_on_device(const BenchOptions& options, const std::string& name, const Measured& measured,
                              const Call& call);

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
