// On what a figure was produced: everything a report must say so that it can be produced again.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

/// Version and revision of this program.
std::string version();
std::string revision();

/// version, revision, compiler, blas {name, core, flavour, core_type_override}, device, threads.
nlohmann::ordered_json environment();

}  // namespace kvbound::sim
