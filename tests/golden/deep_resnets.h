// Compares ResNets of 34 to 152 layers, and their variants in groups or of other widths, with torchvision's in float64.
#pragma once

#include "dp/models.h"
#include "golden/resnet_cases.h"
#include "support/catch.h"

namespace dp::test {

struct DeepResnet {
  const char* name;
  Model (*make)(const models::ResnetOptions&);
  std::uint64_t kinkless;  // number of the batch
  int parameters;          // tensors

  GoldenFile golden() const { return GoldenFile(std::string(name) + ".safetensors"); }
  ResnetCase kinkless_case() const { return {"kinkless", make({.classes = 10, .input = {3, 8, 8}}), 16, kinkless}; }
};
inline constexpr DeepResnet kResnet34{"resnet34", models::resnet34, 18, 110};
inline constexpr DeepResnet kResnet50{"resnet50", models::resnet50, 39, 161};
inline constexpr DeepResnet kResnet101{"resnet101", models::resnet101, 36, 314};
inline constexpr DeepResnet kResnet152{"resnet152", models::resnet152, 5, 467};
inline constexpr DeepResnet kResnext50{"resnext50_32x4d", models::resnext50_32x4d, 50, 161};
inline constexpr DeepResnet kWideResnet50{"wide_resnet50_2", models::wide_resnet50_2, 121, 161};

inline void check_smooth(const DeepResnet& net) {
  const ResnetCase smooth{"smooth", net.make({.classes = 10, .input = {3, 16, 16}, .relu = false}), 7, 0};
  // Measured: at most 1.05e-5, ResNet34 on Ice Lake, where Winograd computes more passes than with AMX. With Winograd
  // 5e-5 is promised (docs/reference/semantics.md, 10).
  check_resnet_errors(resnet_errors(net.golden(), smooth, on_cpus(1)), 2e-5);
}

inline void check_imagenet(const DeepResnet& net) {
  const ResnetCase imagenet{"imagenet", net.make({.classes = 20, .input = {3, 64, 64}}), 4, 1};
  // One activation within rounding of a kink changes a gradient by 1e-3 to 1e-2, also in PyTorch's float32.
  check_resnet_errors(resnet_errors(net.golden(), imagenet, on_cpus(1)), 2e-2);
}

inline void check_kinkless(const DeepResnet& net) {
  CHECK(net.golden().values("kinkless.margin").values[0] > 8e-6);
  // Measured: at most 1.2e-5, the bias of the first normalisation of ResNet34, with AVX2.
  check_resnet_errors(resnet_errors(net.golden(), net.kinkless_case(), on_cpus(1)), 3e-5);
}

inline void check_start(const DeepResnet& net) {
  const Model model = net.make({.classes = 1000, .stem = models::ResnetOptions::Stem::imagenet});
  check_resnet_start(net.golden(), model, net.parameters);
}

}  // namespace dp::test
