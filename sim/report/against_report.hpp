// The result of `diff A B --against TRACE`, as a table for people and as JSON for programs (against.schema.json).
#pragma once

#include <string>

#include "diff_report.hpp"
#include "rows_report.hpp"

namespace kvbound::sim {

struct AgainstReport {
  DiffReport a, b;        ///< each against the reference, of one trace, policy and budget
  ComparedRows compared;  ///< of the layers that both have

  Verdict verdict() const { return compared.verdict(a.verdict(), b.verdict()); }
};

/// A sentence, what the dumps are, and a table.
std::string text_report(const AgainstReport& report, const TextStyle& style);

std::string json_report(const AgainstReport& report);

}  // namespace kvbound::sim
