// The result of `check`, as a table for people and as a part of a document.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/check/operations.hpp>
#include <kvbound/sim/diff/agreement_summary.hpp>
#include <kvbound/sim/figures/cube.hpp>
#include <kvbound/sim/figures/table.hpp>

namespace kvbound::sim {

struct CheckReport {
  std::string operation;
  std::string path;
  std::vector<JudgedTensor> tensors;
  std::optional<DeclaredArithmetic> declared;
  std::vector<CheckFigure> figures;
  std::vector<std::string> not_read;  ///< names in the file that the check has no use for

  std::vector<TensorSummary> summaries() const;
  Verdict verdict() const { return sim::verdict(summaries()); }
};

CheckReport check_report(const CheckOperation& operation, const CheckFile& file, const CheckResult& result);

/// Facts of the file; agreement, tensors, functionals and chances (AgreementCubes);
/// unlikely. CSV has the tensors.
Part check_part(const CheckReport& report);

std::string text_report(const CheckReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
