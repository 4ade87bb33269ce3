// The result of `check`, as a table for people and as JSON for programs (check.schema.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvbound/sim/check/check_result.hpp>

#include "agreement_report.hpp"
#include "table.hpp"

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

std::string text_report(const CheckReport& report, const TextStyle& style);
std::string json_report(const CheckReport& report);

}  // namespace kvbound::sim
