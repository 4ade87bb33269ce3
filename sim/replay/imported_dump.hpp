// Outputs of recorded calls of attention kernels as a dump, which `diff` judges.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvbound/traces/flashinfer/import_trace.hpp>
#include <kvbound/traces/safetensors_writer.hpp>
#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// Throws UsageError, naming the call, if calls have other types of keys, queries or outputs than the first:
/// a dump declares one arithmetic for all of its layers.
void require_one_arithmetic(const std::vector<traces::ImportedLayer>& layers);

/// The calls' outputs over a cache from which nothing is evicted: those of the last `steps` queries as
/// `output`, of the others as `prompt_output`, also where they are NaN or infinite. The file is on the disk,
/// and gets its name by finish(). The dump declares the arithmetic of FlashInfer's kernels: sums in F32;
/// attention weights in the queries' type, in which tensor cores take them; outputs of parts of a cache,
/// which are merged afterwards, in the outputs' type.
///
/// layers    of one arithmetic
/// trace     what import_trace wrote of the same layers and steps
/// path      of the dump
/// progress  of hashing the trace; may be empty
/// throws    TraceError if outputs cannot be read; IoError
std::unique_ptr<traces::SafetensorsWriter> imported_dump(const std::vector<traces::ImportedLayer>& layers,
                                                         int64_t steps, const traces::Trace& trace,
                                                         const std::string& path,
                                                         const traces::Trace::Progress& progress = {});

}  // namespace kvbound::sim
