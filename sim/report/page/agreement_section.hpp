// How tensors agree with the reference: of a dump (`diff`), of calls of kernels (`check`), or of a backend
// that a replay ran beside it.
#pragma once

#include <optional>
#include <string>

#include <kvbound/sim/figures/read_part.hpp>

#include "section.hpp"

namespace kvbound::sim {

/// Which run judged tensors are of, where their document has one only.
struct JudgedRun {
  std::string policy, budget, backend;
};

/// Adds figures of errors beside their bounds, and sentences that name the tensors that differ, if the
/// part has judged tensors.
///
/// run  nullopt: the tensors' keys say which run they are of
void add_agreement(Section& section, const ReadPart& part,
                   const std::optional<JudgedRun>& run = std::nullopt);

/// The section of a document of `diff`.
Contribution diff_contribution(const Document& document, const std::string& id);
/// The section of a document of `check`: all its calls.
Contribution check_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
