#include "merging_instance.hpp"

#include <algorithm>
#include <cmath>

#include <kvbound/proofs/theorems/merge_prediction.hpp>
#include <kvbound/proofs/theorems/merging_case.hpp>
#include <kvbound/reference/core/shape_check.hpp>

namespace kvbound::proofs {
namespace {

using exact::Real;

// ---- drawing

enum class Votes { ones, few, many, count };
enum class Directions { apart, mixed, parallel, count };
enum class Scores { as_they_are, centred, agreed, nearly_agreed, count };

void draw_votes(Draw& draw, Instance& instance) {
  const auto votes = draw.kind<Votes>();
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const int64_t most = votes == Votes::ones  ? 1
                         : votes == Votes::few ? 4
                         : draw.index(2) == 0  ? 4
                                               : 1000000;
    instance.votes.push_back(static_cast<double>(draw.integer(1, most)));
  }
}

// A triangle of them leaves every logit as it is, however parallel they are.
void draw_query_vectors(Draw& draw, Instance& instance) {
  const int64_t rows = instance.logits.rows();
  instance.query_vectors = Matrix(rows, rows);
  const auto directions = draw.kind<Directions>();
  for (int64_t r = 0; r < rows; ++r) {
    instance.query_vectors(r, r) = std::ldexp(1.0, static_cast<int>(draw.integer(-1, 1)));
    if (r == 0 || directions == Directions::apart) continue;
    if (directions == Directions::parallel) {
      instance.query_vectors(r, 0) = instance.query_vectors(0, 0);
      instance.query_vectors(r, r) = std::ldexp(1.0, -static_cast<int>(draw.integer(8, 12)));
      continue;
    }
    for (int64_t c = 0; c < r; ++c) instance.query_vectors(r, c) = draw.on_grid(2, 0.5);
  }
}

bool is_huge(double logit) { return std::abs(logit) > 5000; }

// What every query says of the cluster's members is shifted until the mean score's logarithm is next to 0.
void centre(Instance& instance, const Cluster& cluster) {
  if (std::ranges::any_of(instance.logits.numbers(), is_huge)) return;  // they'd leave what is valid
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    exact::Entries members;
    exact::Reals scores;
    for (const int64_t member : cluster) {
      members.keys.emplace_back(1);
      members.values.emplace_back(1);
      members.votes.emplace_back(instance.votes[static_cast<size_t>(member)]);
      scores.emplace_back(instance.logits(r, member));
    }
    const Real mean = exact::ClusterMean(members, scores).mean_score;
    const double shift = std::ldexp(std::round(std::ldexp(static_cast<double>(mean), 40)), -40);
    for (double& logit : instance.logits.row(r)) logit -= shift;
  }
}

void agree(Draw& draw, Instance& instance, const Cluster& cluster, double range) {
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    for (const int64_t member : cluster) {
      const double apart = range == 0 || member == cluster.front() ? 0 : draw.on_grid(range, range / 8);
      instance.logits(r, member) = instance.logits(r, cluster.front()) + apart;
    }
  }
}

// Later queries that give nearly the scores of the head's first.
void agree_later(Draw& draw, Instance& instance) {
  const double range = std::ldexp(1.0, -static_cast<int>(draw.integer(1, 8)));
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    const int64_t first = r / instance.queries() * instance.queries();
    for (int64_t j = 0; j < instance.tokens() && r != first; ++j)
      instance.logits(r, j) = instance.logits(first, j) + draw.on_grid(range, range / 8);
  }
}

// ---- regimes

// Whether some head's first query sees a cluster so.
template <class Predicate>
bool any_cluster(const Instance& instance, const Predicate& predicate) {
  const MergingCase merging(instance);
  for (size_t h = 0; h < merging.heads.size(); ++h) {
    for (const Cluster& cluster : merging.clusters) {
      const exact::Reals scores = merging.predicted(h, cluster);
      const bool equal =
          std::ranges::all_of(scores, [&](const Real& score) { return score == scores.front(); });
      if (predicate(merging.mean(h, cluster), equal)) return true;
    }
  }
  return false;
}

bool has_parallel_queries(const Matrix& vectors) {
  const exact::Vectors rows = exact::vectors(vectors);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Real product = exact::inner_product(rows[i], rows[j]);
      const Real cosine = Real("0.9999");
      if (product * product > cosine * cosine * exact::squared(rows[i]) * exact::squared(rows[j]))
        return true;
    }
  }
  return false;
}

}  // namespace

void draw_merging(Draw& draw, Instance& instance) {
  draw_votes(draw, instance);
  draw_query_vectors(draw, instance);
  instance.ema = 1 - std::ldexp(1.0, -static_cast<int>(draw.integer(0, 10)));
  if (draw.index(2) == 0) agree_later(draw, instance);
  const std::vector<Cluster> clusters = clusters_of(instance);
  if (clusters.empty()) return;
  const Cluster& cluster = clusters[static_cast<size_t>(draw.index(static_cast<int64_t>(clusters.size())))];
  switch (draw.kind<Scores>()) {
    case Scores::centred:
      centre(instance, cluster);
      break;
    case Scores::agreed:
      agree(draw, instance, cluster, 0);
      break;
    case Scores::nearly_agreed:
      agree(draw, instance, cluster, 0x1p-20);
      break;
    default:
      break;
  }
}

void require_valid_merging(const Instance& instance) {
  const int64_t rows = instance.logits.rows();
  require_equal("votes", static_cast<int64_t>(instance.votes.size()), "columns of logits", instance.tokens());
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

bool shows_merging(const Instance& instance, Regime regime) {
  if (!instance.merges()) return false;
  switch (regime) {
    case Regime::nearly_singular:
      return any_cluster(instance, [](const exact::ClusterMean& mean, bool equal) {
        return !equal && 1000000 * abs(mean.mean_score) < mean.divergence;
      });
    case Regime::nearly_agreed:
      return any_cluster(instance, [](const exact::ClusterMean& mean, bool equal) {
        return !equal && mean.divergence < Real("1e-12");
      });
    case Regime::agreed:
      return any_cluster(instance, [](const exact::ClusterMean&, bool equal) { return equal; });
    case Regime::huge_logits:
      return std::ranges::any_of(instance.logits.numbers(), is_huge);
    case Regime::many_votes:
      return std::ranges::any_of(instance.votes, [](double votes) { return votes >= 1e5; });
    case Regime::parallel_queries:
      return has_parallel_queries(instance.query_vectors);
    case Regime::predicted:
      return any_predicted(MergingCase(instance));
    default:
      return false;
  }
}

}  // namespace kvbound::proofs
