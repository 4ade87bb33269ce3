// Which tensors of a model's file are used, refused and ignored.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>

#include "support/tiny_checkpoint.hpp"

namespace kvbound::traces::checkpoint_test {
namespace {

using test::GgufParts;
using test::TinyCheckpoint;
using testing::HasSubstr;

// What is said of the file with a further tensor of 16 ones.
std::string told_of(const std::string& name, uint32_t type = 0) {
  std::string data;
  for (int i = 0; i < 16; ++i) data += test::bytes_of(1.0F);
  const TinyCheckpoint model(1, [&](GgufParts& parts) { parts.tensors.push_back({name, {16}, type, data}); });
  return test::message_of<TraceError>([&] { model.open(); });
}

TEST(Checkpoint, RefusesTensorsOfItsLayersThatItDoesNotKnow) {
  for (const char* name : {"blk.0.ffn_down.bias", "blk.1.attn_q.scale", "blk.0.attn_q_norm.weight",
                           "blk.2.attn_norm.weight", "output.bias", "output_norm.bias",
                           "token_embd_norm.weight", "position_embd.weight", "rope_factors_short.weight"}) {
    EXPECT_THAT(told_of(name),
                HasSubstr(std::string(name) + ": is unknown here, and may change what is computed"));
  }
}

TEST(Checkpoint, IgnoresOtherTensorsOfAnyType) {
  for (const char* name : {"mtp.fc.weight", "cls.weight", "x", "blk.0.attn_rot_embd.weight"}) {
    EXPECT_EQ(told_of(name), "no error");
    EXPECT_EQ(told_of(name, 26), "no error");
  }
}

TEST(Checkpoint, UsesTheBiasesThatAreThere) {
  const TinyCheckpoint model(1, [](GgufParts& parts) {
    parts.tensors.push_back({"blk.1.attn_q.bias", {16}, 0, std::string(64, 0)});
    parts.tensors.push_back({"blk.0.attn_output.bias", {16}, 0, std::string(64, 0)});
  });
  const Checkpoint checkpoint = model.open();
  EXPECT_FALSE(checkpoint.layers()[0].query_bias);
  EXPECT_TRUE(checkpoint.layers()[1].query_bias);
  EXPECT_FALSE(checkpoint.layers()[1].key_bias);
  EXPECT_THAT(told_of("blk.0.attn_output.bias"),
              HasSubstr("is not 0: a trace cannot represent a bias of W^O"));
}

// The names of some 15 tensors of each layer were made and kept: of a million layers, gigabytes.
TEST(Checkpoint, RefusesMoreLayersThanTensorsAtOnce) {
  const TinyCheckpoint model(1, [](GgufParts& parts) {
    std::ranges::find(parts.metadata, "llama.block_count", &GgufParts::Entry::key)->value =
        test::bytes_of(uint32_t{10'000});
  });
  EXPECT_THAT(
      test::message_of<TraceError>([&] { model.open(); }),
      HasSubstr(
          "has 10000 layers, as its configuration says, and only 21 tensors; expected several of each layer"));
}

}  // namespace
}  // namespace kvbound::traces::checkpoint_test
