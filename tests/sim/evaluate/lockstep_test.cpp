// Sequences side by side, against the decoder that `record` runs, and against each other.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <kvbound/sim/evaluate/lockstep.hpp>
#include <kvbound/traces/models/decoder.hpp>

#include "support/tiny_checkpoint.hpp"

namespace kvbound::sim::lockstep_test {
namespace {

constexpr int64_t kFirst = 7, kLayers = test::TinyCheckpoint::kLayers,
                  kVocabulary = test::TinyCheckpoint::kVocabulary;
const std::vector<int64_t> kTokens{3, 1, 4, 1, 5};

// Attention outputs that are made up, so that what is tested is all else.
std::vector<StepRecord> made_up_outputs(double scale) {
  std::vector<StepRecord> records(kTokens.size());
  for (size_t t = 0; t < records.size(); ++t) {
    records[t].output = Matrix(4, 4);
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t c = 0; c < 4; ++c)
        records[t].output(h, c) =
            scale * std::sin(static_cast<double>(h * 5 + c * 3) + static_cast<double>(t));
    }
  }
  return records;
}

Lockstep decoded(const traces::Checkpoint& checkpoint, const std::vector<double>& scales,
                 int64_t block_rows = 4096) {
  Lockstep lockstep(checkpoint, kTokens, kFirst, std::ssize(scales), Dtype::f32, block_rows);
  for (int64_t l = 0; l < kLayers; ++l) {
    lockstep.project(l);
    for (size_t s = 0; s < scales.size(); ++s)
      lockstep.set_outputs(static_cast<int64_t>(s), made_up_outputs(scales[s]));
    lockstep.finish(l);
  }
  return lockstep;
}

std::vector<float> part(const std::vector<float>& logits, int64_t row) {
  const auto begin = logits.begin() + row * kVocabulary;
  return {begin, begin + kVocabulary};
}

TEST(Lockstep, GivesEqualSequencesEqualBitsWhereverTheyStand) {
  const test::TinyCheckpoint tiny;
  const traces::Checkpoint checkpoint = tiny.open();
  const std::vector<double> scales{1, 2, 1, 0.5};
  Lockstep all = decoded(checkpoint, scales);
  const std::vector<float> logits = all.logits(1, 3);
  EXPECT_EQ(std::ssize(logits), 4 * 3 * kVocabulary);
  for (size_t s = 0; s < scales.size(); ++s) {
    const std::vector<float> alone = decoded(checkpoint, {scales[s]}).logits(1, 3);
    for (int64_t t = 0; t < 3; ++t)
      EXPECT_EQ(part(logits, static_cast<int64_t>(s) * 3 + t), part(alone, t)) << "sequence " << s;
  }
  EXPECT_NE(part(logits, 0), part(logits, 3)) << "other outputs give other logits";
}

TEST(Lockstep, GivesTheSameBitsInBlocksOfAnySize) {
  const test::TinyCheckpoint tiny;
  const traces::Checkpoint checkpoint = tiny.open();
  const std::vector<double> scales{1, 2, 1.5, 0.5, 3};
  const std::vector<float> expected = decoded(checkpoint, scales).logits(0, 5);
  for (const int64_t block_rows : {1, 5, 10, 14, 15, 24, 25})
    EXPECT_EQ(decoded(checkpoint, scales, block_rows).logits(0, 5), expected) << block_rows << " rows";
}

TEST(Lockstep, MeasuresTheDistanceFromTheFirstSequence) {
  const test::TinyCheckpoint tiny;
  const traces::Checkpoint checkpoint = tiny.open();
  const Lockstep lockstep = decoded(checkpoint, {1, 1, 1.01, 2});
  EXPECT_EQ(lockstep.relative_distance(0), 0);
  EXPECT_EQ(lockstep.relative_distance(1), 0);
  EXPECT_GT(lockstep.relative_distance(2), 1e-4);
  EXPECT_GT(lockstep.relative_distance(3), 10 * lockstep.relative_distance(2));
}

// The decoder reads the same tokens alone; its own attention outputs, handed to the sequence, must give its
// logits, and its keys, values and queries.
TEST(Lockstep, IsTheDecoderButForAttention) {
  const test::TinyCheckpoint tiny;
  const traces::Checkpoint checkpoint = tiny.open();
  const std::vector<int64_t> prompt(kFirst, 9);
  traces::Decoder decoder(checkpoint, kFirst + std::ssize(kTokens), Dtype::f16);
  decoder.run(prompt, nullptr);
  std::vector<std::vector<float>> queries(kLayers), outputs(kLayers);
  const std::vector<float> expected = decoder.run(kTokens, [&](const traces::Attended& attended) {
    for (int64_t i = 0; i < attended.queries.rows; ++i) {
      std::ranges::copy(attended.queries.row(i), std::back_inserter(queries[attended.layer]));
      std::ranges::copy(attended.outputs.row(i), std::back_inserter(outputs[attended.layer]));
    }
  });
  Lockstep lockstep(checkpoint, kTokens, kFirst, 1, Dtype::f16);
  const auto steps = std::ssize(kTokens);
  for (int64_t l = 0; l < kLayers; ++l) {
    lockstep.project(l);
    const DecodeSteps inputs = lockstep.inputs(0);
    const std::vector<traces::CachedHead> cache = decoder.cache(l);
    std::vector<StepRecord> records(steps);
    for (int64_t t = 0; t < steps; ++t) {
      records[t].output = Matrix(4, 4);
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t c = 0; c < 4; ++c) {
          EXPECT_EQ(inputs.queries.slice(h)(t, c), queries[l][t * 16 + h * 4 + c]);
          EXPECT_EQ(inputs.keys.slice(h / 2)(t, c), cache[h / 2].keys(kFirst + t, c));
          EXPECT_EQ(inputs.values.slice(h / 2)(t, c), cache[h / 2].values(kFirst + t, c));
          records[t].output(h, c) = outputs[l][t * 16 + h * 4 + c];
        }
      }
    }
    lockstep.set_outputs(0, records);
    lockstep.finish(l);
  }
  const std::vector<float> found = lockstep.logits(steps - 1, 1);
  for (int64_t i = 0; i < kVocabulary; ++i) EXPECT_NEAR(found[i], expected[i], 1e-5F);
}

}  // namespace
}  // namespace kvbound::sim::lockstep_test
