// Kernels that are compiled with several tile shapes. The shapes of a kernel are a constexpr list, of which
// its operation uses the first; the others are there to be compared with it on a GPU
// (tests/measure/tile_variants_test.cpp): whether their results are right, then how fast they are. To put
// another one into use, move it to the front.
#pragma once

#include <string>
#include <type_traits>

#include <kvbound/cuda/support/build.hpp>
#include <kvbound/reference/core/error.hpp>

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

/// Returns work(std::integral_constant<int, variant>()), a number that kernels can take as a template
/// argument. Throws ShapeMismatch for a variant outside 0..kCount - 1.
template <int kCount, class Work>
auto with_variant(int variant, const Work& work) {
  if (variant < 0 || variant >= kCount) {
    throw ShapeMismatch("tile variant " + std::to_string(variant) + " is outside 0.." +
                        std::to_string(kCount - 1));
  }
  if constexpr (kCount > 1) {
    if (variant < kCount - 1) return with_variant<kCount - 1>(variant, work);
  }
  return work(std::integral_constant<int, kCount - 1>());
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
