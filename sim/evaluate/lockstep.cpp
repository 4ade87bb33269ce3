#include "lockstep.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/reference/core/error.hpp>

namespace kvbound::sim {
std::vector<StepView> DecodeSteps::views() const {
  std::vector<StepView> steps;
  for (int64_t t = 0; t < keys.view().rows; ++t) {
    steps.push_back(
        {keys.view().row_of_slices(t), values.view().row_of_slices(t), queries.view().row_of_slices(t)});
  }
  return steps;
}

Lockstep::Lockstep(const traces::Checkpoint& checkpoint, std::span<const int64_t> tokens, int64_t first,
                   int64_t sequences, Dtype stored, int64_t block_rows)
    : blocks_(checkpoint, stored, std::ssize(tokens)),
      config_(checkpoint.config()),
      sequences_(sequences),
      steps_(std::ssize(tokens)),
      block_rows_(block_rows),
      hidden_(rows(config_.model_dim)),
      queries_(rows(config_.query_heads * config_.head_dim)),
      keys_(rows(config_.kv_heads * config_.head_dim)),
      values_(rows(config_.kv_heads * config_.head_dim)),
      outputs_(rows(config_.query_heads * config_.head_dim)) {
  for (int64_t s = 0; s < sequences_; ++s) {
    blocks_.embed(tokens, hidden_.view().middle_rows(s * steps_, steps_));
    for (int64_t t = 0; t < steps_; ++t) positions_.push_back(first + t);
  }
}

MutableSingleMatrixView Lockstep::Rows::view() { return {numbers.data(), std::ssize(numbers) / cols, cols}; }

SingleMatrixView Lockstep::Rows::view() const { return {numbers.data(), std::ssize(numbers) / cols, cols}; }

Lockstep::Rows Lockstep::rows(int64_t cols) const {
  return {std::vector<float>(sequences_ * steps_ * cols), cols};
}

// Calls work(first row, rows) for whole sequences.
template <class Work>
void Lockstep::in_blocks(const Work& work) const {
  const int64_t together = std::max<int64_t>(1, block_rows_ / steps_);
  for (int64_t s = 0; s < sequences_; s += together)
    work(s * steps_, std::min(together, sequences_ - s) * steps_);
}

void Lockstep::project(int64_t layer) {
  in_blocks([&](int64_t first, int64_t count) {
    const auto own = [&](Rows& rows) { return rows.view().middle_rows(first, count); };
    blocks_.project(layer, own(hidden_), std::span(positions_).subspan(first, count),
                    {own(queries_), own(keys_), own(values_)});
  });
}

// One sequence's rows [steps, heads * head_dim] as [heads, steps, head_dim].
Tensor Lockstep::heads_of(const Rows& rows, int64_t sequence, int64_t heads) const {
  Tensor tensor(heads, steps_, config_.head_dim);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < steps_; ++t) {
      std::ranges::copy(
          rows.view().row(sequence * steps_ + t).subspan(h * config_.head_dim, config_.head_dim),
          tensor.slice(h).row(t).begin());
    }
  }
  return tensor;
}

DecodeSteps Lockstep::inputs(int64_t sequence) const {
  return {heads_of(keys_, sequence, config_.kv_heads), heads_of(values_, sequence, config_.kv_heads),
          heads_of(queries_, sequence, config_.query_heads)};
}

void Lockstep::set_outputs(int64_t sequence, std::span<const StepRecord> records) {
  for (int64_t t = 0; t < steps_; ++t) {
    std::ranges::transform(records[t].output.numbers(), outputs_.view().row(sequence * steps_ + t).begin(),
                           [](double number) { return static_cast<float>(number); });
  }
}

void Lockstep::finish(int64_t layer) {
  in_blocks([&](int64_t first, int64_t count) {
    blocks_.finish(layer, outputs_.view().middle_rows(first, count),
                   hidden_.view().middle_rows(first, count));
  });
}

double Lockstep::relative_distance(int64_t sequence) const {
  double sum = 0;
  for (int64_t t = 0; t < steps_; ++t) {
    const auto full = hidden_.view().row(t), own = hidden_.view().row(sequence * steps_ + t);
    double distance = 0, size = 0;
    for (size_t c = 0; c < full.size(); ++c) {
      const double difference = double{own[c]} - full[c];
      distance += difference * difference;
      size += double{full[c]} * full[c];
    }
    if (distance == 0) continue;
    if (!(size > 0)) throw NonFinite("a hidden state of the full cache is 0, or not a number");
    sum += std::sqrt(distance / size);
  }
  return sum / static_cast<double>(steps_);
}

std::vector<float> Lockstep::logits(int64_t first_step, int64_t count) {
  Rows chosen{std::vector<float>(sequences_ * count * config_.model_dim), config_.model_dim};
  for (int64_t s = 0; s < sequences_; ++s) {
    for (int64_t i = 0; i < count; ++i) {
      std::ranges::copy(hidden_.view().row(s * steps_ + first_step + i),
                        chosen.view().row(s * count + i).begin());
    }
  }
  Rows logits{std::vector<float>(sequences_ * count * config_.vocabulary), config_.vocabulary};
  blocks_.unembed(chosen.view(), logits.view(), count);
  return std::move(logits.numbers);
}

}  // namespace kvbound::sim
