#include "agreement_verdict.hpp"

#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>

#include "replay_verdict.hpp"

namespace kvbound::sim {

int exit_code(const std::vector<TensorSummary>& tensors, const ChanceVerdict& chance, const std::string& path,
              const Ending& ending) {
  const bool says = !ending.quiet || ending.strict;
  for (const UnlikelyOutput& unlikely : chance.found) {
    if (says)
      std::cerr << fmt::format("kvbound: {}: {}\n", one_line(without_middle(path)), text_of(unlikely));
  }
  if (ending.strict && !chance.found.empty() && verdict(tensors) != Verdict::differs) return kMismatch;
  const auto say = [&] {
    std::cerr << fmt::format("kvbound: {}: {}\n", one_line(without_middle(path)), text_of_verdict(tensors));
  };
  switch (verdict(tensors)) {
    case Verdict::agrees:
      return kPass;
    case Verdict::differs:
      say();
      return kMismatch;
    case Verdict::no_evidence:
      if (!ending.quiet) say();
      return kInconclusive;
  }
  return kInternal;  // not reached
}

int exit_code(const ComparedRows& compared, int alone, const Ending& ending) {
  int code = alone;
  if (compared.rows() == 0) {
    if (!ending.quiet) std::cerr << "kvbound: A and B have no row in common\n";
    code = worse(code, kInconclusive);
  }
  const int64_t differing = compared.rows() - compared.count(RowVerdict::identical);
  if (!compared.identical || differing == 0) return code;
  std::cerr << fmt::format("kvbound: {} of {} rows are not identical, the first {}\n", differing,
                           compared.rows(), *compared.first_differing());
  return kMismatch;
}

}  // namespace kvbound::sim
