#include "attention_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/generate.hpp>

#include "../messages.hpp"
#include "attention_function.hpp"
#include "call_arguments.hpp"
#include "plain_attention.hpp"

namespace kvbound::traces {
namespace {

const char* name_of(KvLayout layout) { return layout == KvLayout::nhd ? "NHD" : "HND"; }

KvLayout layout_argument(const RecordedCall& call) {
  const Argument argument = call.argument("kv_layout");
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd}) {
    if (argument.value.text() && *argument.value.text() == name_of(layout)) return layout;
  }
  call.refuse(argument, "is " + description(argument) + "; expected \"NHD\" or \"HND\"");
}

// The layout of a cache whose dimensions, without pages and head_dim, are these two.
KvLayout layout_of_shape(const RecordedCall& call, int64_t first, int64_t second, int64_t tokens,
                         int64_t kv_heads) {
  if (tokens != kv_heads) return first == kv_heads && second == tokens ? KvLayout::hnd : KvLayout::nhd;
  if (tokens == 1) return KvLayout::nhd;  // both are the same
  throw InvalidOption("call " + call.name() + ": its constructor was not recorded, and a cache of " +
                      std::to_string(tokens) +
                      " tokens and as many KV heads does not show its layout; give --kv-layout");
}

}  // namespace

// Finds the tensors and settings of a call, in the calls that have them.
class AttentionCall::Setup {
 public:
  Setup(AttentionCall& result, const RecordedSession& session, const AttentionCallOptions& options)
      : result_(result), session_(session), options_(options), run_(result.run_), function_(function()) {}

  void run() {
    find_calls();
    require_plain_attention(run_);
    if (result_.plan_) require_plain_attention(*result_.plan_);
    if (result_.constructor_) refuse_variants(*result_.constructor_);
    result_.outputs_ = run_.outputs();
    result_.inputs_ = run_.inputs();
    if (result_.plan_) result_.plan_inputs_ = result_.plan_->inputs();
    find_queries();
    find_batch();
    find_cache();
    find_output();
    find_scale();
    find_window();
  }

 private:
  const AttentionFunction& function() const {
    if (const AttentionFunction* found = attention_function_named(run_.function())) return *found;
    run_.refuse("function_name", "is " + in_quotes(run_.function()) + "; expected " + attention_functions());
  }

  const RecordedCall& settings() const { return result_.plan_ ? *result_.plan_ : run_; }

  void find_calls() {
    if (run_.in_cuda_graph()) {
      run_.refuse(
          "graph_capture",
          "is true: a graph's inputs change with each replay, and its plan is not recorded with them; record "
          "without CUDA graphs");
    }
    if (function_.cache == RecordedCache::whole) {
      if (options_.plan) throw InvalidOption("call " + run_.name() + " has no plan; leave out --plan");
      return;
    }
    result_.constructor_ = session_.last_before(run_, "__init__");
    result_.plan_ = options_.plan ? &session_.call(*options_.plan) : session_.last_before(run_, "plan");
    if (!result_.plan_) {
      run_.refuse("self_id",
                  "no call of plan on this object was recorded before; expected one, which has the settings");
    }
    if (!result_.plan_->function().ends_with(".plan") || !result_.plan_->same_object(run_)) {
      throw InvalidOption("call " + result_.plan_->name() + " is no plan of the object of " + run_.name());
    }
  }

  static void refuse_variants(const RecordedCall& constructor) {
    const Argument argument = constructor.argument("jit_args");
    if (!argument.is_none()) {
      constructor.refuse(
          argument, "is " + description(argument) + "; expected none: what a variant computes is unknown");
    }
  }

  void find_queries() {
    const SafetensorsFile& file = *result_.inputs_;
    result_.queries_ = &tensor_argument(run_, file, "q");
    const TensorEntry& entry = *result_.queries_;
    const bool one = function_.cache == RecordedCache::whole && function_.decodes;
    require_rank(file, entry, "q", one ? 2 : 3,
                 one ? "[query_heads, head_dim]" : "[queries, query_heads, head_dim]");
    require_stored_type(file, entry, "q");
    result_.head_dim_ = entry.shape.back();
    result_.query_heads_ = entry.shape[entry.shape.size() - 2];
    query_rows_ = one ? 1 : entry.shape.front();
    if (function_.cache == RecordedCache::whole) return;
    const bool decodes = function_.decodes;
    require_same("num_qo_heads", result_.query_heads_, "query heads");
    require_same(decodes ? "head_dim" : "head_dim_qk", result_.head_dim_, "head_dim");
    if (!settings().argument("head_dim_vo").is_none())
      require_same("head_dim_vo", result_.head_dim_, "head_dim");
  }

  // Requires that the plan has the number that the queries' shape shows.
  void require_same(const std::string& parameter, int64_t found, const std::string& what) const {
    const int64_t planned = count_argument(settings(), parameter);
    if (planned == found) return;
    settings().refuse(settings().argument(parameter), "is " + std::to_string(planned) + ", but q of call " +
                                                          run_.name() + " has " + std::to_string(found) +
                                                          " " + what);
  }

  // The requests of the batch: their queries, and their parts of the cache.
  void find_batch() {
    const bool causal_decode = function_.decodes && settings().argument("is_causal").is_none();
    result_.causal_ = causal_decode || options_.causal ||
                      truth_argument(settings(), function_.decodes ? "is_causal" : "causal");
    switch (function_.cache) {
      case RecordedCache::whole:
        result_.query_offsets_ = {0, query_rows_};
        break;
      case RecordedCache::ragged:
        result_.cache_offsets_ = offsets_argument(settings(), *result_.plan_inputs_, "kv_indptr");
        break;
      case RecordedCache::paged:
        find_pages(function_.decodes ? "" : "paged_kv_");
        break;
    }
    if (function_.cache != RecordedCache::whole) find_query_offsets();
    result_.requests_ = std::ssize(result_.query_offsets_) - 1;
    if (settings().argument("seq_lens").is_none()) return;
    result_.lengths_ = integers_argument(settings(), *result_.plan_inputs_, "seq_lens");
    require_length("seq_lens", std::ssize(result_.lengths_), result_.requests_);
  }

  void find_pages(const std::string& prefix) {
    const SafetensorsFile& file = *result_.plan_inputs_;
    result_.page_size_ = count_argument(settings(), "page_size");
    result_.cache_offsets_ = offsets_argument(settings(), file, prefix + "indptr");
    result_.pages_ = integers_argument(settings(), file, prefix + "indices");
    result_.last_page_lengths_ = integers_argument(settings(), file, prefix + "last_page_len");
    require_length(prefix + "last_page_len", std::ssize(result_.last_page_lengths_),
                   std::ssize(result_.cache_offsets_) - 1);
    if (result_.cache_offsets_.back() > std::ssize(result_.pages_)) {
      throw TraceError(file.path(), -1, prefix + "indices",
                       "has " + std::to_string(result_.pages_.size()) + " pages; expected " +
                           std::to_string(result_.cache_offsets_.back()) + ", the end of " + prefix +
                           "indptr");
    }
    if (!settings().argument("block_tables").is_none()) require_same_tables(file);
  }

  // Requires that block_tables [requests, pages], which some of FlashInfer's backends read instead, has
  // the pages of the indices.
  void require_same_tables(const SafetensorsFile& file) const {
    const TensorEntry& entry = tensor_argument(settings(), file, "block_tables");
    const int64_t requests = std::ssize(result_.cache_offsets_) - 1;
    if (entry.shape.size() != 2 || entry.shape[0] != requests) {
      throw TraceError(
          file.path(), entry.header_offset, field_of(entry, "block_tables") + ".shape",
          "is " + shape_text(entry.shape) + "; expected [" + std::to_string(requests) + " requests, pages]");
    }
    std::vector<int64_t> tables(static_cast<size_t>(entry.elements));
    file.read(entry, 0, std::span(tables));
    const int64_t columns = entry.shape[1];
    for (int64_t r = 0; r < requests; ++r) {
      const std::span pages =
          std::span(result_.pages_)
              .subspan(result_.cache_offsets_[r], result_.cache_offsets_[r + 1] - result_.cache_offsets_[r]);
      const bool same = std::ssize(pages) <= columns &&
                        std::ranges::equal(pages, std::span(tables).subspan(r * columns, pages.size()));
      if (same) continue;
      throw TraceError(file.path(), entry.header_offset, field_of(entry, "block_tables"),
                       "row " + std::to_string(r) + " has other pages than the page indices of this request");
    }
  }

  void require_length(const std::string& parameter, int64_t found, int64_t expected) const {
    if (found == expected) return;
    throw TraceError(result_.plan_inputs_->path(), -1, parameter,
                     "has " + std::to_string(found) + " elements; expected one for each of " +
                         std::to_string(expected) + " requests");
  }

  void find_query_offsets() {
    const int64_t batch = std::ssize(result_.cache_offsets_) - 1;
    if (function_.decodes) {
      int64_t each = 1;
      for (const RecordedCall* call : {&settings(), &run_}) {  // run's is the older place
        if (!call->argument("q_len_per_req").is_none()) each = count_argument(*call, "q_len_per_req");
      }
      if (query_rows_ % batch != 0 || query_rows_ / batch != each) refuse_query_rows(batch, each);
      for (int64_t r = 0; r <= batch; ++r) result_.query_offsets_.push_back(r * each);
      return;
    }
    result_.query_offsets_ = offsets_argument(settings(), *result_.plan_inputs_, "qo_indptr");
    require_length("qo_indptr", std::ssize(result_.query_offsets_) - 1, batch);
    if (result_.query_offsets_.back() != query_rows_) {
      throw TraceError(result_.plan_inputs_->path(), -1, "qo_indptr",
                       "ends at " + std::to_string(result_.query_offsets_.back()) + ", but q of call " +
                           run_.name() + " has " + std::to_string(query_rows_) + " rows");
    }
  }

  [[noreturn]] void refuse_query_rows(int64_t batch, int64_t each) const {
    throw TraceError(result_.inputs_->path(), result_.queries_->header_offset,
                     field_of(*result_.queries_, "q") + ".shape",
                     "is " + shape_text(result_.queries_->shape) + "; expected " + std::to_string(each) +
                         " queries for each of " + std::to_string(batch) + " requests");
  }

  void find_cache() {
    if (function_.cache == RecordedCache::paged) {
      find_paged_cache();
    } else {
      const SafetensorsFile& file = *result_.inputs_;
      result_.keys_ = &tensor_argument(run_, file, "k");
      result_.values_ = &tensor_argument(run_, file, "v");
      require_rank(file, *result_.keys_, "k", 3,
                   "[tokens, kv_heads, head_dim] (NHD) or [kv_heads, tokens, head_dim] (HND)");
      find_layout(result_.keys_->shape[0], result_.keys_->shape[1]);
      const bool nhd = result_.layout_ == KvLayout::nhd;
      result_.kv_heads_ =
          function_.cache == RecordedCache::whole ? result_.keys_->shape[nhd ? 1 : 0] : planned_kv_heads();
      const int64_t tokens = function_.cache == RecordedCache::whole ? result_.keys_->shape[nhd ? 0 : 1]
                                                                     : result_.cache_offsets_.back();
      std::vector<int64_t> shape;
      append_layout(shape, tokens);
      require_cache_shape(shape, nhd ? "[tokens, kv_heads, head_dim]" : "[kv_heads, tokens, head_dim]");
      if (function_.cache == RecordedCache::whole) result_.cache_offsets_ = {0, tokens};
    }
    if (result_.query_heads_ % result_.kv_heads_ != 0) {
      throw TraceError(result_.inputs_->path(), -1, "q",
                       "has " + std::to_string(result_.query_heads_) +
                           " query heads; expected a multiple of the " + std::to_string(result_.kv_heads_) +
                           " KV heads");
    }
  }

  int64_t planned_kv_heads() const { return count_argument(settings(), "num_kv_heads"); }

  void find_paged_cache() {
    const SafetensorsFile& file = *result_.inputs_;
    const Argument cache = run_.argument("paged_kv_cache");
    if (cache.tensors.empty() || cache.tensors.size() > 2) {
      run_.refuse(
          cache,
          "is " + description(cache) +
              "; expected a tensor, or a tuple of two, whose tensors older versions of FlashInfer do not "
              "record");
    }
    result_.keys_ = &entry_of(file, cache.tensors.front(), "paged_kv_cache");
    result_.values_ = &entry_of(file, cache.tensors.back(), "paged_kv_cache");
    const bool both = result_.keys_ == result_.values_;
    const std::vector<int64_t>& shape = result_.keys_->shape;
    const size_t rank = both ? 5 : 4;
    // Pages of one token need no dimension for it.
    const bool flat = shape.size() == rank - 1 && result_.page_size_ == 1;
    require_rank(
        file, *result_.keys_, "paged_kv_cache", flat ? rank - 1 : rank,
        both
            ? "[pages, 2, page_size, kv_heads, head_dim] (NHD) or [pages, 2, kv_heads, page_size, head_dim] (HND)"
            : "[pages, page_size, kv_heads, head_dim] (NHD) or [pages, kv_heads, page_size, head_dim] (HND)");
    result_.page_count_ = shape.front();
    result_.kv_heads_ = planned_kv_heads();
    std::vector<int64_t> before{result_.page_count_};
    if (both) before.push_back(2);
    const std::string pages = both ? "[pages, 2, " : "[pages, ";
    if (flat) {
      for (const int64_t length : {result_.kv_heads_, result_.head_dim_}) before.push_back(length);
      return require_cache_shape(before, pages + "kv_heads, head_dim], of pages of one token,");
    }
    find_layout(shape[shape.size() - 3], shape[shape.size() - 2]);
    const std::string meaning = result_.layout_ == KvLayout::nhd ? "page_size, kv_heads, head_dim]"
                                                                 : "kv_heads, page_size, head_dim]";
    append_layout(before, result_.page_size_);
    require_cache_shape(before, pages + meaning);
  }

  void find_layout(int64_t first, int64_t second) {
    const RecordedCall* owner = function_.cache == RecordedCache::whole ? &run_ : result_.constructor_;
    if (owner) {
      result_.layout_ = layout_argument(*owner);
      if (options_.layout.value_or(result_.layout_) != result_.layout_) {
        throw InvalidOption(std::string("--kv-layout ") + name_of(*options_.layout) + ": call " +
                            owner->name() + " says " + name_of(result_.layout_));
      }
      return;
    }
    const int64_t tokens =
        function_.cache == RecordedCache::paged ? result_.page_size_ : result_.cache_offsets_.back();
    result_.layout_ =
        options_.layout ? *options_.layout : layout_of_shape(run_, first, second, tokens, planned_kv_heads());
  }

  // Appends the dimensions of tokens and KV heads, as the layout has them, and head_dim.
  void append_layout(std::vector<int64_t>& shape, int64_t tokens) const {
    const bool nhd = result_.layout_ == KvLayout::nhd;
    shape.push_back(nhd ? tokens : result_.kv_heads_);
    shape.push_back(nhd ? result_.kv_heads_ : tokens);
    shape.push_back(result_.head_dim_);
  }

  // Requires the shape of keys and values.
  void require_cache_shape(const std::vector<int64_t>& shape, const std::string& meaning) const {
    const bool paged = function_.cache == RecordedCache::paged;
    for (const TensorEntry* entry : {result_.keys_, result_.values_}) {
      const std::string parameter = paged ? "paged_kv_cache" : entry == result_.keys_ ? "k" : "v";
      require_stored_type(*result_.inputs_, *entry, parameter);
      require_shape(*result_.inputs_, *entry, parameter, shape, meaning);
    }
    if (result_.keys_->dtype == result_.values_->dtype) return;
    throw TraceError(result_.inputs_->path(), -1, paged ? "paged_kv_cache" : "v",
                     "has values of " + std::string(name(result_.values_->dtype)) + "; expected the keys' " +
                         std::string(name(result_.keys_->dtype)));
  }

  void find_output() {
    const SafetensorsFile& file = *result_.outputs_;
    const TensorEntry* entry = file.find("result");
    result_.output_ = entry ? entry : &entry_of(file, "result_0", "result");
    require_stored_type(file, *result_.output_, "output");
    require_shape(file, *result_.output_, "output", result_.queries_->shape, "the shape of q");
  }

  void find_scale() {
    if (options_.sm_scale) {
      result_.scale_ = options_.sm_scale;
      return;
    }
    const Argument argument = settings().argument("sm_scale");
    if (argument.is_none()) return;
    result_.scale_ = argument.number();
    if (!result_.scale_ || !(*result_.scale_ > 0) || !std::isfinite(*result_.scale_)) {
      settings().refuse(argument, "is " + description(argument) + "; expected a positive number");
    }
  }

  void find_window() {
    for (const RecordedCall* call : {&settings(), &run_}) {
      const std::optional<int64_t> window = window_of(call->argument("window_left"));
      result_.window_ = std::min(result_.window_, window.value_or(result_.window_));
    }
  }

  AttentionCall& result_;
  const RecordedSession& session_;
  const AttentionCallOptions& options_;
  const RecordedCall& run_;
  const AttentionFunction& function_;
  int64_t query_rows_ = 0;
};

AttentionCall::AttentionCall(const RecordedSession& session, int64_t number,
                             const AttentionCallOptions& options)
    : run_(session.call(number)) {
  Setup(*this, session, options).run();
}

AttentionRequest AttentionCall::request(int64_t index) const {
  const auto at = static_cast<size_t>(index);
  AttentionRequest request;
  request.first_query = query_offsets_[at];
  request.queries = query_offsets_[at + 1] - query_offsets_[at];
  if (page_size_ > 0) {
    static_cast<KvSequence&>(request) = paged_sequence(index);
  } else {
    request.first_token = cache_offsets_[at];
    request.tokens = cache_offsets_[at + 1] - cache_offsets_[at];
  }
  const std::string which = numbered("request", index);
  if (request.queries < 1 || request.queries > request.tokens) {
    run_.refuse(which, "has " + std::to_string(request.queries) + " queries and " +
                           std::to_string(request.tokens) +
                           " tokens; expected 1 query or more, and as many tokens at least");
  }
  if (request.tokens > std::numeric_limits<int32_t>::max()) {
    run_.refuse(which, "has " + std::to_string(request.tokens) + " tokens; a trace has at most 2^31 - 1");
  }
  if (request.queries > 1 && !causal_) {
    run_.refuse(which, "has " + std::to_string(request.queries) +
                           " queries without a causal mask, which a trace cannot represent");
  }
  if (request.tokens - 1 > window_) {
    run_.refuse(which, "has " + std::to_string(request.tokens) + " tokens, of which a sliding window of " +
                           std::to_string(window_) + " hides some: a trace has no sliding window");
  }
  if (!lengths_.empty() && lengths_[at] != request.tokens) {
    run_.refuse(which, "has " + std::to_string(request.tokens) + " tokens in its pages, but " +
                           std::to_string(lengths_[at]) + " in seq_lens");
  }
  return request;
}

KvSequence AttentionCall::paged_sequence(int64_t index) const {
  const PageTable table{plan_inputs_->path(), cache_offsets_, pages_,
                        last_page_lengths_,   page_size_,     page_count_};
  const std::string which = numbered("request", index);
  KvSequence sequence = table.sequence(index, which);
  if (sequence.blocks.empty()) throw TraceError(table.path, -1, which, "has no pages");
  return sequence;
}

Tensor AttentionCall::read_cache(const AttentionRequest& request, const TensorEntry& entry,
                                 int64_t part) const {
  const bool paged = page_size_ > 0, both = paged && keys_ == values_;
  const int64_t block_tokens = paged ? page_size_ : cache_offsets_.back();
  return read_kv_cache(*inputs_, entry, {layout_, block_tokens, kv_heads_, head_dim_, both ? 2 : 1}, request,
                       both ? part : 0);
}

Tensor AttentionCall::queries(const AttentionRequest& request) const {
  std::vector<double> numbers(static_cast<size_t>(request.queries * query_heads_ * head_dim_));
  inputs_->read(*queries_, request.first_query * query_heads_ * head_dim_, numbers);
  Tensor result(query_heads_, request.queries, head_dim_);
  for (int64_t i = 0; i < request.queries * query_heads_; ++i) {
    const auto from = numbers.begin() + i * head_dim_;
    std::copy(from, from + head_dim_, result.slice(i % query_heads_).row(i / query_heads_).begin());
  }
  return result;
}

Matrix AttentionCall::outputs(const AttentionRequest& request, NonFiniteNumbers non_finite) const {
  Matrix result(request.queries, query_heads_ * head_dim_);
  for (int64_t i = 0; i < request.queries; ++i) {
    outputs_->read(*output_, (request.first_query + i) * result.cols(), result.row(i), non_finite);
  }
  return result;
}

std::vector<std::string> AttentionCall::paths() const {
  std::vector<std::string> paths;
  for (const RecordedCall* call : {&run_, plan_, constructor_}) {
    if (call) std::ranges::copy(call->paths(), std::back_inserter(paths));
  }
  return paths;
}

}  // namespace kvbound::traces
