#include "prove_cubes.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <kvbound/sim/figures/list_cube.hpp>

namespace kvbound::sim {
namespace {

using proofs::PropertyResult;
using proofs::Theorem;
using Json = nlohmann::ordered_json;

double or_undefined(const std::optional<double>& number) { return number.value_or(kUndefined); }

Figure verdict_figure() {
  return text_figure("verdict",
                     "no-counterexample and counterexample-found pass; regimes-too-rare: cases are not "
                     "representative; undecided: an instance could not be evaluated",
                     [](std::string_view cell) {
                       return cell != proofs::name(proofs::Verdict::no_counterexample) &&
                              cell != proofs::name(proofs::Verdict::counterexample);
                     });
}

Cube theorems_cube(const ProveReport& report) {
  std::vector<const Theorem*> theorems;
  for (const PropertyResult& result : report.properties) {
    if (theorems.empty() || theorems.back() != result.theorem) theorems.push_back(result.theorem);
  }
  using T = const Theorem* const&;
  return list_cube<const Theorem*>(
      "theorems", "theorem", {{text_figure("theorem", "its id"), [](T one) { return one->id; }}},
      {{text_figure("title", "in a few words"), [](T one) { return one->title; }},
       {text_figure("statement", "the formula"), [](T one) { return one->statement; }},
       {text_figure("hypotheses", "that it really needs"), [](T one) { return one->hypotheses; }},
       {text_figure("source", "the paper, or ours"), [](T one) { return one->source; }},
       {text_figure("proof", "where the written proof is"), [](T one) { return one->proof(); }},
       {text_figure("ratio", "what `tightest` is the largest of"), [](T one) { return one->ratio; }}},
      theorems);
}

const std::vector<FigureOf<PropertyResult>>& property_figures() {
  using R = const PropertyResult&;
  static const std::vector<FigureOf<PropertyResult>> kFigures{
      {verdict_figure(), [](R result) { return std::string(proofs::name(result.verdict)); }},
      {count_figure("cases", "instances tried, up to the first counterexample"),
       [](R result) { return static_cast<double>(result.cases); }},
      {number_figure(
           "reference_held", "reference held",
           "share of the cases in which the double-precision reference was held to the exact values",
           Format::share),
       [](R result) { return result.share(result.reference_cases); }},
      {number_figure("tightest", "tightest", "the largest ratio of the claim's two sides"),
       [](R result) { return or_undefined(result.tightest); }},
      {text_figure("theorem", "whose claim it is", Shown::if_asked),
       [](R result) { return result.theorem->id; }},
      {text_figure("kind",
                   "theorem, or weakened: a hypothesis is dropped, so that a counterexample must be found",
                   Shown::if_asked),
       [](R result) { return std::string(result.weakened() ? "weakened" : "theorem"); }},
      {text_figure("claim", "in words", Shown::if_asked), [](R result) { return result.property->claim; }},
      {text_figure("failure", "which claim fails on the counterexample, with both sides", Shown::if_asked),
       [](R result) { return result.counterexample ? result.counterexample->failure : ""; }},
      {count_figure("found_at", "found at", "the case of the counterexample, from 1", Shown::if_asked),
       [](R result) {
         return result.counterexample ? static_cast<double>(result.counterexample->found_at) : kUndefined;
       }},
      {count_figure("shrinks", "steps to the simplest counterexample from what was drawn", Shown::if_asked),
       [](R result) {
         return result.counterexample ? static_cast<double>(result.counterexample->shrinks) : kUndefined;
       }}};
  return kFigures;
}

// All regimes that some property has, in their order.
std::vector<proofs::Regime> regimes_of(const std::vector<PropertyResult>& properties) {
  std::set<proofs::Regime> regimes;
  for (const PropertyResult& result : properties)
    regimes.insert(result.regimes().begin(), result.regimes().end());
  return {regimes.begin(), regimes.end()};
}

Cube regimes_cube(const std::vector<PropertyResult>& properties, const SharedAxis& axis_of_properties) {
  const std::vector<proofs::Regime> regimes = regimes_of(properties);
  Column names = text_column(text_figure("regime", "what an instance is an example of"));
  for (const proofs::Regime regime : regimes) names.texts().emplace_back(proofs::name(regime));
  Column shares = number_column(number_figure("share", "share", "of the cases", Format::share));
  for (const PropertyResult& result : properties) {
    for (const proofs::Regime regime : regimes) {
      const auto found = std::ranges::find(result.regimes(), regime);
      const auto place = static_cast<size_t>(found - result.regimes().begin());
      shares.numbers().push_back(found == result.regimes().end() ? kUndefined
                                                                 : result.share(result.regime_cases[place]));
    }
  }
  return {"regimes", {axis_of_properties, axis("regime", {std::move(names)})}, {std::move(shares)}};
}

Cube searches_cube(const ProveReport& report) {
  using S = const Searched&;
  return list_cube<Searched>(
      "searches", "search",
      {{text_figure("property", "the theorem's id"), [](S one) { return one.theorem->id; }}},
      {{count_figure("evaluations", "instances tried"),
        [](S one) { return static_cast<double>(one.tightest.evaluations); }},
       {number_figure("ratio", "largest ratio", "the largest found"),
        [](S one) { return one.tightest.ratio; }},
       {text_figure("failure", "of the theorem, if the search met one"),
        [](S one) { return one.tightest.failure.value_or(""); }}},
      report.searches);
}

Cube replayed_cube(const ProveReport& report) {
  using R = const Replayed&;
  return list_cube<Replayed>(
      "replayed", "instance",
      {{text_figure("property", "its id"), [](R one) { return one.stored.property->id; }}},
      {{text_figure("outcome", "as it must: a theorem holds on it, a weakened claim fails; wrong; undecided"),
        [](R one) {
          return std::string(one.as_it_must() ? "as it must" : one.undecided ? "undecided" : "wrong");
        }},
       {text_figure("failure", "which claim fails on it, or why it could not be evaluated"),
        [](R one) { return one.failure.value_or(""); }},
       {number_figure("ratio", "ratio", "of the claim's two sides"),
        [](R one) { return or_undefined(one.ratio); }}},
      report.replayed);
}

Json instances_of(const ProveReport& report) {
  Json instances = Json::array();
  for (const PropertyResult& result : report.properties) {
    if (result.counterexample)
      instances.push_back(to_json(*result.property, result.counterexample->instance));
  }
  for (const Searched& searched : report.searches)
    instances.push_back(to_json(searched.theorem->property, searched.tightest.instance));
  for (const Replayed& replayed : report.replayed)
    instances.push_back(to_json(*replayed.stored.property, replayed.stored.instance));
  return instances;
}

}  // namespace

bool as_it_must(proofs::Verdict verdict) {
  return verdict == proofs::Verdict::no_counterexample || verdict == proofs::Verdict::counterexample;
}

Part prove_part(const ProveReport& report) {
  const bool drawn = !report.properties.empty();  // otherwise stored instances were run again
  using R = const PropertyResult&;
  Cube properties = list_cube<PropertyResult>(
      "properties", "property",
      {{text_figure("property", "the theorem's id, or with what is dropped: ckv-3.5:small-stage-one"),
        [](R result) { return result.property->id; }}},
      property_figures(), report.properties);
  Cube regimes = regimes_cube(report.properties, properties.axes[0]);
  return {{{"cases", drawn ? Json(report.cases) : Json()},
           {"search_seconds", report.searches.empty() ? Json() : Json(report.search_seconds)},
           {"instances", instances_of(report)}},
          {theorems_cube(report), std::move(properties), std::move(regimes), searches_cube(report),
           replayed_cube(report)},
          {"properties", "regimes", "searches", "replayed"}};
}

std::vector<Figure> prove_columns() { return figures_of(property_figures()); }

}  // namespace kvbound::sim
