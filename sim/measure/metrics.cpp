#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <kvbound/reference/attention.hpp>
#include <kvbound/reference/bounds/perturbation_errors.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/merge_rules.hpp>
#include <kvbound/reference/core/operation_times.hpp>
#include <kvbound/reference/core/parallel.hpp>
#include <kvbound/reference/core/shape_check.hpp>
#include <kvbound/reference/eviction/cache_positions.hpp>
#include <kvbound/reference/eviction/critical_kv.hpp>
#include <kvbound/reference/eviction/obcache.hpp>
#include <kvbound/reference/eviction/recall.hpp>
#include <kvbound/reference/eviction/selection.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/reference/numerics/token_blocks.hpp>
#include <kvbound/reference/perturbation.hpp>

#include "merged_bound.hpp"
#include "stopwatch.hpp"

namespace kvbound::sim {
namespace {

// Decode steps per block, which bounds the memory of a work item. Every block has this many rows,
// those beyond the last step being zero, so that a step's results do not depend, to the bit, on how
// many steps are replayed.
constexpr int64_t kRowBlock = 32;

bool merges(const LayerRecord& record) { return !record.prompt.merges.empty(); }

// Throws ShapeMismatch if a run uses a two-stage selection and a rebuild did not record stage one.
void require_stages(const LayerRecord& record, int64_t kv_heads) {
  if (record.prompt.stage_one.empty()) return;
  for (const StepRecord& step : record.steps) {
    if (!step.rebuilt) continue;
    require_equal("stage_one of a rebuild", std::ssize(step.stage_one), "kv_heads", kv_heads);
  }
}

// L1 norms of all projected values, [query_heads, n + T]; the prompt's are copied if they are given.
Matrix all_value_norms(const traces::Layer& layer, MatrixView prompt_norms) {
  const TensorView values = layer.values;
  const int64_t known = prompt_norms.cols;
  const Matrix rest = reference::projected_value_norms(
      layer.shape, values.middle_rows(known, values.rows - known), layer.output_projection, Norm::l1);
  Matrix norms(layer.shape.query_heads, values.rows);
  for (int64_t h = 0; h < norms.rows(); ++h) {
    if (known > 0) std::ranges::copy(prompt_norms.row(h), norms.row(h).begin());
    std::ranges::copy(rest.row(h), norms.row(h).begin() + known);
  }
  return norms;
}

// Per KV head, the prompt entries whose eviction would change the first step's outputs most, ascending; empty
// lists if those changes overflow double precision.
std::vector<std::vector<int64_t>> most_missed(const traces::Layer& layer, int64_t count) {
  const int64_t entries = layer.prompt_tokens + 1;
  std::vector<std::vector<int64_t>> missed(layer.shape.kv_heads);
  try {
    const Matrix errors = reference::group_sum(
        reference::eviction_errors(layer.shape, layer.scale, layer.keys.view().middle_rows(0, entries),
                                   layer.values.view().middle_rows(0, entries), layer.step(0).queries,
                                   layer.prompt_tokens),
        layer.shape.group_size());
    for (int64_t g = 0; g < errors.rows(); ++g) {
      missed[g] = reference::select_top(errors.row(g), std::min(count, layer.prompt_tokens));
    }
  } catch (const NonFinite&) {
  }
  return missed;
}

class Measurement {
 public:
  Measurement(const traces::Layer& layer, const std::vector<LayerRecord>& records, MatrixView prompt_norms,
              bool centred)
      : layer_(layer),
        records_(records),
        shape_(layer.shape),
        centred_(centred),
        steps_(std::ssize(records.front().steps)),
        blocks_(reference::token_blocks(steps_, kRowBlock)),
        projected_value_norms_(all_value_norms(layer, prompt_norms)),
        rounding_scales_(static_cast<size_t>(shape_.query_heads)),
        row_norms_(reference::projection_row_norms(layer.output_projection, shape_.head_dim)),
        full_output_(blocks_ * kRowBlock, shape_.query_heads * shape_.head_dim) {
    reference::parallel_for(shape_.query_heads, [&](int64_t h) {
      rounding_scales_[h] =
          reference::rounding_scale(layer_.values.slice(shape_.kv_head_of(h)), head_projection(h));
    });
  }

  std::vector<LayerMetrics> run(int64_t recall_of) {
    for (const LayerRecord& record : records_) {
      const Matrix zeros(steps_, shape_.query_heads);
      require_stages(record, shape_.kv_heads);
      LayerMetrics metrics;
      for (const std::vector<int64_t>& kept : record.prompt.kept) {
        metrics.kept.push_back(std::ssize(kept));
      }
      for (Matrix* matrix : {&metrics.perturbation, &metrics.relative, &metrics.kept_mass}) *matrix = zeros;
      if (!merges(record) || record.merge) metrics.bound = metrics.rounding = zeros;
      if (centred_ && metrics.bound && !(record.merge && rules_of(*record.merge).spread))
        metrics.centred_bound = metrics.centred_rounding = zeros;
      if (!record.prompt.stage_one.empty()) metrics.stage_one_mass = Matrix(steps_, shape_.query_heads);
      metrics_.push_back(std::move(metrics));
      changes_.emplace_back(full_output_.rows(), full_output_.cols());
    }
    measure_heads();
    measure_layer();
    if (recall_of > 0 && steps_ > 0) measure_recall(recall_of);
    return std::move(metrics_);
  }

  // Of the wall time since `start`, what attention over the full cache took, and the rest.
  void add_times(Clock::time_point start, OperationTimes& times) const {
    if (!attention_times_.empty())
      times.add("full_attention", attention_seconds_, std::ssize(attention_times_));
    times.add("measurement", seconds_since(start) - attention_seconds_);
  }

 private:
  MatrixView head_projection(int64_t h) const {
    return layer_.output_projection.view().middle_rows(h * shape_.head_dim, shape_.head_dim);
  }
  // One head's columns of a block of steps, [kRowBlock, head_dim].
  MutableMatrixView head_block(Matrix& steps, int64_t h, int64_t first) const {
    return steps.view().middle_rows(first, kRowBlock).middle_cols(h * shape_.head_dim, shape_.head_dim);
  }

  // For each run, the share of the most missed entries that it kept.
  void measure_recall(int64_t recall_of) {
    const std::vector<std::vector<int64_t>> missed = most_missed(layer_, recall_of);
    for (size_t r = 0; r < records_.size(); ++r) {
      for (size_t g = 0; g < missed.size(); ++g) {
        metrics_[r].recall.push_back(missed[g].empty()
                                         ? std::numeric_limits<double>::quiet_NaN()
                                         : reference::share_found(missed[g], records_[r].prompt.kept[g]));
      }
    }
  }

  // Per query head and block of steps: attention over the full cache, and how each run's
  // cache changes the output.
  void measure_heads() {
    attention_times_.resize(static_cast<size_t>(shape_.query_heads * blocks_));
    std::vector<Clock::duration> times(attention_times_.size());
    const auto start = Clock::now();
    reference::parallel_for(std::ssize(times), [&](int64_t piece) {
      const auto piece_start = Clock::now();
      measure_block(piece / blocks_, piece % blocks_);
      times[piece] = Clock::now() - piece_start;
    });
    const auto seconds = [](const std::vector<Clock::duration>& durations) {
      return std::chrono::duration<double>(std::reduce(durations.begin(), durations.end())).count();
    };
    // The wall time, divided in the proportion in which the threads spent theirs.
    attention_seconds_ = seconds_since(start) * ratio(seconds(attention_times_), seconds(times));
  }

  void measure_block(int64_t h, int64_t block) {
    const auto start = Clock::now();
    const int64_t g = shape_.kv_head_of(h);
    const MatrixView queries = layer_.queries.slice(h).middle_rows(layer_.window_queries, steps_);
    const reference::TokenBlock steps(queries, block, kRowBlock);
    const Matrix logits = reference::attention_logits(steps.rows, layer_.keys.slice(g), layer_.scale);
    Matrix weights = logits;  // rows beyond the last step remain zero
    reference::causal_softmax(weights.view().middle_rows(0, steps.count), layer_.prompt_tokens + steps.first);
    const MutableMatrixView output = head_block(full_output_, h, steps.first);
    reference::multiply(weights, layer_.values.slice(g), output);
    attention_times_[h * blocks_ + block] = Clock::now() - start;
    const std::vector<double> norms = projected_l1(output, h);
    const Matrix distances = centred_ ? distances_from(output, h) : Matrix();
    for (size_t r = 0; r < records_.size(); ++r) {
      const Matrix signed_weights = merges(records_[r]) ? measure_merging_run(r, h, steps, weights)
                                                        : measure_run(r, h, steps, logits, weights);
      if (metrics_[r].centred_bound) measure_centred(r, h, steps, weights, signed_weights, distances);
      const std::vector<double> perturbations = projected_l1(head_block(changes_[r], h, steps.first), h);
      for (int64_t i = 0; i < steps.count; ++i) {
        const int64_t index = i;
        metrics_[r].perturbation(steps.first + i, h) = perturbations[index];
        metrics_[r].relative(steps.first + i, h) = ratio(perturbations[index], norms[index]);
      }
    }
  }

  // The bound, kept mass and change of the attention output of a run that only evicts, for
  // consecutive steps of one head. Returns the signed weights, [kRowBlock, n + T].
  Matrix measure_run(size_t r, int64_t h, const reference::TokenBlock& steps, const Matrix& logits,
                     const Matrix& weights) {
    const LayerRecord& record = records_[r];
    LayerMetrics& metrics = metrics_[r];
    const int64_t g = shape_.kv_head_of(h);
    reference::CachePositions positions(record.prompt, g, layer_.prompt_tokens);
    Matrix signed_weights(logits.rows(), logits.cols());
    for (int64_t i = 0; i < steps.count; ++i) {
      const int64_t t = steps.first + i;
      const int64_t visible = layer_.prompt_tokens + t + 1;
      const VectorView attention = weights.row(i).first(visible);
      const std::vector<int64_t>& kept = positions.at(record.steps, t);
      const reference::EvictionWeights eviction =
          reference::eviction_weights(logits.row(i).first(visible), attention, kept);
      std::ranges::copy(eviction.weights, signed_weights.row(i).begin());
      metrics.kept_mass(t, h) = eviction.kept_mass;
      (*metrics.bound)(t, h) =
          reference::perturbation_bound(eviction, projected_value_norms_.row(h).first(visible));
      (*metrics.rounding)(t, h) = reference::perturbation_rounding(eviction, rounding_scales_[h]);
      measure_stage_one(r, t, h, attention, positions);
    }
    reference::multiply(signed_weights, layer_.values.slice(g), head_block(changes_[r], h, steps.first));
    return signed_weights;
  }

  // The same for a run that merges, its change from recorded outputs.
  Matrix measure_merging_run(size_t r, int64_t h, const reference::TokenBlock& steps, const Matrix& weights) {
    const LayerRecord& record = records_[r];
    LayerMetrics& metrics = metrics_[r];
    reference::CachePositions positions(record.prompt, shape_.kv_head_of(h), layer_.prompt_tokens);
    std::optional<MergedBound> bound;
    if (metrics.bound) bound.emplace(layer_, record, h, rounding_scales_[h], row_norms_.row(h));
    const MutableMatrixView full = head_block(full_output_, h, steps.first);
    const MutableMatrixView changes = head_block(changes_[r], h, steps.first);
    Matrix signed_weights(weights.rows(), weights.cols());
    for (int64_t i = 0; i < steps.count; ++i) {
      const int64_t t = steps.first + i, visible = layer_.prompt_tokens + t + 1;
      const VectorView attention = weights.row(i).first(visible);
      const std::vector<int64_t>& kept = positions.at(record.steps, t);
      metrics.kept_mass(t, h) = reference::attention_mass(attention, kept);
      measure_stage_one(r, t, h, attention, positions);
      if (bound) measure_merged_bound(r, t, h, bound->at(t, attention), signed_weights.row(i));
      const VectorView output = record.steps[t].output.row(h);
      for (int64_t c = 0; c < full.cols; ++c) changes(i, c) = full(i, c) - output[c];
    }
    return signed_weights;
  }

  void measure_merged_bound(size_t r, int64_t t, int64_t h, const MergedChange& change,
                            std::span<double> signed_weights) {
    LayerMetrics& metrics = metrics_[r];
    const std::vector<double>& weights = change.weights.weights;
    std::ranges::copy(weights, signed_weights.begin());
    const VectorView norms = projected_value_norms_.row(h).first(weights.size());
    (*metrics.bound)(t, h) = reference::perturbation_bound(change.weights, norms) + change.rest;
    (*metrics.rounding)(t, h) = change.rounding;
    if (metrics.centred_bound) (*metrics.centred_bound)(t, h) = change.rest;
  }

  // || V_j - o_i W^O ||_1 of every value and every row o_i of a block of outputs, [kRowBlock, n + T].
  Matrix distances_from(MatrixView outputs, int64_t h) const {
    constexpr int64_t kValues = 64;
    const MatrixView values = layer_.values.slice(shape_.kv_head_of(h)), projection = head_projection(h);
    Matrix centres(outputs.rows, projection.cols), distances(outputs.rows, values.rows);
    reference::multiply(outputs, projection, centres.view());
    for (int64_t first = 0; first < values.rows; first += kValues) {
      const MatrixView some = values.middle_rows(first, std::min(kValues, values.rows - first));
      Matrix projected(some.rows, projection.cols);
      reference::multiply(some, projection, projected.view());
      for (int64_t i = 0; i < outputs.rows; ++i) {
        for (int64_t j = 0; j < some.rows; ++j)
          distances(i, first + j) = l1_distance(projected.row(j), centres.row(i));
      }
    }
    return distances;
  }

  // Adds sum_j |w_j| ||V_j - o W^O|| to the centred bound of consecutive steps of one head. A distance is off
  // by at most gamma of ||V_j|| and ||o W^O|| in absolute terms; w has sum 0 up to the rounding of its sum.
  void measure_centred(size_t r, int64_t h, const reference::TokenBlock& steps, const Matrix& weights,
                       const Matrix& signed_weights, const Matrix& distances) {
    LayerMetrics& metrics = metrics_[r];
    const std::vector<double>& sizes = rounding_scales_[h].absolute_projections;
    const double gamma = reference::sum_rounding(weights.cols() + 2 * shape_.head_dim + shape_.model_dim + 8,
                                                 reference::double_precision());
    for (int64_t i = 0; i < steps.count; ++i) {
      const int64_t t = steps.first + i, visible = layer_.prompt_tokens + t + 1;
      double bound = 0, off = 0, sum = 0, absolute = 0, output = 0;
      for (int64_t j = 0; j < visible; ++j) output += weights(i, j) * sizes[j];
      for (int64_t j = 0; j < visible; ++j) {
        const double weight = signed_weights(i, j), size = std::abs(weight);
        bound += size * distances(i, j);
        off += size * (sizes[j] + output);
        absolute += size;
        sum += weight;
      }
      (*metrics.centred_bound)(t, h) += bound;
      (*metrics.centred_rounding)(t, h) =
          (*metrics.rounding)(t, h) + gamma * off + (std::abs(sum) + gamma * absolute) * output;
    }
  }

  static double l1_distance(VectorView one, VectorView other) {
    double sum = 0;
    for (size_t i = 0; i < one.size(); ++i) sum += std::abs(one[i] - other[i]);
    return sum;
  }

  void measure_stage_one(size_t r, int64_t t, int64_t h, VectorView attention,
                         const reference::CachePositions& positions) {
    std::optional<Matrix>& mass = metrics_[r].stage_one_mass;
    if (mass) (*mass)(t, h) = reference::attention_mass(attention, positions.of_stage_one());
  }

  // || rows * W^O_h ||_1 per row.
  std::vector<double> projected_l1(MatrixView rows, int64_t h) const {
    return row_norms(rows, head_projection(h));
  }

  static std::vector<double> row_norms(MatrixView rows, MatrixView projection) {
    Matrix hidden(rows.rows, projection.cols);
    reference::multiply(rows, projection, hidden.view());
    std::vector<double> norms;
    for (int64_t i = 0; i < hidden.rows(); ++i) norms.push_back(l1_norm(hidden.row(i)));
    return norms;
  }

  static double l1_norm(VectorView numbers) {
    double sum = 0;
    for (const double x : numbers) sum += std::abs(x);
    return sum;
  }

  // The layer's change by each run, and relative to the layer's output.
  void measure_layer() {
    std::vector<const Matrix*> outputs{&full_output_};
    for (const Matrix& change : changes_) outputs.push_back(&change);
    const Matrix norms = layer_norms(outputs);
    for (size_t r = 0; r < records_.size(); ++r) {
      const VectorView perturbations = norms.row(static_cast<int64_t>(r) + 1);
      metrics_[r].layer_perturbation.assign(perturbations.begin(), perturbations.end());
      for (int64_t t = 0; t < steps_; ++t) {
        metrics_[r].layer_relative.push_back(ratio(perturbations[t], norms(0, t)));
      }
    }
  }

  // || sum_h rows_h * W^O_h ||_1 per step: the heads side by side times all of W^O, some
  // of its columns at a time.
  //
  // outputs  [count], each [blocks * kRowBlock, query_heads * head_dim]
  // returns  [count, steps]
  Matrix layer_norms(std::span<const Matrix* const> outputs) const {
    constexpr int64_t kColumns = 512;
    const MatrixView projection = layer_.output_projection;
    const int64_t parts = (projection.cols + kColumns - 1) / kColumns;
    Tensor sums(std::ssize(outputs), blocks_ * kRowBlock, parts);
    reference::parallel_for(std::ssize(outputs) * blocks_ * parts, [&](int64_t piece) {
      const int64_t part = piece % parts, block = piece / parts % blocks_, output = piece / parts / blocks_;
      const int64_t first = part * kColumns;
      const std::vector<double> norms =
          row_norms(outputs[output]->view().middle_rows(block * kRowBlock, kRowBlock),
                    projection.middle_cols(first, std::min(kColumns, projection.cols - first)));
      for (int64_t i = 0; i < kRowBlock; ++i) sums.slice(output)(block * kRowBlock + i, part) = norms[i];
    });
    Matrix norms(std::ssize(outputs), steps_);
    for (int64_t r = 0; r < norms.rows(); ++r) {
      for (int64_t t = 0; t < steps_; ++t) norms(r, t) = l1_norm(sums.slice(r).row(t));
    }
    return norms;
  }

  const traces::Layer& layer_;
  const std::vector<LayerRecord>& records_;
  const LayerShape shape_;
  const bool centred_;
  const int64_t steps_;
  const int64_t blocks_;                                   // of kRowBlock steps
  Matrix projected_value_norms_;                           // [query_heads, n + T]
  std::vector<reference::RoundingScale> rounding_scales_;  // [query_heads]
  Matrix row_norms_;                                       // [query_heads, head_dim]: ||W^O_h[c,:]||_1
  Matrix full_output_;                                     // [blocks * kRowBlock, query_heads * head_dim]
  std::vector<Matrix> changes_;                            // [runs] of the same shape: aV - a^V^
  std::vector<LayerMetrics> metrics_;
  std::vector<Clock::duration> attention_times_;  // of each query head and block of steps
  double attention_seconds_ = 0;                  // of wall time
};

}  // namespace

bool LayerMetrics::violates(int64_t step, int64_t head) const {
  const double change = perturbation(step, head);
  return (bound && !(change <= (*bound)(step, head) + (*rounding)(step, head))) ||
         (centred_bound && !(change <= (*centred_bound)(step, head) + (*centred_rounding)(step, head)));
}

double ratio(double numerator, double denominator) {
  if (numerator == 0 && denominator == 0) return 0;
  return denominator == 0 ? std::numeric_limits<double>::quiet_NaN() : numerator / denominator;
}

double larger(double one, double other) { return std::isnan(one) || one >= other ? one : other; }

std::vector<LayerMetrics> measure(const traces::Layer& layer, const std::vector<LayerRecord>& records,
                                  MatrixView prompt_norms, int64_t recall_of, OperationTimes* times,
                                  bool centred) {
  if (records.empty()) return {};
  const auto start = Clock::now();
  Measurement measurement(layer, records, prompt_norms, centred);
  std::vector<LayerMetrics> metrics = measurement.run(recall_of);
  if (times) measurement.add_times(start, *times);
  return metrics;
}

}  // namespace kvbound::sim
