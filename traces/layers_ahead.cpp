#include "layers_ahead.hpp"

#include <omp.h>
#include <algorithm>
#include <system_error>

namespace kvbound::traces {

Layer LayersAhead::next() {
  Layer layer = coming_.valid() ? coming_.get() : trace_.read_layer(layers_[next_], also_);
  const int threads = omp_get_max_threads();
  if (++next_ >= layers_.size() || threads == 1) return layer;
  try {
    coming_ = std::async(std::launch::async, [this, index = layers_[next_], threads] {
      omp_set_num_threads(std::max(1, threads / 8));  // of this thread's own work
      return trace_.read_layer(index, also_);
    });
  } catch (const std::system_error&) {
    // There are no more threads: the next call reads the layer itself.
  }
  return layer;
}

}  // namespace kvbound::traces
