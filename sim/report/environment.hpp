// The environment of a measurement, so that a report says everything needed to reproduce it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <kvbound/sim/options/fields.hpp>

namespace kvbound::sim {

/// This program's version and source revision.
std::string version();
std::string revision();

/// What tells one build of this program from another: its revision, and for revisions that stand for many
/// builds (`-dirty`: from changed sources; `unknown`: outside a checkout) also the SHA-256 of its file.
/// Throws IoError if that cannot be read.
std::string build_identity();

/// What numbers depend on besides input and options.
struct Computation {
  std::string build;  ///< build_identity()
  std::string compiler;
  std::string blas;                ///< name and core
  std::optional<std::string> gpu;  ///< if one of the backends is cuda
};
Computation computation(std::span<const std::string> backends);

struct BlasFacts {
  std::string name, core, flavour, core_at_load, core_chosen_by;
  std::optional<std::string> core_type_override, faster_core;

  friend bool operator==(const BlasFacts&, const BlasFacts&) = default;
};

/// What computed a document.
struct Environment {
  std::string version, revision, compiler;
  BlasFacts blas;
  std::string device;  ///< the processor
  int64_t threads = 0;

  friend bool operator==(const Environment&, const Environment&) = default;
};
Environment environment();

/// The end of every document: the environment, and the seed of what was drawn at
/// random, null where nothing was.
nlohmann::ordered_json provenance(const Environment& environment = sim::environment(),
                                  const nlohmann::ordered_json& seed = nullptr);

template <>
struct Fields<Computation> {
  static void visit(auto& computation, const auto& visit) {
    visit("build", computation.build);
    visit("compiler", computation.compiler);
    visit("blas", computation.blas);
    visit("gpu", computation.gpu);
  }
};

template <>
struct Fields<BlasFacts> {
  static void visit(auto& blas, const auto& visit) {
    visit("name", blas.name);
    visit("core", blas.core);
    visit("flavour", blas.flavour);
    visit("core_at_load", blas.core_at_load);
    visit("core_chosen_by", blas.core_chosen_by);
    visit("core_type_override", blas.core_type_override);
    visit("faster_core", blas.faster_core);
  }
};

template <>
struct Fields<Environment> {
  static void visit(auto& environment, const auto& visit) {
    visit("version", environment.version);
    visit("revision", environment.revision);
    visit("compiler", environment.compiler);
    visit("blas", environment.blas);
    visit("device", environment.device);
    visit("threads", environment.threads);
  }
};

}  // namespace kvbound::sim
