#include "predict_cubes.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <kvbound/sim/measure/median.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>

#include "mean.hpp"

namespace kvbound::sim {
namespace {

using Numbers = std::vector<double>;

double finite_mean(const Numbers& ratios) {
  Numbers finite;
  std::ranges::copy_if(ratios, std::back_inserter(finite), [](double ratio) { return std::isfinite(ratio); });
  return mean(finite);
}

double undefined(const Numbers& ratios) {
  return static_cast<double>(
      std::ranges::count_if(ratios, [](double ratio) { return !std::isfinite(ratio); }));
}

double middle(const Numbers& numbers) { return numbers.empty() ? kUndefined : median(numbers); }

double least(const Numbers& numbers) { return numbers.empty() ? kUndefined : std::ranges::min(numbers); }

// A figure of the numbers in a row of a matrix: of one query head, or of all.
struct RowFigure {
  Figure figure;
  Matrix HeadPrediction::*matrix;
  double (*of)(const Numbers&);
};

// The mean, the median and how many are undefined; kind: of the error.
std::vector<RowFigure> error_figures(Matrix HeadPrediction::*errors, const std::string& kind,
                                     const std::string& meaning) {
  return {
      {number_figure(kind + "_error", kind + " error", meaning + "; mean of the finite ones", Better::lower),
       errors, finite_mean},
      {number_figure(kind + "_error_median", kind + " median", "its median; what overflows is the largest",
                     Better::lower),
       errors, middle},
      {count_figure(kind + "_error_undefined", kind + " undefined", "how many overflow double precision"),
       errors, undefined}};
}

const std::vector<RowFigure>& predictor_figures() {
  static const std::vector<RowFigure> kFigures = [] {
    std::vector<RowFigure> all = error_figures(&HeadPrediction::relative_errors, "relative",
                                               "sum |predicted - actual score| / sum of scores of a step");
    for (RowFigure& figure : error_figures(&HeadPrediction::entry_errors, "entry",
                                           "the median over entries of |predicted - actual score| / score"))
      all.push_back(std::move(figure));
    return all;
  }();
  return kFigures;
}

const std::vector<RowFigure>& share_figures() {
  static const std::vector<RowFigure> kFigures{
      {number_figure("mass", "attention", "that a step's query pays to the entries that it pays most; mean"),
       &HeadPrediction::mass, mean},
      {number_figure("mass_median", "median", "its median"), &HeadPrediction::mass, middle},
      {number_figure("mass_least", "least", "the least"), &HeadPrediction::mass, least}};
  return kFigures;
}

struct HeadFigure {
  Figure figure;
  double (*of)(const HeadPrediction&);
};

const std::vector<HeadFigure>& reentering_figures() {
  static const std::vector<HeadFigure> kFigures{
      {number_figure("reentered_ever", "at some step",
                     "share of the evicted prompt entries that are in the top at some step", Better::lower),
       [](const HeadPrediction& head) { return head.reentered_ever; }},
      {number_figure("reentered_at_a_step", "at a step",
                     "share of them that is in the top at a step, mean over steps", Better::lower),
       [](const HeadPrediction& head) { return mean(head.reentered); }}};
  return kFigures;
}

// Of the steps, and of the heads, at which enough queries have seen an entry.
const std::vector<HeadFigure>& variance_figures() {
  static const std::vector<HeadFigure> kFigures{
      {number_figure("whole_variance", "of all queries",
                     "variance of an entry's attention scores over all queries; mean over entries and steps"),
       [](const HeadPrediction& head) { return finite_mean(head.whole_variances); }},
      {number_figure("window_variance", "of the window",
                     "the same over the last queries, as many as the window has"),
       [](const HeadPrediction& head) { return finite_mean(head.window_variances); }},
      {number_figure("variance_ratio", "ratio",
                     "the second / the first variance of an entry; mean over entries and steps"),
       [](const HeadPrediction& head) { return finite_mean(head.variance_ratios); }}};
  return kFigures;
}

std::vector<int64_t> layers_of(const PredictResult& result) {
  std::vector<int64_t> layers;
  for (const LayerPrediction& layer : result.layers) layers.push_back(layer.layer);
  return layers;
}

// The axes of a prediction, and what is to be seen along them.
class PredictCubes {
 public:
  explicit PredictCubes(const PredictResult& result)
      : result_(result),
        predictors_(predictor_axis()),
        shares_(share_axis()),
        layers_(layer_axis(result.trace, layers_of(result))),
        heads_(counted_axis("head", count_figure("head", "query head, from 0"),
                            result.trace.shape.query_heads)) {}

  // Over all layers, query heads and steps.
  Cube predictors() const { return of_all("predictors", predictors_, predictor_figures()); }
  Cube shares() const { return of_all("shares", shares_, share_figures()); }
  Cube head_predictors() const { return of_heads("head_predictors", predictors_, predictor_figures()); }
  Cube head_shares() const { return of_heads("head_shares", shares_, share_figures()); }
  Cube reentering() const;
  Cube variances() const;
  Cube layers() const;
  Cube heads() const;

 private:
  static SharedAxis predictor_axis();
  SharedAxis share_axis() const;
  Cube of_all(const char* name, const SharedAxis& axis, const std::vector<RowFigure>& figures) const;
  Cube of_heads(const char* name, const SharedAxis& axis, const std::vector<RowFigure>& figures) const;
  // A column with use(head) for each layer's query heads.
  template <class Use>
  Numbers each_head(const Use& use) const {
    Numbers all;
    for (const LayerPrediction& layer : result_.layers) {
      for (const HeadPrediction& head : layer.heads) all.push_back(use(head));
    }
    return all;
  }

  const PredictResult& result_;
  SharedAxis predictors_, shares_, layers_, heads_;
};

SharedAxis PredictCubes::predictor_axis() {
  Column scores = text_column(text_figure("scores", "attention, or raw: exp(logit)", Shown::always));
  Column rules = text_column(text_figure(
      "predictor", "predicted by", "the rule by which past scores predict the next one", Shown::always));
  for (const Predictor& predictor : sim::predictors()) {
    scores.texts().emplace_back(name(predictor.scores));
    rules.texts().emplace_back(name(predictor.by));
  }
  return axis("predictor", {std::move(scores), std::move(rules)});
}

SharedAxis PredictCubes::share_axis() const {
  Column shares = text_column(text_figure("share", "entries", "how many entries, of all", Shown::always));
  for (const Budget& share : result_.options.shares) shares.texts().push_back(to_string(share));
  return axis("share", {std::move(shares)});
}

Cube PredictCubes::of_all(const char* name, const SharedAxis& axis,
                          const std::vector<RowFigure>& figures) const {
  Cube cube{name, {axis}, {}};
  for (const RowFigure& figure : figures) {
    Column& column = cube.columns.emplace_back(number_column(figure.figure));
    for (size_t row = 0; row < static_cast<size_t>(axis->size()); ++row) {
      Numbers all;
      for (const LayerPrediction& layer : result_.layers) {
        for (const HeadPrediction& head : layer.heads) {
          const VectorView part = (head.*figure.matrix).row(row);
          all.insert(all.end(), part.begin(), part.end());
        }
      }
      column.numbers().push_back(figure.of(all));
    }
  }
  return cube;
}

Cube PredictCubes::of_heads(const char* name, const SharedAxis& axis,
                            const std::vector<RowFigure>& figures) const {
  Cube cube{name, {layers_, heads_, axis}, {}};
  for (const RowFigure& figure : figures) {
    Column& column = cube.columns.emplace_back(number_column(figure.figure));
    for (const LayerPrediction& layer : result_.layers) {
      for (const HeadPrediction& head : layer.heads) {
        for (size_t row = 0; row < static_cast<size_t>(axis->size()); ++row) {
          const VectorView numbers = (head.*figure.matrix).row(row);
          column.numbers().push_back(figure.of({numbers.begin(), numbers.end()}));
        }
      }
    }
  }
  return cube;
}

Cube PredictCubes::reentering() const {
  Cube cube{"reentering", {}, {}};
  for (const HeadFigure& figure : reentering_figures())
    cube.columns.push_back(number_column(figure.figure, {mean(each_head(figure.of))}));
  return cube;
}

Cube PredictCubes::variances() const {
  Cube cube{"variances", {}, {}};
  for (const HeadFigure& figure : variance_figures())
    cube.columns.push_back(number_column(figure.figure, {finite_mean(each_head(figure.of))}));
  return cube;
}

Cube PredictCubes::layers() const {
  Column entries = number_column(number_figure("layer_entries", "entries per KV head that the policy keeps"));
  for (const LayerPrediction& layer : result_.layers)
    entries.numbers().push_back(mean_entries(layer.budgets));
  return {"layers", {layers_}, {std::move(entries)}};
}

Cube PredictCubes::heads() const {
  Cube cube{"heads",
            {layers_, heads_},
            {number_column(
                count_figure("evicted", "prompt entries of its KV head that are evicted"),
                each_head([](const HeadPrediction& head) { return static_cast<double>(head.evicted); }))}};
  for (const auto& figures : {reentering_figures(), variance_figures()}) {
    for (const HeadFigure& figure : figures)
      cube.columns.push_back(number_column(figure.figure, each_head(figure.of)));
  }
  return cube;
}

}  // namespace

Part predict_part(const PredictReport& report) {
  const PredictResult& result = report.result;
  const PredictOptions& options = result.options;
  const PredictCubes cubes(result);
  Part part{trace_facts(result.trace, report.sha256),
            {cubes.predictors(), cubes.reentering(), cubes.variances(), cubes.shares(), cubes.layers(),
             cubes.heads(), cubes.head_predictors(), cubes.head_shares()},
            {"heads", "head_predictors", "head_shares"}};
  part.facts["steps"] = options.steps;
  part.facts["ema"] = options.ema;
  part.facts["window"] = options.window;
  part.facts["policy"] = canonical(options.policy);
  part.facts["budget"] = to_string(options.budget);
  part.facts["top"] = to_string(options.top);
  part.subject = {text_column(text_figure("trace", "the trace's path"), {result.trace.path})};
  return part;
}

std::vector<Figure> predict_columns() { return figures_of(predictor_figures()); }

}  // namespace kvbound::sim
