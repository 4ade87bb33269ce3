#include "agreement_report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <kvbound/sim/diff/claims/dump_tensors.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/safetensors.hpp>

#include "json.hpp"

namespace kvbound::sim {
namespace {

std::string three_digits(double value) { return fmt::format("{:#.3g}", value); }
std::string three_digits(const std::optional<double>& value) { return value ? three_digits(*value) : "-"; }

// As many digits as distinguish a double from its neighbours; NaN and infinity by name.
std::string number_text(double number) {
  return std::isfinite(number) ? shortest(number) : fmt::format("{}", number);
}

std::string place(const JudgedTensor& tensor) {
  return fmt::format("layers.{}.{}{}", tensor.layer, tensor.agreement.tensor,
                     traces::shape_text(tensor.agreement.worst->index));
}

double share(const JudgedTensor& tensor) {
  return tensor.agreement.worst ? tensor.agreement.worst->share() : 0;
}

// null for NaN and infinity, which JSON does not have.
Json finite(double number) { return std::isfinite(number) ? Json(number) : Json(); }

Json to_json(const Offender& worst) {
  return {{"index", worst.index},
          {"claimed", number_text(worst.claimed)},
          {"expected", number_text(worst.expected)},
          {"error", finite(worst.error)},
          {"bound", finite(worst.bound)},
          {"share", finite(worst.share())},
          {"ulps", is_real(worst.storage) ? finite(worst.ulps()) : Json()},
          {"note", worst.note.empty() ? Json() : Json(worst.note)}};
}

TensorSummary summary_of(const std::vector<JudgedTensor>& tensors, const std::string& name) {
  TensorSummary summary;
  summary.total.tensor = name;
  summary.total.all_zero = true;
  for (const JudgedTensor& tensor : tensors) {
    if (tensor.agreement.tensor != name) continue;
    const TensorAgreement& part = tensor.agreement;
    TensorAgreement& total = summary.total;
    total.elements += part.elements;
    total.judged += part.judged;
    total.outside += part.outside;
    total.undecided += part.undecided;
    total.all_zero = total.all_zero && (part.all_zero || part.elements == 0);
    total.median_slack = std::max(total.median_slack, part.median_slack);
    total.condition_number = std::max(total.condition_number, part.condition_number);
    if (part.near_tie_swaps) total.near_tie_swaps = total.near_tie_swaps.value_or(0) + *part.near_tie_swaps;
    if (part.worst && (!summary.worst || share(*summary.worst) < share(tensor))) summary.worst = &tensor;
  }
  return summary;
}

// Whether the tensor keeps a dump from agreeing, though it does not differ.
bool is_unjudged(const TensorAgreement& total) {
  return total.undecided > 0 ||
         (total.elements > 0 && total.judged == 0 && !find_dump_tensor(total.tensor)->derived);
}

}  // namespace

Verdict verdict(const TensorAgreement& agreement) {
  if (!agreement.agrees()) return Verdict::differs;
  const bool says_nothing = agreement.judged == 0 || agreement.all_zero || agreement.undecided > 0;
  return says_nothing ? Verdict::no_evidence : Verdict::agrees;
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::agrees:
      return "agrees";
    case Verdict::differs:
      return "differs";
    case Verdict::no_evidence:
      return "no evidence";
  }
  return "";  // not reached
}

std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors,
                                     const std::vector<std::string>& names) {
  std::vector<TensorSummary> all;
  for (const DumpTensor& tensor : dump_tensors()) {
    if (std::ranges::find(names, tensor.name) != names.end()) {
      all.push_back(summary_of(tensors, tensor.name));
    }
  }
  return all;
}

std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors) {
  std::vector<std::string> names;
  for (const JudgedTensor& tensor : tensors) names.push_back(tensor.agreement.tensor);
  return summaries(tensors, names);
}

Verdict verdict(const std::vector<TensorSummary>& all) {
  bool evidence = false, unjudged = false;
  for (const TensorSummary& summary : all) {
    if (!summary.total.agrees()) return Verdict::differs;
    evidence = evidence || verdict(summary.total) == Verdict::agrees;
    unjudged = unjudged || is_unjudged(summary.total);
  }
  return evidence && !unjudged ? Verdict::agrees : Verdict::no_evidence;
}

std::string text_of_unjudged(const std::vector<TensorSummary>& all) {
  std::string text;
  for (const TensorSummary& summary : all) {
    const TensorAgreement& total = summary.total;
    if (!is_unjudged(total)) continue;
    text += fmt::format("{}{}: ", text.empty() ? "" : "; ", total.tensor);
    text += total.undecided > 0 ? fmt::format("{} of {} undecided", total.undecided, total.elements)
                                : fmt::format("none of {} judged", total.elements);
    if (total.condition_number) text += fmt::format(", condition number {:.3g}", *total.condition_number);
  }
  return text;
}

std::string text_of(const JudgedTensor& tensor) {
  const Offender& worst = *tensor.agreement.worst;
  if (!worst.note.empty()) return place(tensor) + ": " + worst.note;
  if (!is_real(worst.storage)) {
    return fmt::format("{} is {}, the reference says {}", place(tensor), worst.claimed, worst.expected);
  }
  return fmt::format("{} is {}, the reference says {}, bound {:.3g} ({:.3g} times the bound)", place(tensor),
                     number_text(worst.claimed), number_text(worst.expected), worst.bound, worst.share());
}

TableRow agreement_headings() {
  return {"tensor", "verdict", "elements", "judged",      "outside",        "error/bound",
          "error",  "bound",   "ulp",      "bound/error", "near-tie swaps", "worst at"};
}

TableRow agreement_row(const TensorSummary& summary) {
  const TensorAgreement& total = summary.total;
  const bool has_worst = summary.worst && summary.worst->agreement.worst;
  const Offender worst = has_worst ? *summary.worst->agreement.worst : Offender{};
  const bool real = has_worst && is_real(worst.storage);
  return {total.tensor,
          word(verdict(total)),
          std::to_string(total.elements),
          std::to_string(total.judged),
          std::to_string(total.outside),
          has_worst ? three_digits(worst.share()) : "-",
          has_worst ? three_digits(worst.error) : "-",
          has_worst ? three_digits(worst.bound) : "-",
          real ? three_digits(worst.ulps()) : "-",
          three_digits(total.median_slack),
          total.near_tie_swaps ? std::to_string(*total.near_tie_swaps) : "-",
          has_worst ? place(*summary.worst) : "-"};
}

Json to_json(const JudgedTensor& tensor) {
  const TensorAgreement& agreement = tensor.agreement;
  return {{"layer", tensor.layer},
          {"tensor", agreement.tensor},
          {"verdict", word(verdict(agreement))},
          {"elements", agreement.elements},
          {"judged", agreement.judged},
          {"outside", agreement.outside},
          {"undecided", agreement.undecided},
          {"worst", agreement.worst ? to_json(*agreement.worst) : Json()},
          {"median_slack", agreement.median_slack ? Json(*agreement.median_slack) : Json()},
          {"near_tie_swaps", agreement.near_tie_swaps ? Json(*agreement.near_tie_swaps) : Json()},
          {"condition_number", agreement.condition_number ? finite(*agreement.condition_number) : Json()}};
}

}  // namespace kvbound::sim
