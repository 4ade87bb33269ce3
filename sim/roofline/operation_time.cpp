#include "operation_time.hpp"

#include <algorithm>
#include <array>

namespace kvbound::sim {
namespace {

double host_seconds(const cuda::DeviceCounters& requests, const Gpu& gpu) {
  const auto times = [](int64_t count, double seconds) { return static_cast<double>(count) * seconds; };
  return times(requests.synchronisations, gpu.of("host_wait")) +
         times(requests.uploads + requests.downloads, gpu.of("host_copy")) +
         static_cast<double>(requests.upload_bytes + requests.download_bytes) / gpu.of("host_bandwidth") +
         times(requests.allocations, gpu.of("allocation"));
}

}  // namespace

OperationTime operation_time(const CountedWork& work, const Gpu& gpu) {
  OperationTime time;
  std::array<double, kResourceCount> by_limiter{};
  for (const cuda::counting::LaunchCounts& launch : work.launches) {
    const LaunchTime& one = time.launches.emplace_back(launch_time(launch, gpu, time.launches.empty()));
    const double launching = one.of[static_cast<size_t>(Resource::launch)];
    time.device_seconds += one.seconds;
    time.kernel_seconds += one.seconds - launching;
    by_limiter[static_cast<size_t>(one.limiter)] += one.seconds;
  }
  const double others =
      static_cast<double>(work.requests.fills + work.requests.moves) * gpu.of("next_launch");
  time.device_seconds += others;
  by_limiter[static_cast<size_t>(Resource::launch)] += others;
  time.host_seconds = host_seconds(work.requests, gpu);
  time.limiter = static_cast<Resource>(std::ranges::max_element(by_limiter) - by_limiter.begin());
  return time;
}

}  // namespace kvbound::sim
