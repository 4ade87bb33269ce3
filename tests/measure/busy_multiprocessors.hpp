// Multiprocessors without room for other kernels, on a GPU: the clusters of a kernel beside them have fewer
// places, and those of their blocks that find one late begin late.
#pragma once

#include <kvbound/cuda/support/device.hpp>

namespace kvbound::cuda::native {

/// A kernel on a stream of its own, each of whose blocks takes a whole multiprocessor. It ends about two
/// seconds after it began if nobody ends it.
class BusyMultiprocessors {
 public:
  /// Returns when so many are busy.
  explicit BusyMultiprocessors(int count);
  ~BusyMultiprocessors();
  BusyMultiprocessors(const BusyMultiprocessors&) = delete;
  BusyMultiprocessors& operator=(const BusyMultiprocessors&) = delete;

  /// Ends the kernel and waits for that. Returns whether all of them were busy until now.
  bool end();

 private:
  int count_;
  int* states_;  ///< [count + 1], page-locked: of each block, and whether they are to end
  Stream stream_ = nullptr;
};

}  // namespace kvbound::cuda::native
