#include "environment.hpp"

#include <cstdlib>
#include <fstream>

#include <omp.h>

#include <kvbound/reference/numerics/product.hpp>

#include "revision.hpp"  // written by the build

namespace kvbound::sim {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// What chose the kernels that products run on.
const char* chooser(reference::KernelChoice choice) {
  switch (choice) {
    case reference::KernelChoice::library:
      return "library";
    case reference::KernelChoice::user:
      return "OPENBLAS_CORETYPE";
    case reference::KernelChoice::fastest:
      return "kvbound";
    case reference::KernelChoice::named:
      return "--blas-core";
  }
  return "";
}

}  // namespace

std::string version() { return KVBOUND_VERSION; }
std::string revision() { return KVBOUND_REVISION; }

nlohmann::ordered_json environment() {
  const reference::BlasInfo blas = reference::blas_info();
  const char* core_type = blas.library() == "OpenBLAS" ? std::getenv("OPENBLAS_CORETYPE") : nullptr;
  return {{"version", version()},
          {"revision", revision()},
          {"compiler", KVBOUND_COMPILER},
          {"blas",
           {{"name", blas.name},
            {"core", blas.core},
            {"flavour", blas.flavour},
            {"core_at_load", blas.core_at_load},
            {"core_chosen_by", chooser(blas.chosen_by)},
            {"core_type_override", core_type ? nlohmann::ordered_json(core_type) : nlohmann::ordered_json()},
            {"faster_core", blas.faster_core.empty() ? nlohmann::ordered_json()
                                                     : nlohmann::ordered_json(blas.faster_core)}}},
          {"device", processor()},
          {"threads", omp_get_max_threads()}};
}

}  // namespace kvbound::sim
