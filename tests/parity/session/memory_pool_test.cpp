// Memory that is used again, and work that is recorded.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/cuda/session/readback.hpp>
#include <kvbound/cuda/support/counters.hpp>
#include <kvbound/cuda/support/memory_pool.hpp>
#include <kvbound/cuda/support/recording.hpp>
#include <kvbound/reference/core/error.hpp>

#include "parity/support.hpp"

namespace kvbound::parity {
namespace {

std::vector<int> ascending(int64_t count, int first) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class MemoryPoolTest : public DeviceTest {
 protected:
  // What a piece of work asks of the device.
  template <class Work>
  static cuda::DeviceCounters requests_of(const Work& work) {
    const cuda::DeviceCounters before = cuda::counters();
    work();
    return cuda::counters() - before;
  }
};

TEST_F(MemoryPoolTest, GivesMemoryBackToLaterBuffersOfSimilarSize) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  const auto take = [](int64_t size) { return requests_of([&] { cuda::Buffer<int>{size}; }).allocations; };
  EXPECT_EQ(take(10000), 1);
  EXPECT_EQ(take(10000), 0);
  EXPECT_EQ(take(11000), 0) << "a block has room for an eighth more";
  EXPECT_EQ(take(6000), 0);
  EXPECT_EQ(take(2000), 1) << "a block is not given to what needs less than half of it";
  EXPECT_EQ(take(12000), 1);
}

TEST_F(MemoryPoolTest, ExpectedGrowthHoldsForBlocksThatAreUsedAgain) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  const auto take = [](int64_t size) { return requests_of([&] { cuda::Buffer<int>{size}; }).allocations; };
  pool.reserve_growth(1.5);
  EXPECT_EQ(take(10000), 1);
  EXPECT_EQ(take(10100), 1) << "the first block has no room for half as much again";
  EXPECT_EQ(take(10000), 0);
  pool.settle();
  EXPECT_EQ(take(15000), 0);
  EXPECT_EQ(take(15150), 0);
  EXPECT_EQ(take(16000), 1);
}

TEST_F(MemoryPoolTest, BuffersOfAPoolDoNotOverlap) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  std::vector<cuda::Buffer<int>> buffers;
  for (int round = 0; round < 3; ++round) {
    buffers.clear();
    for (int i = 0; i < 8; ++i)
      buffers.emplace_back(std::span<const int>(ascending(100 + i, 1000 * i)), nullptr);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(cuda::download(buffers[i]), ascending(100 + i, 1000 * i));
  }
}

TEST_F(MemoryPoolTest, ABufferKnowsItsPoolOutsideOfTheScope) {
  cuda::MemoryPool pool(nullptr);
  std::optional<cuda::Buffer<int>> buffer;
  {
    const cuda::PoolScope scope(pool);
    buffer.emplace(500);
    cuda::Buffer<int> other(600);
    *buffer = std::move(other);
  }
  buffer.reset();
  const cuda::PoolScope scope(pool);
  EXPECT_EQ(requests_of([] { cuda::Buffer<int>(500), cuda::Buffer<int>(600); }).allocations, 0);
}

TEST_F(MemoryPoolTest, UploadsDoNotWaitAndKeepWhatTheyWereGiven) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  cuda::Buffer<int> first(3000), second(3000);
  std::vector<int> numbers = ascending(3000, 1);
  const cuda::DeviceCounters requests = requests_of([&] {
    first.upload(numbers);
    std::ranges::fill(numbers, 7);
    second.upload(numbers);
    std::ranges::fill(numbers, 8);
  });
  EXPECT_EQ(requests.synchronisations, 0);
  EXPECT_EQ(requests.uploads, 2);
  EXPECT_EQ(requests.upload_bytes, 24000);
  EXPECT_EQ(cuda::download(first), ascending(3000, 1));
  EXPECT_EQ(cuda::download(second), std::vector<int>(3000, 7));
}

// In pieces, of which the first two need not wait for another.
TEST_F(MemoryPoolTest, AWholePromptPassesThroughTwoChunks) {
  constexpr int64_t kMost = int64_t{1} << 20;  // numbers, of 4 bytes each
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  struct Expected {
    int64_t size, uploads, waits, allocations;
  };
  for (const Expected& expected :
       {Expected{kMost, 1, 0, 1}, {kMost + 1, 2, 0, 2}, {5 * kMost - 3, 5, 5, 0}}) {
    cuda::Buffer<int> numbers(expected.size);
    const std::vector<int> from = ascending(expected.size, 1);
    const cuda::DeviceCounters requests = requests_of([&] { numbers.upload(from); });
    EXPECT_EQ(requests.uploads, expected.uploads);
    EXPECT_EQ(requests.synchronisations, expected.waits);
    EXPECT_EQ(requests.allocations, expected.allocations);
    EXPECT_EQ(cuda::download(numbers), from);
  }
}

TEST_F(MemoryPoolTest, RowsAreWrittenWholeAndInOrderWithAPoolAndWithout) {
  constexpr int64_t kRow = 1000, kRows = 3000;  // 12 MB
  const auto upload_and_check = [&] {
    cuda::Buffer<int> numbers(kRow * kRows + 1);
    int64_t next = 0;
    numbers.upload_rows(
        kRows, kRow,
        [&](int64_t first, int64_t count, int* memory) {
          EXPECT_EQ(first, next);
          next += count;
          for (int64_t i = 0; i < count * kRow; ++i) memory[i] = static_cast<int>(first * kRow + i);
        },
        nullptr, 1);
    EXPECT_EQ(next, kRows);
    std::vector<int> expected = ascending(kRow * kRows + 1, -1), arrived = cuda::download(numbers);
    arrived[0] = -1;
    EXPECT_EQ(arrived, expected);
  };
  upload_and_check();
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  upload_and_check();
}

TEST_F(MemoryPoolTest, AnEventWaitsForWhatIsBeforeItAlone) {
  cuda::Event event, never;
  const cuda::Buffer<int> numbers(std::span<const int>(ascending(100, 1)));
  std::vector<int> before(100, -7), behind(100, -7);
  event.wait();
  event.record(nullptr);  // once more below
  cuda::detail::queue_to_host(before.data(), numbers.data(), 400, nullptr);
  event.record(nullptr);
  cuda::detail::queue_to_host(behind.data(), numbers.data(), 400, nullptr);
  EXPECT_EQ(requests_of([&] { event.wait(); }).synchronisations, 1);
  EXPECT_EQ(before, ascending(100, 1));
  cuda::synchronise(nullptr);
  EXPECT_EQ(behind, ascending(100, 1));
  EXPECT_EQ(requests_of([&] { never.wait(); }).synchronisations, 0);
}

TEST_F(MemoryPoolTest, StagedMemoryIsUsedAnewOnlyAfterAWait) {
  cuda::MemoryPool pool(nullptr);
  std::byte* const first = pool.stage(1000);
  std::byte* const second = pool.stage(1000);
  EXPECT_GE(std::abs(second - first), 1000);
  pool.wait();
  EXPECT_EQ(requests_of([&] { EXPECT_EQ(pool.stage(1000), first); }).allocations, 0);
}

TEST_F(MemoryPoolTest, ReadBackArrivesInOneTransferAfterTheWait) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  cuda::Readback reads;
  std::vector<int> seen;
  std::vector<int64_t> order;
  const cuda::DeviceCounters requests = requests_of([&] {
    cuda::Buffer<int> numbers(std::span<const int>(ascending(77, 5)), nullptr);
    cuda::Buffer<int64_t> one(std::span<const int64_t>(std::vector<int64_t>{42}), nullptr);
    reads.then([&, all = reads.of(numbers)](const cuda::Arrived& arrived) {
      seen.assign(arrived[all].begin(), arrived[all].end());
      order.push_back(1);
    });
    reads.then([&, number = reads.of(one)](const cuda::Arrived& arrived) {
      order.push_back(arrived[number].front());
    });
    reads.keep(std::move(one));
    reads.fetch(pool);
  });  // what was read back is released
  EXPECT_EQ(requests.downloads, 1);
  EXPECT_EQ(requests.synchronisations, 0);
  pool.wait();
  reads.arrive();
  EXPECT_EQ(seen, ascending(77, 5));
  EXPECT_EQ(order, (std::vector<int64_t>{1, 42}));
}

#ifndef KVBOUND_CUDA_NATIVE
TEST_F(MemoryPoolTest, WhatIsReadBackIsNotThereBeforeTheWait) {
  cuda::MemoryPool pool(nullptr);
  const cuda::Buffer<int> numbers = cuda::upload(ascending(4, 1));
  std::vector<int> host(4, -1);
  cuda::detail::queue_to_host(host.data(), numbers.data(), numbers.bytes(), nullptr);
  EXPECT_EQ(host, std::vector<int>(4, -1));
  pool.wait();
  EXPECT_EQ(host, ascending(4, 1));
}

TEST_F(MemoryPoolTest, MemoryThatWasGivenBackIsInaccessible) {
  cuda::MemoryPool pool(nullptr);
  const cuda::PoolScope scope(pool);
  const int* data = nullptr;
  {
    const cuda::Buffer<int> numbers(100);
    data = numbers.data();
  }
  int number = 0;
  EXPECT_THROW(cuda::detail::download(&number, data, sizeof(number), nullptr), DeviceError);
}
#endif

class RecordingTest : public DeviceTest {
 protected:
  // Copies the next number of a list, and sets another one to 0.
  struct Work {
    cuda::Buffer<int> from = cuda::upload(ascending(4, 10)), to = cuda::upload(ascending(4, 0)),
                      cleared = cuda::upload(ascending(4, 1));
    int calls = 0;

    void run(cuda::Recording& recording) {
      recording.run(nullptr, [this](cuda::Stream stream) {
        ++calls;
        cuda::detail::queue_on_device(to.data(), from.data(), to.bytes(), stream);
        cleared.clear(stream);
      });
    }
  };
};

TEST_F(RecordingTest, RunsAtOnceThenRecordsThenRepeats) {
  cuda::Recording recording;
  Work work;
  for (int round = 0; round < 5; ++round) {
    work.from.upload(ascending(4, 100 * round));
    work.cleared.upload(ascending(4, 1));
    const cuda::DeviceCounters before = cuda::counters();
    work.run(recording);
    const cuda::DeviceCounters requests = cuda::counters() - before;
    EXPECT_EQ(requests.moves, 1);
    EXPECT_EQ(requests.fills, 1);
    EXPECT_EQ(cuda::download(work.to), ascending(4, 100 * round));
    EXPECT_EQ(cuda::download(work.cleared), std::vector<int>(4, 0));
    EXPECT_EQ(work.calls, std::min(round + 1, 2));
  }
}

TEST_F(RecordingTest, ForgetsWhatItRecorded) {
  cuda::Recording recording;
  Work work, other;
  for (int round = 0; round < 3; ++round) work.run(recording);
  recording.forget();
  other.from.upload(ascending(4, 77));
  for (int round = 0; round < 2; ++round) {
    other.to.upload(ascending(4, 0));
    other.run(recording);
    EXPECT_EQ(cuda::download(other.to), ascending(4, 77));
  }
  EXPECT_EQ(other.calls, 2);
}

TEST_F(RecordingTest, RefusesMemoryThatHasMoved) {
  cuda::Recording recording;
  const std::vector<int> one(1), other(1);
  int calls = 0;
  const auto run = [&](const std::vector<int>& memory) {
    recording.run(
        nullptr, [&](cuda::Stream) { ++calls; }, memory.data());
  };
  run(other);  // not recorded yet
  run(one);
  run(one);
  EXPECT_THROW(run(other), DeviceError);
  recording.forget();
  for (int round = 0; round < 3; ++round) run(other);
  EXPECT_EQ(calls, 4);
}

TEST_F(RecordingTest, RefusesWhatCannotBeRepeated) {
  const auto record = [](const std::function<void(cuda::Stream)>& work) {
    cuda::Recording recording;
    recording.run(nullptr, work);
    recording.run(nullptr, work);
  };
  cuda::Buffer<int> numbers(4);
  std::vector<int> host(4);
  EXPECT_THROW(record([](cuda::Stream stream) { cuda::synchronise(stream); }), DeviceError);
  EXPECT_THROW(record([](cuda::Stream) { cuda::Buffer<int>{5}; }), DeviceError);
  EXPECT_THROW(record([&](cuda::Stream stream) { numbers.upload(host, stream); }), DeviceError);
  EXPECT_THROW(record([&](cuda::Stream stream) { numbers.download(host, stream); }), DeviceError);
  EXPECT_NO_THROW(numbers.upload(host)) << "nothing is recorded any more";
  cuda::synchronise(nullptr);
}

}  // namespace
}  // namespace kvbound::parity
