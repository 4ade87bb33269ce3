// Where a session's operations are queued: a stream, the memory that they share, what is
// read back, and their times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>

#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/recording.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/operation_times.hpp>

#include "readback.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A session's stream with its memory. Nothing is waited for but to finish what is read
/// back, unless times are measured.
class Queue {
 public:
  /// times  receives the time of every operation, each of which is then waited for; null: not measured
  Queue(OperationTimes* times, Stream stream)
      : times_(times), stream_(stream), pool_(stream), results_(kStatusBytes) {
    begin();
  }

  Stream stream() const { return stream_; }
  /// All memory of the session's operations.
  MemoryPool& pool() { return pool_; }

  /// Queues an operation.
  template <class Operation>
  void run(const char* name, const Operation& operation) {
    timed(times_, name, [&] {
      operation();
      if (times_) synchronise(stream());
    });
  }

  /// Queues work that consists of the same launches every time. With times every
  /// operation is queued by itself.
  template <class Work>
  void repeat(Recording& recording, const Work& work) {
    if (times_) return work();
    recording.run(
        pool_.stream(),
        [&](Stream recorded) {
          stream_ = recorded;
          const Restore restore{*this};
          work();
        },
        workspace_.data());
  }

  /// Scratch memory of at least so many bytes, valid until the next call. It has room for a little more, so
  /// that it stays where it is when operations grow by a few entries.
  Workspace workspace(int64_t bytes) {
    if (workspace_.size() < bytes) workspace_ = Buffer<std::byte>(bytes + bytes / 8);
    return {workspace_.data(), workspace_.size()};
  }

  /// The flag that operations raise where a score is NaN.
  int* status() { return reinterpret_cast<int*>(results_.data()); }
  /// The flag that merges raise where a merged key or value is not finite.
  int* merge_status() { return status() + 1; }
  /// Forgets what operations have left behind of which one failed.
  void begin() {
    part_.clear();
    pending_.clear();
    detail::set_zero(results_.data(), kStatusBytes, stream());
  }
  /// Reads both flags back: NonFinite is thrown if one was raised, and names `score`
  /// or a merged key or value.
  void require_numbers(Readback& reads, const char* score) {
    require_numbers(reads, score, reads.of(status(), 2));
  }

  /// Something to be read back, which a finish hands over.
  Readback& read_back() { return pending_.emplace_back(); }

  /// Device memory for the results of `steps` steps, `bytes` bytes each, which stays where it is until there
  /// is not enough of it. Whether a step's has another place than before.
  bool reserve_results(int64_t steps, int64_t bytes) {
    const bool moves = std::exchange(result_bytes_, bytes) != bytes;
    const int64_t needed = kStatusBytes + steps * bytes;
    if (results_.size() >= needed) return moves;
    const Buffer<std::byte> before = std::exchange(results_, Buffer<std::byte>(needed));
    detail::queue_on_device(results_.data(), before.data(), kStatusBytes, stream());
    return true;
  }
  /// Those of the t-th step.
  std::byte* results(int64_t t) { return results_.data() + kStatusBytes + t * result_bytes_; }
  template <class N>
  N* result(int64_t t, const Read<N>& read) {
    return reinterpret_cast<N*>(results(t) + read.first);
  }
  /// Queues the transfer of the flags, as require_numbers, and of the results of steps.
  ///
  /// flags  asked for before the steps: a flag that was raised says more than what follows from it
  void transfer_results(Readback& flags, const char* score, std::span<Readback* const> steps) {
    const int64_t bytes = kStatusBytes + std::ssize(steps) * result_bytes_;
    std::byte* const to = pool_.stage(bytes);
    detail::queue_to_host(to, results_.data(), bytes, stream());
    require_numbers(flags, score, flags.place<int>(2));
    flags.arrives_at(to);
    for (size_t t = 0; t < steps.size(); ++t) {
      steps[t]->arrives_at(to + kStatusBytes + static_cast<int64_t>(t) * result_bytes_);
    }
  }

  /// Ends a part of what is read back, which may be handed over while the device does the next one.
  void end_part() {
    part_.swap(pending_);
    part_done_.record(stream());
  }
  /// Waits for the part that was ended, if there is one, and hands over what it read back; throws what that
  /// throws.
  void finish_part() {
    if (part_.empty()) return;
    part_done_.wait();
    hand_over(std::exchange(part_, {}));
  }
  /// Waits. Hands over what was read back, in order; throws what that throws.
  void finish() {
    pool_.wait();
    hand_over(std::exchange(part_, {}));
    hand_over(std::exchange(pending_, {}));
  }

 private:
  // After work was queued on another stream, which records it.
  struct Restore {
    Queue& queue;
    ~Restore() { queue.stream_ = queue.pool_.stream(); }
  };

  using Reads = std::deque<Readback>;
  static constexpr int64_t kStatusBytes = 256;

  static void require_numbers(Readback& reads, const char* score, Read<int> raised) {
    reads.then([score, raised](const Arrived& arrived) {
      if (!launches_are_whole()) return;
      const std::span<const int> flags = arrived[raised];
      if (flags[0] != 0) throw NonFinite(std::string(score) + " is not a number in single precision");
      if (flags[1] != 0) throw NonFinite("a merged key or value is not finite in the type that stores it");
    });
  }

  void hand_over(const Reads& all) {
    try {
      for (const Readback& reads : all) reads.arrive();
    } catch (...) {
      begin();
      throw;
    }
  }

  OperationTimes* times_;
  Stream stream_;
  MemoryPool pool_;
  Buffer<std::byte> results_;  // the flags of scores and of merges, then a block for each step
  int64_t result_bytes_ = 0;   // of a block
  Buffer<std::byte> workspace_;
  Reads part_;  // before those that are pending
  Reads pending_;
  Event part_done_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
