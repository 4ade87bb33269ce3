// How tensors agree with the reference, as cubes: the judge's figures, each one row of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kvbound/sim/diff/claims/declared_arithmetic.hpp>
#include <kvbound/sim/figures/list_cube.hpp>

#include "agreement_summary.hpp"
#include "unlikely.hpp"

namespace kvbound::sim {

/// What was judged: values of the subject's keys, a layer (negative: of none) and a tensor.
struct JudgedPlace {
  std::vector<std::string> subject;
  int64_t layer = -1;
  std::string tensor;
};

/// A tensor, of one layer or of all.
struct JudgedRow : JudgedPlace {
  std::optional<TensorAgreement> total;    ///< of all layers; nullopt: of worst_of
  const JudgedTensor* worst_of = nullptr;  ///< where it is farthest off; null: nowhere

  const TensorAgreement& agreement() const { return total ? *total : worst_of->agreement; }
  const Offender* worst() const {
    return worst_of && worst_of->agreement.worst ? &*worst_of->agreement.worst : nullptr;
  }
  const ExplainedRows* diagnosis() const {
    return worst_of && worst_of->agreement.diagnosis ? &*worst_of->agreement.diagnosis : nullptr;
  }
};
struct JudgedFunctional : JudgedPlace {
  const FunctionalAgreement& functional;
};
struct JudgedChance : JudgedPlace {
  const ChanceTest& test;
};

/// Cubes of lists: of tensors, of functionals and of tests by chance.
class AgreementCubes {
 public:
  /// subject  keys that tell what was judged apart: policy, budget, backend; of one dump: none
  explicit AgreementCubes(std::vector<Figure> subject = {}) : subject_(std::move(subject)) {}

  /// subject  one text for each key
  /// tensors  must outlive the object
  void add(const std::vector<std::string>& subject, const std::vector<JudgedTensor>& tensors,
           const std::vector<TensorSummary>& summaries);

  /// agreement    tensors, each over all layers, as tables show it
  /// tensors      by layer
  /// functionals  of rows as wholes (reference/bounds/functionals.md)
  /// chances      tests by chance, of each functional the farthest
  std::vector<Cube> cubes() const;

 private:
  std::vector<Figure> subject_;
  std::vector<JudgedRow> agreement_, tensors_;
  std::vector<JudgedFunctional> functionals_;
  std::vector<JudgedChance> chances_;
};

/// The figures of tables of agreement, for --columns.
std::vector<Figure> agreement_columns();

/// How many tests there were, and beyond how many deviations one is unlikely.
nlohmann::ordered_json chance_facts(const ChanceVerdict& verdict);
/// Outputs that rounding hardly explains.
Cube unlikely_cube(const ChanceVerdict& verdict);

/// What an implementation declares of its arithmetic; null where nothing is declared.
nlohmann::ordered_json declared_facts(const DeclaredArithmetic& declared);

}  // namespace kvbound::sim
