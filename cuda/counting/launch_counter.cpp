#include "launch_counter.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "counting.hpp"

namespace kvbound::cuda::counting {
namespace {

constexpr uint64_t kLeastSample = 16;  // clusters
constexpr int64_t kWavefrontBytes = 128;

// What `all` clusters touch of a buffer, from what a half and the whole of a sample do: memory
// that every cluster reads is the same for both, memory of its own grows with the number of
// clusters, up to the whole buffer.
double extrapolated(double by_half, double by_sample, uint64_t sample, uint64_t all, double most) {
  const double of_each = (by_sample - by_half) / static_cast<double>(sample / 2);
  return std::min(most, by_sample + of_each * static_cast<double>(all - sample));
}

}  // namespace

LaunchCounter::LaunchCounter(const emulation::Grid& grid, double most_instructions,
                             std::vector<LaunchCounts>& launches)
    : most_instructions_(most_instructions), launches_(launches) {
  counted_.kernel = kernel_name(grid.kernel.name);
  counted_.grid = grid.grid;
  counted_.block = grid.block;
  counted_.cluster = grid.cluster;
  counted_.shared_bytes = grid.shared_bytes;
}

std::unique_ptr<emulation::Observer> LaunchCounter::of_this_thread() {
  return std::make_unique<ThreadCounter>(*this);
}

void LaunchCounter::add(const KernelCounts& counts, const WaitChain& chain) {
  const std::lock_guard lock(mutex_);
  counted_.counts += counts;
  counted_.chain.raise_to(chain);
}

// A sample doubles until it suffices, so that its first half is known.
uint64_t LaunchCounter::batch() const {
  if (samples_) return std::max(counted_.counted_clusters, kLeastSample / 2);
  return std::numeric_limits<uint32_t>::max();
}

bool LaunchCounter::suffices(uint64_t run, uint64_t all) {
  counted_.counted_clusters = run;
  const double instructions =
      std::reduce(counted_.counts.instructions.begin(), counted_.counts.instructions.end());
  if (run == kLeastSample) {
    samples_ = instructions * static_cast<double>(all) / static_cast<double>(run) > most_instructions_;
  }
  const bool enough =
      run == all || (run >= kLeastSample && samples_ && 2 * instructions > most_instructions_);
  if (enough) {
    finish(run, all);
  } else if (samples_) {
    touched_by_half_ = touched_.by_buffer();
  }
  return enough;
}

void LaunchCounter::finish(uint64_t run, uint64_t all) {
  if (run == all) {
    counted_.touched = touched_.bytes();
  } else {
    counted_.counts *= static_cast<double>(all) / static_cast<double>(run);
    const std::vector<TouchedSectors::OfBuffer> by_sample = touched_.by_buffer();
    for (size_t i = 0; i < by_sample.size(); ++i) {
      const auto& [touched, most] = by_sample[i];
      const TouchedBytes& half = touched_by_half_[i].touched;
      counted_.touched.read += extrapolated(half.read, touched.read, run, all, most);
      counted_.touched.written += extrapolated(half.written, touched.written, run, all, most);
    }
  }
  launches_.push_back(counted_);
}

void ThreadCounter::begin_cluster(std::span<emulation::SharedArena* const> blocks) {
  blocks_ = blocks;
  warps_.resize(blocks.size() * emulation::kMostThreads / emulation::kWarpSize);
}

void ThreadCounter::meet(int rank, int warp, bool at_barrier) {
  Warp& mine = warp_of(rank * emulation::kMostThreads + warp * emulation::kWarpSize);
  mine.requests.join(counts_, mine.chain);
  if (!at_barrier) return;
  counts_.instructions[static_cast<size_t>(Instruction::block_barrier)] += 1;
  ++mine.chain.barriers;
}

void ThreadCounter::end_cluster() {
  for (Warp& warp : warps_) {
    warp.requests.join(counts_, warp.chain);
    longest_.raise_to(warp.chain);
    warp.chain = {};
  }
}

void ThreadCounter::lane(Instruction what, uintptr_t site) {
  const emulation::ThreadId id = emulation::this_thread();
  const int lane = id % emulation::kWarpSize;
  warp_of(id).requests.add(lane, what, Space::none, 0, 0, site);
  if (what == Instruction::cluster_barrier && lane == 0) ++warp_of(id).chain.cluster_barriers;
}

std::optional<uintptr_t> ThreadCounter::shared_address(uintptr_t address) const {
  const auto* const place = reinterpret_cast<const std::byte*>(address);
  for (const emulation::SharedArena* const block : blocks_) {
    if (!block->covers(place)) continue;
    const int64_t there = block->address(place);
    return there < 0 ? std::nullopt : std::optional(static_cast<uintptr_t>(there));
  }
  return std::nullopt;
}

void ThreadCounter::access(Instruction what, uintptr_t address, int bytes, uintptr_t site) {
  const emulation::ThreadId id = emulation::this_thread();
  const int lane = id % emulation::kWarpSize;
  if (const std::optional<uintptr_t> shared = shared_address(address)) {
    warp_of(id).requests.add(lane, what, Space::shared, *shared, bytes, site);
  } else if (launch_.touched().holds(address)) {
    if (what != Instruction::store) launch_.touched().touch(address, bytes, false);
    if (what == Instruction::store || what == Instruction::atomic)
      launch_.touched().touch(address, bytes, true);
    warp_of(id).requests.add(lane, what, Space::device, address, bytes, site);
  }
}

void ThreadCounter::warp(Instruction what, double flop) {
  counts_.instructions[static_cast<size_t>(what)] += 1;
  if (what == Instruction::mma) counts_.mma_flop += flop;
  if (what == Instruction::warpgroup_mma) counts_.warpgroup_mma_flop += flop;
  if (what == Instruction::shuffle) ++warp_of(emulation::this_thread()).chain.exchanges;
}

void ThreadCounter::matrix_load(std::span<const uintptr_t> rows) {
  Request request{~0U, {}};
  for (size_t lane = 0; lane < rows.size(); ++lane)
    request.addresses[lane] = shared_address(rows[lane]).value_or(0);
  const SharedTraffic traffic = shared_traffic(request, 16);
  counts_.instructions[static_cast<size_t>(Instruction::matrix_load)] += 1;
  counts_.wavefronts += traffic.wavefronts;
  counts_.least_wavefronts += traffic.least;
}

void ThreadCounter::shared_bytes(Instruction what, int64_t bytes) {
  if (what == Instruction::bulk_copy) counts_.instructions[static_cast<size_t>(what)] += 1;
  const double wavefronts = static_cast<double>(bytes) / kWavefrontBytes;
  counts_.wavefronts += wavefronts;
  counts_.least_wavefronts += wavefronts;
}

void ThreadCounter::device_bytes(uintptr_t address, int64_t bytes) {
  const uintptr_t last = address + static_cast<uintptr_t>(bytes) - 1;
  launch_.touched().touch(address, bytes, false);
  counts_.sectors += static_cast<double>(last / kSectorBytes - address / kSectorBytes + 1);
  counts_.useful_bytes += static_cast<double>(bytes);
  counts_.bulk_bytes += static_cast<double>(bytes);
}

}  // namespace kvbound::cuda::counting
