// Random numbers that are bit-identical on every platform, because they use only integer arithmetic
// and + - * / sqrt on doubles. libm's log and std::normal_distribution differ between libraries.
// Compile with -ffp-contract=off, as every target here is.
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>

namespace kvbound::traces {

static_assert(FLT_EVAL_METHOD == 0, "doubles must be computed as doubles, not in wider registers");

/// The natural logarithm, within 3 units in the last place of the true one.
///
///     ln(m * 2^e) = e ln 2 + 2 (r + r^3/3 + r^5/5 + ... + r^21/21),   r = (m - 1)/(m + 1)
///
/// number   positive, finite and not subnormal; m is in [1/sqrt 2, sqrt 2), where the first omitted term
///          is below 2^-60 of the sum
/// returns  in nats
constexpr double natural_log(double number) {
  constexpr double kLn2 = 0.69314718055994530942;
  constexpr double kSqrt2 = 1.41421356237309504880;
  const auto bits = std::bit_cast<uint64_t>(number);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double fraction = std::bit_cast<double>((bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1023} << 52);
  if (fraction >= kSqrt2) {
    fraction /= 2;
    ++exponent;
  }
  const double ratio = (fraction - 1) / (fraction + 1);
  const double square = ratio * ratio;
  double series = 0;
  for (int power = 21; power >= 1; power -= 2) series = series * square + 1.0 / power;
  return exponent * kLn2 + 2 * ratio * series;
}

/// A random function of an index: every number is available without those before it, in any order and on any
/// thread. Streams of different seeds, and children of different names, are independent of each other.
///
///     bits(i) = mix(key + (i + 1) * 0x9e3779b97f4a7c15)
///
/// the i-th number of a SplitMix64 generator whose initial state is key
///
/// source  Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64)
class Stream {
 public:
  explicit constexpr Stream(uint64_t seed) : key_(mix(seed)) {}

  /// The child stream with this name.
  constexpr Stream child(uint64_t name) const { return Stream(key_ ^ mix(name + kGamma)); }

  /// 64 random bits.
  constexpr uint64_t bits(uint64_t index) const { return mix(key_ + (index + 1) * kGamma); }

  /// Uniform in (0, 1), both ends excluded: (2 m + 1)/2^53 for 52 random bits m.
  constexpr double uniform(uint64_t index) const {
    return static_cast<double>((bits(index) >> 12 << 1) + 1) * 0x1p-53;
  }

  /// Nearly normal, of mean 0 and variance 1 (Irwin-Hall): the sum of four uniform 16-bit integers, centred
  /// and divided by its standard deviation sqrt((2^32 - 1)/3). Never beyond 3.4641 in magnitude.
  constexpr double normal(uint64_t index) const {
    constexpr uint64_t kLanes = 0x0000ffff0000ffff;
    constexpr double kInverseDeviation = 2.6428997921303018e-05;
    const uint64_t drawn = bits(index);
    const uint64_t pairs = (drawn & kLanes) + (drawn >> 16 & kLanes);
    const auto sum = static_cast<int64_t>((pairs & 0xffffffff) + (pairs >> 32));
    return static_cast<double>(sum - int64_t{2} * 0xffff) * kInverseDeviation;
  }

  /// Exponential of mean 1: -ln of a uniform, in (0, 37).
  constexpr double exponential(uint64_t index) const { return -natural_log(uniform(index)); }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

  static constexpr uint64_t mix(uint64_t state) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    state = (state ^ state >> 27) * 0x94d049bb133111eb;
    return state ^ state >> 31;
  }

  uint64_t key_;
};

/// A random order of 0, 1, ..., count - 1; each element is computed separately.
///
/// Rounds of invertible steps on the smallest b bits that hold count - 1: multiply by a random odd number and
/// add another, modulo 2^b; then x ^= x >> ceil(b/2). Results of count or more go through the rounds again.
class Permutation {
 public:
  /// count  >= 1
  constexpr Permutation(const Stream& random, int64_t count)
      : random_(random),
        count_(static_cast<uint64_t>(count)),
        bits_(static_cast<int>(std::bit_width(count_ - 1))) {}

  /// index    in 0..count - 1
  /// returns  its place, in 0..count - 1
  constexpr int64_t operator()(int64_t index) const {
    auto place = static_cast<uint64_t>(index);
    do place = shuffled(place);
    while (place >= count_);
    return static_cast<int64_t>(place);
  }

 private:
  constexpr uint64_t shuffled(uint64_t place) const {
    const uint64_t mask = (uint64_t{1} << bits_) - 1;
    for (uint64_t round = 0; round < 4; ++round) {
      place = (place * (random_.bits(2 * round) | 1) + random_.bits(2 * round + 1)) & mask;
      place ^= place >> (bits_ + 1) / 2;
    }
    return place;
  }

  Stream random_;
  uint64_t count_;
  int bits_;
};

}  // namespace kvbound::traces
