#include "support.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/portable_random.hpp>

#ifndef KVBOUND_CUDA_NATIVE
#include <kvbound/cuda/emulation/grid_limit.hpp>
#include <kvbound/cuda/emulation/schedule.hpp>
#include <kvbound/cuda/emulation/shared_memory_limit.hpp>
#endif

namespace kvbound::parity {
namespace {

constexpr uint32_t kUnwritten = 0x7fc5a5a5;  // a NaN with a payload that no computation produces
constexpr double kSlackLimit = 1000;
constexpr double kSmallestNormal = std::numeric_limits<float>::min();

testing::AssertionResult failure(size_t index, double actual, double expected, double bound) {
  return testing::AssertionFailure() << std::setprecision(17) << "element " << index << " is " << actual
                                     << ", not within " << bound << " of " << expected;
}

bool proves_something(VectorView expected, VectorView bounds) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (bounds[i] < std::abs(expected[i])) return true;
  }
  return false;
}

}  // namespace

Tensor random_tensor(uint64_t seed, int64_t slices, int64_t rows, int64_t cols, double size) {
  const traces::Stream random(seed);
  Tensor tensor(slices, rows, cols);
  uint64_t index = 0;
  for (double& entry : tensor.numbers()) entry = size * random.normal(index++);
  return tensor;
}

Output::Output(int64_t size)
    : memory_(std::vector<float>(size + 2 * kGuard, std::bit_cast<float>(kUnwritten))) {}

bool Output::is_unwritten(float number) { return std::bit_cast<uint32_t>(number) == kUnwritten; }

std::vector<float> Output::numbers() const {
  cuda::synchronise(nullptr);
  std::vector<float> all(memory_.size());
  memory_.download(all);
  const auto first = all.begin() + kGuard, last = all.end() - kGuard;
  EXPECT_TRUE(std::all_of(all.begin(), first, is_unwritten)) << "written to the memory before the results";
  EXPECT_TRUE(std::all_of(last, all.end(), is_unwritten)) << "written to the memory behind the results";
  return {first, last};
}

WorkingMemory::WorkingMemory(int64_t bytes)
    : memory_(std::vector<unsigned char>(static_cast<size_t>(bytes), 0xff)) {}

void for_each_schedule(const std::function<void(const std::string& name)>& work) {
#ifdef KVBOUND_CUDA_NATIVE
  for (const char* name : {"the first run", "the second run"}) work(name);
#else
  for (const unsigned seed : {0u, 1u, 2u}) {
    for (const bool eager : {false, true}) {
      const cuda::emulation::ScopedSchedule schedule({.seed = seed, .eager_copies = eager});
      work("schedule " + std::to_string(seed) + (eager ? ", eager copies" : ", lazy copies"));
    }
  }
#endif
}

void for_each_device(const std::function<void(const std::string& name)>& work) {
#ifdef KVBOUND_CUDA_NATIVE
  work(cuda::device().name);
#else
  using namespace cuda::emulation;
  const auto run = [&work](int64_t bytes) {
    const ScopedSharedMemoryLimit limit(bytes);
    work(std::to_string(bytes) + " bytes of shared memory");
  };
  for (const int64_t bytes : {kMostSharedMemory, kSharedMemoryOf80, kSharedMemoryOf86}) run(bytes);
  constexpr int64_t kStep = 8192;
  EXPECT_THROW(for (int64_t bytes = kSharedMemoryOf86 - kStep; bytes > 0; bytes -= kStep) run(bytes),
               ShapeMismatch);
#endif
}

void without_clusters(const std::function<void()>& work) {
#ifndef KVBOUND_CUDA_NATIVE
  const cuda::emulation::ScopedSharedMemoryLimit limit(cuda::emulation::kSharedMemoryOf80);
#endif
  work();
}

void with_grid_rows([[maybe_unused]] int64_t rows, const std::function<void()>& work) {
#ifndef KVBOUND_CUDA_NATIVE
  const cuda::emulation::ScopedGridRows limit(rows);
#endif
  work();
}

testing::AssertionResult Comparator::hold(std::span<const float> actual, VectorView expected,
                                          VectorView bounds) {
  if (actual.size() != expected.size() || bounds.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " numbers and " << bounds.size() << " bounds for "
                                       << expected.size() << " expected";
  }
  if (expected.empty()) return testing::AssertionFailure() << "nothing compared";
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (std::isinf(expected[i]) && actual[i] == expected[i]) continue;
    if (!std::isfinite(expected[i]) || !(bounds[i] >= 0) || std::isinf(bounds[i]) || !(error <= bounds[i])) {
      return failure(i, actual[i], expected[i], bounds[i]);
    }
    ++held_;
    if (error > 0 && std::abs(expected[i]) >= kSmallestNormal) slack_.push_back(bounds[i] / error);
  }
  if (!proves_something(expected, bounds)) {
    return testing::AssertionFailure() << "bounds as large as the values, or zeros only, prove nothing";
  }
  return testing::AssertionSuccess();
}

double Comparator::median_slack() const {
  if (slack_.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sorted = slack_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

testing::AssertionResult Comparator::is_tight() const {
  const double median = median_slack();
  std::printf("%s: median of bound over error %.3g (%zu of %lld elements have an error)\n",
              operation_.c_str(), median, slack_.size(), static_cast<long long>(held_));
  if (median < kSlackLimit) return testing::AssertionSuccess();
  return testing::AssertionFailure() << operation_ << ": the bounds are " << median
                                     << " times the errors at the median; expected below " << kSlackLimit;
}

}  // namespace kvbound::parity
