// The text that Python's inspect.signature gives for a function: FlashInfer records it with every call,
// so that positional arguments have names and arguments that were not given have values, whichever
// version recorded the call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbound::traces {

struct PythonParameter {
  std::string name;
  std::optional<std::string> otherwise;  ///< its default as Python prints it, such as 'NHD', None or -1
  bool positional = true;                ///< whether it may be given by position
};

/// The parameters of a signature such as "(self, q: torch.Tensor, *args, kv_layout:
/// str = 'NHD') -> torch.Tensor", without those that collect others (*args, **kwargs);
/// nullopt for any other text.
std::optional<std::vector<PythonParameter>> python_parameters(std::string_view signature);

}  // namespace kvbound::traces
