// The names of the cited papers, as used in the catalogue's sources.
#pragma once

#include <string>

namespace kvbound::proofs {

inline const std::string kCriticalKv = "CriticalKV (arXiv:2502.03805)";
inline const std::string kObcache = "OBCache (arXiv:2510.07651)";
inline const std::string kKeepKv = "KeepKV (arXiv:2504.09936)";

}  // namespace kvbound::proofs
