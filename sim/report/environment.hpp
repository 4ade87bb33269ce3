// The environment of a measurement, so that a report says everything needed to reproduce it.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json.hpp>

namespace kvbound::sim {

/// This program's version and source revision.
std::string version();
std::string revision();

/// What tells one build of this program from another: its revision, and for revisions that stand for many builds (`-dirty`:
/// from changed sources; `unknown`: outside a checkout) also the SHA-256 of its file. Throws IoError if that cannot be read.
std::string build_identity();

/// What numbers depend on besides input and options: a JSON object of build (build_identity()), compiler, blas {name, core},
/// and gpu, null unless one of the backends is cuda.
nlohmann::ordered_json computation(std::span<const std::string> backends);

/// A JSON object of version, revision, compiler, blas {name, core, flavour, core_at_load, core_chosen_by,
/// core_type_override, faster_core}, device and threads.
nlohmann::ordered_json environment();

}  // namespace kvbound::sim
