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

class Search {
 public:
  Search(const Theorem& theorem, double seconds, const std::function<void(double, double)>& progress)
      : theorem_(theorem), seconds_(seconds), progress_(progress) {
    best_.ratio = -1;
  }

  const Tightest& best() const { return best_; }

  // From random instances to neighbours of no smaller ratio.
  void climb(uint64_t seed) {
    rc::Random random(seed);
    const rc::Gen<Instance> generator = instances(theorem_.sizes);
    Instance current;
    double current_ratio = -1;
    for (int64_t idle = kPatience; !over(kClimbingShare) || best_.evaluations == 0; ++idle) {
      const bool afresh = idle >= kPatience;
      Instance next =
          afresh ? generator(random.split(), rc::kNominalSize).value() : neighbour(current, random);
      const double ratio = evaluate(next);
      if (!afresh && ratio < current_ratio) continue;
      if (afresh || ratio > current_ratio) idle = 0;
      current = std::move(next);
      current_ratio = ratio;
    }
  }

  // To the simplest instance, by small steps, whose ratio is as large.
  void simplify() {
    for (bool simpler_found = true; simpler_found;) {
      simpler_found = false;
      for (const Instance& next : simpler(best_.instance)) {
        if (over(1)) return;
        const double before = best_.ratio, ratio = evaluate(next);
        simpler_found = !best_.failure && ratio >= before;
        if (!simpler_found) continue;
        best_.instance = next;
        break;
      }
    }
  }

 private:
  double passed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  // Whether this share of the time has passed; a theorem that failed needs no more of it.
  bool over(double share) const { return best_.failure || passed() >= share * seconds_; }

  // The instance's ratio. It is kept if that is the largest, or if the theorem fails on it.
  double evaluate(const Instance& instance) {
    const Outcome outcome = check(theorem_.property, instance);
    const double ratio = outcome.ratio().value_or(0);
    ++best_.evaluations;
    if (!outcome.holds()) best_.failure = outcome.failure();
    if (!outcome.holds() || ratio > best_.ratio) {
      best_.instance = instance;
      best_.ratio = ratio;
    }
    if (progress_) progress_(passed(), best_.ratio);
    return ratio;
  }

  const Theorem& theorem_;
  const double seconds_;
  const std::function<void(double, double)>& progress_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Tightest best_;
};

}  // namespace

Tightest search_tightest(const Theorem& theorem, double seconds, uint64_t seed,
                         const std::function<void(double, double)>& progress) {
  Search search(theorem, seconds, progress);
  search.climb(seed);
  search.simplify();
  return search.best();
}

}  // namespace kvbound::proofs
