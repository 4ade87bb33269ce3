// The papers whose statements the catalogue holds, as its sources name them.
#pragma once

#include <string>

namespace kvbound::proofs {

inline const std::string kCriticalKv = "CriticalKV (arXiv:2502.03805)";
inline const std::string kObcache = "OBCache (arXiv:2510.07651)";
inline const std::string kKeepKv = "KeepKV (arXiv:2504.09936)";

}  // namespace kvbound::proofs
