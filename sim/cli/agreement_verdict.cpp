#include "agreement_verdict.hpp"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>

#include "replay_verdict.hpp"

namespace kvbound::sim {
namespace {

// Why results that do not differ are no evidence.
std::string inconclusive(const std::vector<TensorSummary>& tensors) {
  const auto is_empty = [](const TensorSummary& summary) { return summary.total.elements == 0; };
  const auto says_zero = [&](const TensorSummary& summary) {
    return is_empty(summary) || (summary.total.all_zero && summary.total.undecided == 0);
  };
  if (std::ranges::all_of(tensors, is_empty)) return "there is nothing to judge: no tensor has an element";
  if (std::ranges::all_of(tensors, says_zero)) return "all numbers are 0, as they should be";
  const std::string unjudged = text_of_unjudged(tensors);
  return "no bound is small enough, or a choice is undecided" + (unjudged.empty() ? "" : ": " + unjudged);
}

}  // namespace

int exit_code(const std::vector<TensorSummary>& tensors, const ChanceVerdict& chance, const std::string& path,
              const Ending& ending) {
  const bool says = !ending.quiet || ending.strict;
  for (const UnlikelyOutput& unlikely : chance.found) {
    if (says)
      std::cerr << fmt::format("kvbound: {}: {}\n", one_line(without_middle(path)), text_of(unlikely));
  }
  if (ending.strict && !chance.found.empty() && verdict(tensors) != Verdict::differs) return kMismatch;
  const auto differs = [](const TensorSummary& summary) { return !summary.total.agrees(); };
  switch (verdict(tensors)) {
    case Verdict::agrees:
      return kPass;
    case Verdict::differs: {
      const int64_t others = std::ranges::count_if(tensors, differs) - 1;
      std::cerr << fmt::format("kvbound: {}: {}{}\n", one_line(without_middle(path)),
                               text_of(*std::ranges::find_if(tensors, differs)->worst),
                               others == 0 ? ""
                                           : fmt::format("; {} more tensor{} differ{}", others,
                                                         others == 1 ? "" : "s", others == 1 ? "s" : ""));
      return kMismatch;
    }
    case Verdict::no_evidence:
      if (!ending.quiet)
        std::cerr << fmt::format("kvbound: {}: inconclusive: {}\n", one_line(without_middle(path)),
                                 inconclusive(tensors));
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
