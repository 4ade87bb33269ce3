// The result of `check OPERATION A --against B`, as a table for people and as a part of a document.
#pragma once

#include <string>
#include <vector>

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

/// A file, and what was found of it.
struct CheckedFile {
  const CheckFile& file;
  const CheckResult& result;
};
/// identical  whether every row must be
/// throws     UsageError if the operation's results are exact, so that there is nothing to compare
CheckAgainstReport check_against_report(const CheckOperation& operation, const CheckedFile& a,
                                        const CheckedFile& b, bool identical);

/// Facts of both files; rows_cubes; pairs, the cases of A and B with the same inputs. CSV has the tensors.
Part check_against_part(const CheckAgainstReport& report);

/// A sentence, what the files are, which of their cases have the same inputs, and a table.
std::string text_report(const CheckAgainstReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
