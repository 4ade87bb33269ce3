#include "choice.hpp"

#include <fmt/format.h>

namespace kvbound::sim {

Choice wrong_choice(const ChoicePlace& at, int64_t teacher_forced, int64_t claimed, int64_t expected,
                    const std::string& note, double error, double bound) {
  Choice choice{teacher_forced};
  choice.offence = {{at.step, at.kv_head},
                    static_cast<double>(claimed),
                    static_cast<double>(expected),
                    error,
                    bound,
                    Dtype::i64,
                    fmt::format("step {}, KV head {}: {}", at.step, at.kv_head, note)};
  return choice;
}

Choice wrong_entry(std::vector<int64_t> index, int64_t teacher_forced, int64_t claimed, int64_t expected,
                   const std::string& note) {
  Choice choice{teacher_forced};
  choice.offence = {std::move(index),
                    static_cast<double>(claimed),
                    static_cast<double>(expected),
                    std::numeric_limits<double>::infinity(),
                    0,
                    Dtype::i64,
                    note};
  return choice;
}

ChoiceTally::ChoiceTally(const std::string& tensor, const TensorAgreement& so_far) : result_(so_far) {
  result_.tensor = tensor;
  result_.near_tie_swaps = so_far.near_tie_swaps.value_or(0);
}

void ChoiceTally::add(const Choice& choice, int64_t element) {
  ++result_.elements;
  result_.judged += choice.judged;
  *result_.near_tie_swaps += choice.near_tie;
  result_.undecided += choice.undecided;
  if (choice.undecided) result_.undecided_at.push_back(element);
  if (!choice.offence) return;
  ++result_.outside;
  result_.outside_at.push_back(element);
  if (!result_.worst || result_.worst->share() < choice.offence->share()) result_.worst = choice.offence;
}

}  // namespace kvbound::sim
