// Results of tasks as JSON, in the files in which they survive the program.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include <kvbound/sim/options/written_json.hpp>

#include "task_result.hpp"

namespace kvbound::sim {

/// Numbers have all their bits; a figure without a value is null.
nlohmann::ordered_json to_json(const TaskResult& result);

/// The result that to_json wrote, from text. Throws Error, naming the member, unless every member is there
/// and of its kind, and none of its numbers negative; as written_json, which has the other parameters.
TaskResult task_result_of(std::string_view text, const WrittenLimits& limits = {}, size_t* taken = nullptr);

}  // namespace kvbound::sim
