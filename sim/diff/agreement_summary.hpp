// Verdicts on how a tested implementation agrees with the reference, and sentences that say so.
#pragma once

#include <string>
#include <vector>

#include "agreement.hpp"

namespace kvbound::sim {

/// The outcome of a comparison, of one tensor or of all.
enum class Verdict { agrees, differs, no_evidence };

/// differs if an element is outside its bound; no_evidence if no element was judged, if all expected numbers
/// are zero, or if something is undecided; otherwise agrees.
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

/// The verdict on all tensors: differs if one differs. Otherwise no_evidence if none agrees, if anything is
/// undecided, or if a tensor has elements but none was judged; metrics that follow from the kept set, such as
/// the perturbation, may lack judged elements.
Verdict verdict(const std::vector<TensorSummary>& all);
/// What keeps them from agreeing where none differs: "merged_key: 64 of 8192 undecided, condition number 3.3;
/// output: none of 512 judged"; empty if nothing does.
std::string text_of_unjudged(const std::vector<TensorSummary>& all);

/// One line: what differs, or why the tensors are no evidence; empty if they agree.
std::string text_of_verdict(const std::vector<TensorSummary>& all);

/// "layers.2.output"; of no layer "out".
std::string name_of(const JudgedTensor& tensor);
/// "layers.2.output[5, 3, 17]": where the tensor is farthest from the reference, an element, or if all are
/// within their bounds a row that as a whole is not. The tensor must have a worst element.
std::string place_of(const JudgedTensor& tensor);
/// "layers.2.output[5, 3, 17] is 1.5, the reference says 1.25, bound 0.01 (25 times the
/// bound)", with what explains it.
std::string text_of(const JudgedTensor& tensor);

/// "entries 128-191 are missing (that explains all 8 rows that were tried)"; empty if nothing is known.
std::string diagnosis_text(const TensorAgreement& agreement);

}  // namespace kvbound::sim
