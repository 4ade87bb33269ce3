// What a model of a GPU predicts for bench as cubes.
#pragma once

#include <vector>

#include <kvbound/sim/figures/cube.hpp>

#include "bench.hpp"

namespace kvbound::sim {

/// The document's part.
///
///     operations   [operation]              predicted times, and what operations ask of the device
///     launches     [launch]                 launches of kernels: counts, and what the model makes of them
///     instructions [launch, instruction]    counted instructions of warps
///     accesses     [launch, access, width]  counted accesses to memory
///     resources    [launch, resource]       the time that each resource would take alone
///     constants    [constant]               of the GPU
///     measured     [measurement]            what the GPU took once, beside what was predicted
///
/// options  of a GPU; without one, the part has no rows
Part prediction_part(const BenchOptions& options, const std::vector<BenchResult>& results);

/// The launches of equal numbers together, for a table: with how many there are.
Cube kernels_cube(const std::vector<BenchResult>& results);

/// The figures of the table of operations, for --columns.
std::vector<Figure> prediction_columns();

}  // namespace kvbound::sim
