// CriticalKV on the device: projected value norms, the score of stage two, and two-stage selection.
#pragma once

#include <cstdint>
#include <string>

#include <kvbound/cuda/support/device.hpp>
#include <kvbound/cuda/support/view.hpp>
#include <kvbound/reference/core/arithmetic.hpp>
#include <kvbound/reference/core/policy.hpp>

#include "selection.hpp"
#include "snap_kv.hpp"

namespace kvbound::cuda {

/// Which kernel forms the projected values: wgmma needs a 16-bit type, head_dim 64 or 128 and
/// compute capability 9.0; mma a 16-bit type, head_dim a multiple of 16 and compute capability 8.0;
/// portable has no requirements.
enum class NormsKernel { chosen, portable, mma, wgmma };

/// A kernel, and why it was chosen: which of the kernels on tensor cores gave right norms on a small problem,
/// or what was wrong with them.
struct NormsChoice {
  NormsKernel kernel;
  std::string why;
};

/// The positions that a host keeps whatever their scores: the first `sinks` and the last
/// `recent`, which do not overlap.
struct AlwaysKept {
  int64_t sinks = 0;
  int64_t recent = 0;

  int64_t entries() const { return sinks + recent; }
};

inline namespace KVBOUND_CUDA_BUILD {

/// reference::projected_value_norms in L1 for every query head; the projected values are never stored.
///
/// values             [kv_heads, tokens, head_dim], head_dim 1..256
/// output_projection  [query_heads, head_dim, model_dim]: block h is query head h's rows of W^O
/// norms              [query_heads, tokens], device memory, without gaps
/// kernel             chosen: norms_choice; wgmma or mma where their requirements are
///                    not met throw ShapeMismatch
/// precision          products and sums in fp32; error:
///                    reference/bounds/error_bounds.hpp with norms_arithmetic()
/// equal values have equal norms to the last bit, wherever they stand, and however many tokens there are
/// the same inputs give the same bits for the same kernel
/// throws             ShapeMismatch; DeviceError
template <Storage T>
void projected_value_norms(DeviceTensor<const T> values, DeviceTensor<const T> output_projection,
                           float* norms, Stream stream, NormsKernel kernel = NormsKernel::chosen);

/// The kernel that `chosen` selects on this device: of those whose requirements are met, the first of wgmma,
/// mma and portable that gives right norms on a small problem. They are checked once for each type and
/// head_dim in a process, on first use, for which the device is waited for.
template <Storage T>
NormsChoice norms_choice(int64_t head_dim);
template <Storage T>
NormsKernel chosen_norms_kernel(int64_t head_dim);

/// The arithmetic of `projected_value_norms`: accumulation_depth over the model_dim columns of one norm,
/// product_depth over the head_dim products of one projected value; with mma over the tensor cores' chains of
/// sums of 16 products. wgmma sums all products in one chain.
///
/// kernel  portable, mma or wgmma
KernelArithmetic norms_arithmetic(int64_t head_dim, int64_t model_dim, NormsKernel kernel);

/// reference::stage_two_scores for every KV head, heads added in their order.
///
/// head_scores  [query_heads, cols], without gaps
/// norms        [query_heads, cols], norms_stride numbers from row to row
/// scores       [kv_heads, cols], without gaps
/// precision    fp32; error: stage_two_score_errors in reference/bounds/error_bounds.hpp
/// throws       ShapeMismatch; DeviceError
void stage_two_scores(const float* head_scores, const float* norms, int64_t norms_stride, int64_t query_heads,
                      int64_t kv_heads, int64_t cols, double epsilon, GqaProduct gqa, float* scores,
                      Stream stream);

/// Bytes that `select_critical` needs for matrices of this shape.
int64_t select_critical_workspace(int64_t rows, int64_t cols);

/// reference::select_critical for every row: first the stage_one_count best by attention, then the best by
/// stage-two score among the rest, k in all.
///
/// attention_scores, stage_two_scores  [rows, cols], device memory, row_stride numbers from row to row
/// k, stage_one_count  [rows], device memory; 0 <= stage_one_count[r] <= k[r] <= cols <= kMostScores
/// selection           receives the indices of both stages; stage_one those of stage one
///                     (indices null: not written)
/// exact; a NaN raises selection.status, unless it is the stage-two score of an entry of stage one
/// stage_one.status    not used
/// throws              ShapeMismatch; DeviceError
void select_critical(const float* attention_scores, const float* stage_two_scores, int64_t rows, int64_t cols,
                     int64_t row_stride, const int64_t* k, const int64_t* stage_one_count,
                     const SelectionResult& selection, const SelectionResult& stage_one, Workspace workspace,
                     Stream stream);

/// Bytes that `adaptive_stage_one` needs, however many entries are ranked.
int64_t adaptive_stage_one_workspace(int64_t query_heads, int64_t window, int64_t tokens);

/// reference::adaptive_stage_one for every KV head, with the weights of the window's queries.
///
/// log_sum_exp  [query_heads, window], natural log, from window_log_sum_exp
/// ranked       [kv_heads, ranked_stride], device memory: the k[g] best candidates' positions, best first
/// k            [kv_heads], device memory
/// always       the always-kept positions of the prompt, of which none is ranked
/// count        [kv_heads], device memory: 0..k
/// precision    weights exp(scale q . k - log_sum_exp) and their sums in fp32, in a fixed order, of
///              adaptive_stage_one_depth(always.sinks + always.recent + k)
/// throws       ShapeMismatch; DeviceError
template <Storage T>
void adaptive_stage_one(const WindowView<T>& window, const float* log_sum_exp, const AlwaysKept& always,
                        const int64_t* ranked, int64_t ranked_stride, const int64_t* k, int64_t* count,
                        Workspace workspace, Stream stream);

/// The accumulation depth of the sum over so many entries' weights in adaptive_stage_one.
int64_t adaptive_stage_one_depth(int64_t entries);

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
