// Blocks of three warpgroups, each with its own work: the first, the producer, requests copies, for which few
// registers do; the two others, the consumers, multiply what it brings and have the registers that it gives
// up. A multiprocessor has room for one such block.
#pragma once

#include "registers.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {

inline constexpr int kWarpgroup = 128;  ///< threads
inline constexpr int kGroupWarps = kWarpgroup / 32;
inline constexpr int kConsumers = 2;  ///< warpgroups
inline constexpr int kConsumerWarps = kConsumers * kGroupWarps;
/// The threads of such a block, whose kernel has __launch_bounds__(kSpecialisedThreads, 1).
inline constexpr int kSpecialisedThreads = (1 + kConsumers) * kWarpgroup;

/// Calls produce() in the producer's threads and consume(consumer) in the others. The whole block calls it.
template <class Produce, class Consume>
__device__ __forceinline__ void specialise(const Produce& produce, const Consume& consume) {
  constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * launch_registers(kSpecialisedThreads));
  const int group = warp() / kGroupWarps;
  if (group == 0) {
    lower_registers<kProducerRegisters>();
    produce();
  } else {
    raise_registers<kConsumerRegisters>();
    consume(group - 1);
  }
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
