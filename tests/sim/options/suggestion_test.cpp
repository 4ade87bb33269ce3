#include <gtest/gtest.h>
#include <string>

#include <kvbound/sim/options/suggestion.hpp>

namespace kvbound::sim::suggestion_test {
namespace {

const Names kHosts{"snapkv", "h2o", "tova", "streaming-llm", "random"};

TEST(Suggestion, IsTheNameThatWasMistyped) {
  for (const char* word : {"snapkb", "snpkv", "snapkvv", "snakpv", "SnapKV", "snap-kv"}) {
    EXPECT_EQ(nearest(word, kHosts), "snapkv") << word;
  }
  EXPECT_EQ(nearest("streaming_lm", kHosts), "streaming-llm");
  EXPECT_EQ(nearest("h20", kHosts), "h2o");
}

TEST(Suggestion, IsTheOnlyNameThatBeginsSo) {
  EXPECT_EQ(nearest("stream", kHosts), "streaming-llm");
  EXPECT_EQ(nearest("SN", kHosts), "snapkv");
  EXPECT_EQ(nearest("obcache", {"obcache-value", "obcache-key"}), "");
}

TEST(Suggestion, IsTheNearestNameAndTheFirstOfEquallyNearOnes) {
  EXPECT_EQ(nearest("steps", {"step", "stepz", "steps"}), "steps");
  EXPECT_EQ(nearest("cat", {"cab", "car"}), "cab");
}

TEST(Suggestion, IsNoneForAnotherWord) {
  for (const std::string& word :
       {std::string(), std::string("pyramid"), std::string("x"), std::string("tvoaxx"),
        std::string("snapkv") + std::string(80, 'v'), std::string(1 << 20, 's')}) {
    EXPECT_EQ(nearest(word, kHosts), "") << word.substr(0, 10);
  }
  EXPECT_EQ(nearest("snapkv", {}), "");
}

TEST(Suggestion, IsSaidBeforeWhatIsKnown) {
  EXPECT_EQ(suggestion("hto", "known hosts: ", {"h2o", "tova"}), "did you mean h2o? known hosts: h2o, tova");
  EXPECT_EQ(suggestion("pyramid", "known hosts: ", {"h2o", "tova"}), "known hosts: h2o, tova");
}

}  // namespace
}  // namespace kvbound::sim::suggestion_test
