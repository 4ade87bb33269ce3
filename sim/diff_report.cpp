#include "diff_report.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <kvbound/traces/messages.hpp>

#include "agreement.hpp"
#include "command_line.hpp"
#include "environment.hpp"
#include "layer_list.hpp"
#include "number.hpp"
#include "policy.hpp"
#include "report.hpp"
#include "table.hpp"

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::agrees:
      return "agrees";
    case Verdict::differs:
      return "differs";
    default:
      return "no evidence";
  }
}

std::string figure(double value) { return fmt::format("{:#.3g}", value); }
std::string figure(const std::optional<double>& value) { return value ? figure(*value) : "-"; }

// As many digits as tell the number from its neighbours in its type; NaN and infinity by name.
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

// All layers of one tensor.
struct TensorSummary {
  TensorAgreement total;
  const JudgedTensor* worst = nullptr;  // the layer of largest share
};

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
    total.all_zero = total.all_zero && (part.all_zero || part.elements == 0);
    total.median_slack = std::max(total.median_slack, part.median_slack);
    if (part.near_tie_swaps) total.near_tie_swaps = total.near_tie_swaps.value_or(0) + *part.near_tie_swaps;
    if (part.worst && (!summary.worst || share(*summary.worst) < share(tensor))) summary.worst = &tensor;
  }
  return summary;
}

std::vector<TensorSummary> summaries(const DiffReport& report) {
  std::vector<TensorSummary> all;
  for (const std::string& tensor : tensor_names()) {
    if (std::ranges::find(report.dump.tensors, tensor) != report.dump.tensors.end()) {
      all.push_back(summary_of(report.tensors, tensor));
    }
  }
  return all;
}

TableRow table_row(const TensorSummary& summary) {
  const TensorAgreement& total = summary.total;
  const bool has_worst = summary.worst && summary.worst->agreement.worst;
  const Offender worst = has_worst ? *summary.worst->agreement.worst : Offender{};
  const bool real = has_worst && is_real(worst.storage);
  return {total.tensor,
          word(verdict(total)),
          std::to_string(total.elements),
          std::to_string(total.judged),
          std::to_string(total.outside),
          has_worst ? figure(worst.share()) : "-",
          has_worst ? figure(worst.error) : "-",
          has_worst ? figure(worst.bound) : "-",
          real ? figure(worst.ulps()) : "-",
          figure(total.median_slack),
          total.near_tie_swaps ? std::to_string(*total.near_tie_swaps) : "-",
          has_worst ? place(*summary.worst) : "-"};
}

// Numbers that JSON has not are null.
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

Json to_json(const JudgedTensor& tensor) {
  const TensorAgreement& agreement = tensor.agreement;
  return {{"layer", tensor.layer},
          {"tensor", agreement.tensor},
          {"verdict", word(verdict(agreement))},
          {"elements", agreement.elements},
          {"judged", agreement.judged},
          {"outside", agreement.outside},
          {"worst", agreement.worst ? to_json(*agreement.worst) : Json()},
          {"median_slack", agreement.median_slack ? Json(*agreement.median_slack) : Json()},
          {"near_tie_swaps", agreement.near_tie_swaps ? Json(*agreement.near_tie_swaps) : Json()}};
}

Json to_json(const std::string& path, const DumpInfo& dump) {
  return {{"path", path},
          {"policy", canonical(dump.policy)},
          {"budget", to_string(dump.budget)},
          {"entries", dump.entries},
          {"backend", dump.backend},
          {"storage", name(dump.storage)},
          {"accumulate", name(dump.accumulate)},
          {"weights", dump.weights ? Json(name(*dump.weights)) : Json()},
          {"layers", dump.layers},
          {"steps", dump.steps},
          {"tensors", dump.tensors}};
}

}  // namespace

Verdict verdict(const TensorAgreement& agreement) {
  if (!agreement.agrees()) return Verdict::differs;
  return agreement.judged == 0 || agreement.all_zero ? Verdict::no_evidence : Verdict::agrees;
}

Verdict DiffReport::verdict() const {
  bool evidence = false, unjudged = false;
  for (const TensorSummary& summary : summaries(*this)) {
    if (!summary.total.agrees()) return Verdict::differs;
    evidence = evidence || sim::verdict(summary.total) == Verdict::agrees;
    unjudged = unjudged || (summary.total.elements > 0 && summary.total.judged == 0);
  }
  return evidence && !unjudged ? Verdict::agrees : Verdict::no_evidence;
}

const JudgedTensor* DiffReport::first_difference() const {
  for (const TensorSummary& summary : summaries(*this)) {
    if (!summary.total.agrees()) return summary.worst;
  }
  return nullptr;
}

int64_t DiffReport::differing_tensors() const {
  const std::vector<TensorSummary> all = summaries(*this);
  return std::ranges::count_if(all, [](const TensorSummary& summary) { return !summary.total.agrees(); });
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

std::string text_report(const DiffReport& report, bool colour) {
  const DumpInfo& dump = report.dump;
  std::string text = fmt::format(
      "{}\n  {}\n  budget {}, {} entries per KV head; backend {}; storage {}, accumulate {}{}\n  against {}: "
      "{} of {} "
      "layers, {} of {} decode steps, {}\n",
      one_line(report.dump_path), canonical(dump.policy), to_string(dump.budget), dump.entries,
      traces::printable(dump.backend), name(dump.storage), name(dump.accumulate),
      dump.weights ? fmt::format(", weights {}", name(*dump.weights)) : "", one_line(report.trace.path),
      dump.layers.size(), report.trace.layers, dump.steps, report.trace.decode_tokens,
      name(report.trace.storage));
  if (dump.tensors.empty()) return text + "  no tensors\n";
  std::vector<TensorSummary> all = summaries(report);
  std::ranges::stable_partition(all, [](const TensorSummary& summary) { return !summary.total.agrees(); });
  std::vector<TableRow> rows{{"tensor", "verdict", "elements", "judged", "outside", "error/bound", "error",
                              "bound", "ulp", "bound/error", "near-tie swaps", "worst at"}};
  for (const TensorSummary& summary : all) rows.push_back(table_row(summary));
  const auto alarming = [](const std::string&, const std::string& cell) {
    return cell == word(Verdict::differs);
  };
  return text + "\n" + table(rows, {.left_columns = 2, .colour = colour, .alarming = alarming});
}

std::string json_report(const DiffReport& report) {
  Json document{{"schema", "kvbound-diff-1"}};
  document.update(environment());
  document["seed"] = nullptr;  // nothing is drawn at random
  document["trace"] = trace_json(report.trace, report.trace_sha256);
  document["dump"] = to_json(report.dump_path, report.dump);
  document["arithmetic"] = {{"unit", report.arithmetic.unit},
                            {"exponential", report.arithmetic.exponential},
                            {"weights", report.arithmetic.weights}};
  document["verdict"] = word(report.verdict());
  document["tensors"] = Json::array();
  for (const JudgedTensor& tensor : report.tensors) document["tensors"].push_back(to_json(tensor));
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
