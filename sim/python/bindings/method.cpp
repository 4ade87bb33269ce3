#include "method.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <kvbound/reference/core/error.hpp>

#include "layer.hpp"
#include "views.hpp"

namespace nb = nanobind;

namespace kvbound::python {
namespace {

using Scores = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Matrix matrix_of(const Scores& scores) {
  Matrix matrix(static_cast<int64_t>(scores.shape(0)), static_cast<int64_t>(scores.shape(1)));
  std::copy_n(scores.data(), scores.size(), matrix.data());
  return matrix;
}

// An object of Python that is let go of with the GIL, by whichever thread.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* one) {
            const nb::gil_scoped_acquire gil;
            delete one;
          }};
}

int64_t evict(const nb::object& method, const EvictionView& cache) {
  const nb::gil_scoped_acquire gil;
  return nb::cast<int64_t>(method(copy_of(cache.weights), copy_of(cache.keys), copy_of(cache.values),
                                  array_of(std::vector(cache.positions.begin(), cache.positions.end()))));
}

// kvbound/methods.py says what its object has, and checks what it returns.
class PythonMethod final : public sim::GivenMethod {
 public:
  explicit PythonMethod(nb::object method)
      : name_(nb::cast<std::string>(method.attr("name"))),
        selects_(nb::cast<bool>(method.attr("selects"))),
        evicts_(nb::cast<bool>(method.attr("evicts"))),
        method_(shared(std::move(method))) {}

  std::string name() const override { return name_; }
  bool selects() const override { return selects_; }
  bool evicts() const override { return evicts_; }
  std::vector<int64_t> always_kept(int64_t prompt_tokens) const override {
    const nb::gil_scoped_acquire gil;
    return nb::cast<std::vector<int64_t>>(method_->attr("always_kept")(prompt_tokens));
  }
  std::shared_ptr<const GivenLayer> layer(std::shared_ptr<const traces::Layer> layer,
                                          int64_t entries) override {
    const nb::gil_scoped_acquire gil;
    GivenLayer given;
    const int64_t tokens = layer->prompt_tokens, index = layer->index;
    const nb::object bound = nb::cast(BoundLayer{std::move(layer)});
    if (selects_) {
      given.kept = nb::cast<std::vector<std::vector<int64_t>>>(method_->attr("select")(bound, entries));
    } else {
      given.always_kept = always_kept(tokens);
      const nb::tuple scores = nb::cast<nb::tuple>(method_->attr("score")(bound));
      given.score = matrix_of(nb::cast<Scores>(scores[0]));
      if (!scores[1].is_none()) given.head_score = matrix_of(nb::cast<Scores>(scores[1]));
    }
    if (evicts_) {
      given.evict = [choose = shared(method_->attr("eviction")(index))](const EvictionView& cache) {
        return evict(*choose, cache);
      };
    }
    return std::make_shared<const GivenLayer>(std::move(given));
  }

 private:
  std::string name_;
  bool selects_, evicts_;
  std::shared_ptr<nb::object> method_;
};

}  // namespace

sim::GivenMethods methods_of(const nb::dict& methods) {
  sim::GivenMethods all;
  for (const auto [name, method] : methods)
    all.emplace(nb::cast<std::string>(name), std::make_shared<PythonMethod>(nb::borrow(method)));
  return all;
}

}  // namespace kvbound::python
