// The tile shapes that kernels are compiled with: each is first held to the bounds of its arithmetic, then
// timed. What they take is printed, not judged: a table is read by whoever chooses the shape that is used.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <kvbound/cuda/attention_variants.hpp>
#include <kvbound/cuda/support/timer.hpp>
#include <kvbound/cuda/window/snap_kv_variants.hpp>
#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/error_bounds.hpp>
#include <kvbound/reference/eviction/snap_kv.hpp>

#include "gate_layer.hpp"

namespace kvbound::measure {
namespace {

using cuda::attention_splits::Partition;
using parity::Comparator;
using parity::Output;
using parity::WorkingMemory;

class TileVariants : public parity::DeviceTest {};

// The median time of an operation in microseconds, over rounds of calls that are queued one behind the other.
double microseconds(const std::function<void()>& queue) {
  const int rounds = is_tiny() ? 1 : 5;
  const int calls = is_tiny() ? 1 : 20;
  std::vector<double> times(rounds);
  cuda::Timer timer;
  for (double& time : times) {
    queue();  // so that the device is at work when the first mark is reached
    timer.start(nullptr);
    for (int i = 0; i < calls; ++i) queue();
    timer.stop(nullptr);
    time = timer.seconds() / calls * 1e6;
  }
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[rounds / 2];
}

// A kernel's variants: what each is, and its time; none for one whose results are wrong.
class Table {
 public:
  explicit Table(std::string kernel) : kernel_(std::move(kernel)) {}

  void add(const std::string& shape, bool right, const std::function<void()>& queue) {
    rows_.push_back({shape, right, right ? microseconds(queue) : 0});
  }
  /// One line a variant, the one in use first, and one for the fastest.
  void print() const {
    if (!rows_.front().right) {
      std::printf("\n%s: what is in use is wrong\n", kernel_.c_str());
      return;
    }
    const Row* best = &rows_.front();
    std::printf("\n%-44s %12s %10s\n", kernel_.c_str(), "us", "of in use");
    for (const Row& row : rows_) {
      if (!row.right) {
        std::printf("  %-42s        wrong\n", row.shape.c_str());
        continue;
      }
      std::printf("  %-42s %12.2f %9.1f%%\n", row.shape.c_str(), row.time,
                  100 * row.time / rows_.front().time);
      if (row.time < best->time) best = &row;
    }
    std::printf("best: %s: %s, %.1f%% of the time of what is in use\n", kernel_.c_str(), best->shape.c_str(),
                100 * best->time / rows_.front().time);
  }

 private:
  struct Row {
    std::string shape;
    bool right;
    double time;
  };
  std::string kernel_;
  std::vector<Row> rows_;
};

// K1's inputs, float64's outputs for them, and calls of a partition.
class AttentionCase {
 public:
  AttentionCase() : entries_(std::vector<int64_t>(shape_.layer.kv_heads, shape_.tokens)) {
    for (int64_t g = 0; g < shape_.layer.kv_heads; ++g) {
      const auto expected = reference::attention(queries(g), keys_.host().slice(g), values_.host().slice(g),
                                                 shape_.scale(), {});
      const VectorView outputs = expected.output.numbers();
      expected_.insert(expected_.end(), outputs.begin(), outputs.end());
    }
  }

  testing::AssertionResult is_right(const Partition& partition) {
    const LayerShape& layer = shape_.layer;
    Output output(layer.query_heads * layer.head_dim), log_sum_exp(layer.query_heads);
    WorkingMemory memory(workspace(partition));
    queue(partition, {output.data(), log_sum_exp.data(), nullptr}, memory.view());
    const reference::Arithmetic arithmetic = reference::arithmetic_of(
        cuda::attention_splits::attention_arithmetic_by<Stored>(partition, shape_.tokens, layer.head_dim));
    std::vector<double> bounds;
    for (int64_t g = 0; g < layer.kv_heads; ++g) {
      const Matrix of_head =
          reference::attention_errors(queries(g), keys_.host().slice(g), values_.host().slice(g),
                                      shape_.scale(), {}, arithmetic)
              .output;
      bounds.insert(bounds.end(), of_head.numbers().begin(), of_head.numbers().end());
    }
    return Comparator("attention").hold(output.numbers(), expected_, bounds);
  }

  int64_t workspace(const Partition& partition) const {
    return cuda::attention_splits::attention_workspace_by(
        partition, shape_.layer.query_heads, shape_.layer.kv_heads, shape_.layer.head_dim, shape_.tokens);
  }
  void queue(const Partition& partition, const cuda::AttentionResult& result, cuda::Workspace memory) const {
    cuda::attention_splits::attention_by(partition, queries_.device(),
                                         {keys_.device(), values_.device(), entries_.data(), nullptr},
                                         shape_.scale(), result, memory, nullptr);
  }

 private:
  MatrixView queries(int64_t g) const {
    return queries_.host().slice(0).middle_rows(g * shape_.layer.group_size(), shape_.layer.group_size());
  }

  const GateShape& shape_ = split_shape();
  GateTensor keys_ = gate_keys(shape_), values_ = gate_values(shape_),
             queries_ = GateTensor(6, 1, shape_.layer.query_heads, shape_.layer.head_dim, 2);
  cuda::Buffer<int64_t> entries_;
  std::vector<double> expected_;
};

TEST_F(TileVariants, OfAttentionAreRight) {
  using namespace cuda::attention_splits;
  const LayerShape& layer = split_shape().layer;
  AttentionCase attention;
  Table table("K1");
  for (const Partition& partition : kPartitions) {
    const auto [blocks, tokens, copies_tiles] = partition;
    const std::string shape = std::to_string(blocks) + " blocks, at most " + std::to_string(tokens) +
                              " entries" + (copies_tiles ? ", tiles copied by threads" : "");
    const testing::AssertionResult right = attention.is_right(partition);
    EXPECT_TRUE(right) << shape;
    Output output(layer.query_heads * layer.head_dim), log_sum_exp(layer.query_heads),
        logits(layer.query_heads * split_shape().tokens);
    WorkingMemory memory(attention.workspace(partition));
    table.add(shape, bool{right}, [&] {
      attention.queue(partition, {output.data(), log_sum_exp.data(), logits.data()}, memory.view());
    });
  }
  table.print();
}

TEST_F(TileVariants, OfWindowAttentionAreRight) {
  using namespace cuda::snap_kv_kernels;
  const GateShape& shape = gate_shape();
  const LayerShape& layer = shape.layer;
  const GateTensor keys = gate_keys(), queries = gate_queries(shape.window);
  const cuda::WindowView<Stored> window{queries.device(), keys.device(), shape.scale()};
  Output log_sum_exp(layer.query_heads * shape.window);
  WorkingMemory memory(cuda::window_log_sum_exp_workspace(layer.query_heads, shape.window, shape.tokens));
  cuda::window_log_sum_exp(window, log_sum_exp.data(), memory.view(), nullptr);
  std::vector<int64_t> heads;
  for (int64_t h = 0; h < layer.group_size(); ++h) heads.push_back(h);
  const Tensor own_keys = slices_of(keys.host(), {0}), own_queries = slices_of(queries.host(), heads);
  const LayerView own{
      {layer.group_size(), 1, layer.head_dim, 1}, shape.scale(), own_keys, own_keys, own_queries, {}};
  const Matrix expected = reference::window_attention(own, shape.window);
  const Matrix bounds = reference::window_attention_errors(
      own, shape.window,
      reference::arithmetic_of(cuda::window_arithmetic<Stored>(shape.tokens, layer.head_dim)));
  Table table("K2");
  const auto add = [&](const std::string& name, const std::function<void(float*)>& attention) {
    Output weights(layer.query_heads * shape.tokens);
    const auto queue = [&] { attention(weights.data()); };
    queue();
    const std::vector<float> all = weights.numbers();
    const auto of_first = std::span(all).first(static_cast<size_t>(layer.group_size() * shape.tokens));
    const testing::AssertionResult right =
        Comparator("window attention").hold(of_first, expected.numbers(), bounds.numbers());
    EXPECT_TRUE(right) << name;
    table.add(name, bool{right}, queue);
  };
  add("in use", [&](float* to) {
    cuda::window_attention(window, log_sum_exp.data(), WindowReduction::mean, to, nullptr);
  });
  for (int tile = 0; tile < kWindowTileCount; ++tile) {
    const auto [tokens, blocks] = kWindowTiles[tile];
    add("mma, " + std::to_string(tokens) + " tokens, " + std::to_string(blocks) + " blocks", [&](float* to) {
      window_attention_by(tile, window, log_sum_exp.data(), WindowReduction::mean, to, nullptr);
    });
  }
  table.print();
}

}  // namespace
}  // namespace kvbound::measure
