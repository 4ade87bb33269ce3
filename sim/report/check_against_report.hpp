// The result of `check OPERATION A --against B`, as a table for people and as JSON for programs (check_against.schema.json).
#pragma once

#include <string>

#include <kvbound/sim/check/against.hpp>

#include "check_report.hpp"
#include "rows_report.hpp"

namespace kvbound::sim {

struct CheckAgainstReport {
  CheckReport a, b;       ///< each by itself, of one operation
  std::string case_name;  ///< CheckCases::name
  SharedCases cases;
  ComparedRows compared;

  Verdict verdict() const { return compared.verdict(a.verdict(), b.verdict()); }
};

/// A sentence, what the files are, which of their cases have the same inputs, and a table.
std::string text_report(const CheckAgainstReport& report, const TextStyle& style);

std::string json_report(const CheckAgainstReport& report);

}  // namespace kvbound::sim
