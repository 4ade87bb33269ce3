// How a tested implementation agrees with the reference: verdicts, and the words and figures that reports share.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvbound/sim/diff/agreement.hpp>

#include "table.hpp"

namespace kvbound::sim {

/// What may be said of a tensor, or of all.
enum class Verdict { agrees, differs, no_evidence };

/// differs: an element is outside; no_evidence: nothing was judged, or only zeros that are zero, or a choice that nothing
/// tells right from wrong.
Verdict verdict(const TensorAgreement& agreement);

const char* word(Verdict verdict);

/// One tensor of all layers.
struct TensorSummary {
  TensorAgreement total;                ///< counts added up; the slack of the layer where bounds are loosest
  const JudgedTensor* worst = nullptr;  ///< in the layer of the largest share of its bound
};

/// A summary per name, in the order of dump_tensors().
std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors,
                                     const std::vector<std::string>& names);
/// Of every tensor that there is.
std::vector<TensorSummary> summaries(const std::vector<JudgedTensor>& tensors);

/// "layers.2.output[5, 3, 17] is 1.5, the reference says 1.25, bound 0.01 (25 times the bound)"
std::string text_of(const JudgedTensor& tensor);

/// A row of a table with these headings per tensor.
TableRow agreement_headings();
TableRow agreement_row(const TensorSummary& summary);

nlohmann::ordered_json to_json(const JudgedTensor& tensor);

}  // namespace kvbound::sim
