// Predictor.
#include <dp/predictor.h>
#include <nanobind/stl/filesystem.h>
#include <algorithm>
#include <atomic>
#include <filesystem>

#include "compute_thread.h"
#include "options.h"

namespace dp_python {
namespace {

class PythonPredictor : public ClosedAtExit {
 public:
  PythonPredictor(const dp::TrainedModel& network, const nb::object& devices, const nb::object& scoring,
                  std::int64_t batch_size, int workers, const nb::kwargs& arguments)
      : thread_(std::make_shared<ComputeThread>()) {
    dp::PredictorOptions options{.batch_size = batch_size, .workers = workers};
    options.parallel = parallel_options(devices, arguments, thread_);
    options.parallel.stop = &stop_;
    if (!scoring.is_none())
      options.scoring = choose<dp::Scoring>("scoring", nb::cast<std::string>(scoring), {"softmax", "sigmoid", "plain"});
    predictor_ = make_on(thread_, [&] { return new dp::Predictor(network, options); });
  }
  ~PythonPredictor() override { PythonPredictor::close(); }
  void close() override { predictor_.reset(); }
  dp::Predictor& operator*() {
    if (!predictor_) refuse("the Predictor is closed: the interpreter ends");
    return *predictor_;
  }

  NumpyArray predict(const Array& images) {
    const dp::Tensor given = tensor_of(images);
    const dp::Tensor kept = given.dtype() == dp::DType::u8 ? given : floats_of(images, "images");
    return array_of(thread_->get([&] { return (**this).predict(kept); }));
  }
  NumpyArray predict_file(const std::filesystem::path& path) {
    return array_of(thread_->get([&] { return (**this).predict_file(path.string()); }));
  }
  void predict_files(const std::vector<std::filesystem::path>& files, const nb::callable& on_file) {
    const std::vector<std::string> names(files.begin(), files.end());
    struct Reset {
      std::atomic<int>& stop;
      ~Reset() { stop.store(0); }
    } const reset{stop_};
    const auto each = [&](const dp::FilePrediction& file) {
      thread_->call_back([&] {
        const std::string& path = names[static_cast<std::size_t>(file.index)];
        if (file.outputs.empty())
          on_file(path, nb::none(), file.fault);
        else
          on_file(path, array_of(copy_of(file.outputs)), nb::none());
      });
    };
    thread_->run([&] { (**this).predict_files(names, each); }, &stop_);
  }
  std::vector<std::pair<std::string, double>> top(const Array& outputs, std::int64_t count) {
    const dp::Tensor values = floats_of(outputs, "outputs");
    std::vector<std::pair<std::string, double>> named;
    for (const dp::Score& score : (**this).top(values, count))
      named.emplace_back((**this).name_of(score.output), score.value);
    return named;
  }

 private:
  static dp::Tensor copy_of(std::span<const float> values) {
    dp::Tensor tensor({static_cast<std::int64_t>(values.size())}, dp::DType::f32);
    std::ranges::copy(values, tensor.data<float>());
    return tensor;
  }

  std::shared_ptr<ComputeThread> thread_;
  std::atomic<int> stop_{0};
  std::shared_ptr<dp::Predictor> predictor_;
};

}  // namespace

void bind_predictor(nb::module_& m) {
  nb::class_<PythonPredictor>(m, "Predictor", "Predictions of a trained network, on every device.")
      .def(nb::init<const dp::TrainedModel&, const nb::object&, const nb::object&, std::int64_t, int,
                    const nb::kwargs&>(),
           "network"_a, "devices"_a = nb::none(), "scoring"_a = nb::none(), "batch_size"_a = 128, "workers"_a = 0,
           "options"_a,
           "devices: None: every GPU, or else one CPU replica with all cores. scoring: what the outputs mean: softmax, "
           "sigmoid or plain; None: as the loss that is recorded, or else softmax. batch_size, workers: of "
           "predict_files(); threads that decode images, 0: chosen. options: see dp.help_options('DataParallel').")
      .def("predict", &PythonPredictor::predict, "images"_a,
           "The outputs (B, outputs), before the activation, copied to the host. images: (B, C, H, W), float32 as the "
           "network reads them, or uint8, which are normalised first.")
      .def("predict_file", &PythonPredictor::predict_file, "path"_a,
           "The outputs for an image file, prepared as in an evaluation.")
      .def("predict_files", &PythonPredictor::predict_files, "files"_a, "on_file"_a,
           "The same for many files, in batches. Calls on_file(path, outputs, fault) for each, in order: outputs is "
           "None and fault a text if the file cannot be read.")
      .def("top", &PythonPredictor::top, "outputs"_a, "count"_a = 5,
           "The `count` largest of the outputs of an image: class, or number of the output, and probability. With "
           "scoring='plain' all outputs, in their order, and their values.");
}

}  // namespace dp_python
