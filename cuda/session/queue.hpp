// Where a session's operations are queued: a stream, scratch memory, and the operations' times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/operation_times.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// A session's stream, and the scratch memory that its operations share because they run one after the other.
class Queue {
 public:
  /// times  receives the time of every operation, each of which is then waited for; null: not measured
  Queue(OperationTimes* times, Stream stream) : times_(times), stream_(stream), status_(1) {
    status_.clear(stream_);
  }

  Stream stream() const { return stream_; }

  /// Queues an operation.
  template <class Operation>
  void run(const char* name, const Operation& operation) {
    timed(times_, name, [&] {
      operation();
      if (times_) synchronise(stream_);
    });
  }

  /// Scratch memory of at least so many bytes, valid until the next call.
  Workspace workspace(int64_t bytes) {
    if (workspace_.size() < bytes) {
      synchronise(stream_);  // queued operations may still use the old memory
      workspace_ = {};
      workspace_ = Buffer<std::byte>(bytes);
    }
    return {workspace_.data(), workspace_.size()};
  }

  /// The flag that selections raise where a score is NaN.
  int* status() { return status_.data(); }
  /// Lowers the flag, which an operation may have raised before another one failed.
  void begin() { status_.clear(stream_); }
  /// Waits; throws NonFinite, naming `what`, if the flag was raised, and lowers it.
  void require_numbers(const char* what) {
    int is_nan = 0;
    status_.download(std::span(&is_nan, 1), stream_);
    if (is_nan == 0) return;
    status_.clear(stream_);
    throw NonFinite(std::string(what) + " is not a number in single precision");
  }

 private:
  OperationTimes* times_;
  Stream stream_;
  Buffer<int> status_;
  Buffer<std::byte> workspace_;
};

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
