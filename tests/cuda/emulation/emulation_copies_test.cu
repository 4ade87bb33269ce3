// The emulation reports faulty asynchronous copies: one kernel with a template of faults, correct while all
// are turned off, and copies to places where they must not go.
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/emulation/sanitizer.hpp>
#include <kvbound/cuda/primitives/async_copy.hpp>
#include <kvbound/cuda/primitives/kernel.hpp>

#include "support/device_test.hpp"
#include "support/emulation_faults.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

using emulation::ScopedSchedule;

struct CopyFaults {
  bool no_wait = false;
  bool no_commit = false;
  bool wait_too_short = false;
  bool reused_buffer = false;
  bool no_last_wait = false;
};

constexpr int kIssued = __LINE__ + 9;
__global__ void copy_kernel(const int* numbers, int stages, CopyFaults faults, int* sums) {
  SharedMemory memory;
  int* const buffers = memory.array<int>(2 * 4 * blockDim.x);
  const auto issue = [&](int stage) {
    const int buffer = faults.reused_buffer ? 0 : stage % 2;
    int* const to = buffers + (static_cast<unsigned>(buffer) * blockDim.x + threadIdx.x) * 4;
    const int* const from = numbers + (static_cast<unsigned>(stage) * blockDim.x + threadIdx.x) * 4;
    if (stage < stages) {
      async_copy16(to, from);
    }
    if (!faults.no_commit) async_commit();
  };
  issue(0);
  for (int stage = 0; stage < stages; ++stage) {
    issue(stage + 1);
    if (faults.wait_too_short) async_wait<2>();
    if (!faults.wait_too_short && !faults.no_wait) async_wait<1>();
    __syncthreads();
    const int buffer = faults.reused_buffer ? 0 : stage % 2;
    const int* const read =
        buffers + (static_cast<unsigned>(buffer) * blockDim.x + (threadIdx.x + 1) % blockDim.x) * 4;
    sums[static_cast<unsigned>(stage) * blockDim.x + threadIdx.x] = read[0] + read[3];
    __syncthreads();
  }
  if (!faults.no_last_wait) async_wait<0>();
}

struct Outcome {
  std::string fault;
  bool right = false;
};

Outcome copies(const CopyFaults& faults, bool eager) {
  constexpr int kStages = 5;
  constexpr int kThreads = 32;
  const ScopedSchedule scoped({0, eager});
  std::vector<int> numbers(kStages * kThreads * 4);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::vector<int> expected(kStages * kThreads);
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t from = 4 * (i / kThreads * kThreads + (i + 1) % kThreads);
    expected[i] = numbers[from] + numbers[from + 3];
  }
  const Buffer<int> input = upload(numbers);
  Buffer<int> sums(kStages * kThreads);
  Outcome outcome;
  outcome.fault = fault_of([&] {
    launch<copy_kernel>(shape(1, kThreads, 2 * 16 * kThreads), input.data(), kStages, faults, sums.data());
  });
  outcome.right = outcome.fault.empty() && download(sums) == expected;
  return outcome;
}

TEST(EmulationCopies, LazyCopiesShowAMissingWait) {
  EXPECT_TRUE(copies({}, false).right);
  EXPECT_FALSE(copies({.no_wait = true}, false).right);
  EXPECT_FALSE(copies({.wait_too_short = true}, false).right);
}

TEST(EmulationCopies, EagerCopiesShowABufferThatIsStillRead) {
  EXPECT_TRUE(copies({}, true).right);
  EXPECT_FALSE(copies({.reused_buffer = true}, true).right);
}

TEST(EmulationCopies, ACopyThatIsNeverWaitedForIsReportedWithItsPlace) {
  for (const bool eager : {false, true}) {
    for (const CopyFaults& faults :
         {CopyFaults{.no_commit = true}, CopyFaults{.no_wait = true, .no_last_wait = true}}) {
      expect_words(copies(faults, eager).fault,
                   {"async copy is in flight", "emulation_copies_test.cu:" + std::to_string(kIssued)});
    }
  }
}

__global__ void stray_copy_kernel(const float* from, int64_t source, int64_t target, int bytes) {
  SharedMemory memory;
  float* const shared = memory.array<float>(8);
  async_copy16(shared + target, from + source, bytes);
  async_commit();
  async_wait<0>();
}

TEST(EmulationCopies, AsyncCopiesGoFromAlignedToAligned) {
  Buffer<float> numbers(64);
  const auto fault = [&](int64_t source, int64_t target, int bytes) {
    return fault_of(
        [&] { launch<stray_copy_kernel>(shape(1, 1, 32), numbers.data(), source, target, bytes); });
  };
  for (const bool eager : {false, true}) {
    const ScopedSchedule scoped({0, eager});
    EXPECT_EQ(fault(60, 4, 16), "");
    EXPECT_EQ(fault(64, 4, 0), "") << "of nothing nothing is read";
    expect_words(fault(64, 4, 16), {"0 bytes past the end of a buffer of 256 bytes"});
    expect_words(fault(2, 4, 16), {"cp.async", "misaligned"});
    expect_words(fault(4, 2, 16), {"cp.async", "misaligned"});
    expect_words(fault(4, 8, 16), {"cp.async", "outside shared memory"});
    expect_words(fault(4, 4, 17), {"cp.async copies 17 bytes"});
  }
}

// As an event that is waited for too early lets it happen, or one that is not waited for.
TEST(EmulationCopies, MemoryOfTheHostStaysAsItIsUntilACopyIsWaitedFor) {
  for (const size_t changed : {size_t{0}, size_t{7}, size_t{12}}) {  // of a whole word, of the rest
    Buffer<char> to(13);
    std::vector<char> from(13, 'a');
    Event event;
    detail::queue_to_device(to.data(), from.data(), 13, nullptr);
    event.record(nullptr);
    event.wait();
    from[changed] = 'b';
    EXPECT_EQ(fault_of([] { synchronise(nullptr); }), "");
    detail::queue_to_device(to.data(), from.data(), 13, nullptr);
    from[changed] = 'c';
    event.wait();  // for the first copy alone
    expect_words(fault_of([] { synchronise(nullptr); }),
                 {"copy to the device", "13 bytes of the host have changed"});
    EXPECT_EQ(fault_of([] { synchronise(nullptr); }), "");
  }
}

TEST(EmulationCopies, GoOnAfterAFault) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    EXPECT_NE(copies({.no_commit = true}, false).fault, "");
    EXPECT_TRUE(copies({}, false).right);
  }
}

}  // namespace
}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
