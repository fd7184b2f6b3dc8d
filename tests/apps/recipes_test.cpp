// The constants of models and recipes, as README and the command-line documentation list them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "dp/dp.h"
#include "dp_train/command.h"
#include "dp_train/trainer_options.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using Lines = std::vector<std::string>;

struct Describe {
  std::string operator()(const Input&) const { return "input"; }
  std::string operator()(const Conv2d& c) const {
    return fmt::format("conv {} of {}, stride {}, padding {}{}{}", c.out_channels, to_string(c.kernel),
                       to_string(c.stride), to_string(c.padding),
                       c.groups > 1 ? fmt::format(", {} groups", c.groups) : "", c.bias ? ", bias" : "");
  }
  std::string operator()(const ConvTranspose2d& c) const {
    return fmt::format("transposed conv {} of {}", c.out_channels, to_string(c.kernel));
  }
  std::string operator()(const BatchNorm2d& n) const { return fmt::format("norm {:g} {:g}", n.eps, n.momentum); }
  std::string operator()(const GroupNorm& n) const { return fmt::format("{} groups {:g}", n.groups, n.eps); }
  std::string operator()(const LayerNorm& n) const { return fmt::format("of pixels {:g}", n.eps); }
  std::string operator()(const Add&) const { return "add"; }
  std::string operator()(const Multiply&) const { return "multiply"; }
  std::string operator()(const Concat&) const { return "concat"; }
  std::string operator()(const Slice& s) const { return fmt::format("slice {} from {}", s.count, s.first); }
  std::string operator()(const Reshape&) const { return "reshape"; }
  std::string operator()(const ChannelShuffle& s) const { return fmt::format("shuffle {}", s.groups); }
  std::string operator()(const Linear& l) const {
    return fmt::format("linear {}{}", l.out_features, l.bias ? ", bias" : "");
  }
  std::string operator()(const Relu&) const { return "relu"; }
  std::string operator()(const Activation& a) const { return name_of(a.function); }
  std::string operator()(const PRelu& p) const { return fmt::format("prelu {}", p.num_parameters); }
  std::string operator()(const Softmax&) const { return "softmax"; }
  std::string operator()(const Upsample& u) const { return "upsample to " + to_string(*u.size); }
  std::string operator()(const ZeroPad2d& p) const {
    return fmt::format("pad {} {} {} {}", p.left, p.right, p.top, p.bottom);
  }
  std::string operator()(const MaxPool2d& p) const {
    return fmt::format("max {}, stride {}, padding {}{}", to_string(p.kernel), to_string(*p.stride),
                       to_string(p.padding), p.ceil_mode ? ", ceil mode" : "");
  }
  std::string operator()(const AvgPool2d& p) const { return "average " + to_string(p.kernel); }
  std::string operator()(const AdaptiveAvgPool2d& p) const {
    return p.output == 1 ? "global average" : "average to " + to_string(p.output);
  }
  std::string operator()(const Dropout& d) const { return fmt::format("dropout {:g}", d.p); }
  std::string operator()(const Flatten&) const { return "flatten"; }
};

Lines described(const Model& model) {
  Lines lines;
  for (const Layer& layer : model.layers()) lines.push_back(std::visit(Describe{}, layer.kind));
  return lines;
}

// The 3x3 convolutions of bottlenecks: `width` times the channels of the stage, in groups.
struct Inner {
  std::int64_t width = 1, groups = 1;
};

// The layers of a torchvision ResNet in forward order. counts: the blocks of each stage.
Lines resnet_lines(std::vector<int> counts, bool bottlenecks, bool imagenet_stem, std::int64_t width,
                   std::int64_t classes, const Inner& inner = {}) {
  const auto conv = [](std::int64_t channels, int kernel, int stride) {
    return fmt::format("conv {} of {}, stride {}, padding {}", channels, kernel, stride, kernel / 2);
  };
  const std::string norm = "norm 1e-05 0.1";
  Lines lines{"input", conv(width, imagenet_stem ? 7 : 3, imagenet_stem ? 2 : 1), norm, "relu"};
  if (imagenet_stem) lines.push_back("max 3, stride 2, padding 1");
  for (int stage = 0; stage < 4; ++stage)
    for (int block = 0; block < counts[static_cast<std::size_t>(stage)]; ++block) {
      const std::int64_t channels = width << stage, out = bottlenecks ? 4 * channels : channels;
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      if (bottlenecks)
        lines.insert(lines.end(), {conv(inner.width * channels, 1, 1), norm, "relu",
                                   conv(inner.width * channels, 3, stride) +
                                       (inner.groups > 1 ? fmt::format(", {} groups", inner.groups) : ""),
                                   norm, "relu", conv(out, 1, 1), norm});
      else
        lines.insert(lines.end(), {conv(channels, 3, stride), norm, "relu", conv(out, 3, 1), norm});
      if (block == 0 && (stage > 0 || bottlenecks)) lines.insert(lines.end(), {conv(out, 1, stride), norm});
      lines.insert(lines.end(), {"add", "relu"});
    }
  lines.insert(lines.end(), {"global average", "flatten", fmt::format("linear {}, bias", classes)});
  return lines;
}

Lines resnet18_lines(bool imagenet_stem, std::int64_t width, std::int64_t classes) {
  return resnet_lines({2, 2, 2, 2}, false, imagenet_stem, width, classes);
}

// torchvision's inverted residual: `in` channels, `expansion` times as many, and `out`.
Lines inverted_residual(std::int64_t in, std::int64_t expansion, std::int64_t out, int stride) {
  const std::int64_t wide = in * expansion;
  const std::string norm = "norm 1e-05 0.1";
  Lines lines;
  if (expansion > 1) lines = {fmt::format("conv {} of 1, stride 1, padding 0", wide), norm, "relu6"};
  lines.insert(lines.end(), {fmt::format("conv {0} of 3, stride {1}, padding 1, {0} groups", wide, stride), norm,
                             "relu6", fmt::format("conv {} of 1, stride 1, padding 0", out), norm});
  if (stride == 1 && in == out) lines.emplace_back("add");
  return lines;
}

Lines mobilenet_lines(std::int64_t classes) {
  const std::string norm = "norm 1e-05 0.1";
  Lines lines{"input", "conv 32 of 3, stride 2, padding 1", norm, "relu6"};
  const auto append = [&](const Lines& more) { lines.insert(lines.end(), more.begin(), more.end()); };
  append(inverted_residual(32, 1, 16, 1));
  append(inverted_residual(16, 6, 24, 2));
  append(inverted_residual(24, 6, 24, 1));
  append(inverted_residual(24, 6, 32, 2));
  for (int i = 0; i < 2; ++i) append(inverted_residual(32, 6, 32, 1));
  append(inverted_residual(32, 6, 64, 2));
  for (int i = 0; i < 3; ++i) append(inverted_residual(64, 6, 64, 1));
  append(inverted_residual(64, 6, 96, 1));
  for (int i = 0; i < 2; ++i) append(inverted_residual(96, 6, 96, 1));
  append(inverted_residual(96, 6, 160, 2));
  for (int i = 0; i < 2; ++i) append(inverted_residual(160, 6, 160, 1));
  append(inverted_residual(160, 6, 320, 1));
  append({"conv 1280 of 1, stride 1, padding 0", norm, "relu6", "global average", "flatten", "dropout 0.2",
          fmt::format("linear {}, bias", classes)});
  return lines;
}

TEST_CASE("the models have the documented layers and sizes") {
  CHECK(described(models::find("mnist_convnet").make({1, 28, 28}, 10)) ==
        Lines{"input", "conv 32 of 3, stride 1, padding 0, bias", "relu", "conv 64 of 3, stride 1, padding 0, bias",
              "relu", "max 2, stride 2, padding 0", "dropout 0.25", "flatten", "linear 128, bias", "relu",
              "dropout 0.5", "linear 10, bias"});
  CHECK(described(models::mnist_convnet({.width = 8})) ==
        Lines{"input", "conv 8 of 3, stride 1, padding 0, bias", "relu", "conv 16 of 3, stride 1, padding 0, bias",
              "relu", "max 2, stride 2, padding 0", "dropout 0.25", "flatten", "linear 32, bias", "relu", "dropout 0.5",
              "linear 10, bias"});
  CHECK(described(models::find("mlp").make({1, 28, 28}, 10)) ==
        Lines{"input", "flatten", "linear 128, bias", "relu", "linear 10, bias"});
  CHECK(described(models::find("resnet18").make({3, 32, 32}, 10)) == resnet18_lines(false, 64, 10));
  CHECK(described(models::find("resnet18").make({3, 63, 63}, 10)) == resnet18_lines(false, 64, 10));
  CHECK(described(models::find("resnet18").make({3, 64, 64}, 100)) == resnet18_lines(true, 64, 100));
  CHECK(described(models::resnet18({.width = 16})) == resnet18_lines(false, 16, 10));
  CHECK(described(models::find("resnet34").make({3, 64, 64}, 10)) == resnet_lines({3, 4, 6, 3}, false, true, 64, 10));
  CHECK(described(models::find("resnet50").make({3, 32, 32}, 10)) == resnet_lines({3, 4, 6, 3}, true, false, 64, 10));
  CHECK(described(models::resnet50({.width = 8})) == resnet_lines({3, 4, 6, 3}, true, false, 8, 10));
  CHECK(described(models::find("resnet101").make({3, 64, 64}, 7)) == resnet_lines({3, 4, 23, 3}, true, true, 64, 7));
  CHECK(described(models::find("resnet152").make({3, 64, 64}, 10)) == resnet_lines({3, 8, 36, 3}, true, true, 64, 10));
  CHECK(described(models::find("resnext50_32x4d").make({3, 64, 64}, 10)) ==
        resnet_lines({3, 4, 6, 3}, true, true, 64, 10, {.width = 2, .groups = 32}));
  CHECK(described(models::find("wide_resnet50_2").make({3, 32, 32}, 10)) ==
        resnet_lines({3, 4, 6, 3}, true, false, 64, 10, {.width = 2}));
  CHECK(described(models::find("mobilenet_v2").make({3, 64, 64}, 10)) == mobilenet_lines(10));
  struct {
    const char* name;
    Shape input;
    std::int64_t classes, parameters;
  } const sizes[] = {{"mnist_convnet", {1, 28, 28}, 10, 1199882},
                     {"mlp", {1, 28, 28}, 10, 101770},
                     {"resnet18", {3, 32, 32}, 10, 11173962},
                     {"resnet18", {3, 32, 32}, 100, 11220132},
                     {"resnet18", {3, 224, 224}, 1000, 11689512},
                     {"resnet34", {3, 224, 224}, 1000, 21797672},
                     {"resnet50", {3, 224, 224}, 1000, 25557032},
                     {"resnet101", {3, 224, 224}, 1000, 44549160},
                     {"resnet152", {3, 224, 224}, 1000, 60192808},
                     {"resnext50_32x4d", {3, 224, 224}, 1000, 25028904},
                     {"wide_resnet50_2", {3, 224, 224}, 1000, 68883240},
                     {"mobilenet_v2", {3, 224, 224}, 1000, 3504872},
                     {"mobilenet_v3_small", {3, 224, 224}, 1000, 2542856},
                     {"mobilenet_v3_large", {3, 224, 224}, 1000, 5483032},
                     {"efficientnet_b0", {3, 224, 224}, 1000, 5288548},
                     {"regnet_y_400mf", {3, 224, 224}, 1000, 4344144},
                     {"shufflenet_v2_x1_0", {3, 224, 224}, 1000, 2278604},
                     {"convnext_tiny", {3, 224, 224}, 1000, 28589128},
                     {"densenet121", {3, 224, 224}, 1000, 7978856},
                     {"googlenet", {3, 224, 224}, 1000, 6624904},
                     {"vgg11_bn", {3, 224, 224}, 1000, 132868840},
                     {"vgg13_bn", {3, 224, 224}, 1000, 133053736},
                     {"vgg16_bn", {3, 224, 224}, 1000, 138365992},
                     {"vgg19_bn", {3, 224, 224}, 1000, 143678248},
                     {"cifar_speed", {3, 32, 32}, 10, 1972792}};
  for (const auto& size : sizes) {
    INFO(size.name << ", " << size.classes << " classes");
    CHECK(models::find(size.name).make(size.input, size.classes).parameter_count() == size.parameters);
  }
  CHECK(models::registry().size() == 23);
}

struct Spread {
  double mean = 0, deviation = 0, largest = 0;
};
Spread spread_of(const Tensor& tensor) {
  Spread spread;
  const auto n = static_cast<double>(tensor.numel());
  for (const float x : tensor.span<float>()) {
    spread.mean += double{x};
    spread.largest = std::max(spread.largest, std::abs(double{x}));
  }
  spread.mean /= n;
  for (const float x : tensor.span<float>()) spread.deviation += std::pow(double{x} - spread.mean, 2) / n;
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

// Every parameter follows PyTorch's default distribution for its layer. Convolutions of residual networks follow
// torchvision's.
void check_start(const Model& model, bool residual) {
  const auto weights = DataParallel(model, dp::test::on_cpus(1)).weights();
  std::size_t checked = 0;
  for (const ParameterSpec& parameter : model.parameters()) {
    INFO(model.name() << " " << parameter.name);
    const Layer& layer = model.layers()[static_cast<std::size_t>(parameter.layer)];
    const Shape& in = model.layers()[static_cast<std::size_t>(layer.inputs[0])].output;
    const auto* const conv = std::get_if<Conv2d>(&layer.kind);
    const double window = conv ? conv->kernel.h * conv->kernel.w : 1;
    const auto* const linear = std::get_if<Linear>(&layer.kind);
    const double bound = 1 / std::sqrt(static_cast<double>(in[0]) * window);  // kaiming_uniform_(a = sqrt 5)
    Tensor start;
    for (const auto& [name, tensor] : weights)
      if (name == parameter.name) start = tensor;
    const Spread spread = spread_of(start);
    const double slack = 5 / std::sqrt(static_cast<double>(start.numel()));  // five standard errors
    if (std::holds_alternative<BatchNorm2d>(layer.kind)) {
      CHECK(spread.mean == (parameter.name.ends_with(".weight") ? 1 : 0));
      CHECK(spread.deviation == 0);
    } else if (conv != nullptr && residual) {  // kaiming_normal_(mode = fan_out, nonlinearity = relu)
      const double deviation = std::sqrt(2 / (static_cast<double>(conv->out_channels) * window));
      CHECK(std::abs(spread.mean) <= slack * deviation);
      CHECK(spread.deviation == Approx(deviation).epsilon(slack));
      CHECK(spread.largest > 2 * deviation);  // beyond the range of a uniform distribution
    } else if (linear != nullptr && linear->init && parameter.name.ends_with(".bias")) {
      CHECK(spread.largest == 0);
    } else if (linear != nullptr && linear->init) {  // normal_(0, 0.01)
      CHECK(std::abs(spread.mean) <= slack * 0.01);
      CHECK(spread.deviation == Approx(0.01).epsilon(slack));
      CHECK(spread.largest > 0.02);
    } else {
      CHECK(std::abs(spread.mean) <= slack * bound);
      CHECK(spread.largest <= bound * (1 + 1e-6));
      if (start.numel() > 100) CHECK(spread.deviation == Approx(bound / std::sqrt(3.0)).epsilon(slack));
    }
    ++checked;
  }
  CHECK(checked == model.parameters().size());
}

TEST_CASE("initial weights are drawn from PyTorch's distributions") {
  check_start(models::mnist_convnet(), false);
  check_start(models::mlp(), false);
  check_start(models::resnet18({.input = {3, 8, 8}, .width = 32}), true);
  check_start(models::resnet50({.input = {3, 8, 8}, .width = 16}), true);
  check_start(models::resnext50_32x4d({.input = {3, 8, 8}, .width = 16}), true);
  check_start(models::wide_resnet50_2({.input = {3, 8, 8}, .width = 16}), true);
  check_start(models::mobilenet_v2({.classes = 10, .input = {3, 32, 32}}), true);
}

TEST_CASE("a model and a data set select the documented recipe, and every other option has its default") {
  struct {
    const char *model, *dataset;  // null data set: the model's default
    const char* expected_dataset;
    double lr, weight_decay;
    ScheduleKind schedule;
    std::vector<double> milestones;
    std::int64_t epochs;
    std::int64_t batch_size = 128;
  } const recipes[] = {
      {"mnist_convnet", nullptr, "digits", 0.05, 0, ScheduleKind::cosine, {}, 1},
      {"mlp", nullptr, "digits", 0.05, 0, ScheduleKind::cosine, {}, 1},
      {"resnet18", nullptr, "cifar10", 0.1, 5e-4, ScheduleKind::multistep, {15, 22.5}, 30},
      {"resnet34", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"resnet50", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"resnet101", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"resnet152", "cifar10", "cifar10", 0.1, 1e-4, ScheduleKind::multistep, {10, 20}, 30, 256},
      {"resnext50_32x4d", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::multistep, {27, 54, 81}, 90, 256},
      {"wide_resnet50_2", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::cosine, {}, 90, 256},
      {"mobilenet_v2", nullptr, "imagefolder", 0.045, 4e-5, ScheduleKind::cosine, {}, 90, 256},
      {"mobilenet_v3_small", nullptr, "imagefolder", 0.045, 1e-5, ScheduleKind::cosine, {}, 90, 256},
      {"mobilenet_v3_large", nullptr, "imagefolder", 0.045, 1e-5, ScheduleKind::cosine, {}, 90, 256},
      {"efficientnet_b0", nullptr, "imagefolder", 0.045, 1e-5, ScheduleKind::cosine, {}, 90, 256},
      {"regnet_y_400mf", nullptr, "imagefolder", 0.2, 5e-5, ScheduleKind::cosine, {}, 90, 256},
      {"shufflenet_v2_x1_0", nullptr, "imagefolder", 0.125, 2e-5, ScheduleKind::cosine, {}, 90, 256},
      {"convnext_tiny", nullptr, "imagefolder", 2.5e-4, 0.05, ScheduleKind::cosine, {}, 90, 256},
      {"densenet121", nullptr, "imagefolder", 0.1, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"googlenet", nullptr, "imagefolder", 0.045, 1e-4, ScheduleKind::cosine, {}, 90, 256},
      {"vgg11_bn", nullptr, "imagefolder", 0.01, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"vgg13_bn", nullptr, "imagefolder", 0.01, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"vgg16_bn", nullptr, "imagefolder", 0.01, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"vgg19_bn", nullptr, "imagefolder", 0.01, 1e-4, ScheduleKind::multistep, {30, 60}, 90, 256},
      {"cifar_speed", nullptr, "cifar10", 0.19, 1.3e-3, ScheduleKind::polynomial, {}, 10},
      {"mnist_convnet", "mnist", "mnist", 0.05, 0, ScheduleKind::cosine, {}, 3},
      {"mnist_convnet", "fashion_mnist", "fashion_mnist", 0.05, 0, ScheduleKind::cosine, {}, 10},
      {"mlp", "synthetic", "synthetic", 0.05, 0, ScheduleKind::cosine, {}, 1},
      {"resnet18", "cifar100", "cifar100", 0.1, 5e-4, ScheduleKind::multistep, {15, 22.5}, 30},
      {"resnet18", "imagefolder", "imagefolder", 0.1, 5e-4, ScheduleKind::multistep, {45, 67.5}, 90},
  };
  for (const auto& recipe : recipes) {
    INFO(recipe.model << " on " << recipe.expected_dataset);
    std::vector<const char*> words{"dp_train", "--model", recipe.model};
    if (recipe.dataset != nullptr) words.insert(words.end(), {"--dataset", recipe.dataset});
    const auto command = dp_train::parse_command(static_cast<int>(words.size()), words.data());
    REQUIRE(command);
    const TrainerOptions o = dp_train::trainer_options(*command, cpus(4), nullptr);
    const bool speeds = std::string(recipe.model) == "cifar_speed";
    CHECK(o.dataset_name == recipe.expected_dataset);
    CHECK(o.epochs == recipe.epochs);
    CHECK(o.max_steps == 0);
    CHECK(o.batch_size == recipe.batch_size);
    std::visit(
        [&](const auto& optimizer) {
          CHECK(optimizer.lr == static_cast<float>(recipe.lr));
          CHECK(optimizer.weight_decay == static_cast<float>(recipe.weight_decay));
        },
        o.optimizer);
    if (std::string(recipe.model) == "convnext_tiny") {
      CHECK(std::holds_alternative<AdamW>(o.optimizer));
    } else {
      CHECK(std::get<Sgd>(o.optimizer).momentum == (speeds ? 0.85f : 0.9f));
      CHECK(std::get<Sgd>(o.optimizer).nesterov == (speeds || std::string(recipe.model) == "densenet121"));
    }
    CHECK(o.schedule.kind == recipe.schedule);
    CHECK(o.schedule.milestones == recipe.milestones);
    CHECK(o.schedule.gamma == 0.1);
    CHECK(o.schedule.step_size == 1);
    CHECK(o.schedule.warmup_epochs == Approx(speeds ? 2.3 : 0));
    CHECK(o.parallel.label_smoothing == (speeds ? 0.2f : 0));
    CHECK(o.parallel.parameter_groups.size() == (speeds ? 5 : 0));
    CHECK(o.parallel.grad_accum_steps == 1);
    CHECK_FALSE(o.parallel.clip_grad_norm.has_value());
    CHECK_FALSE(o.parallel.ema_decay.has_value());
    CHECK(o.parallel.on_nonfinite == OnNonfinite::abort);
    CHECK(o.parallel.batch_norm == BatchNormMode::master);
    CHECK(o.parallel.amp == Amp::off);
    CHECK(o.parallel.seed == 42);
    CHECK(o.parallel.dropout);
    CHECK_FALSE(o.parallel.deterministic);
    CHECK((o.shuffle && o.augment && !o.drop_last));
    CHECK(o.augmentation == (speeds ? Augmentation{.padding = 2, .flip = Flip::alternating} : Augmentation{}));
    CHECK(o.save_every_epochs == 1);
    CHECK(o.save_every_steps == 0);
    CHECK(o.checkpoint_hist == 0);
    CHECK(o.print_freq == 10);
  }
}

TEST_CASE("options change single members of a recipe's augmentation, and --no-augment removes it") {
  models::add({.name = "varied",
               .summary = "",
               .recipe = {.augmentation = {.flip = Flip::alternating, .auto_augment = AutoAugment::ra, .ra_ops = 3}},
               .make = [](const Shape& input, std::int64_t classes) {
                 return models::mlp({.input = input, .classes = classes});
               }});
  const auto chosen = [](std::vector<const char*> more) {
    more.insert(more.begin(), {"dp_train", "--model", "varied"});
    const auto command = dp_train::parse_command(static_cast<int>(more.size()), more.data());
    REQUIRE(command);
    return dp_train::trainer_options(*command, cpus(1), nullptr).augmentation;
  };
  CHECK(chosen({}) == Augmentation{.flip = Flip::alternating, .auto_augment = AutoAugment::ra, .ra_ops = 3});
  CHECK(chosen({"--flip", "none", "--ra-magnitude", "5"}) ==
        Augmentation{.flip = Flip::none, .auto_augment = AutoAugment::ra, .ra_ops = 3, .ra_magnitude = 5});
  CHECK(chosen({"--no-augment"}) == Augmentation{});
}

// Neighbouring pixels of these images are correlated. The filters' results are not.
TEST_CASE("cifar_speed begins with filters that whiten the patches of the training images") {
  const DatasetPair drawn = datasets::digits();
  class Coloured final : public dp::Dataset {
   public:
    explicit Coloured(const Dataset& grey) : grey_(grey) {}
    std::int64_t size() const override { return 40; }
    Shape image_shape() const override { return grey_.image_shape().without_first().prepended(3); }
    std::int64_t classes() const override { return grey_.classes(); }
    const Normalization& normalization() const override { return normalization_; }
    std::int32_t label(std::int64_t index) const override { return grey_.label(index); }
    void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        const auto plane = grey_.image(3 * index + channel / 2);  // two channels are alike
        std::ranges::copy(plane, out.begin() + channel * static_cast<std::int64_t>(plane.size()));
      }
    }

   private:
    const Dataset& grey_;
    const Normalization normalization_{{0.1f, 0.2f, 0.3f}, {0.5f, 0.4f, 0.3f}};
  };
  const Coloured images(*drawn.train);
  const NamedTensors weights = models::cifar_speed_whitening(images);
  REQUIRE(weights.size() == 1);
  CHECK(weights[0].first == "whiten.weight");
  REQUIRE(weights[0].second.shape() == Shape{24, 3, 2, 2});
  const std::span<const float> filters = weights[0].second.span<float>();
  const std::int64_t rows = images.image_shape()[1], columns = images.image_shape()[2];
  double sums[12][12]{}, count = 0;
  for (std::int64_t image = 0; image < images.size(); ++image) {
    const auto bytes = images.image(image);
    for (std::int64_t y = 0; y + 1 < rows; ++y)
      for (std::int64_t x = 0; x + 1 < columns; ++x, ++count) {
        double results[12]{};
        for (int filter = 0; filter < 12; ++filter)
          for (std::int64_t k = 0; k < 12; ++k) {
            const auto channel = static_cast<std::size_t>(k / 4);
            const std::uint8_t byte =
                bytes[static_cast<std::size_t>(((k / 4) * rows + y + k / 2 % 2) * columns + x + k % 2)];
            const double value = (byte / 255.0 - double{images.normalization().mean[channel]}) /
                                 double{images.normalization().std[channel]};
            results[filter] += double{filters[static_cast<std::size_t>(filter * 12 + k)]} * value;
          }
        for (int a = 0; a < 12; ++a)
          for (int b = 0; b < 12; ++b) sums[a][b] += results[a] * results[b];
      }
  }
  for (int a = 0; a < 12; ++a)
    for (int b = 0; b < 12; ++b) {
      INFO(a << ", " << b);
      const double moment = sums[a][b] / count;
      if (a != b) CHECK(std::abs(moment) <= 1e-4);
      if (a == b) CHECK(moment <= 1 + 1e-4);
    }
  double whole = 0;
  for (int a = 0; a < 12; ++a) whole += sums[a][a] / count;
  CHECK(whole > 7.9);  // two of the three channels are alike: eight directions vary
  for (std::size_t k = 0; k < 144; ++k) CHECK(filters[144 + k] == -filters[k]);
  CHECK_THROWS_WITH(models::cifar_speed_whitening(*drawn.train), Catch::Contains("requires images of three channels"));
}

}  // namespace
