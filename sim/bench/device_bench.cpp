// Compiled twice, once for each build of the kernels.
#include "device_bench.hpp"

#include <fstream>
#include <vector>

#include <kvbound/cuda/eviction/critical_kv.hpp>
#include <kvbound/cuda/roofline/roofline.hpp>
#include <kvbound/cuda/support/device.hpp>

#include "device_measure.hpp"
#include "device_operations.hpp"

namespace kvbound::sim::KVBOUND_CUDA_BUILD {
namespace {

std::optional<std::string> driver() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  return kNative && std::getline(file, version) && !version.empty() ? std::optional(version) : std::nullopt;
}

std::vector<BenchOperation> all_operations() {
  std::vector<BenchOperation> all;
  for (const std::span<const BenchOperation> some :
       {score_operations(), selection_operations(), merging_operations(), decoding_operations(),
        session_operations()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

Accelerator accelerator() {
  const cuda::DeviceInfo& info = cuda::device();
  Accelerator found{info.name,
                    info.compute_capability,
                    info.multiprocessors,
                    info.memory,
                    info.l2_bytes,
                    driver(),
                    std::nullopt,
                    "",
                    cuda::norms_choice<Stored>(128).why};
  if (const auto library = cuda::MatrixLibrary::open(&found.no_matrix_library))
    found.matrix_library = library->name();
  return found;
}

std::span<const BenchOperation> bench_operations() {
  static const std::vector<BenchOperation> all = all_operations();
  return all;
}

}  // namespace kvbound::sim::KVBOUND_CUDA_BUILD
