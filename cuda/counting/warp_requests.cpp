#include "warp_requests.hpp"

#include <algorithm>
#include <bit>

namespace kvbound::cuda::counting {
namespace {

constexpr int kBanks = 32;
constexpr int kWordBytes = 4;
constexpr int kPassBytes = kBanks * kWordBytes;

size_t position_of_width(int bytes) {
  return static_cast<size_t>(std::countr_zero(std::bit_ceil(static_cast<unsigned>(bytes))));
}

// Words that one pass asks each bank for.
class Pass {
 public:
  void add(uintptr_t address, int bytes) {
    const uintptr_t last = (address + static_cast<uintptr_t>(bytes) - 1) / kWordBytes;
    for (uintptr_t word = address / kWordBytes; word <= last; ++word) words_[used_++] = word;
  }
  int wavefronts() {
    const auto end = words_.begin() + used_;
    std::sort(words_.begin(), end);
    std::array<int, kBanks> of_bank{};
    int most = 0;
    for (auto word = words_.begin(); word != end; ++word) {
      if (word == words_.begin() || *word != word[-1]) most = std::max(most, ++of_bank[*word % kBanks]);
    }
    return most;
  }

 private:
  std::array<uintptr_t, 2 * emulation::kWarpSize>
      words_;  // an access that is not aligned may take one word more
  std::ptrdiff_t used_ = 0;
};

void count_device(const Request& request, int bytes, KernelCounts& counts) {
  const DeviceTraffic traffic = device_traffic(request, bytes);
  counts.device_requests += 1;
  counts.sectors += traffic.sectors;
  counts.useful_bytes += traffic.bytes;
}

void count_shared(const Request& request, int bytes, KernelCounts& counts) {
  const SharedTraffic traffic = shared_traffic(request, bytes);
  counts.wavefronts += traffic.wavefronts;
  counts.least_wavefronts += traffic.least;
}

// The accesses by width that an instruction belongs to; null if to none.
ByWidth KernelCounts::*widths_of(Instruction what, Space space) {
  if (what == Instruction::load)
    return space == Space::device ? &KernelCounts::device_loads : &KernelCounts::shared_loads;
  if (what == Instruction::store)
    return space == Space::device ? &KernelCounts::device_stores : &KernelCounts::shared_stores;
  return nullptr;
}

}  // namespace

DeviceTraffic device_traffic(const Request& request, int bytes) {
  struct Touched {
    uintptr_t sector;
    uint32_t mask;  // of its bytes
  };
  std::array<Touched, 2 * emulation::kWarpSize> touched;  // an access of at most 16 bytes lies in one or two
  std::ptrdiff_t used = 0;
  for (uint32_t left = request.lanes; left != 0; left &= left - 1) {
    uintptr_t address = request.addresses[static_cast<size_t>(std::countr_zero(left))];
    for (int rest = bytes; rest > 0;) {
      const auto offset = static_cast<int>(address % kSectorBytes);
      const int here = std::min(rest, static_cast<int>(kSectorBytes) - offset);
      const auto mask = static_cast<uint32_t>(((uint64_t{1} << here) - 1) << offset);
      touched[static_cast<size_t>(used++)] = {address / kSectorBytes, mask};
      address += static_cast<uintptr_t>(here);
      rest -= here;
    }
  }
  const auto end = touched.begin() + used;
  std::sort(touched.begin(), end, [](const Touched& a, const Touched& b) { return a.sector < b.sector; });
  DeviceTraffic traffic;
  for (auto each = touched.begin(); each != end;) {
    uint32_t mask = 0;
    const uintptr_t sector = each->sector;
    for (; each != end && each->sector == sector; ++each) mask |= each->mask;
    ++traffic.sectors;
    traffic.bytes += std::popcount(mask);
  }
  return traffic;
}

SharedTraffic shared_traffic(const Request& request, int bytes) {
  const int lanes = kPassBytes / std::max(bytes, kWordBytes);
  SharedTraffic traffic;
  for (int first = 0; first < emulation::kWarpSize; first += lanes) {
    Pass pass;
    for (int lane = first; lane < first + lanes; ++lane) {
      if (request.lanes >> lane & 1) pass.add(request.addresses[static_cast<size_t>(lane)], bytes);
    }
    const int wavefronts = pass.wavefronts();
    traffic.wavefronts += wavefronts;
    traffic.least += wavefronts > 0 ? 1 : 0;
  }
  return traffic;
}

void WarpRequests::add(int lane, Instruction what, Space space, uintptr_t address, int bytes,
                       uintptr_t site) {
  const Key key{site, what, space, bytes};
  const auto [number, is_new] = numbers_.try_emplace(key, sites_.size());
  if (is_new) sites_.push_back({.key = key, .times = {}, .requests = {}});
  Site& mine = sites_[number->second];
  if (mine.used == 0) pending_.push_back(number->second);
  const size_t turn = mine.times[static_cast<size_t>(lane)]++;
  if (turn == mine.used) {
    if (mine.used == mine.requests.size()) mine.requests.emplace_back();
    mine.requests[mine.used++].lanes = 0;
  }
  Request& request = mine.requests[turn];
  request.lanes |= 1U << lane;
  request.addresses[static_cast<size_t>(lane)] = address;
}

void WarpRequests::join(KernelCounts& counts, WaitChain& chain) {
  bool loads_device = false, loads_shared = false, atomics = false;
  for (const size_t number : pending_) {
    Site& site = sites_[number];
    const auto [key_site, what, space, bytes] = site.key;
    // Of cp.async, which is an access to either memory, the one to shared memory is the instruction.
    const bool is_instruction = what != Instruction::async_copy || space == Space::shared;
    if (is_instruction) counts.instructions[static_cast<size_t>(what)] += static_cast<double>(site.used);
    if (const auto widths = widths_of(what, space))
      (counts.*widths)[position_of_width(bytes)] += static_cast<double>(site.used);
    for (const Request& request : std::span(site.requests).first(site.used)) {
      if (space == Space::device) count_device(request, bytes, counts);
      if (space == Space::shared) count_shared(request, bytes, counts);
    }
    loads_device |= what == Instruction::load && space == Space::device;
    loads_shared |= what == Instruction::load && space == Space::shared;
    atomics |= what == Instruction::atomic;
    site.times.fill(0);
    site.used = 0;
  }
  pending_.clear();
  chain.device_rounds += loads_device ? 1 : 0;
  chain.shared_rounds += loads_shared && !loads_device ? 1 : 0;
  chain.atomic_rounds += atomics ? 1 : 0;
}

}  // namespace kvbound::cuda::counting
