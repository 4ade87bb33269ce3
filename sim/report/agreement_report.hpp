// Verdicts on how a tested implementation agrees with the reference, and the text and JSON that reports share.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/agreement.hpp>

#include "table.hpp"

namespace kvbound::sim {

/// The outcome of a comparison, of one tensor or of all.
enum class Verdict { agrees, differs, no_evidence };

/// differs if an element is outside its bound; no_evidence if no element was judged, if all expected numbers are zero,
/// or if something is undecided; otherwise agrees.
Verdict verdict(const TensorAgreement& agreement);

const char* word(Verdict verdict);

/// One tensor, summarised over all layers.
struct TensorSummary {
  TensorAgreement total;  ///< counts summed over layers; slack of the layer with the loosest bounds
  const JudgedTensor* worst = nullptr;  ///< the layer with the largest error/bound
};

/// One summary per name, in the order of dump_tensors().
std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors,
                                     const std::vector<std::string>& names);
/// The same for all tensors present.
std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors);

/// "layers.2.output[5, 3, 17] is 1.5, the reference says 1.25, bound 0.01 (25 times the bound)"
std::string text_of(const JudgedTensor& tensor);

/// The headings of a table of tensors, and one row of it.
TableRow agreement_headings();
TableRow agreement_row(const TensorSummary& summary);

nlohmann::ordered_json to_json(const JudgedTensor& tensor);

}  // namespace kvbound::sim
