#include "search.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "draw_instance.hpp"
#include "prove.hpp"
#include "simpler.hpp"

namespace kvbound::proofs {
namespace {

// A climb whose ratio has not increased for this many steps restarts from a new random instance.
constexpr int64_t kPatience = 400;
// Share of the time for climbing; the rest is for simplifying the tightest instance.
constexpr double kClimbingShare = 0.9;

// Limit of numbers, so that doubles and 50 digits suffice to evaluate them.
constexpr double kLargestNumber = 1e4;

double changed(double number, rc::Random& random) {
  const auto index = [&](uint64_t of) { return static_cast<int>(random.split().next() % of); };
  const int kind = index(3);
  if (kind == 0) return -number;
  if (kind == 1) return std::clamp(number * (index(2) == 0 ? 0.5 : 2), -kLargestNumber, kLargestNumber);
  return std::clamp(number + std::ldexp(index(33) - 16, -index(7)), -kLargestNumber, kLargestNumber);
}

// Adds the token to an ascending set, or removes it if it is in the set.
void toggle(std::vector<int64_t>& positions, int64_t token) {
  if (std::erase(positions, token) == 0) positions.insert(std::ranges::lower_bound(positions, token), token);
}

// Changes votes or a number of a query vector, keeping the instance valid.
void change_merging(Instance& instance, int64_t token, rc::Random& random) {
  const auto index = [&](int64_t of) {
    return static_cast<int64_t>(random.split().next() % static_cast<uint64_t>(of));
  };
  if (index(2) == 0) {
    double& votes = instance.votes[token];
    votes = std::max(1.0, std::round(std::abs(changed(votes, random))));
    return;
  }
  const int64_t row = index(instance.query_vectors.rows());
  double& number = instance.query_vectors(row, index(row + 1));
  const double next = changed(number, random);
  if (std::abs(next) >= 0x1p-16) number = next;
}

// The instance with one random change: of a number, of the kept set, or of stage one.
Instance neighbour(Instance instance, rc::Random& random) {
  const auto index = [&](int64_t of) {
    return static_cast<int64_t>(random.split().next() % static_cast<uint64_t>(of));
  };
  Matrix* const matrices[] = {&instance.logits, &instance.values, &instance.output_projection};
  const int64_t what = index(instance.merges() ? 8 : 6), token = index(instance.tokens());
  const bool in_stage_one = std::ranges::binary_search(instance.stage_one, token);
  if (what < 3) {
    Matrix& matrix = *matrices[what];
    double& number = matrix(index(matrix.rows()), index(matrix.cols()));
    number = changed(number, random);
  } else if (what == 3) {
    if (!in_stage_one) toggle(instance.kept, token);
  } else if (what == 4) {
    const bool is_last = in_stage_one && instance.stage_one.size() == 1;
    if (!is_last && std::ranges::binary_search(instance.kept, token)) toggle(instance.stage_one, token);
  } else if (what == 5) {
    instance.epsilon = std::abs(changed(instance.epsilon, random));
  } else {
    change_merging(instance, token, random);
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

  // Climbs from random instances to neighbours whose ratio is at least as large.
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

  // Simplifies the tightest instance in small steps as long as the ratio does not decrease.
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
  // Whether this share of the time has passed, or the theorem has failed.
  bool over(double share) const { return best_.failure || passed() >= share * seconds_; }

  // The instance's ratio. Remembers the instance if its ratio is the largest so far or
  // the theorem fails on it.
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
