// The arguments of a recorded call by their types. Every function throws TraceError, naming file and
// argument, for one that is not as expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorded_call.hpp"

namespace kvbound::traces {

/// "request 3"
std::string numbered(const char* what, int64_t index);
/// A tensor's name for messages, "arg_1 (q)".
std::string field_of(const TensorEntry& entry, const std::string& parameter);

/// The tensor of that name, which a parameter was given.
const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name,
                            const std::string& parameter);
/// The argument of a parameter that has to be one tensor.
const TensorEntry& tensor_argument(const RecordedCall& call, const SafetensorsFile& file,
                                   const std::string& parameter);
/// The numbers of a vector of integers, which may have further dimensions of 1, as cuDNN's lengths have.
std::vector<int64_t> integers_argument(const RecordedCall& call, const SafetensorsFile& file,
                                       const std::string& parameter);
/// Offsets of the parts of a batch, and their end: from 0, none below the one before it.
std::vector<int64_t> offsets_argument(const RecordedCall& call, const SafetensorsFile& file,
                                      const std::string& parameter);
/// A number in 1..2^31 - 1.
int64_t count_argument(const RecordedCall& call, const std::string& parameter);
/// True or false; none is false.
bool truth_argument(const RecordedCall& call, const std::string& parameter);

void require_shape(const SafetensorsFile& file, const TensorEntry& entry, const std::string& parameter,
                   const std::vector<int64_t>& shape, const std::string& meaning);
/// Requires this number of dimensions, none of which is 0.
void require_rank(const SafetensorsFile& file, const TensorEntry& entry, const std::string& parameter,
                  size_t rank, const std::string& meaning);
/// Requires F32, F16 or BF16.
void require_stored_type(const SafetensorsFile& file, const TensorEntry& entry, const std::string& parameter);

}  // namespace kvbound::traces
