#include "async_copies.hpp"

#include <cstring>

namespace kvbound::cuda::emulation {
namespace {

constexpr size_t kWholeCopy = 16;
constexpr size_t kMostForgotten = 256;  // landed copies that are stored before they are erased

}  // namespace

void AsyncCopy::land() const {
  const auto there = static_cast<size_t>(bytes);
  if (there > 0) std::memcpy(to, from, there);
  std::memset(static_cast<std::byte*>(to) + there, 0, kWholeCopy - there);
}

void AsyncCopies::issue(const AsyncCopy& copy, bool eager) {
  if (eager) copy.land();
  copies_.push_back(copy);
}

void AsyncCopies::wait(int in_flight, bool eager) {
  while (group_ends_.size() - waited_ > static_cast<size_t>(in_flight)) {
    for (const size_t end = group_ends_[waited_]; landed_ < end; ++landed_) {
      if (!eager) copies_[landed_].land();
    }
    ++waited_;
  }
  if (landed_ == copies_.size() && waited_ == group_ends_.size()) {
    clear();
  } else if (landed_ > kMostForgotten) {
    forget_landed();
  }
}

void AsyncCopies::clear() {
  copies_.clear();
  group_ends_.clear();
  landed_ = waited_ = 0;
}

void AsyncCopies::forget_landed() {
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(landed_));
  group_ends_.erase(group_ends_.begin(), group_ends_.begin() + static_cast<std::ptrdiff_t>(waited_));
  for (size_t& end : group_ends_) end -= landed_;
  landed_ = waited_ = 0;
}

}  // namespace kvbound::cuda::emulation
