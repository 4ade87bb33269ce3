// The heads' profiles of `inspect --heads`: a table with a row per layer, JSON (inspect.schema.json) and CSV with every
// head.
#pragma once

#include <string>

#include <kvbound/sim/study/head_profile.hpp>

#include <kvbound/sim/figures/json.hpp>

#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

/// A table with one row per layer, means over its heads and their extremes, and one for all layers.
///
/// style  how tables are printed, and whether figures follow them
std::string text_report(const HeadProfiles& profiles, const TextStyle& style);

/// The member "heads" of the document.
Json heads_json(const HeadProfiles& profiles);

/// CSV with one row per layer and query head; what belongs to a KV head is repeated for each of its query heads.
std::string csv_report(const HeadProfiles& profiles);

}  // namespace kvbound::sim
