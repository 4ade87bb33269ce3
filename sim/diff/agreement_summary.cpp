#include "agreement_summary.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <kvbound/sim/diff/claims/dump_tensors.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/safetensors.hpp>

namespace kvbound::sim {
namespace {

// As many digits as distinguish a double from its neighbours; NaN and infinity by name.
std::string number_text(double number) {
  return std::isfinite(number) ? shortest(number) : fmt::format("{}", number);
}

// How far beyond its bounds a tensor is, or how close it comes: of its elements, or of rows as wholes.
double share(const JudgedTensor& tensor) {
  double largest = tensor.agreement.worst ? tensor.agreement.worst->share() : 0;
  for (const FunctionalAgreement& functional : tensor.agreement.functionals) {
    if (functional.outside > 0) largest = std::max(largest, functional.worst_share);
  }
  return largest;
}

// What rounding can make of a functional's value.
std::pair<double, double> range_of(const FunctionalAgreement& functional, const FunctionalValue& estimate) {
  if (functional.is_factor) return {1 - estimate.band, 1 + estimate.band};
  return {0, estimate.band};
}

// "gain 0.500 (0.96 to 1.04 by rounding)"
std::string text_of(const FunctionalAgreement& functional, const FunctionalValue& estimate) {
  const auto [least, most] = range_of(functional, estimate);
  const double off = std::abs(estimate.value - (functional.is_factor ? 1 : 0));
  const int places = places_of(std::max(off, estimate.band));
  return fmt::format("{} {} ({} to {} by rounding)", functional.name, with_places(estimate.value, places),
                     with_places(least, places), with_places(most, places));
}

// The first functional that some row is outside of; null if there is none.
const FunctionalAgreement* first_outside(const TensorAgreement& agreement) {
  const auto found = std::ranges::find_if(
      agreement.functionals, [](const FunctionalAgreement& functional) { return functional.outside > 0; });
  return found == agreement.functionals.end() ? nullptr : &*found;
}

// Adds the functionals of one layer to those of all.
void add(const std::vector<FunctionalAgreement>& part, std::vector<FunctionalAgreement>& all) {
  for (const FunctionalAgreement& one : part) {
    const auto sum = std::ranges::find(all, one.name, &FunctionalAgreement::name);
    if (sum == all.end()) {
      all.push_back(one);
      continue;
    }
    sum->rows += one.rows;
    sum->judged += one.judged;
    sum->outside += one.outside;
    if (!(sum->worst_share < one.worst_share)) continue;
    sum->worst_share = one.worst_share;
    sum->worst = one.worst;
    sum->worst_at = one.worst_at;
  }
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
    add(part.functionals, total.functionals);
    total.condition_number = std::max(total.condition_number, part.condition_number);
    if (part.near_tie_swaps) total.near_tie_swaps = total.near_tie_swaps.value_or(0) + *part.near_tie_swaps;
    if (part.worst && (!summary.worst || share(*summary.worst) < share(tensor))) summary.worst = &tensor;
  }
  return summary;
}

// Whether the tensor keeps a dump from agreeing, though it does not differ.
bool is_unjudged(const TensorAgreement& total) {
  const DumpTensor* const of_dump = find_dump_tensor(total.tensor);
  return total.undecided > 0 || (total.elements > 0 && total.judged == 0 && !total.is_judged_as_a_whole() &&
                                 !(of_dump && of_dump->derived));
}

// The element or row that is farthest off.
std::string difference_text(const JudgedTensor& tensor) {
  const FunctionalAgreement* const functional = first_outside(tensor.agreement);
  if (functional && tensor.agreement.outside == 0) {
    return fmt::format("{}: {}", place_of(tensor), text_of(*functional, functional->worst));
  }
  const Offender& worst = *tensor.agreement.worst;
  if (!worst.note.empty()) return place_of(tensor) + ": " + worst.note;
  if (!is_real(worst.storage)) {
    return fmt::format("{} is {}, the reference says {}", place_of(tensor), worst.claimed, worst.expected);
  }
  const std::string whole =
      functional ? fmt::format("; {} in all", text_of(*functional, functional->all)) : "";
  return fmt::format("{} is {}, the reference says {}, bound {:.3g} ({:.3g} times the bound){}",
                     place_of(tensor), number_text(worst.claimed), number_text(worst.expected), worst.bound,
                     worst.share(), whole);
}

// Why results that do not differ are no evidence.
std::string inconclusive(const std::vector<TensorSummary>& tensors) {
  const auto is_empty = [](const TensorSummary& summary) { return summary.total.elements == 0; };
  const auto says_zero = [&](const TensorSummary& summary) {
    return is_empty(summary) || (summary.total.all_zero && summary.total.undecided == 0);
  };
  if (std::ranges::all_of(tensors, is_empty)) return "there is nothing to judge: no tensor has an element";
  if (std::ranges::all_of(tensors, says_zero)) return "all numbers are 0, as they should be";
  const std::string unjudged = text_of_unjudged(tensors);
  return "no bound is small enough, or a choice is undecided" + (unjudged.empty() ? "" : ": " + unjudged);
}

}  // namespace

Verdict verdict(const TensorAgreement& agreement) {
  if (!agreement.agrees()) return Verdict::differs;
  const bool says_nothing = (agreement.judged == 0 && !agreement.is_judged_as_a_whole()) ||
                            agreement.all_zero || agreement.undecided > 0;
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

std::string place_of(const JudgedTensor& tensor) {
  const TensorAgreement& agreement = tensor.agreement;
  const FunctionalAgreement* const functional = first_outside(agreement);
  const bool is_row = functional && agreement.outside == 0;
  return name_of(tensor) + traces::shape_text(is_row ? functional->worst_at : agreement.worst->index);
}

std::string text_of_verdict(const std::vector<TensorSummary>& all) {
  const auto differs = [](const TensorSummary& summary) { return !summary.total.agrees(); };
  switch (verdict(all)) {
    case Verdict::agrees:
      return "";
    case Verdict::differs: {
      const int64_t others = std::ranges::count_if(all, differs) - 1;
      return text_of(*std::ranges::find_if(all, differs)->worst) +
             (others == 0 ? ""
                          : fmt::format("; {} more tensor{} differ{}", others, others == 1 ? "" : "s",
                                        others == 1 ? "s" : ""));
    }
    case Verdict::no_evidence:
      return "inconclusive: " + inconclusive(all);
  }
  return "";  // not reached
}

std::string name_of(const JudgedTensor& tensor) {
  return tensor.layer < 0 ? tensor.agreement.tensor
                          : fmt::format("layers.{}.{}", tensor.layer, tensor.agreement.tensor);
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

std::string diagnosis_text(const TensorAgreement& agreement) {
  if (!agreement.diagnosis) return {};
  return fmt::format("{} (that explains {})", agreement.diagnosis->fault,
                     agreement.diagnosis->rows == 1
                         ? "the row that was tried"
                         : fmt::format("all {} rows that were tried", agreement.diagnosis->rows));
}

std::string text_of(const JudgedTensor& tensor) {
  const std::string diagnosis = diagnosis_text(tensor.agreement);
  return difference_text(tensor) + (diagnosis.empty() ? "" : "; " + diagnosis);
}

}  // namespace kvbound::sim
