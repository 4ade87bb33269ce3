// Results of items as files: every bit survives, and other files are refused.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/sweep/item_result.hpp>
#include <kvbound/traces/sha256.hpp>

#include "support/message_of.hpp"

namespace kvbound::sim::item_result_test {
namespace {

using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

Matrix matrix(int64_t rows, int64_t cols, std::initializer_list<double> numbers) {
  Matrix made(rows, cols);
  std::ranges::copy(numbers, made.data());
  return made;
}

// A result that has every field.
ItemResult whole_result() {
  ItemResult result;
  result.computation = {"b", "c", "l", std::nullopt};
  result.environment = {"v", "r", "c", {"l", "z", "f", "s", "k", std::nullopt, "y"}, "d", 3};
  result.host = "h\xff";
  result.seconds = 0.1;
  result.layers = {2, 5};
  RunPart& part = result.runs.emplace_back();
  part.key = "snapkv 20% reference";
  part.compress_seconds = 1.0 / 3;
  part.step_seconds = 5e-324;
  LayerMetrics& layer = part.layers.emplace_back();
  layer.kept = {1, 1 << 30};
  layer.perturbation = matrix(2, 2, {0.1, -0.0, kNaN, kInfinity});
  layer.relative = matrix(2, 0, {});
  layer.bound = matrix(1, 2, {1.0 / 3, -kInfinity});
  layer.rounding = matrix(1, 1, {1e-300});
  layer.kept_mass = matrix(1, 1, {1});
  layer.stage_one_mass = matrix(1, 1, {2.5});
  layer.layer_perturbation = {0.1, 0.2};
  layer.layer_relative = {kNaN};
  layer.recall = {0.5};
  MergeMetrics& merges = layer.merges.emplace();
  merges.counts = {1, 2, 3, 4, 5, 6};
  merges.changes = {{-1, 3, 0.25, 1e-9}, {4, 0, kNaN, std::nullopt}};
  merges.clusters = {{1.5, 2.5, 3.5}};
  LaterQueries& later = merges.later.emplace();
  later.perturbation = later.prediction_error = later.value_distance = later.share = matrix(1, 1, {0.1});
  later.sag = later.bound = later.shared_bound = later.joint_bound = later.variation_bound =
      matrix(1, 1, {kInfinity});
  later.violations = {{1, 2}};
  part.layers.emplace_back();
  JudgedTensor& judged = part.agreement.emplace().emplace_back();
  judged.layer = 2;
  judged.agreement = {
      "output", 10,  9, 1, 2, true, Offender{{1, 2}, 0.1, 0.2, kInfinity, kNaN, Dtype::bf16, "note"},
      4.0,      7.5, 3};
  BackendTimes& times = result.times.emplace_back();
  times.backend = "reference";
  times.operations.add("scores", 0.7, 3);
  return result;
}

// Bits of all numbers, NaN's included.
std::vector<uint64_t> bits(VectorView numbers) {
  std::vector<uint64_t> all;
  for (const double number : numbers) all.push_back(std::bit_cast<uint64_t>(number));
  return all;
}

TEST(ItemResults, AreTheSameAfterTheirBytes) {
  const ItemResult result = whole_result(), read = item_result_of("p", bytes_of(result));
  EXPECT_EQ(bytes_of(read), bytes_of(result));
  EXPECT_EQ(read.host, result.host);
  EXPECT_EQ(read.computation.build, "b");
  EXPECT_EQ(read.environment, result.environment);
  EXPECT_EQ(read.layers, result.layers);
  const RunPart &part = read.runs.front(), &expected = result.runs.front();
  EXPECT_EQ(part.step_seconds, 5e-324);
  EXPECT_EQ(part.compress_seconds, 1.0 / 3);
  const LayerMetrics &layer = part.layers.front(), &original = expected.layers.front();
  EXPECT_EQ(layer.kept, original.kept);
  EXPECT_EQ(bits(layer.perturbation.numbers()), bits(original.perturbation.numbers()));
  EXPECT_EQ(layer.relative.rows(), 2);
  EXPECT_EQ(layer.relative.cols(), 0);
  EXPECT_EQ(bits(layer.bound->numbers()), bits(original.bound->numbers()));
  EXPECT_EQ(layer.merges->changes[0].step, -1);
  EXPECT_EQ(*layer.merges->changes[0].rounding, 1e-9);
  EXPECT_FALSE(layer.merges->changes[1].rounding);
  EXPECT_EQ(layer.merges->counts.far, 6);
  EXPECT_EQ(layer.merges->later->violations, (std::vector<StepHead>{{1, 2}}));
  EXPECT_FALSE(part.layers[1].bound);
  const TensorAgreement& agreement = part.agreement->front().agreement;
  EXPECT_EQ(agreement.worst->storage, Dtype::bf16);
  EXPECT_TRUE(std::isnan(agreement.worst->bound));
  EXPECT_EQ(agreement.near_tie_swaps, 3);
  EXPECT_EQ(read.times.front().operations.entries().front().calls, 3);
}

TEST(ItemResults, AreNotReadFromBytesThatWereCutOff) {
  const std::string bytes = bytes_of(whole_result());
  for (size_t length = 0; length < bytes.size(); length += 7) {
    EXPECT_THAT(test::message_of<TraceError>([&] { item_result_of("p", bytes.substr(0, length)); }),
                HasSubstr("p: is no result of a sweep"))
        << length;
  }
  EXPECT_THAT(test::message_of<TraceError>([&] { item_result_of("p", bytes + "x"); }),
              HasSubstr("is no result"));
}

TEST(ItemResults, AreNotReadIfAnyByteWasChanged) {
  const std::string bytes = bytes_of(whole_result());
  for (size_t i = 0; i < bytes.size(); i += 11) {
    std::string changed = bytes;
    changed[i] ^= 4;
    EXPECT_THAT(test::message_of<TraceError>([&] { item_result_of("p", changed); }),
                HasSubstr("or was damaged"))
        << i;
  }
}

TEST(ItemResults, AreNotReadFromOtherDocuments) {
  nlohmann::ordered_json json = nlohmann::ordered_json::from_cbor(bytes_of(whole_result()).substr(64));
  const auto refusal = [](const nlohmann::ordered_json& changed) {
    std::string bytes;
    nlohmann::ordered_json::to_cbor(changed, bytes);
    bytes.insert(0, traces::sha256_of(bytes));
    return test::message_of<TraceError>([&] { item_result_of("p", bytes); });
  };
  nlohmann::ordered_json changed = json;
  changed["version"] = 1;
  EXPECT_THAT(refusal(changed), HasSubstr("p: is no result of a sweep: version is 1; expected 3"));
  changed = json;
  changed["runs"][0].erase("key");
  EXPECT_THAT(refusal(changed), HasSubstr("key is missing"));
  changed = json;
  changed["runs"][0]["layers"][0]["perturbation"]["rows"] = 3;
  EXPECT_THAT(refusal(changed), HasSubstr("perturbation is {"));
  changed = json;
  changed["layers"][0] = "2";
  EXPECT_THAT(refusal(changed), HasSubstr("expected an integer"));
  changed["layers"][0] = "\xff";  // no UTF-8, which CBOR does not look for
  EXPECT_THAT(refusal(changed), HasSubstr("p: is no result of a sweep: layers is \""));
  EXPECT_THAT(refusal(nlohmann::ordered_json::array()), HasSubstr("is no result of a sweep"));
  const std::string lists(1'000'000, '\x81');  // each of one item
  EXPECT_THAT(test::message_of<TraceError>([&] { item_result_of("p", traces::sha256_of(lists) + lists); }),
              HasSubstr("is no result of a sweep: it is nested deeper than 32 levels"));
}

TEST(ItemResults, ThatCouldNotBeReadBackAreRefused) {
  const auto refusal = [](const std::string& bytes) {
    return test::message_of<TraceError>([&] { require_readable("p", bytes); });
  };
  EXPECT_EQ(refusal(bytes_of(whole_result())), "no error");
  EXPECT_THAT(refusal(std::string((size_t{1} << 28) + 1, 'x')),
              HasSubstr("p: would have 268435457 bytes; expected at most 256 MiB: give"));
  const std::string texts =
      "\x9a" + std::string("\x01\x00\x00\x00", 4) + std::string(size_t{1} << 24, '\x60');
  EXPECT_THAT(refusal(std::string(64, '0') + texts),
              HasSubstr("p: could not be read: it takes more than 1024 MiB of memory: give the plan fewer"));
}

}  // namespace
}  // namespace kvbound::sim::item_result_test
