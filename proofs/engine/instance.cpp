#include "instance.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include <kvbound/proofs/oracle/exact.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::proofs {
namespace {

void require_ascending(const std::string& what, const std::vector<int64_t>& positions, int64_t tokens) {
  if (positions.empty()) throw ShapeMismatch(what + " is empty");
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= tokens) {
      throw ShapeMismatch(what + " has the position " + std::to_string(positions[i]) + " outside 0.." +
                          std::to_string(tokens - 1));
    }
    if (i > 0 && positions[i] <= positions[i - 1]) throw ShapeMismatch(what + " is not ascending");
  }
}

void require_within(const std::string& what, VectorView numbers, double limit) {
  for (const double number : numbers) {
    if (std::abs(number) <= limit) continue;
    std::ostringstream message;
    message << what << " has " << number << ", which is not within +-" << limit;
    throw NonFinite(message.str());
  }
}

void require_valid_merging(const Instance& instance) {
  const int64_t rows = instance.logits.rows();
  require_equal("votes", std::ssize(instance.votes), "columns of logits", instance.tokens());
  require_equal("rows of query_vectors", instance.query_vectors.rows(), "rows of logits", rows);
  require_equal("columns of query_vectors", instance.query_vectors.cols(), "rows of logits", rows);
  require_within("votes", instance.votes, 1e9);
  require_within("query_vectors", instance.query_vectors.numbers(), 1e6);
  for (const double votes : instance.votes) {
    if (!(votes >= 1)) throw NonFinite("votes are below 1");
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (!(std::abs(instance.query_vectors(r, r)) >= 1e-6))
      throw NonFinite("query_vectors has next to nothing on its diagonal");
    for (int64_t c = r + 1; c < rows; ++c) {
      if (instance.query_vectors(r, c) != 0)
        throw ShapeMismatch("query_vectors has numbers above its diagonal");
    }
  }
  if (!(instance.ema >= 0 && instance.ema < 1)) throw NonFinite("ema is not within 0 and 1");
}

}  // namespace

void require_valid(const Instance& instance) {
  if (instance.query_heads < 1) throw ShapeMismatch("query_heads is below 1");
  if (instance.tokens() < 1 || instance.logits.rows() < 1) throw ShapeMismatch("logits are empty");
  if (instance.values.cols() < 1) throw ShapeMismatch("values are empty");
  if (instance.output_projection.cols() < 1) throw ShapeMismatch("output_projection is empty");
  require_equal("rows of logits", instance.logits.rows(), "query_heads times queries",
                instance.query_heads * instance.queries());
  require_equal("columns of logits", instance.tokens(), "rows of values", instance.values.rows());
  require_equal("rows of output_projection", instance.output_projection.rows(), "query_heads * head_dim",
                instance.query_heads * instance.values.cols());
  require_ascending("stage_one", instance.stage_one, instance.tokens());
  require_ascending("kept", instance.kept, instance.tokens());
  if (!std::ranges::includes(instance.kept, instance.stage_one))
    throw ShapeMismatch("stage_one is not part of kept");
  require_within("logits", instance.logits.numbers(), 2e4);
  require_within("values", instance.values.numbers(), 1e50);
  require_within("output_projection", instance.output_projection.numbers(), 1e50);
  require_within("epsilon", {&instance.epsilon, 1}, 1e50);
  if (instance.epsilon < 0) throw NonFinite("epsilon is negative");
  if (instance.merges()) require_valid_merging(instance);
}

std::vector<int64_t> all_but(const Instance& instance, const std::vector<int64_t>& entries) {
  std::vector<int64_t> all(instance.tokens());
  std::iota(all.begin(), all.end(), int64_t{0});
  return exact::difference(all, entries);
}

bool twins(const Instance& instance, int64_t a, int64_t b) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    if (instance.logits(r, a) != instance.logits(r, b)) return false;
  }
  return std::ranges::equal(instance.values.row(a), instance.values.row(b));
}

}  // namespace kvbound::proofs
