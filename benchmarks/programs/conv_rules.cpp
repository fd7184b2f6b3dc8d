// Times every algorithm that the CPU backend has for a convolution, on one thread, beside the one that the rules choose
// (docs/decisions/0048): one line for each pass of each layer, and the sums of both.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "dp/tensor.h"
#include "kernels/conv/cpu_amx.h"
#include "kernels/conv/cpu_own.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/op.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using dnnl_compat::ConvShape;

constexpr CpuOpOptions kRules{.threads = 1, .fast_convolutions = true, .bfloat16 = true};

struct Layer {
  std::int64_t in, pixels, out;  // input channels, rows and columns, output channels
  Window window;
};

// The different ones of mnist_convnet, ResNet18 on CIFAR-10 and ResNet50 on ImageNet.
constexpr Layer kLayers[] = {{32, 26, 64, {3, 1, 0}},   {64, 32, 64, {3, 1, 1}},    {128, 16, 128, {3, 1, 1}},
                             {256, 8, 256, {3, 1, 1}},  {512, 4, 512, {3, 1, 1}},   {64, 32, 128, {3, 2, 1}},
                             {256, 8, 512, {3, 2, 1}},  {64, 32, 128, {1, 2, 0}},   {64, 56, 64, {3, 1, 1}},
                             {128, 28, 128, {3, 1, 1}}, {256, 14, 256, {3, 1, 1}},  {512, 7, 512, {3, 1, 1}},
                             {128, 56, 128, {3, 2, 1}}, {64, 56, 256, {1, 1, 0}},   {256, 56, 64, {1, 1, 0}},
                             {512, 28, 128, {1, 1, 0}}, {256, 14, 1024, {1, 1, 0}}, {2048, 7, 512, {1, 1, 0}}};

struct Candidate {
  std::string name;
  std::unique_ptr<HostOp> op;
  std::vector<Tensor> memory;
  std::vector<void*> args;
  Tensor workspace;
  double seconds = std::numeric_limits<double>::infinity();
};

Tensor memory_of(std::size_t bytes) {
  Tensor tensor(Shape{static_cast<std::int64_t>(bytes / sizeof(float) + 16)});
  std::fill(tensor.span<float>().begin(), tensor.span<float>().end(), 0.01f);
  return tensor;
}

// One pass of a layer with every algorithm. The first candidate is the one of the rules.
class Survey {
 public:
  // `no_bias`: the index of the absent bias among the arguments, -1 if the op has none.
  explicit Survey(int no_bias) : no_bias_(no_bias) {}

  void add(const std::string& name, std::unique_ptr<HostOp> op) {
    if (op == nullptr || (!candidates_.empty() && op->is_fallback())) return;
    for (const Candidate& c : candidates_)  // a second measurement would measure the noise
      if (c.op->implementation() == op->implementation()) return;
    Candidate c{name, std::move(op), {}, {}, {}};
    c.workspace = memory_of(c.op->workspace_bytes());
    for (const TensorDesc& tensor : c.op->tensors()) c.memory.push_back(memory_of(tensor.layout.bytes));
    for (Tensor& tensor : c.memory) c.args.push_back(tensor.raw());
    if (no_bias_ >= 0) c.args.insert(c.args.begin() + no_bias_, nullptr);
    candidates_.push_back(std::move(c));
  }
  // oneDNN's implementation of one algorithm. `make` returns a primitive descriptor, `bind` an op.
  template <typename Make, typename Bind>
  void add_dnnl(const Window& window, const Make& make, const Bind& bind) {
    for (const auto algorithm : {dnnl::algorithm::convolution_direct, dnnl::algorithm::convolution_winograd}) try {
        const auto pd =
            make(ConvShape{{window.stride.h, window.stride.h}, {window.padding.h, window.padding.h}, algorithm});
        add(std::string("oneDNN ") + pd.impl_info_str(), bind(pd));
      } catch (const dnnl::error&) {  // oneDNN lacks this algorithm for these shapes
      }
  }
  // The median time of each candidate; they take turns. Before each run other memory is read, as in a training step.
  void measure() {
    using Clock = std::chrono::steady_clock;
    static Tensor other(Shape{16 << 20});
    std::vector<std::vector<double>> times(candidates_.size());
    const auto end = Clock::now() + std::chrono::milliseconds(200);
    for (int round = 0; round < 6 || Clock::now() < end; ++round)
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        for (float& value : other.span<float>()) value += 1;
        const auto begin = Clock::now();
        candidates_[i].op->execute(candidates_[i].args, candidates_[i].workspace.raw());
        if (round > 0) times[i].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      std::nth_element(times[i].begin(), times[i].begin() + times[i].size() / 2, times[i].end());
      candidates_[i].seconds = times[i][times[i].size() / 2];
    }
  }
  const Candidate& rules() const { return candidates_.front(); }
  const Candidate& best() const {
    return *std::min_element(candidates_.begin(), candidates_.end(),
                             [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  }
  const std::vector<Candidate>& all() const { return candidates_; }

 private:
  int no_bias_;
  std::vector<Candidate> candidates_;
};

struct Shapes {
  Shapes(const Layer& layer, std::int64_t batch, DType type) : window(layer.window) {
    const Shape images{batch, layer.in, layer.pixels, layer.pixels};
    x.shape = images;
    const std::int64_t pixels = (layer.pixels + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1;
    y.shape = {batch, layer.out, pixels, pixels};
    w.shape = {layer.out, layer.in, window.kernel.h, window.kernel.h};
    x.type = y.type = w.type = type;
    dw.shape = w.shape;
  }
  Window window;
  TensorDesc x, w, y, dw;  // weight gradients are float32
  auto forward(const ConvShape& shape) const {
    return dnnl_compat::conv_forward(dp::kernels::dnnl_engine(), requested(x), requested(w), DnnlDesc(), requested(y),
                                     shape, op_attributes());
  }
};

Survey forward(const Shapes& s) {
  Survey survey(2);
  survey.add("rules", make(Conv2dForward{s.x, s.w, s.y, s.window, false, false}, kRules));
  const auto bind = [&](const auto& pd) {
    auto op = std::make_unique<DnnlOp>(dnnl::convolution_forward(pd), pd, 1);
    op->input(DNNL_ARG_SRC, pd.src_desc()).input(DNNL_ARG_WEIGHTS, pd.weights_desc());
    op->skip(positions<Conv2dForward>().b).output(DNNL_ARG_DST, pd.dst_desc());
    op->tensors_are({resolved(s.x, pd.src_desc()), resolved(s.w, pd.weights_desc()), resolved(s.y, pd.dst_desc())});
    survey.add("ours", make_winograd(
                           Conv2dForward{op->tensors()[0], op->tensors()[1], op->tensors()[2], s.window, false, false},
                           kRules));
    return op;
  };
  survey.add_dnnl(
      s.window, [&](const ConvShape& shape) { return s.forward(shape); }, bind);
  return survey;
}

Survey data(const Shapes& s) {
  Survey survey(-1);
  survey.add("rules", make(Conv2dBackwardData{s.y, s.w, s.x, s.window}, kRules));
  survey.add("ours", make_flipped_backward_data({s.y, s.w, s.x, s.window}, kRules));
  const auto bind = [&](const auto& pd) {
    auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_data(pd), pd, 1);
    op->input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc()).input(DNNL_ARG_WEIGHTS, pd.weights_desc());
    op->output(DNNL_ARG_DIFF_SRC, pd.diff_src_desc());
    const TensorDesc y = resolved(s.y, pd.diff_dst_desc()), x = resolved(s.x, pd.diff_src_desc());
    op->tensors_are({y, resolved(s.w, pd.weights_desc()), x});
    const auto direct = s.forward({{s.window.stride.h, s.window.stride.h},
                                   {s.window.padding.h, s.window.padding.h},
                                   dnnl::algorithm::convolution_direct});
    survey.add("ours", make_winograd(Conv2dBackwardData{y, resolved(s.w, direct.weights_desc()), x, s.window}, kRules));
    return op;
  };
  const auto make_pd = [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_data(dp::kernels::dnnl_engine(), requested(s.x), requested(s.w), requested(s.y),
                                           shape, s.forward(shape), op_attributes());
  };
  survey.add_dnnl(s.window, make_pd, bind);
  return survey;
}

Survey weights(const Shapes& s) {
  Survey survey(3);
  survey.add("rules", make(Conv2dBackwardWeights{s.x, s.y, s.dw, s.window, false}, kRules));
  const auto bind = [&](const auto& pd) {
    auto op = std::make_unique<DnnlOp>(dnnl::convolution_backward_weights(pd), pd, 1);
    op->input(DNNL_ARG_SRC, pd.src_desc()).input(DNNL_ARG_DIFF_DST, pd.diff_dst_desc());
    op->output(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()).skip(positions<Conv2dBackwardWeights>().db);
    const TensorDesc x = resolved(s.x, pd.src_desc()), y = resolved(s.y, pd.diff_dst_desc()),
                     dw = resolved(s.dw, pd.diff_weights_desc());
    op->tensors_are({x, y, dw});
    survey.add("ours", make_winograd(Conv2dBackwardWeights{x, y, dw, s.window, false}, kRules));
    survey.add("ours", make_amx_backward_weights({x, y, dw, s.window, false}, kRules));
    return op;
  };
  const auto make_pd = [&](const ConvShape& shape) {
    return dnnl_compat::conv_backward_weights(dp::kernels::dnnl_engine(), requested(s.x), requested(s.dw), DnnlDesc(),
                                              requested(s.y), shape, s.forward(shape), op_attributes());
  };
  survey.add_dnnl(s.window, make_pd, bind);
  return survey;
}

struct Pass {
  const char* name;
  Survey (*survey)(const Shapes&);
};
constexpr Pass kPasses[] = {{"forward", forward}, {"data", data}, {"weights", weights}};

void print(const Survey& survey, const Layer& layer, std::int64_t batch, const Pass& pass, DType type) {
  std::printf("%s %-7s %2d x %4d -> %4d, %2d pixels, %dx%d/%d:", type == DType::f32 ? "f32 " : "bf16", pass.name,
              static_cast<int>(batch), static_cast<int>(layer.in), static_cast<int>(layer.out),
              static_cast<int>(layer.pixels), layer.window.kernel.h, layer.window.kernel.h, layer.window.stride.h);
  for (const Candidate& c : survey.all())
    std::printf(" %s%s %.0f", c.name.c_str(), &c == &survey.rules() ? (" " + c.op->implementation()).c_str() : "",
                1e6 * c.seconds);
  std::printf(" us: %.2f\n", survey.rules().seconds / survey.best().seconds);
  std::fflush(stdout);
}

// Returns the time of the rules' choices divided by that of the best ones.
double survey_all(DType type, const std::vector<std::int64_t>& batches) {
  double chosen = 0, possible = 0;
  for (const std::int64_t batch : batches)
    for (const Layer& layer : kLayers)
      for (const Pass& pass : kPasses) {
        if (batch * layer.pixels * layer.pixels > 64 * 32 * 32) continue;  // takes too long
        Survey survey = pass.survey(Shapes(layer, batch, type));
        survey.measure();
        print(survey, layer, batch, pass, type);
        chosen += survey.rules().seconds;
        possible += survey.best().seconds;
      }
  return chosen / possible;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::int64_t> batches{1, 8, 16, 32, 64};
  CLI::App app(
      "Times every algorithm for the convolutions of mnist_convnet, ResNet18 and ResNet50 on one thread of a CPU, "
      "beside "
      "the one that dp chooses by rules.");
  app.add_option("-b,--batches", batches, "images in a batch")->capture_default_str()->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  for (const DType type : {DType::f32, DType::bf16}) {
    if (type == DType::bf16 && !has_bfloat16()) continue;
    const double ratio = survey_all(type, batches);
    std::printf("%s: the chosen algorithms take %.3f times as long as the best ones\n",
                type == DType::f32 ? "float32" : "bfloat16", ratio);
  }
  return 0;
}
