// How tensors agree with the reference: of a dump (`diff`), or of a backend that a replay ran beside it.
#pragma once

#include <string>
#include <vector>

#include "section.hpp"

namespace kvbound::sim {

/// A list of judged tensors, and of which run they are.
struct JudgedTensors {
  std::string policy, budget, backend;
  std::vector<JsonField> tensors;
};

/// Adds figures of errors beside their bounds, and sentences that name the tensors outside them.
void add_agreement(Section& section, const std::vector<JudgedTensors>& judged);

/// The section of a document of `diff`.
Contribution diff_contribution(const Document& document, const std::string& id);

}  // namespace kvbound::sim
