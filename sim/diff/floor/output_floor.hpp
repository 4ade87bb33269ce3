// The detection floor of outputs of attention.
#pragma once

#include <kvbound/reference/bounds/error_bounds.hpp>

#include "detection_floor.hpp"

namespace kvbound::sim {

/// The floor of `prompt_output` of a prompt's last query.
///
/// arithmetic  of attention, the rounding of the layer's inputs included
/// storage     of the outputs
DetectionFloor output_floor(const traces::Layer& layer, const reference::Arithmetic& arithmetic,
                            Dtype storage);

}  // namespace kvbound::sim
