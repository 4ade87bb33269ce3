#include "draw_merging.hpp"

#include <algorithm>
#include <cmath>

#include "merging_case.hpp"
#include "regime.hpp"

namespace kvbound::proofs {
namespace {

using exact::Real;

enum class Votes { ones, few, many };
constexpr Votes kVotes[] = {Votes::ones, Votes::few, Votes::many};
enum class Directions { apart, mixed, parallel };
constexpr Directions kDirections[] = {Directions::apart, Directions::mixed, Directions::parallel};
enum class Scores { as_they_are, centred, agreed, nearly_agreed };
constexpr Scores kScores[] = {Scores::as_they_are, Scores::centred, Scores::agreed, Scores::nearly_agreed};

void draw_votes(Draw& draw, Instance& instance) {
  const auto votes = draw.one_of(kVotes);
  for (int64_t j = 0; j < instance.tokens(); ++j) {
    const int64_t most = votes == Votes::ones  ? 1
                         : votes == Votes::few ? 4
                         : draw.index(2) == 0  ? 4
                                               : 1000000;
    instance.votes.push_back(static_cast<double>(draw.integer(1, most)));
  }
}

// Mixed queries share at most so many components: keys that solved a longer chain of equations
// would grow exponentially.
constexpr int64_t kShared = 3;

// A lower triangular matrix of query vectors with a nonzero diagonal:
// keys exist for any logits, however parallel the queries are.
void draw_query_vectors(Draw& draw, Instance& instance) {
  const int64_t rows = instance.logits.rows();
  instance.query_vectors = Matrix(rows, rows);
  const auto directions = draw.one_of(kDirections);
  for (int64_t r = 0; r < rows; ++r) {
    instance.query_vectors(r, r) = std::ldexp(1.0, static_cast<int>(draw.integer(-1, 1)));
    if (r == 0 || directions == Directions::apart) continue;
    if (directions == Directions::parallel) {
      instance.query_vectors(r, 0) = instance.query_vectors(0, 0);
      instance.query_vectors(r, r) = std::ldexp(1.0, -static_cast<int>(draw.integer(8, 12)));
      continue;
    }
    for (int64_t c = 0; c < std::min(r, kShared); ++c) instance.query_vectors(r, c) = draw.on_grid(2, 0.5);
  }
}

// Shifts every query's logits until the mean log score m of the cluster is near 0.
void centre(Instance& instance, const Cluster& cluster) {
  if (shows(instance, Regime::huge_logits)) return;  // shifted logits might exceed the valid range
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    exact::Entries members;
    exact::Reals scores;
    for (const int64_t member : cluster) {
      members.keys.emplace_back(1);
      members.values.emplace_back(1);
      members.votes.emplace_back(instance.votes[member]);
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

// Makes the later queries of every head give nearly the scores of the head's first query.
void agree_later(Draw& draw, Instance& instance) {
  const double range = std::ldexp(1.0, -static_cast<int>(draw.integer(1, 8)));
  for (int64_t r = 0; r < instance.logits.rows(); ++r) {
    const int64_t first = r / instance.queries() * instance.queries();
    for (int64_t j = 0; j < instance.tokens() && r != first; ++j)
      instance.logits(r, j) = instance.logits(first, j) + draw.on_grid(range, range / 8);
  }
}

}  // namespace

void draw_merging(Draw& draw, Instance& instance) {
  draw_votes(draw, instance);
  draw_query_vectors(draw, instance);
  instance.ema = 1 - std::ldexp(1.0, -static_cast<int>(draw.integer(0, 10)));
  if (draw.index(2) == 0) agree_later(draw, instance);
  const std::vector<Cluster> clusters = clusters_of(instance);
  if (clusters.empty()) return;
  const Cluster& cluster = clusters[draw.index(std::ssize(clusters))];
  switch (draw.one_of(kScores)) {
    case Scores::centred:
      centre(instance, cluster);
      break;
    case Scores::agreed:
      agree(draw, instance, cluster, 0);
      break;
    case Scores::nearly_agreed:
      agree(draw, instance, cluster, 0x1p-20);
      break;
    case Scores::as_they_are:
      break;
  }
}

}  // namespace kvbound::proofs
