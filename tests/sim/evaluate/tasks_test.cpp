// The reader of task files: legal ones are read exactly, all others are refused with one
// line that names the place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/evaluate/tasks.hpp>

#include "support/safetensors_bytes.hpp"

namespace kvbound::sim::tasks_test {
namespace {

using test::message_of;
using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Tokens = std::vector<int64_t>;

constexpr int64_t kBytes = 256;

std::vector<Task> tasks_in(const std::string& text, int64_t vocabulary = kBytes) {
  const TemporaryFolder folder;
  return read_tasks(folder.write("tasks.jsonl", text), vocabulary);
}

/// The reader's error message for a file with this text: one line that begins with the path.
std::string refusal(const std::string& text, int64_t vocabulary = kBytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write("tasks.jsonl", text);
  const std::string message = message_of<TraceError>([&] { read_tasks(path, vocabulary); });
  EXPECT_THAT(message, AllOf(StartsWith(path + ": "), Not(HasSubstr("\n")))) << text;
  return message.substr(std::min(message.size(), path.size() + 2));
}

/// The refusal of a task with these members besides `id` and a prompt of three tokens.
std::string refusal_with(const std::string& members) {
  return refusal(R"({"id":"a","prompt":[1,2,3],)" + members + "}\n");
}

TEST(Tasks, AreReadWithAllTheirMembers) {
  const auto tasks = tasks_in(
      R"({"id": "one", "prompt": [1, 20, 300], "answer": [4, 5], "compress_at": 2, "kind": "needle", "depth": 0.25})"
      "\n"
      R"({"depth":1,"continuation":[7,8],"prompt":[0],"id":"two"})",
      301);
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0].id, "one");
  EXPECT_EQ(tasks[0].kind, "needle");
  EXPECT_EQ(tasks[0].prompt, (Tokens{1, 20, 300}));
  EXPECT_EQ(tasks[0].target, (Tokens{4, 5}));
  EXPECT_TRUE(tasks[0].is_answer);
  EXPECT_EQ(tasks[0].compress_at, 2);
  EXPECT_EQ(tasks[0].depth, 0.25);
  EXPECT_EQ(tasks[1].kind, "continuation");
  EXPECT_EQ(tasks[1].target, (Tokens{7, 8}));
  EXPECT_FALSE(tasks[1].is_answer);
  EXPECT_EQ(tasks[1].compress_at, 1);
  EXPECT_EQ(tasks[1].depth, 1);
}

TEST(Tasks, HaveTheBytesOfTheirTexts) {
  const auto tasks = tasks_in(R"({"id":"a","prompt_text":"Aé\n\u0000\u20ac","answer_text":"12"})");
  EXPECT_EQ(tasks.at(0).prompt, (Tokens{65, 0xc3, 0xa9, 10, 0, 0xe2, 0x82, 0xac}));
  EXPECT_EQ(tasks.at(0).target, (Tokens{'1', '2'}));
  EXPECT_EQ(tasks.at(0).compress_at, 8);
  EXPECT_EQ(tasks.at(0).kind, "answer");
  EXPECT_EQ(tasks.at(0).depth, std::nullopt);
}

TEST(Tasks, MayMixTextsAndIds) {
  EXPECT_EQ(tasks_in(R"({"id":"a","prompt_text":"A","continuation":[1,2]})").at(0).target, (Tokens{1, 2}));
  EXPECT_EQ(tasks_in(R"({"id":"a","prompt":[255],"continuation_text":"AB"})").at(0).target, (Tokens{65, 66}));
}

TEST(Tasks, MayHaveLinesThatEndInAnyUsualWay) {
  const std::string line = R"({"id":"a","prompt":[1],"answer":[1,2]})";
  const std::string other = R"( {"id":"b","prompt":[1],"answer":[1,2]} )";
  for (const std::string& text :
       {line + "\n" + other, line + "\n" + other + "\n", line + "\r\n" + other + "\r\n"}) {
    EXPECT_EQ(tasks_in(text).size(), 2U);
  }
}

TEST(Tasks, MayHaveATargetOfOneTokenBehindACompressedCache) {
  EXPECT_EQ(tasks_in(R"({"id":"a","prompt":[1,2],"answer":[1],"compress_at":1})").size(), 1U);
  EXPECT_THAT(refusal_with(R"("answer":[1])"),
              StartsWith("at byte 0: line 1: compresses behind its prompt, which predicts the only token"));
  EXPECT_THAT(refusal_with(R"("continuation":[1],"compress_at":3)"), HasSubstr("nothing goes through"));
}

TEST(Tasks, MayBeNestedAsDeeplyAsTheyNeed) {
  EXPECT_THAT(refusal_with(R"("answer":[[1],2])"), HasSubstr("line 1: is nested deeper than 2 levels"));
  std::string deep;
  for (int level = 0; level < 100000; ++level) deep += "[";
  EXPECT_THAT(refusal(deep), HasSubstr("nested deeper than 2 levels"));
}

TEST(Tasks, HaveKindsInTheOrderInWhichTheyAppear) {
  std::vector<Task> tasks(4);
  for (const size_t i : {0, 2, 3}) tasks[i].kind = "b";
  tasks[1].kind = "a";
  tasks[2].is_answer = true;
  const std::vector<TaskKind> kinds = kinds_of(tasks);
  ASSERT_EQ(kinds.size(), 3u);
  EXPECT_EQ(kinds[0].name, "b");
  EXPECT_FALSE(kinds[0].answers);
  EXPECT_THAT(kinds[0].tasks, ElementsAre(0, 3));
  EXPECT_EQ(kinds[1].name, "a");
  EXPECT_THAT(kinds[1].tasks, ElementsAre(1));
  EXPECT_EQ(kinds[2].name, "b");
  EXPECT_TRUE(kinds[2].answers);
  EXPECT_THAT(kinds[2].tasks, ElementsAre(2));
}

TEST(Tasks, OfAsManyKindsAreLookedUpNotSearched) {
  std::vector<Task> tasks(300'000);
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].kind = "kind " + std::to_string(i);
  EXPECT_EQ(kinds_of(tasks).size(), tasks.size());  // a search takes minutes
}

TEST(TasksRefusal, NamesLineByteAndMember) {
  const std::string good = R"({"id":"a","prompt":[1],"answer":[1,2]})";
  EXPECT_EQ(refusal(good + "\n" + R"({"id":"b","prompt":[1,256],"answer":[1,2]})"),
            "at byte 64: line 2: prompt[1]: is 256; expected a token id from 0 to 255");
}

TEST(TasksRefusal, IsOfFilesWithoutTasks) {
  EXPECT_EQ(refusal(""), "at byte 0: is empty; expected a task a line");
  EXPECT_EQ(refusal("\n"), "at byte 0: line 1: is blank; expected a JSON object");
  EXPECT_EQ(refusal(" \r\n"), "at byte 0: line 1: is blank; expected a JSON object");
  EXPECT_EQ(refusal("{\"id\":\"a\",\"prompt\":[1],\"answer\":[1,2]}\n\n"),
            "at byte 39: line 2: is blank; expected a JSON object");
}

TEST(TasksRefusal, IsOfWhatIsNoObjectOfJson) {
  for (const char* text : {"[1]", "3", "null", "\"text\""}) {
    EXPECT_THAT(refusal(text), HasSubstr("line 1: is ")) << text;
  }
  for (const char* text : {"{", "{\"id\"", "{\"id\":\"a\",}", "{} {}", "{'id':1}", "{\"id\":NaN}",
                           "{\"id\":1e999}", "{\"id\":01}"}) {
    EXPECT_THAT(refusal(text), HasSubstr("line 1: is not valid JSON")) << text;
  }
  EXPECT_THAT(refusal(std::string("{\"id\":\"a\0\"}", 11)), HasSubstr("is not valid JSON: a zero byte"));
  EXPECT_THAT(refusal("{\"id\":\"\xff\"}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(refusal("{\"id\":\"\xed\xa0\x80\"}"), HasSubstr("is not valid JSON"));  // a surrogate
  EXPECT_THAT(refusal(R"({"id":"\ud800"})"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(refusal("\xef\xbb\xbf{}"), HasSubstr("begins with a byte order mark"));
}

TEST(TasksRefusal, IsOfUnknownRepeatedAndMissingMembers) {
  EXPECT_THAT(
      refusal_with(R"("answer":[1,2],"depht":0.5)"),
      HasSubstr("line 1: member \"depht\" is unknown; the members of a task are id, prompt, prompt_text, "));
  EXPECT_THAT(refusal_with(R"("answer":[1,2],"id":"b")"), HasSubstr("line 1: the key \"id\" occurs twice"));
  EXPECT_THAT(refusal(R"({"prompt":[1],"answer":[1,2]})"), HasSubstr("line 1: id: is missing"));
  EXPECT_THAT(refusal(R"({"id":"a","answer":[1,2]})"),
              HasSubstr("has none of prompt, prompt_text; expected one"));
  EXPECT_THAT(refusal(R"({"id":"a","prompt":[1]})"),
              HasSubstr("has none of continuation, continuation_text, answer, answer_text"));
  EXPECT_THAT(refusal_with(R"("prompt_text":"a","answer":[1,2])"), HasSubstr("has prompt and prompt_text"));
  EXPECT_THAT(refusal_with(R"("continuation":[1,2],"answer":[1,2])"),
              HasSubstr("has continuation and answer"));
  EXPECT_THAT(refusal_with(R"("answer":[1,2],"answer_text":"12")"), HasSubstr("has answer and answer_text"));
}

TEST(TasksRefusal, IsOfIdsThatAreNoNamesOrAreThereTwice) {
  for (const char* id : {"\"\"", "3", "null", "[]", "{}"}) {
    EXPECT_THAT(refusal(R"({"prompt":[1],"answer":[1,2],"id":)" + std::string(id) + "}"),
                HasSubstr("line 1: id: is "))
        << id;
  }
  const std::string line = R"({"id":"a","prompt":[1],"answer":[1,2]})";
  EXPECT_THAT(refusal(line + "\n" + line), HasSubstr("line 2: id: is \"a\", which line 1 has, too"));
  EXPECT_THAT(refusal_with(R"("answer":[1,2],"kind":"")"), HasSubstr("line 1: kind: is \"\""));
  EXPECT_THAT(refusal_with(R"("answer":[1,2],"kind":1)"), HasSubstr("line 1: kind: is 1; expected a string"));
}

TEST(TasksRefusal, IsOfTokensThatTheModelDoesNotHave) {
  for (const char* id : {"256", "-1", "-0", "1.0", "1e0", "\"1\"", "null", "true", "18446744073709551616"}) {
    EXPECT_THAT(refusal_with(R"("answer":[1,)" + std::string(id) + "]"), HasSubstr("answer[1]: is ")) << id;
  }
  for (const char* ids : {"1", "\"12\"", "null"}) {
    EXPECT_THAT(refusal_with(R"("answer":)" + std::string(ids)), HasSubstr("expected a list"));
  }
  EXPECT_THAT(refusal_with(R"("answer":{})"), HasSubstr("answer: is an object; expected a list"));
  EXPECT_THAT(refusal_with(R"("answer":[])"), HasSubstr("answer: is empty; expected at least one token"));
  EXPECT_THAT(refusal_with(R"("answer_text":"")"), HasSubstr("answer_text: is empty"));
  EXPECT_THAT(refusal_with(R"("answer_text":[1])"), HasSubstr("answer_text: is an array; expected a string"));
  EXPECT_THAT(refusal(R"({"id":"a","prompt":[],"answer":[1,2]})"), HasSubstr("prompt: is empty"));
}

TEST(TasksRefusal, IsOfTextForModelsWhoseTokensAreNotBytes) {
  EXPECT_THAT(refusal(R"({"id":"a","prompt_text":"a","answer":[1,2]})", 49152),
              HasSubstr("prompt_text: is text, which is for byte-level models, whose vocabulary is 256; this "
                        "model's is 49152"));
  EXPECT_THAT(refusal(R"({"id":"a","prompt":[1],"answer_text":"12"})", 255),
              HasSubstr("answer_text: is text"));
}

TEST(TasksRefusal, IsOfPositionsOutsideThePrompt) {
  for (const char* position : {"0", "4", "-1", "1.5", "2.0", "null", "\"1\"", "18446744073709551615"}) {
    EXPECT_THAT(refusal_with(R"("answer":[1,2],"compress_at":)" + std::string(position)),
                HasSubstr("expected a number of the prompt's tokens from 1 to 3"))
        << position;
  }
}

TEST(TasksRefusal, IsOfDepthsOutsideTheContext) {
  for (const char* depth : {"-0.1", "1.0001", "2", "null", "true", "\"0.5\"", "[]", "-1e-300"}) {
    EXPECT_THAT(refusal_with(R"("answer":[1,2],"depth":)" + std::string(depth)),
                HasSubstr("expected a number from 0 to 1"))
        << depth;
  }
  EXPECT_EQ(tasks_in(R"({"id":"a","prompt":[1],"answer":[1,2],"depth":1e-3})").at(0).depth, 1e-3);
}

TEST(TasksRefusal, IsOfWhatIsNoFile) {
  const TemporaryFolder folder;
  const auto read = [](const std::string& path) { return [path] { read_tasks(path, kBytes); }; };
  EXPECT_EQ(message_of<TraceError>(read(folder.path())),
            folder.path() + ": is a directory; expected a regular file");
  EXPECT_EQ(message_of<TraceError>(read("/dev/null")),
            "/dev/null: at byte 0: is empty; expected a task a line");
  EXPECT_THAT(message_of<IoError>(read(folder.path("nothing"))), StartsWith("cannot open "));
}

TEST(TasksRefusal, IsPrintable) {
  EXPECT_THAT(refusal_with("\"answer\":[1,2],\"\\u001b[31m\":1"),
              HasSubstr("line 1: member \"\\x1b[31m\" is unknown"));
}

}  // namespace
}  // namespace kvbound::sim::tasks_test
