#include "cub.hpp"
#include "flashinfer.hpp"
#include "kernel_library.hpp"

namespace kvbound::sim {

std::span<const KernelLibrary> kernel_libraries() {
  static const KernelLibrary kLibraries[] = {
      {.name = "flashinfer",
       .version = KVBOUND_FLASHINFER_VERSION,
       .weights = "F32",
       .partials = "BF16",
       .head_dim = kFlashInferHeadDim,
       .attention = flashinfer_attention,
       .select_top = flashinfer_select_top},
      {.name = "flashinfer-tensor-cores",
       .version = KVBOUND_FLASHINFER_VERSION,
       .weights = "BF16",
       .partials = "BF16",
       .head_dim = kFlashInferHeadDim,
       .attention = flashinfer_attention_mma},
      {.name = "cub", .version = cub_version(), .select_top = cub_select_top, .rank_top = cub_rank_top}};
  return kLibraries;
}

}  // namespace kvbound::sim
