#include "output_rows.hpp"

#include <kvbound/reference/bounds/functionals.hpp>

namespace kvbound::sim {

void OutputRows::add(int64_t first, MatrixView queries, MatrixView keys, MatrixView values, VectorView votes,
                     const reference::AttentionErrors& errors, const reference::Arithmetic& arithmetic,
                     const OfKvHeads& of_kv_heads) {
  for (int64_t h = 0; h < queries.rows; ++h) {
    functionals_.add(first + h, reference::OutputFunctionals(errors, h, values, votes, arithmetic));
    if (!functionals_.differs(first + h)) continue;
    differing_.add(first + h, h, queries, keys, values, votes, errors, arithmetic, of_kv_heads);
  }
}

void OutputRows::complete(VectorView expected, TensorAgreement& agreement) const {
  agreement.functionals = functionals_.agreements();
  agreement.chances = functionals_.chances();
  if (!agreement.agrees()) agreement.diagnosis = differing_.diagnosis(expected);
}

}  // namespace kvbound::sim
