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
      {text_figure(
           "verdict",
           "differs: an element, or a row as a whole, is outside its bound; no evidence: nothing was judged, or "
           "the reference is zero everywhere",
           [](std::string_view cell) { return cell == word(Verdict::differs); }),
       [](R row) { return std::string(word(verdict(row.agreement()))); }},
      {count_figure("elements", "elements of the tensor"),
       [](R row) { return count(row.agreement().elements); }},
      {count_figure("judged", "elements whose bound tells them from zero"),
       [](R row) { return count(row.agreement().judged); }},
      {count_figure("outside", "elements beyond their bound", Better::lower, is_not_zero),
       [](R row) { return count(row.agreement().outside); }},
      {count_figure("undecided", "elements or choices that cannot be told to be right or wrong",
                    Better::lower, kIfAsked),
       [](R row) { return count(row.agreement().undecided); }},
      {number_figure("share", "error/bound", "the largest error / bound of an element", Better::lower),
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.share(); }); }},
      {number_figure("error", "|claimed - expected| there; of a kept set, of the scores that decide",
                     Better::lower),
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.error; }); }},
      {number_figure("bound", "how large that error may be, the rounding of the tensor's type included"),
       [](R row) { return of_worst(row, [](const Offender& worst) { return worst.bound; }); }},
      {number_figure("ulps", "ulp", "that error in units of the last place of the tensor's type",
                     Better::lower),
       [](R row) {
         return of_worst(
             row, [](const Offender& worst) { return is_real(worst.storage) ? worst.ulps() : kUndefined; });
       }},
      {number_figure("median_slack", "bound/error",
                     "the median over elements, in the layer where bounds are loosest"),
       [](R row) { return row.agreement().median_slack.value_or(kUndefined); }},
      {count_figure("near_tie_swaps", "near-tie swaps", "choices that differ by rounding alone"),
       [](R row) {
         return row.agreement().near_tie_swaps ? count(*row.agreement().near_tie_swaps) : kUndefined;
       }},
      {text_figure(
           "gain",
           "the factor of a row that rounding explains least, and how far rounding can take it from 1"),
       gain_text},
      {text_figure("worst_at", "worst at", "where error / bound is largest"),
       [](R row) { return row.worst() ? place_of(*row.worst_of) : std::string(); }},
      {text_figure("claimed",
                   "the number there, in the shortest text that reads back; of a kept set, a position kept",
                   kIfAsked),
       [](R row) { return row.worst() ? exact_text(row.worst()->claimed) : std::string(); }},
      {text_figure(
           "expected",
           "the reference's number; of a kept set, a position that should have been kept in its place",
           kIfAsked),
       [](R row) { return row.worst() ? exact_text(row.worst()->expected) : std::string(); }},
      {text_figure("note", "what is wrong with a choice", kIfAsked),
       [](R row) { return row.worst() ? row.worst()->note : std::string(); }},
      {number_figure("condition_number", "condition number",
                     "of merged keys: the largest one of queries for which rounding decides their rank",
                     kIfAsked),
       [](R row) { return row.agreement().condition_number.value_or(kUndefined); }},
      {count_figure("chance_tests", "tests by chance",
                    "tests of rows and sums over rows by chance (reference/bounds/functionals.md)", kIfAsked),
       [](R row) { return count(row.agreement().chances.count); }},
      {text_figure(
           "diagnosis",
           "the one fault with which the reference's numbers are within the bounds of the claimed ones",
           kIfAsked),
       [](R row) { return row.diagnosis() ? row.diagnosis()->fault : std::string(); }},
      {count_figure("diagnosed_rows", "diagnosed rows",
                    "differing rows that were tried, the first ones; it explains all of them", kIfAsked),
       [](R row) { return row.diagnosis() ? count(row.diagnosis()->rows) : kUndefined; }},
  };
  return kFigures;
}

const std::vector<FigureOf<JudgedFunctional>>& functional_figures() {
  using F = const JudgedFunctional&;
  static const std::vector<FigureOf<JudgedFunctional>> kFigures{
      {count_figure("rows",
                    "outputs of a query head; scores, norms or votes of a head; a merged key or value"),
       [](F one) { return count(one.functional.rows); }},
      {count_figure("judged", "rows whose gain can be told from 0"),
       [](F one) { return count(one.functional.judged); }},
      {count_figure("outside", "rows beyond what rounding can do", Better::lower, is_not_zero),
       [](F one) { return count(one.functional.outside); }},
      {number_figure("value", "of all rows together"), [](F one) { return one.functional.all.value; }},
      {number_figure("band", "how far rounding can take it from what it should be"),
       [](F one) { return one.functional.all.band; }},
      {number_figure("worst_value", "worst value", "of the row that is farthest beyond its band"),
       [](F one) { return one.functional.worst.value; }},
      {number_figure("worst_band", "worst band", "of that row"),
       [](F one) { return one.functional.worst.band; }},
      {text_figure("worst_at", "worst at", "its index in the tensor; of votes, of its first entry"),
       [](F one) {
         return one.functional.worst_at.empty() ? std::string() : traces::shape_text(one.functional.worst_at);
       }}};
  return kFigures;
}

const std::vector<FigureOf<JudgedChance>>& chance_figures() {
  using T = const JudgedChance&;
  static const std::vector<FigureOf<JudgedChance>> kFigures{
      {text_figure("index", "of the row in the tensor; a colon: of all steps, or of all heads, together"),
       [](T row) { return index_text(row.test); }},
      {number_figure("value", "of the factor, which should be 1"), [](T row) { return row.test.value; }},
      {number_figure("bias", "what need not be zero in the mean"), [](T row) { return row.test.bias; }},
      {number_figure("deviation",
                     "beyond the bias by t of these with a probability of at most 2 exp(-t^2/2)"),
       [](T row) { return row.test.deviation; }}};
  return kFigures;
}

const std::vector<FigureOf<UnlikelyOutput>>& unlikely_figures() {
  using U = const UnlikelyOutput&;
  static const std::vector<FigureOf<UnlikelyOutput>> kFigures{
      {text_figure("functional", "gain: a factor of the output; logit scale: of the logits"),
       [](U one) { return one.test->functional; }},
      {text_figure("index", "of the row in the tensor; a colon: of all steps, or of all heads, together"),
       [](U one) { return index_text(*one.test); }},
      {number_figure("value", "of the factor, which should be 1"), [](U one) { return one.test->value; }},
      {number_figure("band", "how far chance takes it from 1, but for 1e-9 in all"),
       [](U one) { return one.band; }},
      {text_figure("probability_below", "probability below", "of any test being so far off"),
       [](U one) { return fmt::format("1e{}", one.probability); }},
      {text_figure("explained_by", "explained by",
                   "a rounding that is not declared and would make it likely"),
       [](U one) { return one.explained_by; }},
      {count_figure("other_layers", "other layers", "whose tensor of that name is unlikely, too"),
       [](U one) { return count(one.others); }}};
  return kFigures;
}

const Figure kLayer = count_figure("layer", "the layer's number in the dump, from 0");
const Figure kTensor = text_figure("tensor", "the judged tensor's name in dumps");
const Figure kFunctional =
    text_figure("functional",
                "gain: a factor of the row; logit scale: of the logits; difference: its length as a share "
                "of the row's");

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
