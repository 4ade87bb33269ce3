#include "prove_report.hpp"

#include <array>

#include <fmt/format.h>

#include <kvbound/sim/figures/cube_slice.hpp>
#include <kvbound/sim/figures/cube_table.hpp>
#include <kvbound/sim/figures/plot.hpp>

namespace kvbound::sim {
namespace {

using proofs::PropertyResult;

// The regimes of theorems about eviction, and of those about merging, which have
// other regimes.
std::string regime_tables(const ProveReport& report, const Part& part, const TextStyle& style) {
  std::array<std::vector<int64_t>, 2> places;
  for (size_t i = 0; i < report.properties.size(); ++i)
    places[report.properties[i].theorem->sizes.merging ? 1 : 0].push_back(static_cast<int64_t>(i));
  std::string text;
  for (const std::vector<int64_t>& some : places) {
    const Cube regimes = restricted(*part.find("regimes"), "property", some);
    if (!some.empty()) text += "\n" + cube_table(side_by_side(regimes, "regime", "regime"), style);
  }
  return text;
}

std::string counterexample_text(const PropertyResult& result) {
  const proofs::Counterexample& found = *result.counterexample;
  return fmt::format("{}{}: {}\n  {}\n  {}\n",
                     as_it_must(result.verdict) ? "" : fmt::format("{} ", proofs::name(result.verdict)),
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

}  // namespace

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

std::string text_report(const ProveReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns) {
  std::string text;
  if (!report.properties.empty()) {
    text += fmt::format("{} cases per theorem, seed {}\n\n", report.cases, report.seed) +
            cube_table(*part.find("properties"), style, columns) + "\nshare of the cases in each regime\n" +
            regime_tables(report, part, style);
    if (style.plot)
      text +=
          "\n" + bar_chart("tightest", bars_of(*part.find("properties"), "", "property", "tightest"), style);
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

}  // namespace kvbound::sim
