#include "merges.hpp"

#include <kvbound/reference/core/merge_rules.hpp>

#include "cluster_merges.hpp"
#include "spreads.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

template <Storage T>
std::unique_ptr<Merges<T>> make_merges(const Merge& merge, const DeviceLayer<T>& layer, bool decodes) {
  if (const auto spread = kvbound::rules_of(merge).spread) {
    return std::make_unique<Spreads<T>>(*spread, layer, decodes);
  }
  return std::make_unique<ClusterMerges<T>>(merge, layer, decodes);
}

template std::unique_ptr<Merges<float>> make_merges(const Merge&, const DeviceLayer<float>&, bool);
template std::unique_ptr<Merges<Float16>> make_merges(const Merge&, const DeviceLayer<Float16>&, bool);
template std::unique_ptr<Merges<Bfloat16>> make_merges(const Merge&, const DeviceLayer<Bfloat16>&, bool);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
