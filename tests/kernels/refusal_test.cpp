#include "kernels/op_rig.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using namespace dp::kernels;

// The error message of make_op(); empty without an error.
std::string refusal(OpRig& rig, const OpDesc& desc) {
  try {
    rig.context().make_op(desc);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Every device rejects the descriptor with a one-line message that names the op and `shape`.
template <typename MakeDesc>
void check_refused(const MakeDesc& make_desc, const std::string& shape) {
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    const OpDesc desc = make_desc(rig);
    const std::string message = refusal(rig, desc);
    INFO(name_of(desc) << " on " << to_string(Device{kind, 0}) << ": '" << message << "'");
    CHECK(contains(message, name_of(desc)));
    CHECK(contains(message, shape));
    CHECK_FALSE(contains(message, "\n"));
  }
}

}  // namespace

TEST_CASE("convolutions whose shapes do not fit are rejected with the shapes named") {
  const auto forward = [](Shape x, Shape w, Shape y, Window window) {
    return [=](OpRig& rig) -> OpDesc { return Conv2dForward{rig.desc(x), rig.desc(w), rig.desc(y), window}; };
  };
  check_refused(forward({2, 3, 5, 5}, {4, 2, 3, 3}, {2, 4, 3, 3}, {3, 1, 0}), "(4, 2, 3, 3)");  // channels
  check_refused(forward({2, 3, 5, 5}, {4, 3, 3, 3}, {2, 4, 5, 5}, {3, 1, 0}), "(2, 4, 5, 5)");  // output size
  check_refused(forward({2, 3, 5, 5}, {4, 3, 5, 5}, {2, 4, 3, 3}, {3, 1, 0}), "(4, 3, 5, 5)");  // kernel
  check_refused(forward({2, 3, 5, 5}, {4, 3, 3, 3}, {1, 4, 3, 3}, {3, 1, 0}), "(1, 4, 3, 3)");  // batch
  check_refused(forward({2, 3, 5, 5}, {4, 3, 3, 3}, {2, 4, 3, 3}, {3, 0, 0}), "(2, 3, 5, 5)");  // stride
  check_refused(forward({2, 75}, {4, 3, 3, 3}, {2, 4, 3, 3}, {3, 1, 0}), "(2, 75)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return Conv2dBackwardData{rig.desc({2, 4, 3, 3}), rig.desc({4, 3, 3, 3}), rig.desc({2, 3, 6, 5}), {3, 1, 0}};
      },
      "(2, 3, 6, 5)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return Conv2dBackwardWeights{rig.desc({2, 3, 5, 5}), rig.desc({2, 5, 3, 3}), rig.desc({4, 3, 3, 3}), {3, 1, 0}};
      },
      "(2, 5, 3, 3)");
}

TEST_CASE("linear layers whose shapes do not fit are rejected with the shapes named") {
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return LinearForward{rig.desc({2, 7}), rig.desc({4, 8}), rig.desc({2, 4})};
      },
      "(4, 8)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return LinearBackwardData{rig.desc({3, 4}), rig.desc({4, 8}), rig.desc({2, 8})};
      },
      "(2, 8)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return LinearBackwardWeights{rig.desc({2, 2, 2, 2}), rig.desc({2, 4}), rig.desc({4, 9})};
      },
      "(4, 9)");
}

TEST_CASE("pools and reorders whose shapes do not fit are rejected with the shapes named") {
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return MaxPool2dForward{rig.desc({2, 3, 6, 6}), rig.desc({2, 3, 6, 6}), {2, 2, 0}};
      },
      "(2, 3, 6, 6)");
  check_refused(  // more padding than half the window
      [](OpRig& rig) -> OpDesc {
        return MaxPool2dForward{rig.desc({2, 3, 6, 6}), rig.desc({2, 3, 5, 5}), {2, 2, 2}};
      },
      "(2, 3, 5, 5)");
  check_refused(  // as much more padding behind as the stride
      [](OpRig& rig) -> OpDesc {
        return MaxPool2dForward{rig.desc({2, 3, 6, 6}), rig.desc({2, 3, 3, 3}), {3, 3, 0, 1, 3}};
      },
      "does not fit");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return MaxPool2dForward{rig.desc({2, 3, 2, 5}), rig.desc({2, 3, 1, 4}), {2, 1, 1, 3}};
      },
      "a window holds no cell of the image");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return MaxPool2dBackward{rig.desc({2, 3, 3, 3}, rig.plain({2, 3, 3, 3})), rig.desc({2, 4, 6, 6}), {2, 2, 0}};
      },
      "(2, 4, 6, 6)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return Reorder{rig.desc({2, 3}, rig.plain({2, 3})), rig.desc({3, 2}, rig.plain({3, 2}))};
      },
      "(3, 2)");
}

TEST_CASE("average pools whose shapes do not fit are rejected with the shapes named") {
  const auto forward = [](Shape x, Shape y, Window window, bool global) {
    return [=](OpRig& rig) -> OpDesc { return AvgPool2dForward{rig.desc(x), rig.desc(y), window, global}; };
  };
  check_refused(forward({2, 3, 6, 6}, {2, 3, 6, 5}, {2, 2, 0}, false), "(2, 3, 6, 5)");
  check_refused(forward({2, 3, 6, 6}, {2, 4, 3, 3}, {2, 2, 0}, false), "(2, 4, 3, 3)");
  check_refused(forward({2, 3, 6, 6}, {2, 3, 5, 5}, {2, 2, 2}, false), "(2, 3, 5, 5)");  // too much padding
  check_refused(forward({2, 3, 6, 6}, {2, 3, 4, 4}, {2, 2, 0, 2}, false), "has no dilation");
  check_refused(forward({2, 3, 6, 6}, {2, 2, 3, 3}, {2, 2, 0}, true), "(2, 2, 3, 3)");
  check_refused(forward({2, 3, 6, 6}, {2, 3, 0, 3}, {2, 2, 0}, true), "(2, 3, 0, 3)");
  check_refused(forward({2, 3, 6, 6}, {1, 3, 1, 1}, {2, 2, 0}, true), "(1, 3, 1, 1)");
  check_refused(forward({2, 108}, {2, 3, 1, 1}, {2, 2, 0}, true), "(2, 108)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return AvgPool2dBackward{rig.desc({2, 3, 2, 2}), rig.desc({2, 3, 6, 6}), {2, 2, 0}, false};
      },
      "(2, 3, 2, 2)");
}

TEST_CASE("products and copies of channels whose shapes do not fit are rejected with the shapes named") {
  const auto multiply = [](Shape x, Shape s) {
    return [=](OpRig& rig) -> OpDesc { return MultiplyForward{rig.desc(x), rig.desc(s)}; };
  };
  check_refused(multiply({2, 3, 4, 5}, {2, 4, 1, 1}), "s (2, 4, 1, 1)");
  check_refused(multiply({2, 3, 4, 5}, {1, 3, 1, 1}), "s (1, 3, 1, 1)");
  check_refused(multiply({2, 3, 4, 5}, {2, 1, 5, 4}), "s (2, 1, 5, 4)");
  check_refused(multiply({2, 3}, {2, 1}), "s (2, 1)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return MultiplyBackward{rig.desc({2, 3, 4, 5}), rig.desc({2, 3})};
      },
      "s (2, 3)");
  check_refused([](OpRig& rig) -> OpDesc { return DropFactors{rig.desc({2, 3, 2, 1}), {0.5f, 1}}; }, "y (2, 3, 2, 1)");
  check_refused([](OpRig& rig) -> OpDesc { return DropFactors{rig.desc({2, 3}), {0.5f, 1}}; }, "y (2, 3)");
  check_refused([](OpRig& rig) -> OpDesc { return DropFactors{rig.desc({2, 3, 1, 1}), {1.0f, 1}}; }, "y (2, 3, 1, 1)");
  const auto copy = [](Shape x, Shape y, std::int64_t from, std::int64_t to, std::int64_t count) {
    return [=](OpRig& rig) -> OpDesc { return CopyChannels{rig.desc(x), rig.desc(y), from, to, count}; };
  };
  check_refused(copy({2, 3, 4, 5}, {2, 6, 5, 4}, 0, 0, 3), "y (2, 6, 5, 4)");
  check_refused(copy({2, 3, 4, 5}, {1, 6, 4, 5}, 0, 0, 3), "y (1, 6, 4, 5)");
  check_refused(copy({2, 3}, {2, 6, 1, 1}, 0, 0, 3), "y (2, 6, 1, 1)");
  check_refused(copy({2, 3, 4}, {2, 6, 4}, 0, 0, 3), "y (2, 6, 4)");
  for (const auto& [from, to, count] :
       std::vector<std::array<std::int64_t, 3>>{{0, 0, 4}, {1, 0, 3}, {0, 4, 3}, {0, 0, 0}, {-1, 0, 2}, {0, -1, 2}})
    check_refused(copy({2, 3, 4, 5}, {2, 6, 4, 5}, from, to, count), "y (2, 6, 4, 5)");
  for (const auto& [from_step, to_step] : std::vector<std::array<std::int64_t, 2>>{{0, 1}, {1, 0}, {2, 1}, {1, 4}})
    check_refused(
        [=](OpRig& rig) -> OpDesc {
          return CopyChannels{rig.desc({2, 3, 4, 5}), rig.desc({2, 6, 4, 5}), 1, 2, 2, from_step, to_step};
        },
        "y (2, 6, 4, 5)");
}

TEST_CASE("resamplings and ops of channels whose shapes do not fit are rejected with the shapes named") {
  const auto resample = [](Shape x, Shape y, double scale) {
    return [=](OpRig& rig) -> OpDesc { return ResampleForward{rig.desc(x), rig.desc(y), {.scale = scale}}; };
  };
  check_refused(resample({2, 3, 4, 5}, {2, 4, 8, 10}, 0), "y (2, 4, 8, 10)");
  check_refused(resample({2, 3, 4, 5}, {1, 3, 8, 10}, 0), "y (1, 3, 8, 10)");
  check_refused(resample({2, 3, 4, 5}, {2, 3, 8, 11}, 2), "times the scale");
  check_refused(resample({2, 3, 4, 5}, {2, 3, 8, 10}, -2), "times the scale");
  check_refused(resample({2, 3, 4, 5}, {2, 3, 0, 10}, 0), "y (2, 3, 0, 10)");
  check_refused(resample({2, 60}, {2, 3, 8, 10}, 0), "x (2, 60)");
  check_refused(
      [](OpRig& rig) -> OpDesc {
        return ResampleBackward{rig.desc({2, 3, 8, 10}), rig.desc({2, 4, 4, 5})};
      },
      "dx (2, 4, 4, 5)");
  for (const std::int64_t numbers : {0, 2, 4}) {
    check_refused(
        [=](OpRig& rig) -> OpDesc {
          return ChannelwiseForward{rig.desc({2, 3, 4, 5}), numbers};
        },
        "one for each channel");
    check_refused(
        [=](OpRig& rig) -> OpDesc {
          return ChannelwiseBackward{rig.desc({2, 3}), numbers};
        },
        "one for each channel");
  }
  check_refused([](OpRig& rig) -> OpDesc { return SoftmaxForward{rig.desc({2, 3, 4})}; }, "x (2, 3, 4)");
  check_refused([](OpRig& rig) -> OpDesc { return SoftmaxBackward{rig.desc({2})}; }, "x (2,)");
}

TEST_CASE("normalisations without images, parts or channels are rejected") {
  const Shape flat{6, 10};
  check_refused([&](OpRig& rig) -> OpDesc { return BatchNormMoments{rig.desc(flat)}; }, "(6, 10)");
  check_refused([&](OpRig& rig) -> OpDesc { return BatchNormForward{rig.desc(flat)}; }, "(6, 10)");
  check_refused([&](OpRig& rig) -> OpDesc { return BatchNormBackwardSums{rig.desc(flat)}; }, "(6, 10)");
  check_refused([&](OpRig& rig) -> OpDesc { return BatchNormBackward{rig.desc(flat)}; }, "(6, 10)");
  check_refused([&](OpRig& rig) -> OpDesc { return BatchNormBackward{rig.desc({2, 3, 4, 4}), 0}; }, "part, not 0");
  check_refused([](OpRig&) -> OpDesc { return BatchNormMerge{.channels = 0}; }, "channel, not 0");
  check_refused([](OpRig&) -> OpDesc { return BatchNormMerge{.channels = 3, .parts = 0}; }, "part, not 0");
  check_refused([](OpRig&) -> OpDesc { return BatchNormTrack{.norms = {{.channels = 3, .momentum = 1.5}}}; },
                "momentum");
  check_refused([](OpRig&) -> OpDesc { return BatchNormTrack{.norms = {{.channels = 0}}}; }, "channel, not 0");
  check_refused([](OpRig& rig) -> OpDesc { return BatchNormMoments{rig.desc({2, 3, 4, 5}), -1.0}; }, "eps");
  check_refused([](OpRig&) -> OpDesc { return BatchNormMerge{.channels = 3, .eps = -1}; }, "eps");
  check_refused([](OpRig&) -> OpDesc { return BatchNormRunning{.channels = -1}; }, "channel, not -1");
  check_refused([](OpRig& rig) -> OpDesc { return BatchNormFold{rig.desc({4, 3})}; }, "4 dimensions");
  check_refused([](OpRig& rig) -> OpDesc { return BatchNormFold{rig.desc({4, 3, 1, 1}), -1}; }, "eps");
  check_refused([&](OpRig& rig) -> OpDesc { return GroupNormForward{rig.desc(flat)}; }, "(6, 10)");
  check_refused([&](OpRig& rig) -> OpDesc { return GroupNormBackward{rig.desc(flat)}; }, "(6, 10)");
  for (const std::int64_t groups : {-1, 2, 6}) {
    const std::string why = "the groups do not divide the channels";
    check_refused([&](OpRig& rig) -> OpDesc { return GroupNormForward{rig.desc({2, 3, 4, 4}), groups}; }, why);
    check_refused([&](OpRig& rig) -> OpDesc { return GroupNormBackward{rig.desc({2, 3, 4, 4}), groups}; }, why);
  }
  check_refused([](OpRig& rig) -> OpDesc { return GroupNormForward{rig.desc({2, 3, 4, 4}), 3, -1}; }, "eps");
  check_refused([](OpRig&) -> OpDesc { return MovingAverage{.count = -1}; }, "negative");
}

TEST_CASE("the reference rejects other element types than its own") {
  OpRig rig(DeviceKind::reference);
  const Shape shape{2, 3};
  CHECK(contains(refusal(rig, ReluForward{{shape, DType::f32, {}}}), "float64"));
  CHECK(contains(refusal(rig, ReluForward{{shape, DType::f64, {"nhwc", 48, nullptr}}}), "nhwc"));
}
