#include "kernel_counts.hpp"

#include <algorithm>

namespace kvbound::cuda::counting {
namespace {

// Calls visit(one's number, other's) for every number.
template <class Visit>
void each_number(KernelCounts& one, const KernelCounts& other, const Visit& visit) {
  const auto each = [&](auto& numbers, const auto& others) {
    for (size_t i = 0; i < numbers.size(); ++i) visit(numbers[i], others[i]);
  };
  each(one.instructions, other.instructions);
  each(one.device_loads, other.device_loads);
  each(one.device_stores, other.device_stores);
  each(one.shared_loads, other.shared_loads);
  each(one.shared_stores, other.shared_stores);
  for (double KernelCounts::*const number :
       {&KernelCounts::mma_flop, &KernelCounts::warpgroup_mma_flop, &KernelCounts::device_requests,
        &KernelCounts::useful_bytes, &KernelCounts::sectors, &KernelCounts::bulk_bytes,
        &KernelCounts::wavefronts, &KernelCounts::least_wavefronts}) {
    visit(one.*number, other.*number);
  }
}

}  // namespace

KernelCounts& KernelCounts::operator+=(const KernelCounts& more) {
  each_number(*this, more, [](double& one, double other) { one += other; });
  return *this;
}

KernelCounts& KernelCounts::operator*=(double factor) {
  each_number(*this, *this, [factor](double& one, double) { one *= factor; });
  return *this;
}

void WaitChain::raise_to(const WaitChain& other) {
  for (int64_t WaitChain::*const number :
       {&WaitChain::device_rounds, &WaitChain::shared_rounds, &WaitChain::exchanges, &WaitChain::barriers,
        &WaitChain::cluster_barriers, &WaitChain::atomic_rounds}) {
    this->*number = std::max(this->*number, other.*number);
  }
}

}  // namespace kvbound::cuda::counting
