// Layers of a trace one after the other, of which the next is read while one is worked on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "trace.hpp"

namespace kvbound::traces {

class LayersAhead {
 public:
  /// trace   outlives the object
  /// layers  in the order in which they are wanted
  /// also    as for Trace::read_layer
  LayersAhead(const Trace& trace, std::vector<int64_t> layers, const Trace::Also& also = {})
      : trace_(trace), layers_(std::move(layers)), also_(also) {}

  /// The next layer. Reading of the one behind it begins: by an eighth of the threads, at least one, beside
  /// those that work; not ahead if there is one thread only. Two layers are in memory then.
  ///
  /// throws  as Trace::read_layer, when the layer's turn comes
  Layer next();

 private:
  const Trace& trace_;
  std::vector<int64_t> layers_;
  Trace::Also also_;
  size_t next_ = 0;
  std::future<Layer> coming_;  // the layer layers_[next_], if it is being read
};

}  // namespace kvbound::traces
