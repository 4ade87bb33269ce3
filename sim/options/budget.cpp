#include "budget.hpp"

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {

int64_t Budget::entries(int64_t prompt_tokens) const {
  if (given) throw InvalidPolicy("the budget `given` is for the host given, whose file has kept sets");
  return percent ? floor_of_product(amount, prompt_tokens, 2) : amount.digits;
}

Budget parse_budget(std::string_view text) {
  if (text == "given") return {.amount = {}, .given = true};
  const bool percent = text.ends_with('%');
  const auto amount = parse_decimal(percent ? text.substr(0, text.size() - 1) : text);
  if (!amount || (!percent && amount->places > 0) || (percent && exceeds(*amount, 100))) {
    throw InvalidPolicy("budget " + traces::quoted(text) +
                        ": expected a count of entries such as 256, or a share of " +
                        "the prompt from 0% to 100% such as 20% or 2.5%, or given");
  }
  return {.amount = *amount, .percent = percent};
}

std::string to_string(const Budget& budget) {
  if (budget.given) return "given";
  return kvbound::to_string(budget.amount) + (budget.percent ? "%" : "");
}

}  // namespace kvbound::sim
