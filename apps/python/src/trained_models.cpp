// Trained networks, weights in files, and models as JSON.
#include <dp/checkpoint.h>
#include <dp/onnx.h>
#include <dp/trained_model.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <filesystem>

#include "convert.h"

namespace dp_python {
namespace {

using Path = std::filesystem::path;

using Numbers = std::optional<std::vector<float>>;

dp::TrainedModel trained_model(const dp::Model& model, const nb::dict& weights, const std::vector<std::string>& classes,
                               const Numbers& mean, const Numbers& std) {
  dp::TrainedModel network{.model = model, .weights = tensors_of(weights), .classes = classes};
  if (mean.has_value() != std.has_value()) refuse("give both mean and std, or neither");
  if (mean) network.preprocessing = dp::Preprocessing{.normalization = {*mean, *std}};
  return network;
}

dp::TrainedModel from_onnx(const Path& path) {
  dp::OnnxImport imported = [&] {
    const nb::gil_scoped_release release;
    return dp::read_onnx(path.string());
  }();
  for (const std::string& notice : imported.notices)
    if (PyErr_WarnEx(PyExc_UserWarning, notice.c_str(), 1) != 0) nb::raise_python_error();
  return std::move(imported.network);
}

void bind_trained_model(nb::module_& m) {
  nb::class_<dp::TrainedModel>(m, "TrainedModel",
                               "A trained network with its weights, class names, and how its images are prepared.")
      .def(nb::new_(&trained_model), "model"_a, "weights"_a, "classes"_a = std::vector<std::string>(),
           "mean"_a = nb::none(), "std"_a = nb::none(),
           "weights: a state dict. classes: names of the outputs. mean, std: of x / 255, per channel.")
      .def_ro("model", &dp::TrainedModel::model, "The network.")
      .def_prop_ro(
          "weights", [](const dp::TrainedModel& self) { return arrays_of(self.weights); },
          "Parameters and buffers as numpy arrays, which share the memory of this object.")
      .def_ro("classes", &dp::TrainedModel::classes, "Names of the outputs; empty: unknown.")
      .def_prop_ro(
          "mean",
          [](const dp::TrainedModel& self) {
            return self.preprocessing ? std::optional(self.preprocessing->normalization.mean) : std::nullopt;
          },
          "Of x / 255, per channel; None: unknown.")
      .def_prop_ro(
          "std",
          [](const dp::TrainedModel& self) {
            return self.preprocessing ? std::optional(self.preprocessing->normalization.std) : std::nullopt;
          },
          "Of x / 255, per channel; None: unknown.")
      .def("__repr__", [](const dp::TrainedModel& self) {
        return nb::str("<dp.TrainedModel {}: {} to {}>")
            .format(self.model.name(), self.model.input(), self.model.output());
      });
  m.def(
      "read_trained_model",
      [](const Path& path, const std::string& weights) {
        const auto which = choose<dp::WeightsOf>("weights", weights, {"automatic", "last_step", "average"});
        const nb::gil_scoped_release release;
        return dp::read_trained_model(path.string(), which);
      },
      "path"_a, "weights"_a = "automatic",
      "Reads a run folder, a checkpoint folder, or a file with weights that dp saved.\n\nweights: last_step, average, "
      "or automatic (their moving average, if there is one).");
  m.def("from_onnx", &from_onnx, "path"_a,
        "Reads a network that PyTorch exported to ONNX, with its weights. Warns of what differs from the file.");
  m.def(
      "write_onnx",
      [](const Path& path, const dp::TrainedModel& network, bool fold_batch_norm, bool dynamic_batch) {
        const nb::gil_scoped_release release;
        dp::write_onnx(path.string(), network, {.fold_batch_norm = fold_batch_norm, .dynamic_batch = dynamic_batch});
      },
      "path"_a, "network"_a, nb::kw_only(), "fold_batch_norm"_a = false, "dynamic_batch"_a = false,
      "Writes a TrainedModel to an ONNX file, as it evaluates.\n\nfold_batch_norm: into the layer before it. "
      "dynamic_batch: any number of images; False: one image at a time.");
}

}  // namespace

void bind_trained_models(nb::module_& m) {
  bind_trained_model(m);
  m.def(
      "model_to_json", [](const dp::Model& model) { return dp::to_json(model); }, "model"_a,
      "The layers of a model, without weights.");
  m.def(
      "model_from_json", [](const std::string& json) { return dp::model_from_json(json); }, "json"_a,
      "The model of model_to_json().");
  const auto read = [](const auto& function) {
    Named tensors;
    {
      const nb::gil_scoped_release release;
      tensors = function();
    }
    return arrays_of(tensors);
  };
  m.def(
      "read_safetensors",
      [read](const Path& path) { return read([&] { return dp::read_safetensors(path.string()); }); }, "path"_a,
      "The tensors of a safetensors file as numpy arrays, by name.");
  m.def(
      "read_torch_file",
      [read](const Path& path, const std::string& entry) {
        return read([&] { return dp::read_torch_file(path.string(), entry); });
      },
      "path"_a, "entry"_a = "",
      "The weights in a file of torch.save as numpy arrays, by name, without PyTorch. entry: of a checkpoint.");
  m.def(
      "write_safetensors",
      [](const Path& path, const nb::dict& arrays, const std::map<std::string, std::string>& metadata) {
        const Named tensors = tensors_of(arrays);
        const nb::gil_scoped_release release;
        dp::write_safetensors(path.string(), tensors, metadata);
      },
      "path"_a, "tensors"_a, "metadata"_a = std::map<std::string, std::string>{{"format", "pt"}},
      "Writes arrays to a safetensors file, which PyTorch reads.");
  m.def(
      "weights_sha256", [](const nb::dict& arrays) { return dp::weights_sha256(tensors_of(arrays)); }, "state_dict"_a,
      "SHA-256 over name, type, shape and bytes of each tensor.");
}

}  // namespace dp_python
