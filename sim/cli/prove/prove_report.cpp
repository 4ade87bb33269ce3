#include "prove_report.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/figures/table.hpp>
#include <kvbound/sim/report/environment.hpp>

namespace kvbound::sim {
namespace {

using proofs::PropertyResult;
using proofs::Verdict;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string ratio_text(std::optional<double> ratio) { return ratio ? fmt::format("{:.6g}", *ratio) : "-"; }

// ---- text

TableRow headings(std::span<const proofs::Regime> regimes) {
  TableRow row{"property", "verdict", "cases"};
  for (const proofs::Regime regime : regimes) row.push_back(proofs::name(regime));
  for (const char* heading : {"reference held", "tightest"}) row.push_back(heading);
  return row;
}

// Below its theorem's row, a weakened claim's id is shown without the theorem's.
TableRow table_row(const PropertyResult& result, bool below_theorem) {
  const std::string& id = result.property->id;
  if (result.weakened()) {
    return {below_theorem ? "  " + id.substr(id.find(':')) : id, describe(result),
            std::to_string(result.cases)};
  }
  TableRow row{id, describe(result), std::to_string(result.cases)};
  for (const int64_t cases : result.regime_cases) row.push_back(percent(result.share(cases)));
  row.push_back(percent(result.share(result.reference_cases)));
  row.push_back(ratio_text(result.tightest));
  return row;
}

bool good(Verdict verdict) {
  return verdict == Verdict::no_counterexample || verdict == Verdict::counterexample;
}

// A table of consecutive results that have the same regimes.
std::string property_table(std::span<const PropertyResult> results, const TextStyle& style) {
  std::vector<TableRow> rows{headings(results.front().regimes())};
  std::vector<std::string> bad;
  const proofs::Theorem* above = nullptr;
  for (const PropertyResult& result : results) {
    if (!result.weakened()) above = result.theorem;
    rows.push_back(table_row(result, above == result.theorem));
    if (!good(result.verdict)) bad.push_back(describe(result));
  }
  const auto alarming = [&](const std::string&, const std::string& cell) {
    return std::ranges::find(bad, cell) != bad.end();
  };
  return table(rows, {.left_columns = 2, .text = style, .alarming = alarming});
}

// One table for theorems about eviction, one for those about merging.
std::string property_tables(const std::vector<PropertyResult>& results, const TextStyle& style) {
  std::string text;
  for (auto first = results.begin(); first != results.end();) {
    const auto last = std::find_if(first, results.end(), [&](const PropertyResult& result) {
      return result.theorem->sizes.merging != first->theorem->sizes.merging;
    });
    text += (text.empty() ? "" : "\n") + property_table({first, last}, style);
    first = last;
  }
  return text;
}

std::string counterexample_text(const PropertyResult& result) {
  const proofs::Counterexample& found = *result.counterexample;
  return fmt::format("{}{}: {}\n  {}\n  {}\n", good(result.verdict) ? "" : describe(result) + " ",
                     result.property->id, result.property->claim, found.failure,
                     to_json(*result.property, found.instance).dump());
}

std::string search_text(const Searched& searched) {
  const proofs::Tightest& tightest = searched.tightest;
  return fmt::format("{}{}: largest {} of {} instances tried: {:.17g}\n{}  {}\n",
                     tightest.failure ? "VIOLATED " : "", searched.theorem->id, searched.theorem->ratio,
                     tightest.evaluations, tightest.ratio,
                     tightest.failure ? "  " + *tightest.failure + "\n" : "",
                     to_json(searched.theorem->property, tightest.instance).dump());
}

std::string replayed_text(const Replayed& replayed) {
  std::string text =
      fmt::format("{}: {}\n  {}{}", replayed.stored.property->id, replayed.stored.property->claim,
                  replayed.as_it_must() ? ""
                  : replayed.undecided  ? "UNDECIDED: "
                  : replayed.weakened() ? "NO COUNTEREXAMPLE: "
                                        : "VIOLATED: ",
                  !replayed.failure    ? "holds"
                  : replayed.undecided ? *replayed.failure
                                       : "fails: " + *replayed.failure);
  if (replayed.ratio) text += fmt::format("; {} = {:.17g}", replayed.stored.theorem->ratio, *replayed.ratio);
  return text + "\n";
}

// ---- JSON

Json counterexample_json(const PropertyResult& result) {
  if (!result.counterexample) return {};
  return {{"failure", result.counterexample->failure},
          {"found_at", result.counterexample->found_at},
          {"shrinks", result.counterexample->shrinks},
          {"instance", to_json(*result.property, result.counterexample->instance)}};
}

Json property_json(const PropertyResult& result) {
  Json regimes = Json::array();
  for (size_t i = 0; i < result.regime_cases.size(); ++i) {
    regimes.push_back(
        {{"regime", proofs::name(result.regimes()[i])}, {"share", result.share(result.regime_cases[i])}});
  }
  return {{"id", result.property->id},
          {"claim", result.property->claim},
          {"must_hold", !result.weakened()},
          {"verdict", proofs::name(result.verdict)},
          {"cases", result.cases},
          {"regimes", regimes},
          {"reference_held", result.share(result.reference_cases)},
          {"tightest", json_number(result.tightest)},
          {"counterexample", counterexample_json(result)}};
}

Json theorem_json(const proofs::Theorem& theorem) {
  return {{"id", theorem.id},
          {"title", theorem.title},
          {"statement", theorem.statement},
          {"hypotheses", theorem.hypotheses},
          {"source", theorem.source},
          {"proof", theorem.proof()},
          {"ratio", theorem.ratio.empty() ? Json() : Json(theorem.ratio)},
          {"properties", Json::array()}};
}

Json theorems_json(const std::vector<PropertyResult>& results) {
  Json theorems = Json::array();
  for (const PropertyResult& result : results) {
    if (theorems.empty() || theorems.back()["id"] != result.theorem->id)
      theorems.push_back(theorem_json(*result.theorem));
    theorems.back()["properties"].push_back(property_json(result));
  }
  return theorems;
}

}  // namespace

std::string describe(const PropertyResult& result) {
  switch (result.verdict) {
    case Verdict::no_counterexample:
      return fmt::format("no counterexample in {} cases", result.cases);
    case Verdict::violated:
      return "VIOLATED";
    case Verdict::counterexample:
      return "counterexample found, as it must";
    case Verdict::none_found:
      return fmt::format("NO COUNTEREXAMPLE in {} cases, where one must be", result.cases);
    case Verdict::undecided:
      return "UNDECIDED";
    case Verdict::regimes_too_rare:
      return fmt::format("inconclusive: a regime has less than {:g} % of {} cases",
                         100 * proofs::kRegimeShare, result.cases);
  }
  return "";
}

std::string describe(const proofs::Theorem& theorem) {
  std::string text = fmt::format(
      "{}: {}\n  statement   {}\n  hypotheses  {}\n  source      {}\n  proof       {}\n"
      "  property    {}\n",
      theorem.id, theorem.title, theorem.statement, theorem.hypotheses, theorem.source, theorem.proof(),
      theorem.property.claim);
  for (const proofs::Property& property : theorem.weakened)
    text += fmt::format("  must fail   {}: {}\n", property.id, property.claim);
  return text;
}

std::string text_report(const ProveReport& report, const TextStyle& style) {
  std::string text;
  if (!report.properties.empty()) {
    text += fmt::format("{} cases per theorem, seed {}\n\n", report.cases, report.seed) +
            property_tables(report.properties, style);
  }
  std::string found;
  for (const PropertyResult& result : report.properties) {
    if (result.counterexample) found += counterexample_text(result);
  }
  if (!found.empty())
    text +=
        "\nCounterexamples (save a line in braces to a file, and --replay FILE runs it again):\n\n" + found;
  for (const Searched& searched : report.searches) text += "\n" + search_text(searched);
  for (const Replayed& replayed : report.replayed) text += replayed_text(replayed);
  return text;
}

std::string json_report(const ProveReport& report) {
  Json document{{"schema", "kvbound-prove-1"}};
  document.update(fields_of(environment()));
  const bool drawn = !report.properties.empty();  // otherwise stored instances were run again
  document["seed"] = drawn ? Json(report.seed) : Json();
  document["cases"] = drawn ? Json(report.cases) : Json();
  document["theorems"] = theorems_json(report.properties);
  document["searches"] = Json::array();
  for (const Searched& searched : report.searches) {
    document["searches"].push_back(
        {{"id", searched.theorem->id},
         {"seconds", report.search_seconds},
         {"evaluations", searched.tightest.evaluations},
         {"ratio", searched.tightest.ratio},
         {"failure", searched.tightest.failure ? Json(*searched.tightest.failure) : Json()},
         {"instance", to_json(searched.theorem->property, searched.tightest.instance)}});
  }
  document["replayed"] = Json::array();
  for (const Replayed& replayed : report.replayed) {
    document["replayed"].push_back(
        {{"id", replayed.stored.property->id},
         {"as_it_must", replayed.as_it_must()},
         {"failure", replayed.failure ? Json(*replayed.failure) : Json()},
         {"ratio", json_number(replayed.ratio)},
         {"instance", to_json(*replayed.stored.property, replayed.stored.instance)}});
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvbound::sim
