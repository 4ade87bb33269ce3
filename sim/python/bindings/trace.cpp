// Traces, a layer at a time.
#include <memory>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/trace.hpp>

#include "bindings.hpp"
#include "layer.hpp"
#include "views.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

using traces::Trace;

// Rows of a tensor of the layer: of the prompt, or of the decode steps behind it.
nb::object rows(const BoundLayer& bound, const Tensor traces::Layer::*tensor, int64_t prompt, bool of_steps) {
  const TensorView all = ((*bound.layer).*tensor).view();
  return array_of(of_steps ? all.middle_rows(prompt, all.rows - prompt) : all.middle_rows(0, prompt),
                  bound.layer);
}

template <bool of_steps>
nb::object keys(const BoundLayer& bound) {
  return rows(bound, &traces::Layer::keys, bound.layer->prompt_tokens, of_steps);
}
template <bool of_steps>
nb::object values(const BoundLayer& bound) {
  return rows(bound, &traces::Layer::values, bound.layer->prompt_tokens, of_steps);
}
template <bool of_steps>
nb::object queries(const BoundLayer& bound) {
  return rows(bound, &traces::Layer::queries, bound.layer->window_queries, of_steps);
}

nb::object output_projection(const BoundLayer& bound) {
  const Matrix& matrix = bound.layer->output_projection;
  return array_of(matrix.data(), {static_cast<size_t>(matrix.rows()), static_cast<size_t>(matrix.cols())},
                  bound.layer);
}

BoundLayer read_layer(const Trace& trace, int64_t layer) {
  if (layer < 0 || layer >= trace.info().layers) throw nb::index_error("the trace has no such layer");
  const nb::gil_scoped_release free;
  return {std::make_shared<const traces::Layer>(trace.read_layer(layer))};
}

template <class T>
nb::class_<Trace>& field(nb::class_<Trace>& trace, const char* name, T traces::TraceInfo::*member) {
  return trace.def_prop_ro(name, [member](const Trace& one) { return one.info().*member; });
}
nb::class_<Trace>& field(nb::class_<Trace>& trace, const char* name, int64_t LayerShape::*member) {
  return trace.def_prop_ro(name, [member](const Trace& one) { return one.info().shape.*member; });
}

}  // namespace

traces::CacheHeads cache_heads_of(const std::string& text) {
  const auto heads = traces::cache_heads(text);
  if (!heads) throw sim::UsageError("heads: is " + traces::quoted(text) + "; expected kv or query");
  return *heads;
}

void bind_traces(nb::module_& module) {
  nb::class_<BoundLayer>(module, "Layer")
      .def_prop_ro("index", [](const BoundLayer& one) { return one.layer->index; })
      .def_prop_ro("sm_scale", [](const BoundLayer& one) { return one.layer->scale; })
      .def_prop_ro("keys", &keys<false>)
      .def_prop_ro("values", &values<false>)
      .def_prop_ro("queries", &queries<false>)
      .def_prop_ro("step_keys", &keys<true>)
      .def_prop_ro("step_values", &values<true>)
      .def_prop_ro("step_queries", &queries<true>)
      .def_prop_ro("output_projection", &output_projection);
  nb::class_<Trace> trace(module, "Trace");
  trace.def("__init__", [](Trace* self, const std::string& path, const std::string& heads) {
    traces::Trace::Options options;
    options.heads = cache_heads_of(heads);
    new (self) Trace(path, options);
  });
  field(trace, "path", &traces::TraceInfo::path);
  field(trace, "model", &traces::TraceInfo::model);
  field(trace, "source", &traces::TraceInfo::source);
  field(trace, "layers", &traces::TraceInfo::layers);
  field(trace, "prompt_tokens", &traces::TraceInfo::prompt_tokens);
  field(trace, "decode_tokens", &traces::TraceInfo::decode_tokens);
  field(trace, "window_queries", &traces::TraceInfo::window_queries);
  field(trace, "sm_scale", &traces::TraceInfo::scale);
  field(trace, "num_qo_heads", &LayerShape::query_heads);
  field(trace, "num_kv_heads", &LayerShape::kv_heads);
  field(trace, "head_dim", &LayerShape::head_dim);
  field(trace, "model_dim", &LayerShape::model_dim);
  trace.def_prop_ro("layer_numbers", [](const Trace& one) { return traces::layer_numbers(one.info()); })
      .def_prop_ro("storage", [](const Trace& one) { return std::string(name(one.info().storage)); })
      .def_prop_ro("tokens", [](const Trace& one) { return array_of(one.tokens()); })
      .def("layer", &read_layer);
}

}  // namespace kvbound::python
