#include "bench_host.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <kvbound/cuda/session/readback.hpp>
#include <kvbound/cuda/support/stored_rows.hpp>
#include <kvbound/reference/numerics/rounding.hpp>

#include "bench_layer.hpp"

namespace kvbound::sim {
namespace {

using Stored = cuda::Bfloat16;

constexpr int64_t kChunk = int64_t{1} << 22;  // bytes, as of MemoryPool
constexpr int64_t kHostSteps = 8;             // half of what a session takes together
constexpr double kHostStepGoal = 6e-6;        // seconds
constexpr double kUploadGoal = 1.25;          // times a copy

// Seconds of the processor that this thread has used.
double processor_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Work>
BenchPiece host_piece(const std::string& name, double count, const std::string& unit, Work work) {
  return {name, count, unit, nullptr, [work] {
            const double start = processor_seconds();
            work();
            return processor_seconds() - start;
          }};
}

// Two chunks in place of page-locked memory, whose turns alternate.
class Chunks {
 public:
  std::byte* next() { return chunks_[turn_++ % chunks_.size()].data(); }

 private:
  std::array<std::vector<std::byte>, 2> chunks_{std::vector<std::byte>(kChunk),
                                                std::vector<std::byte>(kChunk)};
  size_t turn_ = 0;
};

std::vector<uint16_t> bits_of(const Tensor& tensor) {
  const auto numbers = std::ssize(tensor.numbers());
  std::vector<uint16_t> bits(static_cast<size_t>(numbers));
  reference::round_to_bfloat16({tensor.numbers().data(), 1, numbers}, bits.data(), numbers);
  return bits;
}

struct HostLayer {
  explicit HostLayer(const BenchOptions& options)
      : layer(options),
        keys(bits_of(layer.keys)),
        values(bits_of(layer.values)),
        queries(bits_of(layer.queries)) {}

  BenchLayer layer;
  std::vector<uint16_t> keys, values, queries;
};

// bits  null: rounded
void store_slices(TensorView numbers, const uint16_t* bits, Chunks& chunks) {
  const int64_t at_once =
      kChunk / (cuda::padded<Stored>(numbers.cols) * static_cast<int64_t>(sizeof(Stored)));
  for (int64_t s = 0; s < numbers.slices; ++s) {
    const cuda::HostRows<Stored> rows(numbers.slice(s), Dtype::bf16,
                                      bits ? bits + s * numbers.slice_stride : nullptr);
    for (int64_t first = 0; first < numbers.rows; first += at_once) {
      cuda::store_rows(rows.middle(first, std::min(at_once, numbers.rows - first)),
                       reinterpret_cast<Stored*>(chunks.next()));
    }
  }
}

void copy_all(const std::vector<uint16_t>& bits, Chunks& chunks) {
  const auto* const from = reinterpret_cast<const std::byte*>(bits.data());
  const auto bytes = static_cast<int64_t>(bits.size() * sizeof(uint16_t));
  for (int64_t done = 0; done < bytes; done += kChunk) {
    std::memcpy(chunks.next(), from + done, static_cast<size_t>(std::min(kChunk, bytes - done)));
  }
}

// A header and the t-th row of every head, as a step has them; returns what is behind them.
std::byte* store_step(const HostLayer& host, int64_t t, bool recorded, std::byte* to) {
  constexpr size_t kHeader = 256;
  std::memset(to, 0, kHeader);
  to += kHeader;
  const auto store = [&](const Tensor& tensor, const std::vector<uint16_t>& bits) {
    const MatrixView rows = tensor.view().row_of_slices(t % tensor.view().rows);
    const uint16_t* const own = recorded ? bits.data() + (rows.data - tensor.numbers().data()) : nullptr;
    cuda::store_rows(cuda::HostRows<Stored>(rows, Dtype::bf16, own), reinterpret_cast<Stored*>(to));
    to += rows.rows * cuda::padded<Stored>(rows.cols) * static_cast<int64_t>(sizeof(Stored));
  };
  store(host.layer.keys, host.keys);
  store(host.layer.values, host.values);
  store(host.layer.queries, host.queries);
  return to;
}

}  // namespace

// Work is what is read and written.
BenchResult bench_upload(const BenchOptions& options) {
  const HostLayer host(options);
  Chunks chunks;
  const double stored = 2.0 * static_cast<double>(host.keys.size() + host.values.size());
  const auto store = [&](const uint16_t* keys, const uint16_t* values) {
    store_slices(host.layer.keys, keys, chunks);
    store_slices(host.layer.values, values, chunks);
  };
  BenchResult result =
      measure({host_piece("upload, recorded in BF16", 2 * stored, "bytes",
                          [&] { store(host.keys.data(), host.values.data()); }),
               host_piece("rounded from doubles", 5 * stored, "bytes", [&] { store(nullptr, nullptr); }),
               host_piece("a copy of as many bytes", 2 * stored, "bytes",
                          [&] {
                            copy_all(host.keys, chunks);
                            copy_all(host.values, chunks);
                          })},
              options.rounds, [](std::span<const double> seconds) { return seconds[0] / seconds[2]; });
  result.ratio_meaning = "times a copy of as many bytes";
  result.goal = at_most(kUploadGoal);
  return result;
}

BenchResult bench_step_host(const BenchOptions& options) {
  const HostLayer host(options);
  const LayerShape& shape = host.layer.shape;
  const int64_t numbers = shape.query_heads * shape.head_dim;
  Chunks chunks;
  const std::vector<float> arrived(static_cast<size_t>(numbers), 0.25F);
  const auto store = [&](bool recorded) {
    std::byte* to = chunks.next();
    for (int64_t t = 0; t < kHostSteps; ++t) to = store_step(host, t, recorded, to);
  };
  const auto make_records = [&] {
    const cuda::Arrived all(reinterpret_cast<const std::byte*>(arrived.data()));
    std::vector<Matrix> records;
    for (int64_t t = 0; t < kHostSteps; ++t) {
      records.push_back(all.matrix({{0, numbers}, shape.query_heads, shape.head_dim}, "output"));
    }
  };
  BenchResult result =
      measure({host_piece("step-host, inputs recorded in BF16", kHostSteps, "steps",
                          [&] {
                            store(true);
                            make_records();
                          }),
               host_piece("inputs copied", kHostSteps, "steps", [&] { store(true); }),
               host_piece("inputs rounded from doubles", kHostSteps, "steps", [&] { store(false); }),
               host_piece("records", kHostSteps, "steps", make_records)},
              options.rounds,
              [](std::span<const double> seconds) { return seconds[0] / kHostSteps / kHostStepGoal; });
  result.ratio_meaning = "times 6 us of a processor a step";
  result.goal = at_most(1);
  return result;
}

}  // namespace kvbound::sim
