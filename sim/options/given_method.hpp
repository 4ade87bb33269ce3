// Code of a caller in the place of a file of the host `given`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kvbound/reference/core/given_layer.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A method that scores or selects the entries of a layer's prompt when the layer is compressed. It is called
/// once a layer, or where it selects once a layer and budget, by the thread that replays.
class GivenMethod {
 public:
  virtual ~GivenMethod() = default;

  /// What results call it; may be empty.
  virtual std::string name() const = 0;
  virtual bool selects() const = 0;  ///< kept sets, instead of scores
  virtual bool evicts() const = 0;   ///< GivenLayer::evict, of which the reference alone knows
  /// Ascending positions that are kept whatever their scores.
  virtual std::vector<int64_t> always_kept(int64_t prompt_tokens) const = 0;
  /// layer    may be kept as long as is needed
  /// entries  the budget: at most so many per KV head, on average
  virtual std::shared_ptr<const GivenLayer> layer(std::shared_ptr<const traces::Layer> layer,
                                                  int64_t entries) = 0;
};
/// By Given::file.
using GivenMethods = std::map<std::string, std::shared_ptr<GivenMethod>>;

}  // namespace kvbound::sim
