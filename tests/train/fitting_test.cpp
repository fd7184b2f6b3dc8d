// Which tensors of other programs a model loads, and what is reported about the rest. The expected values are those of
// PyTorch's load_state_dict(strict=True), copy_() and BatchNorm2d._load_from_state_dict.
#include <cmath>
#include <functional>
#include <limits>

#include "dp/checkpoint.h"
#include "engine/train/start.h"
#include "support/catch.h"
#include "train/expect_error.h"

namespace {

using dp::DType;
using dp::ErrorCode;
using dp::FittedWeights;
using dp::NamedTensors;
using dp::Shape;
using dp::Tensor;
using dp::test::expect_error;

// A convolution, a batch normalisation and a linear layer; values 1, 2, 3, ...
NamedTensors own() {
  NamedTensors tensors;
  tensors.emplace_back("conv.weight", Tensor(Shape{2, 3}));
  tensors.emplace_back("bn.weight", Tensor(Shape{2}));
  tensors.emplace_back("bn.running_mean", Tensor(Shape{2}));
  tensors.emplace_back("bn.num_batches_tracked", Tensor(Shape{}, DType::i64));
  tensors.emplace_back("fc.weight", Tensor(Shape{4, 2}));
  float next = 1;
  for (auto& [name, tensor] : tensors)
    if (tensor.dtype() == DType::f32)
      for (float& value : tensor.span<float>()) value = next++;
  *tensors[3].second.data<std::int64_t>() = 9;
  return tensors;
}

NamedTensors renamed(const NamedTensors& tensors, const std::function<std::string(const std::string&)>& name) {
  NamedTensors out;
  for (const auto& [old, tensor] : tensors) out.emplace_back(name(old), tensor);
  return out;
}

NamedTensors prefixed(const std::string& prefix, const NamedTensors& tensors = own()) {
  return renamed(tensors, [&](const std::string& name) { return prefix + name; });
}

// Whether all of own() was loaded, with its values.
bool is_whole(const FittedWeights& fitted) {
  return fitted.faults.empty() && dp::weights_sha256(fitted.tensors) == dp::weights_sha256(own());
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& one : list) text += one + "; ";
  return text;
}

TEST_CASE("weights that fit are loaded unchanged") {
  const FittedWeights fitted = dp::fit_weights(own(), own());
  CHECK(is_whole(fitted));
  CHECK(fitted.changes.empty());
}

TEST_CASE("components that wrappers insert are stripped from names, and so is a prefix of all names") {
  for (const char* prefix :
       {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "net.", "backbone.", "state_dict.",
        "state_dict.model.", "model_ema.module.", "model._orig_mod.module.", "a.b.c.0.", "module.module.module."}) {
    CAPTURE(prefix);
    const FittedWeights fitted = dp::fit_weights(own(), prefixed(prefix));
    CHECK(is_whole(fitted));
    REQUIRE(fitted.changes.size() == 1);
    CHECK_THAT(fitted.changes[0], Catch::Contains("'" + std::string(prefix) + "' stripped from names"));
  }
  const FittedWeights inside = dp::fit_weights(own(), renamed(own(), [](const std::string& name) {
                                                 return "net." + name.substr(0, name.find('.')) +
                                                        "._checkpoint_wrapped_module" + name.substr(name.find('.'));
                                               }));
  CHECK(is_whole(inside));
  NamedTensors some = own();  // only some layers were wrapped
  some[0].first = "conv._orig_mod.weight";
  some[4].first = "module.fc.weight";
  CHECK(is_whole(dp::fit_weights(own(), some)));
}

TEST_CASE("a model may have a layer named as a wrapper") {
  const NamedTensors wrapped = prefixed("module.");
  CHECK(dp::fit_weights(wrapped, wrapped).changes.empty());
  CHECK(dp::fit_weights(wrapped, own()).faults.empty());
  CHECK(dp::fit_weights(wrapped, prefixed("module.module.")).faults.empty());
}

TEST_CASE("a prefix that some names lack is a fault of those") {
  NamedTensors given = prefixed("backbone.");
  given[4].first = "fc.weight";
  given.emplace_back("module.n_averaged", Tensor(Shape{}, DType::i64));
  const FittedWeights fitted = dp::fit_weights(own(), given);
  CHECK(fitted.tensors.size() == 4);
  const std::string faults = joined(fitted.faults);
  CHECK_THAT(faults, Catch::Contains("'fc.weight' does not begin with 'backbone.'"));
  CHECK_THAT(faults, Catch::Contains("'fc.weight' is missing"));
  CHECK_THAT(faults, Catch::Contains("'module.n_averaged' does not begin with 'backbone.'"));
}

TEST_CASE("two sets of weights in one file are refused, unless one has the model's names") {
  NamedTensors both = prefixed("student.");
  for (const auto& one : prefixed("module.teacher.")) both.push_back(one);
  expect_error(ErrorCode::data, {"'student.'", "'teacher.'", "save the tensors of one of them"},
               [&] { dp::fit_weights(own(), both); });
  NamedTensors average = prefixed("ema.");
  for (const auto& one : own()) average.push_back(one);
  const FittedWeights fitted = dp::fit_weights(own(), average);
  CHECK(fitted.tensors.size() == own().size());
  CHECK(fitted.faults.size() == own().size());
}

TEST_CASE("a prefix under which less than half of the model is given is not stripped") {
  NamedTensors given;
  given.emplace_back("head.fc.weight", own()[4].second);
  const FittedWeights fitted = dp::fit_weights(own(), given);
  CHECK(fitted.tensors.empty());
  CHECK_THAT(joined(fitted.faults), Catch::Contains("'head.fc.weight' is not in the model"));
}

TEST_CASE("floats and integers of any type are converted to the model's") {
  for (const DType type : {DType::f64, DType::i32, DType::i64, DType::u8}) {
    CAPTURE(dp::to_string(type));
    NamedTensors given = own();
    for (auto& [name, tensor] : given) {
      Tensor other(tensor.shape(), type);
      const Tensor values = tensor.to(DType::f64);
      for (std::int64_t i = 0; i < tensor.numel(); ++i)
        if (type == DType::f64)
          other.data<double>()[i] = values.data<double>()[i];
        else if (type == DType::i32)
          other.data<std::int32_t>()[i] = static_cast<std::int32_t>(values.data<double>()[i]);
        else if (type == DType::i64)
          other.data<std::int64_t>()[i] = static_cast<std::int64_t>(values.data<double>()[i]);
        else
          other.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(values.data<double>()[i]);
      tensor = other;
    }
    const FittedWeights fitted = dp::fit_weights(own(), given);
    CHECK(is_whole(fitted));
    CHECK_THAT(joined(fitted.changes),
               Catch::Contains(std::string("converted from ") + dp::to_string(type) + " to float32 ('conv.weight', "));
  }
}

TEST_CASE("counters may be missing, floats, or a vector") {
  NamedTensors given = own();
  given.erase(given.begin() + 3);
  const FittedWeights without = dp::fit_weights(own(), given);
  CHECK(without.faults.empty());
  CHECK(without.tensors.size() == 4);
  CHECK(joined(without.changes) == "missing and left unchanged ('bn.num_batches_tracked'); ");
  const auto counter_of = [](const Tensor& counter) {
    NamedTensors changed = own();
    changed[3].second = counter;
    const FittedWeights fitted = dp::fit_weights(own(), changed);
    CHECK_FALSE(fitted.changes.empty());
    return fitted.faults.empty() ? *fitted.tensors[3].second.data<std::int64_t>() : -1;
  };
  Tensor number(Shape{}), vector(Shape{2}, DType::i64);
  *number.data<float>() = 37.75f;  // as after an average of state dicts
  CHECK(counter_of(number) == 37);
  vector.data<std::int64_t>()[0] = 5;
  CHECK(counter_of(vector) == 5);
  *number.data<float>() = std::numeric_limits<float>::quiet_NaN();
  NamedTensors changed = own();
  changed[3].second = number;
  CHECK(joined(dp::fit_weights(own(), changed).faults) ==
        "'bn.num_batches_tracked' has a value that int64 cannot hold; ");
}

TEST_CASE("every tensor that does not fit is named") {
  NamedTensors given = own();
  given[0].second = Tensor(Shape{3, 2});
  given[2].first = "bn.mean";
  given.push_back(given[4]);
  given.emplace_back("module.bn.weight", given[1].second);
  const FittedWeights fitted = dp::fit_weights(own(), given);
  CHECK(fitted.tensors.size() == 3);
  const std::string faults = joined(fitted.faults);
  for (const char* fault :
       {"'conv.weight' is (3, 2), not (2, 3)", "'bn.mean' is not in the model", "'fc.weight' is in the file twice",
        "'bn.weight' is in the file twice, also as 'module.bn.weight'", "'bn.running_mean' is missing"})
    CHECK_THAT(faults, Catch::Contains(fault));
}

TEST_CASE("tensors with NaN or Inf are found by name") {
  NamedTensors tensors = own();
  dp::require_finite(tensors);
  tensors[1].second.data<float>()[1] = std::numeric_limits<float>::infinity();
  expect_error(ErrorCode::nonfinite, {"'bn.weight'"}, [&] { dp::require_finite(tensors); });
}

}  // namespace
