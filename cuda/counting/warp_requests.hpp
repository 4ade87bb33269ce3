// One warp's instructions and accesses to memory, collected lane by lane and joined to those of the warp.
//
// In the emulation a lane runs alone until it has to wait. On a GPU the lanes of a warp execute an
// instruction together. So the n-th time that a lane executes an instruction, since the warp's last step
// that all its lanes took together, belongs to the n-th time of every other lane: they are one instruction
// of the warp, and one request.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include <kvbound/cuda/emulation/block.hpp>

#include "kernel_counts.hpp"

namespace kvbound::cuda::counting {

/// The memory that an address lies in.
enum class Space { none, device, shared };

/// Lanes that execute one instruction, and the addresses at which they access memory. Addresses in shared
/// memory are those that they have on a GPU.
struct Request {
  uint32_t lanes = 0;
  std::array<uintptr_t, emulation::kWarpSize> addresses;
};

/// The sectors of 32 bytes in device memory that a request touches, and the bytes of them
/// that it asks for, each once.
struct DeviceTraffic {
  int sectors = 0;
  int bytes = 0;
};
DeviceTraffic device_traffic(const Request& request, int bytes);

/// The passes of a request to shared memory. The lanes of a pass are 32 for up to 4 bytes each, 16 for 8
/// bytes, 8 for 16 bytes. Each of the 32 banks delivers one word of 4 bytes in a wavefront, to all lanes that
/// ask for it; a pass takes as many wavefronts as the most different words that its lanes ask one bank for.
///
/// bytes  1, 2, 4, 8 or 16
struct SharedTraffic {
  int wavefronts = 0;
  int least = 0;  ///< passes with a lane that takes part: one wavefront each
};
SharedTraffic shared_traffic(const Request& request, int bytes);

class WarpRequests {
 public:
  /// One lane's part of an instruction; bytes: 0 for an instruction that does not access memory.
  void add(int lane, Instruction what, Space space, uintptr_t address, int bytes, uintptr_t site);

  /// Adds the warp's instructions, which are then forgotten, to `counts`, and its waits to `chain`.
  void join(KernelCounts& counts, WaitChain& chain);

 private:
  struct Key {
    uintptr_t site;
    Instruction what;
    Space space;
    int bytes;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashOfKey {
    size_t operator()(const Key& key) const {
      const size_t kind = static_cast<size_t>(key.what) << 16 | static_cast<size_t>(key.space) << 8 |
                          static_cast<size_t>(key.bytes);
      return std::hash<uintptr_t>()(key.site ^ kind << 40);
    }
  };
  // An instruction of the program: how often each lane has executed it, and the lanes that did so together.
  struct Site {
    Key key;
    std::array<uint32_t, emulation::kWarpSize> times{};
    std::vector<Request> requests;
    size_t used = 0;  // of `requests`
  };

  std::unordered_map<Key, size_t, HashOfKey> numbers_;  // -> position in sites_
  std::vector<Site> sites_;
  std::vector<size_t> pending_;  // sites that have been executed since the last join
};

}  // namespace kvbound::cuda::counting
