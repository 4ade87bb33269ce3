// A layer of a trace, as Python sees it.
#pragma once

#include <memory>
#include <string>

#include <kvbound/traces/trace.hpp>

namespace kvbound::python {

/// Its arrays read the layer's memory.
struct BoundLayer {
  std::shared_ptr<const traces::Layer> layer;
};

/// "kv" or "query". Throws UsageError.
traces::CacheHeads cache_heads_of(const std::string& text);

}  // namespace kvbound::python
