#include "agreement_report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

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

// Where the tensor is farthest from the reference: an element, or if all are within their bounds a row that as a whole is not.
std::string place(const JudgedTensor& tensor) {
  const TensorAgreement& agreement = tensor.agreement;
  const FunctionalAgreement* const functional = first_outside(agreement);
  const bool is_row = functional && agreement.outside == 0;
  return name_of(tensor) + traces::shape_text(is_row ? functional->worst_at : agreement.worst->index);
}

Json to_json(const FunctionalAgreement& functional) {
  const auto json_of = [](const FunctionalValue& of) -> Json {
    return {{"value", number_text(of.value)}, {"band", finite(of.band)}};
  };
  Json document{{"name", functional.name},        {"rows", functional.rows},
                {"judged", functional.judged},    {"outside", functional.outside},
                {"all", json_of(functional.all)}, {"worst", json_of(functional.worst)}};
  document["worst"]["index"] = functional.worst_at;
  return document;
}

Json to_json(const std::optional<ExplainedRows>& diagnosis) {
  return diagnosis ? Json{{"fault", diagnosis->fault}, {"rows", diagnosis->rows}} : Json();
}

Json to_json(const ChanceTests& tests) {
  Json farthest = Json::array();
  for (const ChanceTest& test : tests.farthest) {
    farthest.push_back({{"functional", test.functional},
                        {"index", index_json(test)},
                        {"value", number_text(test.value)},
                        {"bias", finite(test.bias)},
                        {"deviation", finite(test.deviation)}});
  }
  return {{"count", tests.count}, {"farthest", farthest}};
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

// "0.5000 +- 0.04": of the row that rounding explains least
std::string gain_text(const FunctionalAgreement& gain) {
  return fmt::format("{} +- {:.2g}", with_places(gain.worst.value, 4), gain.worst.band);
}

// The element or row that is farthest off.
std::string difference_text(const JudgedTensor& tensor) {
  const FunctionalAgreement* const functional = first_outside(tensor.agreement);
  if (functional && tensor.agreement.outside == 0) {
    return fmt::format("{}: {}", place(tensor), text_of(*functional, functional->worst));
  }
  const Offender& worst = *tensor.agreement.worst;
  if (!worst.note.empty()) return place(tensor) + ": " + worst.note;
  if (!is_real(worst.storage)) {
    return fmt::format("{} is {}, the reference says {}", place(tensor), worst.claimed, worst.expected);
  }
  const std::string whole =
      functional ? fmt::format("; {} in all", text_of(*functional, functional->all)) : "";
  return fmt::format("{} is {}, the reference says {}, bound {:.3g} ({:.3g} times the bound){}",
                     place(tensor), number_text(worst.claimed), number_text(worst.expected), worst.bound,
                     worst.share(), whole);
}

}  // namespace

Json index_json(const ChanceTest& test) {
  Json index = Json::array();
  for (const int64_t at : test.at) index.push_back(at == ChanceTest::kAll ? Json() : Json(at));
  return index;
}

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

TableRow agreement_headings() {
  return {"tensor", "verdict", "elements",    "judged",         "outside", "error/bound", "error",
          "bound",  "ulp",     "bound/error", "near-tie swaps", "gain",    "worst at"};
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
          total.functionals.empty() ? "-" : gain_text(total.functionals.front()),
          has_worst ? place(*summary.worst) : "-"};
}

Json to_json(const DeclaredArithmetic& declared) {
  const auto tile = [&]() -> Json {
    if (declared.tile == reference::kAnyTile) return "any";
    return declared.tile > 0 ? Json(declared.tile) : Json();
  };
  return {{"storage", name(declared.storage)},
          {"accumulate", name(declared.accumulate)},
          {"weights", declared.weights ? Json(name(*declared.weights)) : Json()},
          {"partials", declared.partials ? Json(name(*declared.partials)) : Json()},
          {"splits", declared.splits > 0 ? Json(declared.splits) : Json()},
          {"tile", tile()},
          {"products", declared.tf32_products ? Json("TF32") : Json()}};
}

Json to_json(const JudgedTensor& tensor) {
  const TensorAgreement& agreement = tensor.agreement;
  Json functionals = Json::array();
  for (const FunctionalAgreement& functional : agreement.functionals)
    functionals.push_back(to_json(functional));
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
          {"condition_number", agreement.condition_number ? finite(*agreement.condition_number) : Json()},
          {"functionals", functionals},
          {"chances", to_json(agreement.chances)},
          {"diagnosis", to_json(agreement.diagnosis)}};
}

}  // namespace kvbound::sim
