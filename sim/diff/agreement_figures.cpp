#include "agreement_figures.hpp"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/safetensors.hpp>

namespace kvbound::sim {
namespace {

using Json = nlohmann::ordered_json;

template <class Of>
double of_worst(const JudgedRow& row, const Of& of) {
  return row.worst() ? of(*row.worst()) : kUndefined;
}

// As many digits as tell a double from its neighbours; NaN and infinity by name.
std::string exact_text(double number) {
  return std::isfinite(number) ? shortest(number) : fmt::format("{}", number);
}

double count(int64_t number) { return static_cast<double>(number); }

// "0.5000 +- 0.04": of the row that rounding explains least
std::string gain_text(const JudgedRow& row) {
  if (row.agreement().functionals.empty()) return "";
  const FunctionalAgreement& gain = row.agreement().functionals.front();
  return fmt::format("{} +- {:.2g}", with_places(gain.worst.value, 4), gain.worst.band);
}

const std::vector<FigureOf<JudgedRow>>& tensor_figures() {
  using R = const JudgedRow&;
  constexpr Shown kIfAsked = Shown::if_asked;
  static const std::vector<FigureOf<JudgedRow>> kFigures{
      {{.name = "verdict",
        .heading = "verdict",
        .meaning =
            "differs: an element, or a row as a whole, is outside its bound; no evidence: nothing was judged, or "
            "the reference is zero everywhere",
        .format = Format::text,
        .alarming = [](std::string_view cell) { return cell == word(Verdict::differs); }},
       [](R row) { return std::string(word(verdict(row.agreement()))); }},
      {{.name = "elements",
        .heading = "elements",
        .meaning = "elements of the tensor",
        .format = Format::count},
       [](R row) { return count(row.agreement().elements); }},
      {{.name = "judged",
        .heading = "judged",
        .meaning = "elements whose bound tells them from zero",
        .format = Format::count},
       [](R row) { return count(row.agreement().judged); }},
      {{.name = "outside",
        .heading = "outside",
        .meaning = "elements beyond their bound",
        .format = Format::count,
        .better = Better::lower,
        .alarming = is_not_zero},
       [](R row) { return count(row.agreement().outside); }},
      {{.name = "undecided",
        .heading = "undecided",
        .meaning = "elements or choices that cannot be told to be right or wrong",
        .format = Format::count,
        .better = Better::lower,
        .shown = kIfAsked},
       [](R row) { return count(row.agreement().undecided); }},
      {{.name = "share",
        .heading = "error/bound",
        .meaning = "the largest error / bound of an element",
        .better = Better::lower},
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.share(); }); }},
      {{.name = "error",
        .heading = "error",
        .meaning = "|claimed - expected| there; of a kept set, of the scores that decide",
        .better = Better::lower},
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.error; }); }},
      {{.name = "bound",
        .heading = "bound",
        .meaning = "how large that error may be, the rounding of the tensor's type included"},
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.bound; }); }},
      {{.name = "ulps",
        .heading = "ulp",
        .meaning = "that error in units of the last place of the tensor's type",
        .better = Better::lower},
       [](R row) {
         return of_worst(
             row, [](const Offender& worst) { return is_real(worst.storage) ? worst.ulps() : kUndefined; });
       }},
      {{.name = "median_slack",
        .heading = "bound/error",
        .meaning = "the median over elements, in the layer where bounds are loosest"},
       [](R row) { return row.agreement().median_slack.value_or(kUndefined); }},
      {{.name = "near_tie_swaps",
        .heading = "near-tie swaps",
        .meaning = "choices that differ by rounding alone",
        .format = Format::count},
       [](R row) {
         return row.agreement().near_tie_swaps ? count(*row.agreement().near_tie_swaps) : kUndefined;
       }},
      {{.name = "gain",
        .heading = "gain",
        .meaning =
            "the factor of a row that rounding explains least, and how far rounding can take it from 1",
        .format = Format::text},
       gain_text},
      {{.name = "worst_at",
        .heading = "worst at",
        .meaning = "where error / bound is largest",
        .format = Format::text},
       [](R row) { return row.worst() ? place_of(*row.worst_of) : std::string(); }},
      {{.name = "claimed",
        .heading = "claimed",
        .meaning = "the number there, in the shortest text that reads back; of a kept set, a position kept",
        .format = Format::text,
        .shown = kIfAsked},
       [](R row) { return row.worst() ? exact_text(row.worst()->claimed) : std::string(); }},
      {{.name = "expected",
        .heading = "expected",
        .meaning =
            "the reference's number; of a kept set, a position that should have been kept in its place",
        .format = Format::text,
        .shown = kIfAsked},
       [](R row) { return row.worst() ? exact_text(row.worst()->expected) : std::string(); }},
      {{.name = "note",
        .heading = "note",
        .meaning = "what is wrong with a choice",
        .format = Format::text,
        .shown = kIfAsked},
       [](R row) { return row.worst() ? row.worst()->note : std::string(); }},
      {{.name = "condition_number",
        .heading = "condition number",
        .meaning = "of merged keys: the largest one of queries for which rounding decides their rank",
        .shown = kIfAsked},
       [](R row) { return row.agreement().condition_number.value_or(kUndefined); }},
      {{.name = "chance_tests",
        .heading = "tests by chance",
        .meaning = "tests of rows and sums over rows by chance (reference/bounds/functionals.md)",
        .format = Format::count,
        .shown = kIfAsked},
       [](R row) { return count(row.agreement().chances.count); }},
      {{.name = "diagnosis",
        .heading = "diagnosis",
        .meaning =
            "the one fault with which the reference's numbers are within the bounds of the claimed ones",
        .format = Format::text,
        .shown = kIfAsked},
       [](R row) { return row.diagnosis() ? row.diagnosis()->fault : std::string(); }},
      {{.name = "diagnosed_rows",
        .heading = "diagnosed rows",
        .meaning = "differing rows that were tried, the first ones; it explains all of them",
        .format = Format::count,
        .shown = kIfAsked},
       [](R row) { return row.diagnosis() ? count(row.diagnosis()->rows) : kUndefined; }},
  };
  return kFigures;
}

const std::vector<FigureOf<JudgedFunctional>>& functional_figures() {
  using F = const JudgedFunctional&;
  static const std::vector<FigureOf<JudgedFunctional>> kFigures{
      {{.name = "rows",
        .heading = "rows",
        .meaning = "outputs of a query head; scores, norms or votes of a head; a merged key or value",
        .format = Format::count},
       [](F one) { return count(one.functional.rows); }},
      {{.name = "judged",
        .heading = "judged",
        .meaning = "rows whose gain can be told from 0",
        .format = Format::count},
       [](F one) { return count(one.functional.judged); }},
      {{.name = "outside",
        .heading = "outside",
        .meaning = "rows beyond what rounding can do",
        .format = Format::count,
        .better = Better::lower,
        .alarming = is_not_zero},
       [](F one) { return count(one.functional.outside); }},
      {{.name = "value", .heading = "value", .meaning = "of all rows together"},
       [](F one) { return one.functional.all.value; }},
      {{.name = "band", .heading = "band", .meaning = "how far rounding can take it from what it should be"},
       [](F one) { return one.functional.all.band; }},
      {{.name = "worst_value",
        .heading = "worst value",
        .meaning = "of the row that is farthest beyond its band"},
       [](F one) { return one.functional.worst.value; }},
      {{.name = "worst_band", .heading = "worst band", .meaning = "of that row"},
       [](F one) { return one.functional.worst.band; }},
      {{.name = "worst_at",
        .heading = "worst at",
        .meaning = "its index in the tensor; of votes, of its first entry",
        .format = Format::text},
       [](F one) {
         return one.functional.worst_at.empty() ? std::string() : traces::shape_text(one.functional.worst_at);
       }}};
  return kFigures;
}

const std::vector<FigureOf<JudgedChance>>& chance_figures() {
  using T = const JudgedChance&;
  static const std::vector<FigureOf<JudgedChance>> kFigures{
      {{.name = "index",
        .heading = "index",
        .meaning = "of the row in the tensor; a colon: of all steps, or of all heads, together",
        .format = Format::text},
       [](T row) { return index_text(row.test); }},
      {{.name = "value", .heading = "value", .meaning = "of the factor, which should be 1"},
       [](T row) { return row.test.value; }},
      {{.name = "bias", .heading = "bias", .meaning = "what need not be zero in the mean"},
       [](T row) { return row.test.bias; }},
      {{.name = "deviation",
        .heading = "deviation",
        .meaning = "beyond the bias by t of these with a probability of at most 2 exp(-t^2/2)"},
       [](T row) { return row.test.deviation; }}};
  return kFigures;
}

const std::vector<FigureOf<UnlikelyOutput>>& unlikely_figures() {
  using U = const UnlikelyOutput&;
  static const std::vector<FigureOf<UnlikelyOutput>> kFigures{
      {{.name = "functional",
        .heading = "functional",
        .meaning = "gain: a factor of the output; logit scale: of the logits",
        .format = Format::text},
       [](U one) { return one.test->functional; }},
      {{.name = "index",
        .heading = "index",
        .meaning = "of the row in the tensor; a colon: of all steps, or of all heads, together",
        .format = Format::text},
       [](U one) { return index_text(*one.test); }},
      {{.name = "value", .heading = "value", .meaning = "of the factor, which should be 1"},
       [](U one) { return one.test->value; }},
      {{.name = "band", .heading = "band", .meaning = "how far chance takes it from 1, but for 1e-9 in all"},
       [](U one) { return one.band; }},
      {{.name = "probability_below",
        .heading = "probability below",
        .meaning = "of any test being so far off",
        .format = Format::text},
       [](U one) { return fmt::format("1e{}", one.probability); }},
      {{.name = "explained_by",
        .heading = "explained by",
        .meaning = "a rounding that is not declared and would make it likely",
        .format = Format::text},
       [](U one) { return one.explained_by; }},
      {{.name = "other_layers",
        .heading = "other layers",
        .meaning = "whose tensor of that name is unlikely, too",
        .format = Format::count},
       [](U one) { return count(one.others); }}};
  return kFigures;
}

const Figure kLayer{.name = "layer",
                    .heading = "layer",
                    .meaning = "the layer's number in the dump, from 0",
                    .format = Format::count};
const Figure kTensor{.name = "tensor",
                     .heading = "tensor",
                     .meaning = "the judged tensor's name in dumps",
                     .format = Format::text};
const Figure kFunctional{
    .name = "functional",
    .heading = "functional",
    .meaning =
        "gain: a factor of the row; logit scale: of the logits; difference: its length as a share "
        "of the row's",
    .format = Format::text};

// The keys that tell the subjects apart, and behind them the layer, if there is one, and the tensor.
template <class Row>
std::vector<FigureOf<Row>> keys_of(const std::vector<Figure>& subject, bool has_layers) {
  std::vector<FigureOf<Row>> keys;
  for (size_t k = 0; k < subject.size(); ++k)
    keys.push_back({subject[k], [k](const Row& row) { return row.subject[k]; }});
  if (has_layers)
    keys.push_back({kLayer, [](const Row& row) { return row.layer < 0 ? kUndefined : count(row.layer); }});
  keys.push_back({kTensor, [](const Row& row) { return row.tensor; }});
  return keys;
}

}  // namespace

void AgreementCubes::add(const std::vector<std::string>& subject, const std::vector<JudgedTensor>& tensors,
                         const std::vector<TensorSummary>& summaries) {
  for (const TensorSummary& summary : summaries)
    agreement_.push_back({{subject, -1, summary.total.tensor}, summary.total, summary.worst});
  for (const JudgedTensor& tensor : tensors) {
    const TensorAgreement& agreement = tensor.agreement;
    const JudgedPlace place{subject, tensor.layer, agreement.tensor};
    tensors_.push_back({place, std::nullopt, &tensor});
    for (const FunctionalAgreement& functional : agreement.functionals)
      functionals_.push_back({place, functional});
    for (const ChanceTest& test : agreement.chances.farthest) chances_.push_back({place, test});
  }
}

std::vector<Cube> AgreementCubes::cubes() const {
  auto of_functionals = keys_of<JudgedFunctional>(subject_, true);
  of_functionals.push_back({kFunctional, [](const JudgedFunctional& row) { return row.functional.name; }});
  auto of_chances = keys_of<JudgedChance>(subject_, true);
  of_chances.push_back({kFunctional, [](const JudgedChance& row) { return row.test.functional; }});
  return {list_cube("agreement", "judged", keys_of<JudgedRow>(subject_, false), tensor_figures(), agreement_),
          list_cube("tensors", "tensor", keys_of<JudgedRow>(subject_, true), tensor_figures(), tensors_),
          list_cube("functionals", "functional", of_functionals, functional_figures(), functionals_),
          list_cube("chances", "chance", of_chances, chance_figures(), chances_)};
}

std::vector<Figure> agreement_columns() { return figures_of(tensor_figures()); }

Json chance_facts(const ChanceVerdict& verdict) {
  return {{"tests", verdict.tests},
          {"failure_probability", ChanceVerdict::kFailure},
          {"deviations", verdict.deviations}};
}

Cube unlikely_cube(const ChanceVerdict& verdict) {
  using U = const UnlikelyOutput&;
  static const std::vector<FigureOf<UnlikelyOutput>> kKeys{
      {kLayer, [](U one) { return one.tensor->layer < 0 ? kUndefined : count(one.tensor->layer); }},
      {kTensor, [](U one) { return one.tensor->agreement.tensor; }}};
  return list_cube("unlikely", "unlikely", kKeys, unlikely_figures(), verdict.found);
}

Json declared_facts(const DeclaredArithmetic& declared) {
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

}  // namespace kvbound::sim
