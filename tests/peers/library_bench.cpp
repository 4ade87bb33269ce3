// Compiled for one build of the kernels (cuda/support/build.hpp), as the program is.
#include "library_bench.hpp"

#include <cstring>
#include <functional>
#include <utility>

#include <kvbound/sim/bench/bench_layer.hpp>
#include <kvbound/sim/bench/device_inputs.hpp>
#include <kvbound/sim/bench/device_measure.hpp>

namespace kvbound::sim {
namespace {

using namespace KVBOUND_CUDA_BUILD;
using cuda::Buffer, cuda::StoredTensor, cuda::Stream;
using Seconds = std::optional<std::vector<double>>;

// Room for the parts of a split cache (FlashInfer's Python asks for 32 MiB) and for the passes of a sort.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

Buffer<std::byte> zeros(int64_t bytes) {
  Buffer<std::byte> memory(bytes);
  memory.clear(kStream);
  return memory;
}

// What a call writes; every byte that it does not write is 0xff, which is NaN, or no index.
template <class T>
std::vector<T> written_by(Buffer<T>& results, const std::function<void()>& call) {
  std::vector<T> numbers(results.size());
  std::memset(static_cast<void*>(numbers.data()), 0xff, numbers.size() * sizeof(T));
  results.upload(numbers, kStream);
  call();
  results.download(numbers, kStream);
  return numbers;
}

std::vector<double> seconds_of(const BenchOptions& options, const Call& call) {
  constexpr Launches kLaunches = kNative ? Launches::recorded : Launches::direct;
  return measure({device_piece("", {}, call, kLaunches)}, options.rounds).times.front().seconds;
}

struct AttentionSet {
  StoredTensor<Stored> keys, values;
  Buffer<Stored> output;
  double bytes() const { return traffic(keys, values, output); }
};

Seconds attention_seconds(const KernelLibrary& library, const BenchOptions& options, int64_t tokens,
                          const CallFile& file) {
  const LayerShape& shape = options.shape.layer;
  const BenchLayer layer(options);
  const Tensor query = random_tensor(1, shape.query_heads, shape.head_dim, BenchLayer::random(options, 10));
  const StoredTensor<Stored> queries(query, kStream);
  Buffer<std::byte> workspace = zeros(kWorkspaceBytes);
  const auto attend = [&](AttentionSet& set, Stream stream) {
    library.attention({queries.numbers().data(), std::as_const(set.keys).numbers().data(),
                       std::as_const(set.values).numbers().data(), set.output.data(), shape.query_heads,
                       shape.kv_heads, tokens, shape.head_dim, scale(shape), all_of(workspace)},
                      stream);
  };
  Rotation<AttentionSet> sets([&] {
    return AttentionSet{{layer.keys.view().middle_rows(0, tokens), kStream},
                        {layer.values.view().middle_rows(0, tokens), kStream},
                        Buffer<Stored>(shape.query_heads * shape.head_dim)};
  });
  AttentionSet& first = sets.next();
  const auto output = written_by(first.output, [&] { attend(first, kStream); });
  if (!attention_is_right(file, library, query, layer.keys, layer.values, tokens, output))
    return std::nullopt;
  return seconds_of(options, [&](Stream stream) { attend(sets.next(), stream); });
}

struct TopSet {
  Buffer<float> scores;
  Buffer<int32_t> positions;
  Buffer<float> values;
  Buffer<int32_t> indices;
  double bytes() const { return traffic(scores, positions, values, indices); }
};

// Of the candidates of `kvbound bench`: whose last positions are always kept.
Seconds top_seconds(const KernelLibrary& library, bool ranked, const BenchOptions& options,
                    const CallFile& file) {
  const int64_t rows = options.shape.layer.kv_heads, cols = options.shape.tokens - BenchLayer::kWindow;
  const int64_t k = bench_budgets(options).front() - BenchLayer::kWindow;
  const std::vector<float> scores = random_scores(rows * cols, BenchLayer::random(options, 11));
  std::vector<int32_t> counted(scores.size());
  for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<int32_t>(i % cols);
  Buffer<std::byte> workspace = zeros(kWorkspaceBytes);
  const auto select = [&](TopSet& set, Stream stream) {
    (ranked ? library.rank_top : library.select_top)(
        {set.scores.data(), set.positions.data(), set.values.data(), set.indices.data(), rows, cols, k,
         all_of(workspace)},
        stream);
  };
  Rotation<TopSet> sets([&] {
    return TopSet{uploaded(scores), uploaded(counted), Buffer<float>(rows * cols),
                  Buffer<int32_t>(rows * cols)};
  });
  TopSet& first = sets.next();
  const auto indices = written_by(first.indices, [&] { select(first, kStream); });
  if (!top_is_right(file, scores, rows, indices, ranked ? cols : k, k, ranked ? "descending" : "any"))
    return std::nullopt;
  return seconds_of(options, [&](Stream stream) { select(sets.next(), stream); });
}

}  // namespace

std::vector<std::string_view> operations_of(const KernelLibrary& library) {
  std::vector<std::string_view> names;
  if (library.attention) names = {"attention", "attention-compressed"};
  if (library.select_top) names.emplace_back("select-top");
  if (library.rank_top) names.emplace_back("rank-top");
  return names;
}

Seconds judged_seconds(const KernelLibrary& library, std::string_view operation, const BenchOptions& options,
                       const CallFile& file) {
  if (operation == "attention") return attention_seconds(library, options, options.shape.tokens, file);
  if (operation == "attention-compressed")
    return attention_seconds(library, options, bench_budgets(options).front(), file);
  return top_seconds(library, operation == "rank-top", options, file);
}

}  // namespace kvbound::sim
