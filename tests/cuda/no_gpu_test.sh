#!/bin/sh
# Replaces the GPU tests where no CUDA toolkit was found to build them: skipped, or
# failed if a GPU is required.
echo "Built without a CUDA toolkit: nothing can run on a GPU."
[ "${KVBOUND_REQUIRE_GPU:-}" = 1 ] && exit 1
exit 77
