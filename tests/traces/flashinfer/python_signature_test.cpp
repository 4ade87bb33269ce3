// Signatures as Python prints them.
#include <gtest/gtest.h>

#include <kvbound/traces/flashinfer/python_signature.hpp>

namespace kvbound::traces::python_signature_test {
namespace {

// Every parameter as name=default, those that are given by name only after a star.
std::string parsed(std::string_view signature) {
  const auto parameters = python_parameters(signature);
  if (!parameters) return "none";
  std::string text;
  for (const PythonParameter& parameter : *parameters) {
    text += (text.empty() ? "" : " ") + std::string(parameter.positional ? "" : "*") + parameter.name;
    if (parameter.otherwise) text += "=" + *parameter.otherwise;
  }
  return text;
}

TEST(PythonSignature, HasNamesAndDefaults) {
  EXPECT_EQ(parsed("(self, q: torch.Tensor, kv_layout: str = 'NHD', window_left: int = -1) -> None"),
            "self q kv_layout='NHD' window_left=-1");
  EXPECT_EQ(parsed("()"), "");
  EXPECT_EQ(parsed("(a=None)"), "a=None");
}

TEST(PythonSignature, TellsWhatIsGivenByNameOnly) {
  EXPECT_EQ(parsed("(q, /, k, *args, out=None, **kwargs) -> torch.Tensor"), "q k *out=None");
  EXPECT_EQ(parsed("(q, *, out)"), "q *out");
}

TEST(PythonSignature, IsNotSplitInBracketsAndTexts) {
  EXPECT_EQ(parsed("(a: Union[int, Dict[str, float]] = (1, {2: 3}), b: str = 'x, y)=', c=\"'\", d='\\'')"),
            "a=(1, {2: 3}) b='x, y)=' c=\"'\" d='\\''");
}

TEST(PythonSignature, AnnotationsMayBeTexts) {
  EXPECT_EQ(parsed("(self, q: 'Union[torch.Tensor, int]', k: \"Tuple[int, ...]\" = None) -> 'torch.Tensor'"),
            "self q k=None");
}

TEST(PythonSignature, OtherTextsAreNone) {
  for (const char* text : {"", "run", "(a", "(a, b]", "(a b)", "('a')", "(a='x)", "(a=[)", "(1+2)"}) {
    EXPECT_EQ(parsed(text), "none") << text;
  }
}

}  // namespace
}  // namespace kvbound::traces::python_signature_test
