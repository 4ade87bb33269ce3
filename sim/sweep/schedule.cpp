#include "schedule.hpp"

#include <algorithm>
#include <functional>
#include <memory>

#include "result_index.hpp"

namespace kvbound::sim {
std::vector<PlannedItem> schedule(const SweepFolder& folder, const Sweep& sweep, const CostRates& rates) {
  ResultIndex index(folder, sweep);
  ItemKeys keys(sweep);
  const ItemCosts costs(rates, sweep);
  std::vector<PlannedItem> planned;
  for (SweepItem& item : items_of(sweep)) {
    const ItemKey key = keys.of(item);
    std::vector<size_t> rest = runs_without(item, index.sources_of(item, key, false));
    const bool done = rest.empty(), in_part = !done && rest.size() < item.runs->size();
    if (in_part) item.runs = std::make_shared<const std::vector<size_t>>(std::move(rest));
    const double cost = costs.of(item);
    planned.push_back({std::ssize(planned), item, in_part ? keys.of(item).file() : key.file(), cost, done});
  }
  std::ranges::stable_sort(planned, std::ranges::greater(), &PlannedItem::cost);
  return planned;
}

}  // namespace kvbound::sim
