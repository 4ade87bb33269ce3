// On what a figure was produced: everything a report must say so that it can be produced again.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

/// Version and revision of this program.
std::string version();
std::string revision();

/// version, revision, compiler, blas {name, core, flavour, core_at_load, core_chosen_by, core_type_override, faster_core},
/// device, threads.
nlohmann::ordered_json environment();

}  // namespace kvbound::sim
