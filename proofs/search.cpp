#include "search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "prove.hpp"

namespace kvbound::proofs {
namespace {

// A climb that has not risen for this many steps starts anew elsewhere.
constexpr int64_t kPatience = 400;
// What is left of the time goes to making the tightest instance simple.
constexpr double kClimbingShare = 0.9;

// One random change: of a number, or of who is kept.
Instance neighbour(Instance instance, rc::Random& random) {
  const auto index = [&](int64_t of) {
    return static_cast<int64_t>(random.split().next() % static_cast<uint64_t>(of));
  };
  Matrix* const matrices[] = {&instance.logits, &instance.values, &instance.output_projection};
  const int64_t what = index(4);
  if (what < 3) {
    Matrix& matrix = *matrices[what];
    double& number = matrix(index(matrix.rows()), index(matrix.cols()));
    switch (index(3)) {
      case 0:
        number = -number;
        break;
      case 1:
        number *= index(2) == 0 ? 0.5 : 2;
        break;
      default:
        number += std::ldexp(static_cast<double>(index(33) - 16), -static_cast<int>(index(7)));
    }
    return instance;
  }
  // A token that is not in stage one joins or leaves the kept ones.
  const int64_t token = index(instance.tokens());
  if (std::ranges::binary_search(instance.stage_one, token)) return instance;
  if (std::erase(instance.kept, token) == 0) {
    instance.kept.insert(std::ranges::lower_bound(instance.kept, token), token);
  }
  return instance;
}

// The simplest instance, by small steps, whose ratio is as large.
// go_on is asked after every evaluation.
void simplify(const Theorem& theorem, Tightest& best, const std::function<bool()>& go_on) {
  for (bool simpler_found = true; simpler_found;) {
    simpler_found = false;
    for (Instance& next : simpler(best.instance)) {
      const Outcome outcome = check(theorem.property, next);
      ++best.evaluations;
      simpler_found = outcome.holds() && outcome.ratio().value_or(0) >= best.ratio;
      if (simpler_found) {
        best.ratio = *outcome.ratio();
        best.instance = std::move(next);
      }
      if (!go_on()) return;
      if (simpler_found) break;
    }
  }
}

}  // namespace

Tightest search_tightest(const Theorem& theorem, double seconds, uint64_t seed,
                         const std::function<void(double, double)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  rc::Random random(seed);
  const rc::Gen<Instance> generator = instances(theorem.sizes);
  Tightest best;
  best.ratio = -1;
  const auto tell = [&] {
    if (progress) progress(passed(), best.ratio);
  };
  Instance current;
  double current_ratio = -1;
  const double climbing_seconds = seconds * kClimbingShare;
  for (int64_t idle = kPatience; passed() < climbing_seconds || best.evaluations == 0; ++best.evaluations) {
    const bool afresh = idle >= kPatience;
    Instance next = afresh ? generator(random.split(), rc::kNominalSize).value() : neighbour(current, random);
    const Outcome outcome = check(theorem.property, next);
    const double ratio = outcome.ratio().value_or(0);
    if (!outcome.holds()) return {std::move(next), ratio, best.evaluations + 1, outcome.failure()};
    ++idle;
    if (afresh || ratio >= current_ratio) {
      if (afresh || ratio > current_ratio) idle = 0;
      current = std::move(next);
      current_ratio = ratio;
    }
    if (current_ratio > best.ratio) {
      best.instance = current;
      best.ratio = current_ratio;
    }
    tell();
  }
  simplify(theorem, best, [&] {
    tell();
    return passed() < seconds;
  });
  return best;
}

}  // namespace kvbound::proofs
