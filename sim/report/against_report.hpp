// The result of `diff A B --against TRACE`, as a table for people and as a part of a document.
#pragma once

#include <string>
#include <vector>

#include "diff_report.hpp"
#include "rows_report.hpp"

namespace kvbound::sim {

struct AgainstReport {
  DiffReport a, b;        ///< each against the reference, of one trace, policy and budget
  ComparedRows compared;  ///< of the layers that both have

  Verdict verdict() const { return compared.verdict(a.verdict(), b.verdict()); }
};

/// Facts of the trace and both dumps; rows_cubes. CSV has the tensors.
Part against_part(const AgainstReport& report);

/// A sentence, what the dumps are, and a table.
std::string text_report(const AgainstReport& report, const Part& part, const TextStyle& style,
                        const std::vector<std::string>& columns = {});

}  // namespace kvbound::sim
