// Models in one GGUF file or in several: all parts are found, and must fit each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/models/gguf_set.hpp>

#include "support/gguf_bytes.hpp"

namespace kvbound::traces::gguf_set_test {
namespace {

using test::GgufParts;
using test::message_of;
using testing::HasSubstr;

// A model of three parts, of which the first has the metadata and no tensor, and the last two tensors.
class GgufSetTest : public testing::Test {
 protected:
  GgufSetTest() {
    parts_[0].set("general.name", std::string("split"));
    for (uint32_t part = 0; part < 3; ++part) {
      parts_[part].set("split.no", part);
      parts_[part].set("split.count", uint32_t{3});
      parts_[part].set("split.tensors.count", uint32_t{3});
    }
    add(1, "a", 1);
    add(2, "b", 2);
    add(2, "c", 3);
  }

  void add(int part, const std::string& name, float number) {
    parts_[part].tensors.push_back({name, {1}, 0, test::bytes_of(number)});
  }
  std::string write() const {
    for (int part = 2; part >= 0; --part) folder_.write(name_of(part), parts_[part].bytes());
    return folder_.path(name_of(0));
  }
  static std::string name_of(int part) { return "model-0000" + std::to_string(part + 1) + "-of-00003.gguf"; }

  test::TemporaryFolder folder_;
  std::array<GgufParts, 3> parts_;
};

TEST_F(GgufSetTest, FindsTheTensorsOfAllParts) {
  const GgufSet files(write());
  EXPECT_EQ(std::get<std::string>(files.first().metadata().at("general.name").value), "split");
  EXPECT_EQ(files.paths().size(), 3);
  EXPECT_EQ(files.tensors().size(), 3);
  EXPECT_FALSE(files.find("d"));
  const PlacedGgufTensor placed = files.find("c");
  std::vector<float> number(1);
  placed.file->weight(*placed.tensor).read(0, number);
  EXPECT_EQ(number[0], 3);
}

TEST_F(GgufSetTest, IsASingleFileThatSaysNothingOfParts) {
  parts_[1].metadata.clear();
  const GgufSet files(folder_.write("whole.gguf", parts_[1].bytes()));
  EXPECT_TRUE(files.find("a"));
  EXPECT_EQ(files.paths().size(), 1);
}

TEST_F(GgufSetTest, NeedsTheFirstPartByItsName) {
  write();
  EXPECT_THAT(
      message_of<TraceError>([&] { GgufSet{folder_.path(name_of(1))}; }),
      HasSubstr("split.no: is 1; give the first part of the split model, " + folder_.path(name_of(0))));
  std::filesystem::rename(folder_.path(name_of(0)), folder_.path("model.gguf"));
  EXPECT_THAT(
      message_of<TraceError>([&] { GgufSet{folder_.path("model.gguf")}; }),
      HasSubstr(
          "split.count: is 3, and the parts of a split model are found by their names; expected one that "
          "ends in -00001-of-00003.gguf"));
}

TEST_F(GgufSetTest, NeedsAllParts) {
  const std::string first = write();
  std::filesystem::remove(folder_.path(name_of(2)));
  EXPECT_THAT(message_of<IoError>([&] { GgufSet{first}; }),
              HasSubstr("cannot open " + folder_.path(name_of(2))));
}

TEST_F(GgufSetTest, RefusesPartsThatDoNotFit) {
  std::swap(parts_[1], parts_[2]);
  EXPECT_THAT(message_of<TraceError>([&] { GgufSet{write()}; }), HasSubstr("split.no: is 2; expected 1"));
  std::swap(parts_[1], parts_[2]);
  parts_[2].metadata.clear();
  EXPECT_THAT(message_of<TraceError>([&] { GgufSet{write()}; }),
              HasSubstr("split.no: is missing; expected 2"));
}

TEST_F(GgufSetTest, RefusesTensorsThatAreThereTwiceOrMissing) {
  parts_[2].tensors.pop_back();
  EXPECT_THAT(message_of<TraceError>([&] { GgufSet{write()}; }),
              HasSubstr("split.tensors.count: is 3; expected 2"));
  add(2, "a", 4);
  EXPECT_THAT(message_of<TraceError>([&] { GgufSet{write()}; }),
              HasSubstr("a: is in " + folder_.path(name_of(1)) + ", too"));
}

}  // namespace
}  // namespace kvbound::traces::gguf_set_test
